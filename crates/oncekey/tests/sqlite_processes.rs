//! Several processes on one file are one store. F48, I1, I2, I6.

#![cfg(feature = "sqlite")]

mod common;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncekey::clock::SystemClock;
use oncekey::core::wake::{Wake as _, Woken};
use oncekey::core::{
    Claim, Claimed, Clock as _, ErrorKind, Fence, Grant, Lease, ManualClock, StateKind, Store,
    Write,
};
use oncekey::store::sqlite::{SqliteOptions, SqliteStore};

use self::common::child::{self, Process};
use self::common::{answer, completion, file, key_id, owner, win};

const PROCESSES: u64 = 4;
const TASKS: u64 = 4;
const KEYS: u64 = 400;

/// Longer than anything here takes, and shorter than a person's patience.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a caller is held up by a lock before it is told.
const BUSY: Duration = Duration::from_secs(5);

/// Not a test: what the child processes do.
#[test]
fn child() {
    let Some(orders) = child::orders() else { return };
    match orders.role.as_str() {
        "race" => race(&orders.file, orders.number),
        "open" => open_at_once(&orders.file, orders.number),
        "own" => own_and_complete(&orders.file),
        "lock" => lock(&orders.file),
        other => panic!("there is no role {other}"),
    }
}

/// I1, F48: however many processes and tasks want a key, one gets it, and nobody gets an error.
#[test]
fn of_many_processes_one_wins_each_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    let mut processes = start_together("race", &path, PROCESSES);
    processes.iter_mut().for_each(Process::go_on);
    let mut winners = HashMap::new();
    let mut fences = BTreeSet::new();
    for line in processes.into_iter().flat_map(Process::finish) {
        let (key, fence) = line.split_once(' ').expect("a key and a fence");
        let (key, fence): (u64, i64) = (key.parse().unwrap(), fence.parse().unwrap());
        assert_eq!(winners.insert(key, fence), None, "key {key} has two owners");
        assert!(fences.insert(fence), "fence {fence} was granted twice");
    }
    assert_eq!(winners.len(), usize::try_from(KEYS).unwrap(), "every key has an owner");
    file::check(&path);
    let store = SqliteStore::open(&path).unwrap();
    common::block_on(async {
        for (key, fence) in winners {
            let record = store.get(&key_id(key)).await.unwrap().expect("the record is there");
            assert_eq!(record.fence.number(), fence, "key {key}");
        }
    });
}

/// Claims all keys from several tasks, each beginning elsewhere, and completes every second one.
fn race(path: &Path, process: u64) {
    // A small map, so that keys settle while other processes look for them.
    let store = SqliteOptions::new(path).small_map(32).open().expect("the file opens");
    child::tell("ready");
    child::wait_for_parent();
    common::block_on(async {
        let store = Arc::new(store);
        let tasks = (0..TASKS).map(|task| {
            let (store, first) = (Arc::clone(&store), (process * TASKS + task) * 23);
            tokio::spawn(async move {
                for key in (first..first + KEYS).map(|key| key % KEYS) {
                    let claim = common::claim(key, process * TASKS + task);
                    let claimed = store.claim(&claim).await.expect("a decision, not an error");
                    let Claimed::Won { lease, .. } = claimed else { continue };
                    child::tell(&format!("{key} {}", lease.fence));
                    if key.is_multiple_of(2) {
                        let write = store.complete(&lease, &completion(answer(key, 300))).await;
                        assert_eq!(write.expect("a completion"), Write::Applied);
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("a task does not panic");
        }
    });
}

/// F48, I36: processes that start together on a file that does not exist make its tables once.
#[test]
fn many_processes_may_make_a_new_file_at_once() {
    for round in 0..10 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncekey.db");
        let mut processes = start_together("open", &path, 2 * PROCESSES);
        processes.iter_mut().for_each(Process::go_on);
        for process in processes {
            assert_eq!(process.finish(), ["fresh"], "round {round}");
        }
        let raw = file::open(&path);
        let migrations = "SELECT count(*) FROM oncekey_migrations WHERE version = 1";
        assert_eq!(file::number(&raw, migrations), 1);
        assert_eq!(file::number(&raw, "SELECT count(*) FROM oncekey_records"), 8);
        file::check(&path);
    }
}

fn open_at_once(path: &Path, process: u64) {
    child::tell("ready");
    child::wait_for_parent();
    let store = SqliteStore::open(path).expect("the file opens");
    let (_, grant) = common::block_on(win(&store, &common::claim(process, process)));
    assert_eq!(grant, Grant::Fresh);
    child::tell("fresh");
}

/// I6, F2: what a killed process owned is taken over by another once its lease has lapsed, and
/// not before.
#[test]
fn the_key_of_a_killed_process_is_taken_over_when_its_lease_has_lapsed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    let mut process = Process::start(&mut child::command("own", &path, 0));
    let fence = process.hear().expect("the child tells its fence");
    process.kill();
    let fence = Fence::from_number(fence.parse().unwrap()).unwrap();
    // The child's clock is the machine's, and so is this one until it is moved.
    let clock = Arc::new(ManualClock::at(SystemClock.now()));
    let store = SqliteOptions::new(&path).clock(clock.clone()).open().unwrap();
    let rival = Claim { owner: owner(2), ..common::claim(1, 1) };
    common::block_on(async {
        let early = store.claim(&rival).await.unwrap();
        assert!(matches!(early, Claimed::Lost { .. }), "the lease is alive: {early:?}");
        clock.advance(common::LONG * 2);
        let (lease, grant) = win(&store, &rival).await;
        assert_eq!(grant, Grant::TakenOver);
        assert!(lease.fence > fence, "{} is not above {fence}", lease.fence);
        let dead = Lease { owner: owner(1), fence, ..lease };
        let write = store.complete(&dead, &completion(answer(1, 1))).await.unwrap();
        assert_eq!(write, Write::Fenced, "the dead owner can change nothing");
    });
}

/// L2: what another process completes wakes those who wait here.
#[test]
fn a_completion_in_another_process_wakes_a_feed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    let mut process = Process::start(&mut child::command("own", &path, 0));
    process.hear().expect("the child owns the key");
    let store = SqliteStore::open(&path).unwrap();
    common::block_on(async {
        let mut feed = store.watch().await.unwrap();
        process.go_on();
        let woken = async {
            // A wake-up is a hint, and there may be too many: whoever is woken looks.
            loop {
                assert_ne!(feed.next().await, Woken::Closed);
                let record = store.get(&key_id(1)).await.unwrap().expect("it has an owner");
                if record.state.kind() == StateKind::Done {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, woken).await.expect("somebody is woken");
    });
    assert!(process.finish().is_empty());
}

/// Claims key 1, tells its fence, and completes it when told to.
fn own_and_complete(path: &Path) {
    let store = SqliteStore::open(path).expect("the file opens");
    common::block_on(async {
        let (lease, _) = win(&store, &common::claim(1, 1)).await;
        child::tell(&lease.fence.to_string());
        child::wait_for_parent();
        let write = store.complete(&lease, &completion(answer(1, 10))).await;
        assert_eq!(write.expect("a completion"), Write::Applied);
    });
}

/// F48, L1: a process that sits on the write lock holds nobody up for longer than the time-out,
/// however many are waiting. Replays go on meanwhile, and everything goes on afterwards.
#[test]
fn a_process_that_keeps_the_write_lock_makes_the_store_unavailable_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    common::block_on(async {
        let (lease, _) = win(&*store, &common::claim(0, 0)).await;
        let write = store.complete(&lease, &completion(answer(0, 10))).await.unwrap();
        assert_eq!(write, Write::Applied);
        let mut process = Process::start(&mut child::command("lock", &path, 0));
        process.expect("locked");
        let began = SystemClock.now();
        let waiting: Vec<_> = (1..=20)
            .map(|key| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { store.claim(&common::claim(key, key)).await })
            })
            .collect();
        // Replays do not wait.
        let rival = Claim { owner: owner(9), ..common::claim(0, 0) };
        let replayed = store.claim(&rival).await.unwrap();
        assert!(matches!(replayed, Claimed::Lost { .. }), "{replayed:?}");
        for waiting in waiting {
            let error = waiting.await.unwrap().expect_err("nobody can write");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("another process holds the write lock"), "{error}");
        }
        let waited = SystemClock.now().since(began);
        assert!(waited < BUSY * 4, "twenty callers waited {waited:?}, one after the other");
        process.go_on();
        assert!(process.finish().is_empty());
        for key in 1..=20 {
            let (_, grant) = win(&*store, &common::claim(key, key)).await;
            assert_eq!(grant, Grant::Fresh, "nothing has happened before");
        }
    });
}

fn lock(path: &Path) {
    let raw = file::open(path);
    raw.execute_batch("BEGIN IMMEDIATE").expect("the lock is free");
    child::tell("locked");
    child::wait_for_parent();
    raw.execute_batch("ROLLBACK").expect("a rollback");
}

/// Starts processes and waits until all of them are ready.
fn start_together(role: &str, path: &Path, count: u64) -> Vec<Process> {
    let start = |number| Process::start(&mut child::command(role, path, number));
    let mut processes: Vec<Process> = (0..count).map(start).collect();
    processes.iter_mut().for_each(|process| process.expect("ready"));
    processes
}
