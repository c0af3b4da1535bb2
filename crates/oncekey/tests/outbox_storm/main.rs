//! Many messages, transactions that commit late, relays that die: nothing is lost, and the order of
//! every key is kept.
//!
//! Relays are tasks that are aborted and processes that are killed (`kill -9`) or stopped (`SIGSTOP`).
//! What they deliver is a line at the end of one file, so there is one order of all deliveries, and what
//! a killed process has written stays written.
#![cfg(all(feature = "outbox", feature = "sqlite", feature = "postgres", feature = "mysql"))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]

#[allow(dead_code, reason = "each test uses a part of it")]
#[path = "../common/child.rs"]
mod child;
#[path = "../outbox_common/mod.rs"]
mod outbox_common;
mod traffic;

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncekey::flow::TxStore;
use oncekey::outbox::{Delivery, Message, Outbox, Relay, Sink, Staged};

use self::child::{Process, tell, wait_for_parent};
use self::outbox_common::{Place, made, stage};
use self::traffic::{Chance, Committed, commit_all};

/// Where deliveries are written.
const LOG: &str = "ONCEKEY_TEST_LOG";
/// Short, so that what a killed relay had comes again within the test.
const LEASE: Duration = Duration::from_secs(2);

/// Writes each delivery as one line, in one call, at the end of the file.
#[derive(Clone)]
struct Log {
    file: Arc<File>,
    mood: Mood,
}

/// What the sink does besides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Well,
    /// Stops its process in the middle of a delivery.
    Frozen,
    /// Says that the message has not arrived.
    Refuses,
}

impl Log {
    fn open(path: &Path, mood: Mood) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        Self { file: Arc::new(file), mood }
    }
}

#[async_trait::async_trait]
impl Sink for Log {
    async fn deliver(&self, message: &Message) -> Delivery {
        if self.mood == Mood::Frozen {
            tell("about to stop");
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::STOP).unwrap();
            // Another thread may be the one to hear the signal, a moment later: not a step further
            // until then.
            assert!(wait_for_parent(), "the parent says when to go on");
        }
        let line = format!("{} {}\n", message.order_key(), message.id());
        (&*self.file).write_all(line.as_bytes()).unwrap();
        match self.mood {
            Mood::Well | Mood::Frozen => Delivery::Sent,
            Mood::Refuses => Delivery::Retry { after: Some(LEASE), why: "no".to_owned() },
        }
    }
}

fn relay<S: TxStore>(store: S, log: &Path, mood: Mood) -> Relay<S> {
    Relay::new(store)
        .route("*", Log::open(log, mood))
        .times(LEASE, LEASE)
        .batch(200)
        .every(Duration::from_millis(20))
}

/// Not a test, but what a child process does.
#[test]
fn child() {
    let Some(orders) = child::orders() else { return };
    let place = Place::of(orders.file.to_str().unwrap());
    let log = PathBuf::from(std::env::var_os(LOG).unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async move {
        with_store!(place, 3, store => match orders.role.as_str() {
            "frozen" => {
                let done = relay(store, &log, Mood::Frozen).run_once().await.unwrap();
                tell(&format!("sent {} refused {}", done.sent, done.refused));
            }
            _ => relay(store, &log, Mood::Well).run(std::future::pending()).await,
        });
    });
}

fn start(role: &str, place: &Place, log: &Path) -> Process {
    Process::start(child::command(role, &place.spec(), 0).env(LOG, log))
}

/// Kills and starts relay processes until it is told to stop.
fn killer(place: &Place, log: &Path, stop: &std::sync::mpsc::Receiver<()>) -> usize {
    let mut chance = Chance::new();
    let mut kills = 0;
    loop {
        let mut relay = start("relay", place, log);
        let life = Duration::from_millis(300 + chance.below(900));
        let told = stop.recv_timeout(life).is_ok();
        relay.kill();
        kills += 1;
        if told {
            return kills;
        }
    }
}

/// Aborts and starts relay tasks for ever.
async fn aborter<S: TxStore>(store: S, log: PathBuf) {
    let mut chance = Chance::new();
    loop {
        let relay = relay(store.clone(), &log, Mood::Well);
        let task = tokio::spawn(async move { relay.run(std::future::pending()).await });
        tokio::time::sleep(Duration::from_millis(50 + chance.below(400))).await;
        task.abort();
        let _ = task.await;
    }
}

/// What was delivered, in the order of first deliveries, per key; and how many deliveries there were.
fn delivered(log: &Path) -> (HashMap<String, Vec<String>>, usize) {
    let text = std::fs::read_to_string(log).unwrap();
    let (mut seen, mut keys, mut all) = (HashSet::new(), HashMap::<_, Vec<_>>::new(), 0);
    for line in text.lines() {
        let (key, id) = line.rsplit_once(' ').unwrap();
        all += 1;
        if seen.insert(id.to_owned()) {
            keys.entry(key.to_owned()).or_default().push(id.to_owned());
        }
    }
    (keys, all)
}

fn check(committed: &Committed, log: &Path) -> usize {
    let (mut found, all) = delivered(log);
    let sorted = |mut ids: Vec<String>| {
        ids.sort_unstable();
        ids
    };
    let (free, keys) = committed.taken_apart();
    let found_free = sorted(found.remove("").unwrap_or_default());
    assert_eq!(found_free.len(), free.len(), "messages without a key");
    assert!(found_free == sorted(free), "messages without a key are those that were committed");
    for (key, expected) in keys {
        let found = found.remove(&key).unwrap_or_default();
        assert_eq!(found.len(), expected.len(), "messages of {key}");
        assert!(found == expected, "the order of {key}: {found:?} instead of {expected:?}");
    }
    assert!(found.is_empty(), "nothing was delivered that was not committed");
    all
}

#[expect(clippy::print_stdout, reason = "a figure for people")]
fn storm(kind: &str, messages: usize) {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::fresh(kind, &folder);
    let log = folder.path().join("log");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        with_store!(place.clone(), 16, store => {
            let store = made(store).await;
            // Killed relays of other processes, and aborted ones of this one.
            let mut killers = Vec::new();
            for _ in 0..2 {
                let (place, log) = (place.clone(), log.clone());
                let (stop, stopped) = std::sync::mpsc::channel();
                let killer = std::thread::spawn(move || killer(&place, &log, &stopped));
                killers.push((stop, killer));
            }
            let aborter = tokio::spawn(aborter(store.clone(), log.clone()));
            let committed = commit_all(&store, messages).await;
            let kills: usize = killers.into_iter().map(|(stop, killer)| {
                stop.send(()).unwrap();
                killer.join().unwrap()
            }).sum();
            aborter.abort();
            // What is left, by relays that live.
            let outbox = Outbox::new(store.clone());
            let left = outbox.backlog().await.unwrap().waiting;
            let calm = relay(store.clone(), &log, Mood::Well);
            let calm = tokio::spawn(async move { calm.run(std::future::pending()).await });
            let empty = async {
                while outbox.backlog().await.unwrap().waiting > 0 {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(240), empty).await.expect("all is delivered");
            calm.abort();
            assert_eq!(outbox.backlog().await.unwrap().dead, 0);
            let all = check(&committed, &log);
            println!(
                "{kind}: {messages} staged, {} rolled back, {kills} processes killed, \
                 {left} left then, {all} deliveries",
                committed.rolled_back()
            );
        });
    });
}

#[test]
fn nothing_is_lost_and_order_is_kept_on_sqlite() {
    storm("sqlite", 10_000);
}

#[test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
fn nothing_is_lost_and_order_is_kept_on_postgres() {
    storm("postgres", 100_000);
}

#[test]
#[ignore = "needs MySQL: run cargo xtask test"]
fn nothing_is_lost_and_order_is_kept_on_mysql() {
    storm("mysql", 10_000);
}

/// SIGSTOP in the middle of a delivery, past the lease: another relay takes the message and fails. When
/// the first one goes on, its settlement is refused: otherwise the message would be gone that the second
/// one is to try again.
fn frozen(kind: &str) {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::fresh(kind, &folder);
    let log = folder.path().join("log");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let id = runtime.block_on(async {
        with_store!(place.clone(), 2, store => {
            let store = made(store).await;
            stage(&store, Staged::raw("t", "one").order_key("k")).await
        })
    });
    let mut slow = start("frozen", &place, &log);
    slow.expect("about to stop");
    runtime.block_on(until_taken(&place, &log, Mood::Refuses));
    let pid = rustix::process::Pid::from_raw(i32::try_from(slow.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    slow.go_on();
    assert_eq!(slow.finish(), ["sent 1 refused 1"], "{kind}");
    runtime.block_on(until_taken(&place, &log, Mood::Well));
    // Three times under one id, which is how a receiver knows.
    let line = format!("k {id}\n");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), line.repeat(3), "{kind}");
}

/// Relays until something was taken.
async fn until_taken(place: &Place, log: &Path, mood: Mood) {
    with_store!(place.clone(), 2, store => {
        let relay = relay(store, log, mood);
        let taken = async {
            while relay.run_once().await.unwrap().taken == 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), taken).await.unwrap();
    });
}

#[test]
fn a_stopped_process_cannot_settle_on_sqlite() {
    frozen("sqlite");
}

#[test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
fn a_stopped_process_cannot_settle_on_postgres() {
    frozen("postgres");
}

#[test]
#[ignore = "needs MySQL: run cargo xtask test"]
fn a_stopped_process_cannot_settle_on_mysql() {
    frozen("mysql");
}
