//! Owners that are frozen past their lease, as real processes on one SQLite file: F7, I4, I7, I31.
#![cfg(feature = "sqlite")]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![expect(clippy::wildcard_enum_match_arm, reason = "any other reply is a failure")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncekey::core::{Class, Fingerprint, Headers, Key, Places, Policy, Saved, Scope};
use oncekey::engine::{
    Attempt, Call, Engine, Finish, NoSend, Ran, Recorded, Refused, Replayed, Reply, Resolution,
    Resolved,
};
use oncekey::store::sqlite::SqliteStore;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::child::{Process, command, orders, tell, wait_for_parent};

/// As short as a policy allows, because the tests wait for it in real time.
const LEASE: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_millis(100);
const CLASSES: [Class; 3] = [Class::Once, Class::Keyed, Class::Retry];

fn engine(file: &Path) -> Engine {
    let store = Arc::new(SqliteStore::open(file).unwrap());
    Engine::builder(Arc::clone(&store) as _).wake(store).cache(0).build().unwrap()
}

fn call(engine: &Engine, class: Class) -> Call {
    let policy = Policy { class, lease: LEASE, grace: GRACE, ..Policy::default() };
    let (key, scope) = (Key::new(b"frozen").unwrap(), Scope::shared());
    Call {
        exact: None,
        id: engine.key_id(&scope, &key),
        key,
        scope,
        fingerprint: Fingerprint::from_parts(1, [1; 32]),
        places: Places::default(),
        route: "POST /payments".into(),
        request: engine.request_id(),
        policy: Arc::new(policy),
    }
}

fn saved(body: &'static str) -> Saved {
    Saved { status: 201, headers: Headers::new(), body: Bytes::from_static(body.as_bytes()) }
}

async fn run_here(engine: &Engine, class: Class) -> Reply<()> {
    let work = async |attempt: Attempt| match attempt.send().await {
        Ok(()) => Finish::answered(saved("from the second owner"), ()),
        Err(_) => Finish::never_sent(()),
    };
    engine.answer(call(engine, class), work).await
}

/// The owner: it is frozen before or after its send, and says what came of its work.
#[tokio::test]
async fn child() {
    let Some(orders) = orders() else { return };
    let class = CLASSES[usize::try_from(orders.number).unwrap()];
    let engine = engine(&orders.file);
    let waits = async || tokio::task::spawn_blocking(wait_for_parent).await.unwrap();
    let work = async move |attempt: Attempt| {
        if orders.role == "before" {
            tell("claimed");
            waits().await;
        }
        match attempt.send().await {
            Ok(()) => {}
            Err(why @ (NoSend::Lost | NoSend::TooLate | NoSend::Store)) => {
                tell(&format!("no send: {why}"));
                return Finish::never_sent(());
            }
        }
        tell("sent");
        if orders.role == "after" {
            waits().await;
        }
        Finish::answered(saved("from the first owner"), ())
    };
    match engine.answer(call(&engine, class), work).await {
        Reply::Ran(Ran { recorded, .. }) => tell(recorded.label()),
        reply => tell(&format!("{reply:?}")),
    };
}

/// A child that owns the key and is frozen for longer than its lease.
struct Frozen {
    child: Process,
    pid: Pid,
}

impl Frozen {
    fn start(role: &str, says: &str, file: &Path, class: usize) -> Self {
        let number = u64::try_from(class).unwrap();
        let mut child = Process::start(&mut command(role, file, number));
        child.expect(says);
        let pid = Pid::from_raw(i32::try_from(child.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        std::thread::sleep(LEASE + GRACE + Duration::from_millis(200));
        Self { child, pid }
    }

    fn thaw(&mut self) {
        kill_process(self.pid, Signal::CONT).unwrap();
        self.child.go_on();
    }
}

/// A file that already has its tables, so that nobody waits for a migration.
fn folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.db");
    drop(SqliteStore::open(&file).unwrap());
    (folder, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_frozen_before_its_send_never_sends() {
    for (number, class) in CLASSES.into_iter().enumerate() {
        let (_folder, file) = folder();
        let mut frozen = Frozen::start("before", "claimed", &file, number);
        let reply = run_here(&engine(&file), class).await;
        // Nothing was sent as far as the store knows, or the class may send again.
        assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Kept, .. })), "{reply:?}");
        frozen.thaw();
        let said = frozen.child.hear().unwrap();
        assert_eq!(said, format!("no send: {}", NoSend::Lost), "{class:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_cannot_complete_what_was_taken_over() {
    for (number, class) in [(1, Class::Keyed), (2, Class::Retry)] {
        let (_folder, file) = folder();
        let mut frozen = Frozen::start("after", "sent", &file, number);
        let engine = engine(&file);
        let reply = run_here(&engine, class).await;
        assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Kept, .. })), "{reply:?}");
        frozen.thaw();
        frozen.child.expect("fenced");
        match run_here(&engine, class).await {
            Reply::Replayed(Replayed { saved, .. }) => {
                assert_eq!(saved.body, "from the second owner");
            }
            reply => panic!("{reply:?}"),
        }
    }
}

/// I8, I15: under `once` nobody sends again; the owner, should it come back, knows best.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_may_have_happened_once_is_unknown_until_its_owner_is_back() {
    let (_folder, file) = folder();
    let mut frozen = Frozen::start("after", "sent", &file, 0);
    let engine = engine(&file);
    let reply = run_here(&engine, Class::Once).await;
    assert!(matches!(reply, Reply::Refused(Refused::Unknown { .. })), "{reply:?}");
    frozen.thaw();
    frozen.child.expect("kept");
    match run_here(&engine, Class::Once).await {
        Reply::Replayed(Replayed { saved, .. }) => assert_eq!(saved.body, "from the first owner"),
        reply => panic!("{reply:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_cannot_complete_what_a_person_has_resolved() {
    let (_folder, file) = folder();
    let mut frozen = Frozen::start("after", "sent", &file, 0);
    let store = Arc::new(SqliteStore::open(&file).unwrap());
    let engine = Engine::builder(Arc::clone(&store) as _).cache(0).build().unwrap();
    let sweeper = engine.sweeper(store).older_than(LEASE).grace(GRACE);
    assert_eq!(sweeper.run_once().await.unwrap().unknown, 1);
    let id = engine.key_id(&Scope::shared(), &Key::new(b"frozen").unwrap());
    let failed = Resolution::Failed(saved("failed, says a person"));
    let resolved = engine.resolve(&id, failed, &Policy::default()).await.unwrap();
    assert_eq!(resolved, Resolved::Recorded);
    frozen.thaw();
    frozen.child.expect("fenced");
}
