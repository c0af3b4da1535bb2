//! A disk that says no: failed syncs, full disks. F33, F35.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Mutex;

use super::*;

/// A step that the journal asked of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Write,
    Cut,
    Sync,
    Rename,
    SyncFolder,
}

/// A disk that does as it is told, notes what it was asked, and fails where a test says so.
#[derive(Clone, Default)]
struct Faulty(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    asked: Vec<Step>,
    /// Steps that fail once, one after the other.
    once: VecDeque<(Step, io::ErrorKind)>,
    /// Steps that fail whenever they are asked for.
    always: Vec<(Step, io::ErrorKind)>,
}

impl Faulty {
    fn ask(&self, step: Step) -> io::Result<()> {
        let mut script = self.0.lock().unwrap();
        script.asked.push(step);
        if let Some((_, kind)) = script.always.iter().find(|(failing, _)| *failing == step) {
            return Err((*kind).into());
        }
        match script.once.front() {
            Some((failing, kind)) if *failing == step => {
                let kind = *kind;
                script.once.pop_front();
                Err(kind.into())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Lets these steps fail once each, in this order.
    fn fail_once(&self, fails: &[(Step, io::ErrorKind)]) {
        *self.0.lock().unwrap() =
            Script { once: fails.iter().copied().collect(), ..Script::default() };
    }

    fn fail_always(&self, fails: &[(Step, io::ErrorKind)]) {
        *self.0.lock().unwrap() = Script { always: fails.to_vec(), ..Script::default() };
    }

    fn heal(&self) {
        *self.0.lock().unwrap() = Script::default();
    }

    fn asked(&self) -> Vec<Step> {
        self.0.lock().unwrap().asked.clone()
    }
}

impl Disk for Faulty {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        self.ask(Step::Create)?;
        RealDisk.create(path)
    }

    /// A write that fails has written the half of it.
    fn write(&mut self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        let asked = self.ask(Step::Write);
        let part = if asked.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        RealDisk.write(file, at, part)?;
        asked
    }

    fn cut(&mut self, file: &File, length: u64) -> io::Result<()> {
        self.ask(Step::Cut)?;
        RealDisk.cut(file, length)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        self.ask(Step::Sync)?;
        RealDisk.sync(file)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.ask(Step::Rename)?;
        RealDisk.rename(from, to)
    }

    fn sync_folder(&mut self, folder: &Path) -> io::Result<()> {
        self.ask(Step::SyncFolder)?;
        RealDisk.sync_folder(folder)
    }
}

fn open_faulty(folder: &Path, disk: &Faulty) -> (Journal, Vec<(Mark, Entry)>) {
    let settings = Settings { limit: LIMIT, tidy_after: NEVER };
    Journal::open_with(folder, settings, disk.clone(), entropy()).unwrap()
}

use io::ErrorKind::{Other, StorageFull};

/// F33: after a failed sync the next one may lie, so everything is written anew first.
#[tokio::test]
async fn after_a_failed_sync_nothing_is_acknowledged_before_a_new_file() {
    use Step::{Create, Rename, Sync, SyncFolder, Write};
    let folder = folder();
    let disk = Faulty::default();
    let (journal, _) = open_faulty(folder.path(), &disk);
    journal.append(&entry(1)).await.unwrap();
    disk.fail_once(&[(Sync, Other)]);
    journal.append(&entry(2)).await.unwrap();
    let expected = [Write, Sync, Create, Write, Sync, Rename, SyncFolder, Write, Sync];
    assert_eq!(disk.asked(), expected);
    disk.heal();
    journal.append(&entry(3)).await.unwrap();
    assert_eq!(disk.asked(), [Write, Sync], "and then as usual");
    drop(journal);
    assert_eq!(waiting(folder.path()), entries(1..4));
}

/// F33: while no file can be synced, nothing is acknowledged; what was stays.
#[tokio::test]
async fn a_disk_that_cannot_sync_takes_nothing_back() {
    let folder = folder();
    let disk = Faulty::default();
    let (journal, _) = open_faulty(folder.path(), &disk);
    let first = journal.append(&entry(1)).await.unwrap();
    journal.append(&entry(2)).await.unwrap();
    for step in [Step::Sync, Step::SyncFolder, Step::Rename, Step::Create] {
        disk.fail_always(&[(Step::Sync, Other), (step, Other)]);
        for number in 10..13 {
            let error = journal.append(&entry(number)).await.unwrap_err();
            assert!(error.to_string().contains("check its disk"), "{step:?}: {error}");
        }
    }
    journal.drained(first).await.expect("that can wait");
    disk.heal();
    journal.append(&entry(3)).await.expect("the disk is well again");
    drop(journal);
    assert_eq!(waiting(folder.path()), entries([2, 3]));
}

/// A folder whose new name could not be synced may come back with the old file.
#[tokio::test]
async fn a_new_file_counts_only_when_its_name_is_synced() {
    use Step::{Create, Rename, Sync, SyncFolder, Write};
    let folder = folder();
    let disk = Faulty::default();
    let (journal, _) = open_faulty(folder.path(), &disk);
    journal.append(&entry(1)).await.unwrap();
    disk.fail_once(&[(Sync, Other), (SyncFolder, Other)]);
    journal.append(&entry(2)).await.unwrap_err();
    let tried = [Write, Sync, Create, Write, Sync, Rename, SyncFolder];
    assert_eq!(disk.asked(), tried);
    disk.heal();
    journal.append(&entry(3)).await.unwrap();
    assert_eq!(disk.asked(), [Create, Write, Sync, Rename, SyncFolder, Write, Sync]);
    drop(journal);
    assert_eq!(waiting(folder.path()), entries([1, 3]));
}

/// F35: a full disk is an error with a name, and what was acknowledged stays.
#[tokio::test]
async fn a_full_disk_refuses_and_keeps_what_it_has() {
    let folder = folder();
    let disk = Faulty::default();
    let (journal, _) = open_faulty(folder.path(), &disk);
    journal.append(&entry(4)).await.unwrap();
    let length = || std::fs::metadata(folder.path().join("journal")).unwrap().len();
    let before = length();
    disk.fail_always(&[(Step::Write, StorageFull)]);
    for number in 10..14 {
        let error = journal.append(&entry(number)).await.unwrap_err();
        assert!(matches!(error, JournalError::DiskFull(_)), "{error}");
        assert_eq!(error.to_string(), "the disk of the journal is full: free some space");
        assert_eq!(length(), before, "half a frame is taken back");
    }
    assert!(!disk.asked().contains(&Step::Create), "a copy would need even more space");
    disk.heal();
    journal.append(&entry(5)).await.unwrap();
    disk.fail_always(&[(Step::Write, StorageFull), (Step::Cut, Other)]);
    journal.append(&entry(14)).await.unwrap_err();
    disk.heal();
    journal.append(&entry(6)).await.expect("half a frame is left behind with the old file");
    assert_eq!(journal.damaged(), 0);
    drop(journal);
    assert_eq!(waiting(folder.path()), entries([4, 5, 6]));
}

/// F35: if there is something to get rid of, a full disk is not the end.
#[tokio::test]
async fn a_full_disk_makes_the_journal_get_rid_of_what_is_drained() {
    let folder = folder();
    let disk = Faulty::default();
    let (journal, _) = open_faulty(folder.path(), &disk);
    let mark = journal.append(&large_entry(1, 100_000)).await.unwrap();
    journal.append(&entry(2)).await.unwrap();
    journal.drained(mark).await.unwrap();
    disk.fail_once(&[(Step::Write, StorageFull)]);
    journal.append(&entry(3)).await.unwrap();
    drop(journal);
    assert_eq!(waiting(folder.path()), entries([2, 3]));
}

/// F35: what waits can be drained even if there is no space for anything else.
#[tokio::test]
async fn a_full_disk_at_the_start_does_not_keep_the_entries_back() {
    let folder = folder();
    let disk = Faulty::default();
    let (journal, _) = open_faulty(folder.path(), &disk);
    journal.append(&entry(1)).await.unwrap();
    journal.append(&entry(2)).await.unwrap();
    drop(journal);

    disk.fail_always(&[(Step::Create, StorageFull)]);
    let (journal, found) = open_faulty(folder.path(), &disk);
    assert_eq!(found.len(), 2);
    let error = journal.append(&entry(3)).await.unwrap_err();
    assert!(matches!(error, JournalError::DiskFull(_)), "{error}");
    journal.drained(found[0].0).await.unwrap();
    disk.heal();
    journal.append(&entry(4)).await.unwrap();
    drop(journal);
    assert_eq!(waiting(folder.path()), entries([2, 4]));

    let empty = tempfile::tempdir().unwrap();
    disk.fail_always(&[(Step::Create, StorageFull)]);
    let settings = Settings { limit: LIMIT, tidy_after: NEVER };
    let refused = Journal::open_with(empty.path(), settings, disk, entropy());
    assert!(matches!(refused, Err(JournalError::DiskFull(_))), "nothing to drain");
}

/// Many callers share a sync.
#[tokio::test]
async fn a_hundred_appends_need_fewer_syncs() {
    let folder = folder();
    let disk = Faulty::default();
    let (journal, _) = open_faulty(folder.path(), &disk);
    disk.heal();
    let all = entries(0..100);
    // All are queued before the first is waited for, as if a hundred tasks came at once.
    let mut appends: Vec<_> = all.iter().map(|entry| Box::pin(journal.append(entry))).collect();
    let mut context = Context::from_waker(Waker::noop());
    for append in &mut appends {
        drop(append.as_mut().poll(&mut context));
    }
    drop(appends);
    drop(journal);
    let syncs = disk.asked().into_iter().filter(|step| *step == Step::Sync).count();
    assert!((1..100).contains(&syncs), "{syncs}");
    assert_eq!(waiting(folder.path()), all);
}
