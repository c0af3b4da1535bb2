//! What was erased is in no file of the store any more: not in the database file, not in its log.
//! I55, T19.

#![cfg(feature = "sqlite")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use oncekey::core::saved::{Headers, NotKept, Saved};
use oncekey::core::{
    Answer, Claim, Completion, Erase, Erased, ErrorKind, Fingerprint, FingerprintRules, Grant,
    KeyId, Lease, Origin, State, Store, Subject, Write,
};
use oncekey::store::sqlite::SqliteStore;
use tempfile::TempDir;

use self::common::child::{self, Process};
use self::common::{Bits, LONG, block_on, file, key_id, win};

/// Written in five pieces.
const LARGE: usize = 300 * 1024;

/// Where a canary sits: no other text of any file looks like it.
const PERCHES: [&str; 6] = ["key", "scope", "place", "header", "small", "large"];

/// A file in a folder of its own, and a store on it.
struct Scene {
    store: SqliteStore,
    path: PathBuf,
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("oncekey.db");
        let store = SqliteStore::open(&path).expect("a new file opens");
        Self { store, path, folder }
    }

    fn own(&self, key: u64) -> (Claim, Lease) {
        own(&self.store, key)
    }

    fn finish(&self, key: u64, answer: Answer) -> KeyId {
        finish(&self.store, key, answer)
    }

    fn erase(&self, id: &KeyId) -> Erased {
        block_on(self.store.erase(id)).expect("an erasure")
    }

    /// Which of the canaries of a key are in any file of the folder.
    fn sings(&self, key: u64) -> Vec<&'static str> {
        sings(self.folder.path(), key)
    }
}

fn own(store: &SqliteStore, key: u64) -> (Claim, Lease) {
    let claim = claim(key);
    let (lease, grant) = block_on(win(store, &claim));
    assert_eq!(grant, Grant::Fresh);
    (claim, lease)
}

fn finish(store: &SqliteStore, key: u64, answer: Answer) -> KeyId {
    let (claim, lease) = own(store, key);
    let write = block_on(store.complete(&lease, &completion(answer)));
    assert_eq!(write.expect("a completion"), Write::Applied);
    claim.id
}

/// Six canaries sit in a record: in its key, its scope and its places, in a header, and in a body.
fn canary(perch: &str, key: u64) -> String {
    format!("canary-{perch}-{key:06}")
}

/// Which canaries of which keys are in any file of the folder.
fn songs(folder: &Path) -> BTreeSet<(u64, &'static str)> {
    let mut songs = BTreeSet::new();
    for file in fs::read_dir(folder).expect("a folder") {
        let bytes = fs::read(file.expect("a file").path()).expect("it can be read");
        for (place, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'-') {
            let rest = &bytes[place + 1..];
            for perch in PERCHES.into_iter().filter(|perch| rest.starts_with(perch.as_bytes())) {
                let digits = rest.get(perch.len() + 1..perch.len() + 7).unwrap_or_default();
                let key = str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
                songs.extend(key.map(|key| (key, perch)));
            }
        }
    }
    songs
}

/// Which of the canaries of a key are in any file of the folder.
fn sings(folder: &Path, key: u64) -> Vec<&'static str> {
    let songs = songs(folder);
    PERCHES.into_iter().filter(|perch| songs.contains(&(key, perch))).collect()
}

fn claim(key: u64) -> Claim {
    let body = format!(r#"{{"amount":1,"{}":2}}"#, canary("place", key));
    let subject = Subject {
        method: "POST",
        path: b"/v1/charges",
        query: None,
        content_type: Some(b"application/json"),
        headers: &[],
        body: body.as_bytes(),
    };
    let (fingerprint, places) = Fingerprint::v1(&subject, &FingerprintRules::default());
    let origin = Origin {
        key: canary("key", key).into(),
        scope: canary("scope", key).into(),
        ..Origin::default()
    };
    Claim { fingerprint, places, origin, ..common::claim(key, key) }
}

/// A body that is nothing but canaries, so that no piece of it is without.
fn answer(key: u64, perch: &str, size: usize) -> Answer {
    let mut headers = Headers::new();
    headers.push(b"x-name", canary("header", key).as_bytes()).expect("a header value");
    let body: Vec<u8> = canary(perch, key).bytes().cycle().take(size).collect();
    Answer::Kept(Saved { status: 201, headers, body: Bytes::from(body) })
}

const fn completion(answer: Answer) -> Completion {
    Completion { answer, retention: LONG, linger: LONG }
}

#[test]
fn what_was_erased_is_in_no_file() {
    let scene = Scene::new();
    let small = scene.finish(1, answer(1, "small", 700));
    let large = scene.finish(2, answer(2, "large", LARGE));
    assert_eq!(scene.sings(1), ["key", "scope", "place", "header", "small"]);
    assert_eq!(scene.sings(2), ["key", "scope", "place", "header", "large"]);
    assert_eq!(scene.erase(&small), Erased::Blank);
    assert_eq!(scene.sings(1), [""; 0], "what was erased is gone at once");
    assert_eq!(scene.sings(2).len(), 5, "and nothing else is");
    assert_eq!(scene.erase(&large), Erased::Blank);
    assert_eq!(scene.sings(2), [""; 0], "with every piece of its body");
    let raw = file::open(&scene.path);
    assert_eq!(file::number(&raw, "SELECT count(*) FROM oncekey_pieces"), 0);
    drop(raw);
    // More traffic, and what goes with the end of the store, bring nothing back.
    scene.finish(3, answer(3, "small", 700));
    let Scene { store, path, folder } = scene;
    drop(store);
    assert_eq!((sings(folder.path(), 1), sings(folder.path(), 2)), (vec![], vec![]));
    file::check(&path);
}

/// An answer that was never completed is in the file, too.
#[test]
fn what_was_written_of_an_unfinished_answer_is_erased() {
    let scene = Scene::new();
    let (claim, lease) = scene.own(1);
    let large = completion(answer(1, "large", LARGE));
    // The caller gives up after the second piece.
    block_on(async {
        let mut complete = std::pin::pin!(scene.store.complete(&lease, &large));
        for _ in 0..3 {
            let waited = std::future::poll_fn(|context| {
                let _ = complete.as_mut().poll(context);
                std::task::Poll::Ready(())
            });
            waited.await;
            tokio::task::yield_now().await;
        }
    });
    // Its last operation may still be queued; it is done before the next one is.
    assert_eq!(block_on(scene.store.send(&lease)).expect("a send"), Write::Applied);
    assert_eq!(scene.sings(1), ["key", "scope", "place", "large"]);
    assert_eq!(scene.erase(&claim.id), Erased::Unfinished);
    assert_eq!(scene.sings(1), [""; 0]);
    // The owner completes all the same, and what it answers can be erased as well.
    assert_eq!(block_on(scene.store.complete(&lease, &large)).expect("a write"), Write::Applied);
    assert_eq!(scene.sings(1), ["header", "large"]);
    assert_eq!(scene.erase(&claim.id), Erased::Blank);
    assert_eq!(scene.sings(1), [""; 0]);
}

/// Whoever asks for a key to be erased whose record has gone before finds nothing of it either.
#[test]
fn what_was_released_before_is_in_no_file_either() {
    let scene = Scene::new();
    let (claim, lease) = scene.own(1);
    assert_eq!(block_on(scene.store.release(&lease)).expect("a release"), Write::Applied);
    assert_eq!(scene.sings(1), ["key", "scope", "place"], "it is still in the log");
    assert_eq!(scene.erase(&claim.id), Erased::Absent);
    assert_eq!(scene.sings(1), [""; 0]);
}

/// Another process that has the file open, and does nothing, holds nothing up.
#[test]
fn another_store_on_the_file_holds_nothing_up() {
    let scene = Scene::new();
    let id = scene.finish(1, answer(1, "small", 700));
    let other = SqliteStore::open(&scene.path).expect("the file opens");
    let found = block_on(other.get(&id)).expect("a record");
    assert!(found.is_some());
    assert_eq!(scene.erase(&id), Erased::Blank);
    assert_eq!(scene.sings(1), [""; 0]);
    assert_eq!(block_on(other.erase(&id)).expect("an erasure"), Erased::Blank);
}

/// While somebody reads the file as it was, the log cannot be emptied. Whoever erases is told, and
/// nobody else is held up.
#[test]
fn a_reader_that_stays_holds_an_erasure_up_and_nothing_else() {
    let scene = Scene::new();
    let id = scene.finish(1, answer(1, "small", 700));
    let reader = file::open(&scene.path);
    reader.execute_batch("BEGIN").expect("a transaction");
    assert_eq!(file::number(&reader, "SELECT count(*) FROM oncekey_records"), 1);
    let error = block_on(async {
        let claims = async {
            for key in 10..60 {
                win(&scene.store, &common::claim(key, key)).await;
            }
        };
        let (erased, ()) = tokio::join!(scene.store.erase(&id), claims);
        erased.expect_err("its bytes are still in the log")
    });
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert!(error.to_string().contains("erase it again"), "{error}");
    assert!(!scene.sings(1).is_empty(), "it said so because it is so");
    let found = block_on(scene.store.get(&id)).expect("a record").expect("it is there");
    assert_eq!(found.origin.key.as_bytes(), b"", "but the record is blank");
    reader.execute_batch("COMMIT").expect("the reader goes");
    assert_eq!(scene.erase(&id), Erased::Blank);
    assert_eq!(scene.sings(1), [""; 0]);
}

/// F30: a process that dies takes no erasure back, and leaves none half done.
#[test]
fn kill_9_takes_no_erasure_back() {
    let mut bits = Bits::seeded(55);
    for _ in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncekey.db");
        let mut process = Process::start(&mut child::command("erase", &path, 0));
        process.expect("ready");
        let heard = 1 + bits.index(30);
        let mut told: Vec<String> = std::iter::from_fn(|| process.hear()).take(heard).collect();
        (0..bits.below(200_000)).for_each(|_| std::hint::spin_loop());
        process.kill();
        told.extend(std::iter::from_fn(|| process.hear()));
        let erased: BTreeSet<u64> = told.iter().map(|key| key.parse().unwrap()).collect();
        assert!(erased.len() >= heard);
        // Before anybody opens the file, and so tidies up.
        let singing: BTreeSet<u64> = songs(folder.path()).into_iter().map(|(key, _)| key).collect();
        assert!(erased.is_disjoint(&singing), "{erased:?} were erased, {singing:?} sing");
        let store = SqliteStore::open(&path).unwrap();
        for key in 1..=KEYS {
            let record = block_on(store.get(&key_id(key))).unwrap().expect("it is there");
            let State::Done { answer, .. } = record.state else { panic!("it is done") };
            let is_blank = record.origin.key.as_bytes().is_empty();
            let is_erased = matches!(answer, Answer::Tombstone(stands)
                if stands.reason == NotKept::Erased);
            assert_eq!(is_blank, is_erased, "key {key} is half erased");
            assert!(is_erased || !erased.contains(&key), "key {key} is back");
        }
        drop(store);
        file::check(&path);
    }
}

/// How many keys the process that is killed has to erase.
const KEYS: u64 = 60;

/// Not a test: what the child process does.
#[test]
fn child() {
    let Some(orders) = child::orders() else { return };
    let store = SqliteStore::open(&orders.file).expect("a new file opens");
    for key in 1..=KEYS {
        let (perch, size) = if key.is_multiple_of(8) { ("large", LARGE) } else { ("small", 700) };
        finish(&store, key, answer(key, perch, size));
    }
    child::tell("ready");
    for key in 1..=KEYS {
        let said = block_on(store.erase(&key_id(key))).expect("an erasure");
        assert_eq!(said, Erased::Blank);
        child::tell(&key.to_string());
    }
    child::wait_for_parent();
}

/// A damaged record is not sealed anew: whoever erased it would hide the damage.
#[test]
fn a_damaged_record_is_not_erased() {
    for (size, damage) in [
        (700, "UPDATE oncekey_records SET route = x'00'"),
        (700, "UPDATE oncekey_answers SET headers = x''"),
        (LARGE, "UPDATE oncekey_answers SET outcome = zeroblob(16)"),
    ] {
        let scene = Scene::new();
        let id = scene.finish(1, answer(1, "large", size));
        file::open(&scene.path).execute_batch(damage).expect("damage");
        let error = block_on(scene.store.erase(&id)).expect_err(damage);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage}: {error}");
        let error = block_on(scene.store.get(&id)).expect_err(damage);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage}: {error}");
    }
}

/// How many of a hundred erased records may have left a trace in a page that SQLite rebuilt. Without
/// `secure_delete` on every write it is twenty and more.
const MOST_TRACES: usize = 2;

/// SQLite moves rows from page to page when pages fill up or run empty, and may leave a copy in what
/// it does not use of a page. A few of those stay; `VACUUM` takes the last.
#[test]
fn hardly_a_trace_is_left_in_rebuilt_pages_and_none_after_a_vacuum() {
    let scene = Scene::new();
    let mut bits = Bits::seeded(20_251_116);
    let mut erased = Vec::new();
    block_on(async {
        let (mut running, mut done) = (Vec::new(), Vec::new());
        for key in 0..2_000 {
            let claim = claim(key);
            running.push((key, win(&scene.store, &claim).await.0));
            if running.len() < 64 {
                continue;
            }
            // As many at once as a busy server has, and they do not end in the order they began.
            let (key, lease) = running.swap_remove(bits.index(running.len()));
            if bits.below(20) == 0 {
                let write = scene.store.release(&lease).await.expect("a release");
                assert_eq!(write, Write::Applied);
                continue;
            }
            let size = 50 + bits.index(2_000);
            let answer = completion(answer(key, "small", size));
            let write = scene.store.complete(&lease, &answer).await.expect("a completion");
            assert_eq!(write, Write::Applied);
            done.push(key);
        }
        for key in done.into_iter().filter(|key| key.is_multiple_of(5)) {
            let said = scene.store.erase(&key_id(key)).await.expect("an erasure");
            assert_eq!(said, Erased::Blank);
            erased.push(key);
        }
    });
    assert!(erased.len() > 300, "{} were erased", erased.len());
    let traces = |folder: &Path| {
        let singing: BTreeSet<u64> = songs(folder).into_iter().map(|(key, _)| key).collect();
        erased.iter().filter(|key| singing.contains(key)).count()
    };
    let Scene { store, path, folder } = scene;
    let left = traces(folder.path());
    common::say(&format!("{left} of {} erased records left a trace", erased.len()));
    assert!(left * 100 <= erased.len() * MOST_TRACES, "{left} of {}", erased.len());
    drop(store);
    file::open(&path).execute_batch("VACUUM").expect("a vacuum");
    assert_eq!(traces(folder.path()), 0, "after a vacuum");
    file::check(&path);
}
