//! One URL opens any store, and what it opens is a whole store.

use std::sync::Arc;
use std::time::Duration;

use oncekey::core::conformance::Rig;
use oncekey::core::health::{Tier, Verdict};
use oncekey::core::{Clock, ErrorKind, Inspect, ManualClock, MemoryStore, Restore, Timestamp};
use oncekey::store::{Opened, migration_sql, open, open_existing};

/// A store behind an [`Opened`], with a clock that the test moves: it hands every call on.
struct OpenedRig {
    clock: Arc<ManualClock>,
    store: Arc<Opened>,
}

impl OpenedRig {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_123_457)));
        let inner = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>);
        Self { clock, store: Arc::new(Opened::waking("memory", inner)) }
    }
}

impl Rig for OpenedRig {
    type Store = Opened;

    fn store(&self) -> Arc<Opened> {
        Arc::clone(&self.store)
    }

    async fn reopen(&self) -> Arc<Opened> {
        self.store()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn step_back(&self, by: Duration) {
        self.clock.step_back(by);
    }

    fn clock(&self) -> Option<Arc<dyn Clock>> {
        Some(Arc::clone(&self.clock) as Arc<dyn Clock>)
    }
}

oncekey::core::conformance!(async || OpenedRig::new());
oncekey::core::browse_conformance!(async || OpenedRig::new());
oncekey::core::erase_conformance!(async || OpenedRig::new());
oncekey::core::restore_conformance!(async || OpenedRig::new());
oncekey::core::restore_browse_conformance!(async || OpenedRig::new());

#[tokio::test]
async fn a_store_in_memory_says_that_it_forgets() {
    let store = open("memory:").await.unwrap();
    assert_eq!(store.label(), "memory");
    assert!(store.wake().is_some());
    let health = store.inspect().await.unwrap();
    assert_eq!((health.tier, health.verdict()), (Tier::Volatile, Verdict::Degraded));
    let other = open("memory:").await.unwrap();
    assert_ne!(store.lineage().await.unwrap(), other.lineage().await.unwrap());
    assert_eq!(store.lineage().await.unwrap(), store.clone().lineage().await.unwrap());
}

#[tokio::test]
async fn a_url_that_makes_no_sense_is_refused_with_what_to_do() {
    let rows = [
        ("oncekey.db", ErrorKind::Rejected, "a file is sqlite://file"),
        ("", ErrorKind::Rejected, "sqlite://file"),
        ("://", ErrorKind::Rejected, "sqlite://file"),
        ("http://localhost", ErrorKind::Rejected, "no kind of store `http`"),
        ("SQLITE://x", ErrorKind::Rejected, "no kind of store `SQLITE`"),
        ("memory:keys", ErrorKind::Rejected, "write memory:"),
        ("memory:?size=1", ErrorKind::Rejected, "no setting `size`: it has none"),
    ];
    for (url, kind, words) in rows {
        for error in [open(url).await.unwrap_err(), open_existing(url).await.unwrap_err()] {
            assert_eq!(error.kind(), kind, "{url}: {error}");
            assert!(error.to_string().contains(words), "{url}: {error}");
        }
    }
    assert_eq!(migration_sql("memory:").unwrap(), "");
}

#[cfg(not(feature = "sqlite"))]
#[tokio::test]
async fn a_store_that_was_left_out_says_which_feature_brings_it() {
    let error = open("sqlite://oncekey.db").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsuitable);
    assert!(error.to_string().contains("Cargo feature `sqlite`"), "{error}");
}

#[cfg(feature = "sqlite")]
mod with_sqlite {
    use oncekey::core::browse::{Browse, Count, Filter};
    use oncekey::core::{Key, Scope, StateKind};
    use oncekey::engine::{Engine, Failure};

    use super::*;

    fn url(folder: &tempfile::TempDir, name: &str) -> String {
        format!("sqlite://{}", folder.path().join(name).display())
    }

    #[tokio::test]
    async fn a_file_is_made_or_expected_and_known_again() {
        let folder = tempfile::tempdir().unwrap();
        let url = url(&folder, "my%20keys.db");
        let error = open_existing(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(!folder.path().join("my keys.db").exists());
        let store = open(&url).await.unwrap();
        assert!(folder.path().join("my keys.db").exists());
        let lineage = store.lineage().await.unwrap();
        drop(store);
        let again = open_existing(&url).await.unwrap();
        assert_eq!(again.lineage().await.unwrap(), lineage);
        let health = again.inspect().await.unwrap();
        assert!(health.name.starts_with("SQLite 3."), "{health:?}");
        assert_ne!(health.verdict(), Verdict::Refused, "{health:?}");
    }

    #[tokio::test]
    async fn a_wrong_setting_is_refused_before_a_file_is_made() {
        let folder = tempfile::tempdir().unwrap();
        for query in ["placement=theirs", "placement=own&placement=own", "plase=own", "%"] {
            let url = format!("{}?{query}", url(&folder, "keys.db"));
            let error = open(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{url}: {error}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// A file in memory is as lasting as the machine, and the check says so.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_file_in_memory_is_no_durable_one() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        let health = open(&url(&folder, "keys.db")).await.unwrap().inspect().await.unwrap();
        assert_eq!((health.tier, health.verdict()), (Tier::Process, Verdict::Degraded));
        let complaints: Vec<_> = health.complaints().map(|finding| finding.check).collect();
        assert!(complaints.contains(&"file-system"), "{complaints:?}");
    }

    /// A clock that stepped back behind the fences is seen, and so is a ledger behind its records.
    #[tokio::test]
    async fn a_look_finds_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let url = url(&folder, "keys.db");
        drop(open(&url).await.unwrap());
        let verdict = async |sql: &str, check: &str| {
            let raw = rusqlite::Connection::open(folder.path().join("keys.db")).unwrap();
            raw.execute_batch(sql).unwrap();
            drop(raw);
            let health = open(&url).await.unwrap().inspect().await.unwrap();
            let finding = health.findings.iter().find(|finding| finding.check == check);
            finding.expect(check).verdict
        };
        let ahead = "UPDATE oncekey_clock SET fence = 9000000000000000";
        assert_eq!(verdict(ahead, "clock").await, Verdict::Degraded);
        let behind = "UPDATE oncekey_clock SET fence = 5";
        assert_eq!(verdict(behind, "clock").await, Verdict::Good);
        assert_eq!(verdict(behind, "ledger").await, Verdict::Good);
        let row = "INSERT INTO oncekey_records VALUES (1, x'', 1, 15, 6, x'', 1, 15, 0, 0, 1, x'',
                   x'', x'', x'', x'', x'', x'')";
        assert_eq!(verdict(row, "ledger").await, Verdict::Refused);
    }

    /// The engine runs on it with everything around: wake-ups, the sweeper, erasing a scope.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_engine_runs_on_what_was_opened() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(open(&url(&folder, "keys.db")).await.unwrap());
        let builder = Engine::builder(store.clone()).store_label(store.label());
        let engine = builder.wake(store.wake().expect("SQLite wakes")).build().unwrap();
        let (scope, key) = (Scope::new("tenant-1").unwrap(), Key::new(b"order-1").unwrap());
        let runner = engine.runner("invoice").scope(scope.clone());
        let fingerprint = runner.fingerprint(&42).unwrap();
        for _ in 0..2 {
            let made =
                runner.run(&key, fingerprint, async |_| Ok::<_, Failure<String>>(7_u8)).await;
            assert_eq!(made.unwrap().value, 7);
        }
        let done = Filter { state: Some(StateKind::Done), ..Filter::default() };
        assert_eq!(store.count(&done, 9).await.unwrap(), Count::Exactly(1), "it ran once");
        drop(engine.sweeper(store.clone()));
        assert_eq!(engine.erase_scope(&*store, &scope).await.unwrap().blanked, 1);
    }
}
