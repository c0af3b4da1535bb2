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

mod what_a_url_opens {
    oncekey::core::conformance!(async || super::OpenedRig::new());
    oncekey::core::clock_conformance!(async || super::OpenedRig::new());
    oncekey::core::browse_conformance!(async || super::OpenedRig::new());
    oncekey::core::erase_conformance!(async || super::OpenedRig::new());
    oncekey::core::erase_browse_conformance!(async || super::OpenedRig::new());
    oncekey::core::restore_conformance!(async || super::OpenedRig::new());
    oncekey::core::restore_browse_conformance!(async || super::OpenedRig::new());
}

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

/// What is refused before anybody is asked, and what is said then.
fn refusals() -> Vec<(&'static str, &'static str)> {
    let mut rows = Vec::new();
    if cfg!(feature = "postgres") {
        rows.extend([
            ("postgres://u:hunter2@h/d?shema=x", "no setting `shema`: it has schema, writers"),
            ("postgresql://u:hunter2@h/d?pool=1", "its driver has application_name"),
            ("postgres://u:hunter2@h/d?writers=0", "`writers` is a number above zero"),
            ("postgres://u:hunter2@h/d?readers=hunter2", "`readers` is a number above zero"),
            ("postgres://u:hunter2@h/d?prepared=on", "`prepared` is `auto` or `off`"),
            ("postgres://u:hunter2@h/d?migrations=no", "`migrations` is `apply` or `check`"),
            ("postgres://u:hunter2@h/d?lock_timeout=2h", "such as 5s or 500ms"),
            ("postgres://u:hunter2@h/d?lock_timeout=0", "such as 5s or 500ms"),
            ("postgres://u:hunter2@h/d?call_timeout=86401", "a day at most"),
            ("postgres://u:hunter2@h/d?schema=a&schema=b", "`schema` is given twice"),
            ("postgres://u:hunter2?x@h/d", "no setting: it has schema"),
        ]);
    }
    if cfg!(feature = "mysql") {
        rows.extend([
            ("mysql://u:hunter2@h/d?prefx=x", "no setting `prefx`: it has prefix, writers"),
            ("mariadb://u:hunter2@h/d?pool_max=1", "its driver has built_in_roots"),
            ("mysql://u:hunter2@h/d?galera=hunter2", "`galera` is `refused` or `single-writer`"),
            ("mysql://u:hunter2@h/d?timeout=x", "such as 5s or 500ms"),
            ("mysql://u:p@ss?hunter2&Hunter2@h/d", "no setting"),
        ]);
    }
    if cfg!(feature = "redis") {
        rows.extend([
            ("redis://u:hunter2@h/0?prefx=x", "no setting `prefx`: it has prefix, connections"),
            ("rediss+cluster://u:hunter2@h,i?db=1", "its driver has protocol"),
            ("valkey://u:hunter2@h?accept=hunter2", "`accept` is `volatile` or `process`"),
            ("redis://u:hunter2@h?replicas=1&disks=1", "exclude each other"),
            ("redis://u:hunter2@h?within=1s", "give one of them"),
            ("redis://u:hunter2@h?replicas=99999999999", "a smaller number"),
        ]);
    }
    if cfg!(feature = "dynamodb") {
        rows.extend([
            ("dynamodb://key:hunter2@table", "do not stand in the URL"),
            ("dynamodb://", "write dynamodb://table"),
            ("dynamodb://a%20table", "write dynamodb://table"),
            ("dynamodb://table?zone=x", "no setting `zone`: it has region, endpoint"),
            ("dynamodb://table?missing=hunter2", "`missing` is `refuse` or `create`"),
            ("dynamodb://table?lapse=no", "`lapse` is `observed` or `clocked`"),
            ("dynamodb://table?replicas=3", "`replicas` is `strong` or `one-writer`"),
        ]);
    }
    rows
}

/// I52: whatever is wrong with a URL, its password is not in the error.
#[tokio::test]
async fn a_wrong_url_of_a_server_is_refused_before_anybody_is_asked_and_not_repeated() {
    for (url, words) in refusals() {
        let errors = [
            open(url).await.map(drop).unwrap_err(),
            open_existing(url).await.map(drop).unwrap_err(),
            migration_sql(url).map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Rejected, "{url}: {error}");
            let told = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
            assert!(told.contains(words), "{url}: {told}");
            assert!(!told.to_lowercase().contains("hunter2"), "{url}: {told}");
        }
    }
}

/// The store reads the rest of a URL, and repeats nothing of it either.
#[tokio::test]
async fn a_url_that_a_store_cannot_read_is_not_repeated() {
    let mut urls = Vec::new();
    if cfg!(feature = "postgres") {
        urls.extend([
            "postgres://u:hunter2@h:port/d",
            "postgres://u:hunter2@/d",
            "postgres://u:hunter2@h/d?sslmode=hunter2",
            "postgres://u:hunter2@h/d?keepalives=hunter2",
            "postgres://u:hunter2@h/d?sslmode=require&sslrootcert=/none/hunter2",
            "postgres://u:hunter2@h/d?schema=Hunter2",
        ]);
    }
    if cfg!(feature = "mysql") {
        urls.extend([
            "mysql://u:hunter2@h:port/d",
            "mysql://u:hunter2@h",
            "mysql://u:hunter2@h/d?require_ssl=hunter2",
            "mysql://u:hunter2@h/d?prefix=Hunter2",
        ]);
    }
    if cfg!(feature = "redis") {
        urls.extend([
            "redis://u:hunter2@h:port",
            "redis://u:hunter2@h/hunter2",
            "redis+cluster://u:hunter2@",
            "redis+cluster://u:hunter2@h:port",
            "redis://h?prefix=%7bhunter2%7d",
        ]);
    }
    for url in urls {
        for opened in [open(url).await, open_existing(url).await] {
            let error = opened.map(drop).expect_err("it makes no sense");
            let source = std::error::Error::source(&error).map(ToString::to_string);
            let told = format!("{error} {error:?} {source:?}");
            assert!(!told.to_lowercase().contains("hunter2"), "{url}: {told}");
            assert_eq!(error.kind(), ErrorKind::Unsuitable, "{url}: {told}");
        }
    }
}

#[test]
fn what_makes_the_tables_is_printed_with_the_names_of_the_url() {
    if cfg!(feature = "postgres") {
        let sql = migration_sql("postgres://u:p@h/d?schema=app&sslmode=require").unwrap();
        assert!(sql.contains("app.oncekey_records") && !sql.contains('{'), "{sql}");
        assert!(migration_sql("postgres://h/d?schema=a;b").is_err(), "no name");
    }
    if cfg!(feature = "mysql") {
        let sql = migration_sql("mariadb://u:p@h/d?prefix=app_").unwrap();
        assert!(sql.contains("`app_records`") && !sql.contains('{'), "{sql}");
        assert!(migration_sql("mysql://h/d?prefix=a`b").is_err(), "no name");
    }
    if cfg!(feature = "dynamodb") {
        let json = migration_sql("dynamodb://keys?region=eu-central-1").unwrap();
        let table: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(table["TableName"], "keys");
    }
    if cfg!(feature = "redis") {
        assert_eq!(migration_sql("redis://h").unwrap(), "", "it has no tables");
    }
}

/// What the URL says holds, not the default of five seconds.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_setting_of_the_driver_is_followed() {
    // Somebody takes the call and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let url = format!("postgres://u:hunter2@{address}/d?sslmode=disable&connect_timeout=1");
    let error = open(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!error.to_string().contains("5s"), "{error}");
    let told = format!("{error} {:?}", std::error::Error::source(&error));
    assert!(told.contains("1s") || told.to_lowercase().contains("tim"), "{told}");
}

/// Whoever gets a setting wrong is told all of them: each is in the reference and in the documentation.
#[test]
fn every_setting_is_explained() {
    let page = include_str!("../../../docs/reference/cli.md");
    let front = include_str!("../src/store/open.rs");
    let stores = [
        (cfg!(feature = "dynamodb"), "dynamodb://table"),
        (cfg!(feature = "mysql"), "mysql://h/d"),
        (cfg!(feature = "postgres"), "postgres://h/d"),
        (cfg!(feature = "redis"), "redis://h"),
        (cfg!(feature = "sqlite"), "sqlite://file"),
    ];
    for (_, url) in stores.into_iter().filter(|(is_built_in, _)| *is_built_in) {
        let error = migration_sql(&format!("{url}?no_such_setting=1")).unwrap_err().to_string();
        let (_, known) = error.split_once("it has ").expect("a list");
        let ours = known.split_once(';').map_or(known, |(ours, _)| ours);
        assert!(!ours.is_empty(), "{error}");
        for name in ours.split(", ") {
            assert!(page.contains(&format!("`{name}`")), "the reference does not have {name}");
            assert!(front.contains(&format!("`{name}`")), "open.rs does not have {name}");
        }
    }
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
