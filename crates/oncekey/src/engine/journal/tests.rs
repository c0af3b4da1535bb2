//! What a journal promises while everything works, and whom it refuses. Damaged files, failing
//! disks and killed processes have files of their own.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Waker};

use bytes::Bytes;
use oncekey_core::saved::{Headers, NotKept, Tombstone};
use oncekey_core::{Answer, Completion, Fence, KeyId, Lease, Owner, Saved, Timestamp};
use tempfile::TempDir;

use super::*;
use crate::engine::end::End;
use crate::entropy::SystemEntropy;

mod damage;
mod faults;
mod kill;
mod power;

/// Never reached, unless a test is about it.
const NEVER: Duration = Duration::from_secs(3_600);

fn entropy() -> Arc<dyn Entropy> {
    Arc::new(SystemEntropy::default())
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The entry of this number, which no other number gives. Every fourth has a body.
fn entry(number: u64) -> Entry {
    let byte = u8::try_from(number % 251).unwrap();
    let mut id = [byte; 32];
    id[..8].copy_from_slice(&number.to_be_bytes());
    let lease = Lease {
        id: KeyId::from_bytes(id),
        fence: Fence::from_number(i64::try_from(number).unwrap() + 1).unwrap(),
        owner: Owner::from_bytes([byte; 16]),
        until: Timestamp::from_micros(7),
    };
    let tombstone = Tombstone { status: Some(200), reason: NotKept::TooLarge };
    let end = match number % 4 {
        0 => complete(kept(format!("canary {number} ").repeat(9).into_bytes())),
        1 => End::Release,
        2 => End::Unknown,
        _ => complete(Answer::Tombstone(tombstone)),
    };
    Entry { lease, end }
}

/// The number of an entry that [`entry`] made.
fn number_of(entry: &Entry) -> u64 {
    u64::from_be_bytes(*entry.lease.id.as_bytes().first_chunk().unwrap())
}

fn large_entry(number: u64, size: usize) -> Entry {
    Entry { end: complete(kept(vec![7; size])), ..entry(number) }
}

fn kept(body: Vec<u8>) -> Answer {
    let mut headers = Headers::new();
    headers.push(b"content-type", b"application/json").unwrap();
    Answer::Kept(Saved { status: 201, headers, body: Bytes::from(body) })
}

fn complete(answer: Answer) -> End {
    End::Complete(Completion { answer, retention: NEVER, linger: Duration::from_millis(1) })
}

fn open(folder: &Path) -> (Journal, Vec<(Mark, Entry)>) {
    Journal::open(folder, entropy()).unwrap()
}

fn open_with(folder: &Path, limit: u64, tidy_after: Duration) -> (Journal, Vec<(Mark, Entry)>) {
    Journal::open_with(folder, Settings { limit, tidy_after }, RealDisk, entropy()).unwrap()
}

/// What is still to be drained.
fn waiting(folder: &Path) -> Vec<Entry> {
    open(folder).1.into_iter().map(|(_, entry)| entry).collect()
}

fn entries(numbers: impl IntoIterator<Item = u64>) -> Vec<Entry> {
    numbers.into_iter().map(entry).collect()
}

/// Whether any file of the folder holds these bytes.
fn holds(folder: &Path, needle: &str) -> bool {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let contents: Vec<Vec<u8>> = files.map(|file| std::fs::read(file).unwrap()).collect();
    contents.iter().any(|bytes| bytes.windows(needle.len()).any(|part| part == needle.as_bytes()))
}

/// F4.
#[tokio::test]
async fn an_acknowledged_end_is_there_after_reopening() {
    let folder = folder();
    let (journal, found) = open(folder.path());
    assert!(found.is_empty());
    for number in 0..8 {
        journal.append(&entry(number)).await.unwrap();
    }
    drop(journal);
    assert_eq!(waiting(folder.path()), entries(0..8));
    assert_eq!(waiting(folder.path()), entries(0..8), "opening takes nothing away");
}

#[tokio::test]
async fn what_was_drained_does_not_come_back() {
    let folder = folder();
    let (journal, _) = open(folder.path());
    let mut marks = Vec::new();
    for number in 0..6 {
        marks.push(journal.append(&entry(number)).await.unwrap());
    }
    for at in [1, 3, 3, 5] {
        journal.drained(marks[at]).await.unwrap();
    }
    drop(journal);
    let (journal, found) = open(folder.path());
    assert_eq!(found.iter().map(|(_, entry)| number_of(entry)).collect::<Vec<_>>(), [0, 2, 4]);
    // Old and new marks never meet.
    let new = journal.append(&entry(9)).await.unwrap();
    assert!(found.iter().all(|(mark, _)| *mark != new));
    journal.drained(found[1].0).await.unwrap();
    drop(journal);
    assert_eq!(waiting(folder.path()), entries([0, 4, 9]));
}

/// I55: what is drained does not stay on the disk.
#[tokio::test]
async fn content_goes_when_it_is_drained() {
    let folder = folder();
    let (journal, _) = open_with(folder.path(), LIMIT, Duration::ZERO);
    let first = journal.append(&entry(4)).await.unwrap();
    let second = journal.append(&entry(8)).await.unwrap();
    assert!(holds(folder.path(), "canary 4") && holds(folder.path(), "canary 8"));
    journal.drained(first).await.unwrap();
    // The thread tidies before it takes the next job.
    let third = journal.append(&entry(12)).await.unwrap();
    assert!(!holds(folder.path(), "canary 4"), "one drained entry beside others");
    assert!(holds(folder.path(), "canary 8"));
    journal.drained(second).await.unwrap();
    journal.drained(third).await.unwrap();
    drop(journal);
    assert!(!holds(folder.path(), "canary"), "all are drained");
    let length = std::fs::metadata(folder.path().join("journal")).unwrap().len();
    assert_eq!(length, offset(frame::HEADER));
}

#[tokio::test]
async fn a_clean_end_leaves_nothing_that_was_drained() {
    let folder = folder();
    let (journal, _) = open(folder.path());
    let mark = journal.append(&entry(4)).await.unwrap();
    journal.drained(mark).await.unwrap();
    drop(journal);
    assert!(!holds(folder.path(), "canary"));
}

/// The file stays in proportion to what waits in it, without waiting for a quiet moment.
#[tokio::test]
async fn a_file_of_drained_entries_does_not_grow_for_ever() {
    let folder = folder();
    let (journal, _) = open_with(folder.path(), LIMIT, NEVER);
    let stays = journal.append(&entry(4)).await.unwrap();
    for number in 0..40 {
        let mark = journal.append(&large_entry(number, 200_000)).await.unwrap();
        journal.drained(mark).await.unwrap();
    }
    let length = std::fs::metadata(folder.path().join("journal")).unwrap().len();
    assert!(length < 3_000_000, "{length}");
    assert!(journal.waiting_bytes() < 1_000);
    drop(journal);
    let found = open(folder.path()).1;
    assert_eq!(found, [(stays, entry(4))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn many_appends_at_once_are_all_kept() {
    let folder = folder();
    let (journal, _) = open(folder.path());
    let journal = Arc::new(journal);
    let tasks: Vec<_> = (0..32)
        .map(|task| {
            let journal = Arc::clone(&journal);
            tokio::spawn(async move {
                for number in task * 20..(task + 1) * 20 {
                    let mark = journal.append(&entry(number)).await.unwrap();
                    if number % 5 == 0 {
                        journal.drained(mark).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    drop(journal);
    let mut found = waiting(folder.path());
    found.sort_by_key(number_of);
    assert_eq!(found, entries((0..640).filter(|number| number % 5 != 0)));
}

/// Dropping the future is like a crash of the caller, and not of the journal.
#[tokio::test]
async fn an_append_that_was_given_up_is_kept() {
    let folder = folder();
    let (journal, _) = open(folder.path());
    for number in 0..20 {
        let entry = entry(number);
        let mut append = pin!(journal.append(&entry));
        // Whether it is done by now or not: it is not polled again.
        drop(append.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    }
    let last = journal.append(&entry(20)).await.unwrap();
    assert_eq!(last, Mark(21), "the others came first");
    drop(journal);
    assert_eq!(waiting(folder.path()), entries(0..21));
}

#[tokio::test]
async fn a_folder_belongs_to_one_journal() {
    let folder = folder();
    let (journal, _) = open(folder.path());
    journal.append(&entry(1)).await.unwrap();
    let error = Journal::open(folder.path(), entropy()).unwrap_err();
    let JournalError::InUse { process, .. } = &error else { panic!("{error}") };
    assert_eq!(*process, Some(std::process::id()));
    let text = error.to_string();
    assert!(text.contains("give every process a folder of its own"), "{text}");
    assert!(text.contains(folder.path().to_str().unwrap()), "{text}");
    // It was not disturbed.
    journal.append(&entry(2)).await.unwrap();
    drop(journal);
    assert_eq!(waiting(folder.path()), entries([1, 2]));
}

#[tokio::test]
async fn a_full_journal_refuses_and_keeps_what_it_has() {
    let folder = folder();
    let (journal, _) = open_with(folder.path(), 30_000, NEVER);
    let first = journal.append(&large_entry(1, 10_000)).await.unwrap();
    journal.append(&large_entry(2, 10_000)).await.unwrap();
    let error = journal.append(&large_entry(3, 10_000)).await.unwrap_err();
    assert!(matches!(error, JournalError::Full { limit: 30_000 }), "{error}");
    journal.append(&entry(5)).await.expect("a small one still fits");
    journal.drained(first).await.unwrap();
    journal.append(&large_entry(4, 10_000)).await.expect("there is room again");
    drop(journal);

    // What waits from before counts too.
    let (journal, found) = open_with(folder.path(), 30_000, NEVER);
    assert_eq!(found.iter().map(|(_, entry)| number_of(entry)).collect::<Vec<_>>(), [2, 5, 4]);
    assert!(journal.append(&large_entry(6, 10_000)).await.is_err());
}

/// I36: what another version wrote is refused and left alone.
#[tokio::test]
async fn a_file_that_is_not_understood_is_refused_and_left_alone() {
    let folder = folder();
    let (journal, _) = open(folder.path());
    journal.append(&entry(1)).await.unwrap();
    drop(journal);
    let path = folder.path().join("journal");
    let whole = std::fs::read(&path).unwrap();
    let mut newer = whole.clone();
    newer[19] = 2;
    for at in 0..frame::HEADER {
        let mut broken = whole.clone();
        broken[at] ^= 0x10;
        std::fs::write(&path, &broken).unwrap();
        let error = Journal::open(folder.path(), entropy()).unwrap_err();
        let expected = match at {
            16..20 => matches!(error, JournalError::Version { .. }),
            _ => matches!(error, JournalError::NoJournal),
        };
        assert!(expected, "byte {at}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), broken);
    }
    for other in [&b""[..], b"x", b"oncekey journal\n", &newer] {
        std::fs::write(&path, other).unwrap();
        let error = Journal::open(folder.path(), entropy()).unwrap_err();
        let advice = ["move it away", "upgrade"];
        assert!(advice.iter().any(|advice| error.to_string().contains(advice)), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), other);
    }
    std::fs::write(&path, whole).unwrap();
    assert_eq!(waiting(folder.path()), entries([1]));
}

#[tokio::test]
async fn only_its_owner_can_read_a_journal() {
    let above = folder();
    let folder = above.path().join("state/journal");
    let (journal, _) = open(&folder);
    journal.append(&entry(1)).await.unwrap();
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(folder.clone()), 0o700);
    assert_eq!(mode(folder.join("journal")), 0o600);
}

/// A file without a name is gone after a restart, so nothing in it counts.
#[tokio::test]
async fn a_deleted_file_is_written_anew_and_a_deleted_folder_is_an_error() {
    let above = folder();
    let folder = above.path().join("journal");
    let (journal, _) = open(&folder);
    journal.append(&entry(1)).await.unwrap();
    std::fs::remove_file(folder.join("journal")).unwrap();
    journal.append(&entry(2)).await.unwrap();
    drop(journal);
    assert_eq!(waiting(&folder), entries([1, 2]));

    let (journal, _) = open(&folder);
    std::fs::rename(&folder, above.path().join("elsewhere")).unwrap();
    let error = journal.append(&entry(3)).await.unwrap_err();
    assert!(matches!(error, JournalError::Moved), "{error}");
    std::fs::create_dir(&folder).unwrap();
    let error = journal.append(&entry(4)).await.unwrap_err();
    assert!(matches!(error, JournalError::Moved), "another folder of this name: {error}");
    std::fs::remove_dir(&folder).unwrap();
    std::fs::rename(above.path().join("elsewhere"), &folder).unwrap();
    journal.append(&entry(5)).await.expect("it is back");
    drop(journal);
    assert_eq!(waiting(&folder), entries([1, 2, 5]));
}

/// I52.
#[tokio::test]
async fn debug_output_hides_what_is_in_it() {
    let folder = folder();
    let (journal, _) = open(folder.path());
    journal.append(&entry(4)).await.unwrap();
    assert!(!format!("{journal:?} {:?}", entry(4)).contains("canary"));
}
