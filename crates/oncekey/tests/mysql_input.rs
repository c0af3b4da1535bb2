//! What people and servers get wrong: each ends in an error that says the fix and shows no secret. And
//! many programs on the same keys: one winner each, and no errors.

#![cfg(feature = "mysql")]

use std::collections::HashMap;
use std::env;
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use oncekey::core::health::{Inspect, Tier, Verdict};
use oncekey::core::restore::{Restore, Restored};
use oncekey::core::saved::{Headers, Saved};
use oncekey::core::{
    Answer, Claim, Claimed, Class, Completion, Erase as _, ErrorKind, Fence, Fingerprint, Grant,
    KeyId, Lease, Origin, Owner, Places, Refusal, Renewal, Sent, State, Store, StoreError, Write,
};
use oncekey::store::mysql::{Migrate, MysqlOptions, MysqlStore, migration_sql};

const SECRET: &str = "s3cret-pa55word";

/// Where the server is, or a panic that says how to get one.
fn server() -> String {
    env::var("ONCEKEY_TEST_MYSQL").expect(
        "ONCEKEY_TEST_MYSQL is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports",
    )
}

async fn connect() -> Conn {
    let options = Opts::from_url(&server()).expect("a mysql:// URL");
    Conn::new(OptsBuilder::from_opts(options).prefer_socket(false)).await.expect("MariaDB")
}

async fn run(sql: impl AsRef<str>) {
    connect().await.query_drop(sql.as_ref()).await.expect("a statement of the test");
}

/// A database of its own, by name.
struct Database(String);

impl Database {
    async fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("oncekey_input_{}_{count}", std::process::id());
        run(format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}")).await;
        Self(name)
    }

    fn url(&self) -> String {
        let server = server();
        let (address, _) = server.rsplit_once('/').expect("a URL with a database");
        format!("{address}/{}", self.0)
    }

    /// The same, for another user.
    fn url_as(&self, user: &str, password: &str) -> String {
        let options = Opts::from_url(&server()).expect("a mysql:// URL");
        let (host, port) = (options.ip_or_hostname(), options.tcp_port());
        format!("mysql://{user}:{password}@{host}:{port}/{}", self.0)
    }

    async fn store(&self) -> MysqlStore {
        MysqlOptions::new(self.url()).open().await.expect("the store opens")
    }

    async fn end(self) {
        run(format!("DROP DATABASE {}", self.0)).await;
    }
}

fn claim(key: u64, owner: u64) -> Claim {
    let mut id = [7; 32];
    id[..8].copy_from_slice(&key.to_be_bytes());
    let mut bits = [1; 16];
    bits[..8].copy_from_slice(&owner.to_be_bytes());
    Claim {
        id: KeyId::from_bytes(id),
        owner: Owner::from_bytes(bits),
        fingerprint: Fingerprint::from_parts(1, [9; 32]),
        class: Class::Keyed,
        lease: Duration::from_secs(60),
        grace: Duration::from_secs(5),
        sent: Sent::No,
        origin: Origin { key: "a key".into(), ..Origin::default() },
        places: Places::default(),
    }
}

fn completion() -> Completion {
    let body = bytes::Bytes::from_static(b"done");
    Completion {
        answer: Answer::Kept(Saved { status: 201, headers: Headers::new(), body }),
        retention: Duration::from_secs(3_600),
        linger: Duration::from_secs(60),
    }
}

async fn win(store: &MysqlStore, claim: &Claim) -> Lease {
    match store.claim(claim).await.expect("a claim") {
        Claimed::Won { lease, .. } => lease,
        lost @ Claimed::Lost { .. } => panic!("not won: {lost:?}"),
    }
}

/// Neither the error nor what caused it shows the password.
fn assert_says(error: &StoreError, kind: ErrorKind, fix: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(fix), "{error} does not say: {fix}");
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    assert!(!text.contains(SECRET), "{text}");
}

#[tokio::test]
async fn a_wrong_url_says_how_to_write_it() {
    for url in ["", "oncekey", "postgres://a/b", &format!("mysql://u:{SECRET}@h:port/d")] {
        let error = MysqlOptions::new(url).open().await.unwrap_err();
        assert_says(&error, ErrorKind::Unsuitable, "mysql://user:password@host");
    }
    let error = MysqlOptions::new("mysql://u@127.0.0.1:3306").open().await.unwrap_err();
    assert_says(&error, ErrorKind::Unsuitable, "names no database");
    let odd = MysqlOptions::new("mysql://u@127.0.0.1:3306/d").prefix("a`b").open().await;
    assert_says(&odd.unwrap_err(), ErrorKind::Unsuitable, "prefix");
    let shown = format!("{:?}", MysqlOptions::new(format!("mysql://u:{SECRET}@h/d")));
    assert!(!shown.contains(SECRET), "{shown}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    // Nobody listens on the port of a listener that is closed.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("mysql://u:{SECRET}@127.0.0.1:{port}/d");
    let error = MysqlOptions::new(url).open().await.unwrap_err();
    assert_says(&error, ErrorKind::Unavailable, &format!("127.0.0.1:{port}"));
}

#[tokio::test]
async fn a_server_that_says_nothing_is_unavailable_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("mysql://u:{SECRET}@127.0.0.1:{port}/d");
    let options = MysqlOptions::new(url).timeout(Duration::from_millis(200));
    let opened = tokio::time::timeout(Duration::from_secs(5), options.open()).await;
    let error = opened.expect("it gives up by itself").unwrap_err();
    assert_says(&error, ErrorKind::Unavailable, "within 200ms");
}

#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_wrong_password_and_a_missing_database_say_so() {
    let database = Database::new().await;
    let url = database.url_as("nobody", SECRET);
    let error = MysqlOptions::new(url).open().await.unwrap_err();
    assert_says(&error, ErrorKind::Unsuitable, "the user or the password");
    let url = database.url() + "_that_is_not_there";
    let error = MysqlOptions::new(url).open().await.unwrap_err();
    assert_says(&error, ErrorKind::Unsuitable, "create it first");
    database.end().await;
}

#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn missing_rights_say_which() {
    let database = Database::new().await;
    let (name, user) = (&database.0, format!("u{}", std::process::id()));
    run(format!(
        "CREATE OR REPLACE USER {user}@'%' IDENTIFIED BY '{SECRET}'; \
         GRANT SELECT ON {name}.* TO {user}@'%'"
    ))
    .await;
    let options = || MysqlOptions::new(database.url_as(&user, SECRET));
    let error = options().open().await.unwrap_err();
    assert_says(&error, ErrorKind::Unsuitable, "CREATE for migrations");
    // Who may write but not create works on tables that somebody else has made.
    drop(database.store().await);
    run(format!("GRANT INSERT, UPDATE, DELETE ON {name}.* TO {user}@'%'")).await;
    let store = options().open().await.expect("no right to create is needed");
    win(&store, &claim(1, 1)).await;
    // And hears it when a right is taken away, before anything depends on it: not at the first answer.
    run(format!("REVOKE ALL ON {name}.* FROM {user}@'%'")).await;
    for table in ["records", "answers", "pieces", "clock", "migrations"] {
        let rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON";
        run(format!("{rights} {name}.oncekey_{table} TO {user}@'%'")).await;
    }
    drop(options().open().await.expect("rights on the tables are enough"));
    for (table, right) in [
        ("records", "INSERT"),
        ("records", "DELETE"),
        ("answers", "SELECT"),
        ("answers", "INSERT"),
        ("pieces", "DELETE"),
        ("clock", "UPDATE"),
    ] {
        run(format!("REVOKE {right} ON {name}.oncekey_{table} FROM {user}@'%'")).await;
        let error = options().open().await.expect_err(right);
        assert_says(&error, ErrorKind::Unsuitable, "SELECT, INSERT, UPDATE and DELETE");
        let says = format!("{right} in `oncekey_{table}`");
        assert!(error.to_string().contains(&says), "{error} does not say: {says}");
        run(format!("GRANT {right} ON {name}.oncekey_{table} TO {user}@'%'")).await;
    }
    run(format!("DROP USER {user}@'%'")).await;
    database.end().await;
}

#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_missing_table_says_how_to_make_it() {
    let database = Database::new().await;
    let by_hand = || MysqlOptions::new(database.url()).migrate(Migrate::ByHand);
    let error = by_hand().open().await.unwrap_err();
    assert_says(&error, ErrorKind::Unsuitable, "migration_sql()");
    run(format!("USE {}; {}", database.0, migration_sql())).await;
    let store = by_hand().open().await.expect("the printed migrations make tables that open");
    win(&store, &claim(1, 1)).await;
    run(format!("DROP TABLE {}.oncekey_records", database.0)).await;
    let error = store.claim(&claim(2, 1)).await.unwrap_err();
    assert_says(&error, ErrorKind::Unsuitable, "migration_sql()");
    let health = store.inspect().await.expect("it can be asked");
    assert_eq!(health.verdict(), Verdict::Refused);
    let complaints: Vec<_> = health.complaints().map(|finding| finding.check).collect();
    assert_eq!(complaints, ["engine"]);
    let error = by_hand().open().await.unwrap_err();
    assert_says(&error, ErrorKind::Unsuitable, "missing");
    database.end().await;
}

/// A table that knows no transactions keeps no promise.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_table_without_transactions_is_refused() {
    let database = Database::new().await;
    drop(database.store().await);
    run(format!("ALTER TABLE {}.oncekey_pieces ENGINE = MyISAM, ROW_FORMAT = DEFAULT", database.0))
        .await;
    let error = MysqlOptions::new(database.url()).open().await.unwrap_err();
    assert_says(&error, ErrorKind::Unsuitable, "ENGINE=InnoDB");
    database.end().await;
}

#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_healthy_server_is_found_healthy() {
    let database = Database::new().await;
    let store = database.store().await;
    let health = store.inspect().await.expect("it can be asked");
    assert!(health.name.starts_with("MariaDB 1"), "{}", health.name);
    assert_eq!(health.tier, Tier::Durable);
    assert_eq!(health.complaints().count(), 0, "{health:?}");
    assert!(health.skew.is_some(), "the server has a clock of its own");
    assert!(health.findings.len() >= 14, "every check is told: {health:?}");
    database.end().await;
}

/// Two programs that start at the same moment make the tables once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn many_programs_migrate_at_once() {
    let database = Database::new().await;
    let opening = (0..8).map(|_| tokio::spawn(MysqlOptions::new(database.url()).open()));
    for opened in opening.collect::<Vec<_>>() {
        opened.await.expect("no panic").expect("the store opens");
    }
    let sql = format!("SELECT COUNT(*) FROM {}.oncekey_migrations", database.0);
    let rows: Option<u64> = connect().await.query_first(sql).await.unwrap();
    assert_eq!(rows, Some(1));
    database.end().await;
}

/// A fence that was ahead of the clock outlives its record: released, purged, erased or restored.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn fences_rise_though_the_clock_was_ahead() {
    let database = Database::new().await;
    let store = database.store().await;
    let hour: i64 = 3_600_000_000;
    let mut highest = 0;
    for (owner, end) in (1..).zip(["release", "purge", "release"]) {
        let lease = win(&store, &claim(1, owner)).await;
        assert!(lease.fence.number() > highest, "{} after {highest}", lease.fence);
        // As if the clock had been an hour ahead when it was granted.
        run(format!("UPDATE {}.oncekey_records SET fence = fence + {hour}", database.0)).await;
        let fence = Fence::from_number(lease.fence.number() + hour).unwrap();
        let ahead = Lease { fence, ..lease };
        highest = fence.number();
        if end == "release" {
            assert_eq!(store.release(&ahead).await.unwrap(), Write::Applied);
        } else {
            assert_eq!(store.complete(&ahead, &completion()).await.unwrap(), Write::Applied);
            run(format!(
                "UPDATE {}.oncekey_answers SET expires = 1, forget = 1, due = 1",
                database.0
            ))
            .await;
            assert_eq!(store.purge(10).await.unwrap().forgotten, 1);
        }
    }
    let again = win(&store, &claim(1, 9)).await;
    assert!(again.fence.number() > highest);
    database.end().await;
}

/// A claim that began before a removal and waited for it does not know the mark that the removal has
/// left. It must not be granted with a fence below it.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_claim_that_waited_for_a_removal_gets_a_higher_fence() {
    let database = Database::new().await;
    let store = database.store().await;
    let lease = win(&store, &claim(1, 1)).await;
    let mark = lease.fence.number() + 3_600_000_000;
    let mut remover = connect().await;
    let name = &database.0;
    remover.query_drop(format!("BEGIN; DELETE FROM {name}.oncekey_records")).await.unwrap();
    // A process that has not met the key: one that has would look before it inserts.
    let stranger = database.store().await;
    let waiting = tokio::spawn(async move { win(&stranger, &claim(1, 2)).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished(), "the removal is not committed yet");
    let raise = format!("UPDATE {name}.oncekey_clock SET fence = {mark}; COMMIT");
    remover.query_drop(raise).await.unwrap();
    let granted = waiting.await.expect("no panic");
    assert!(granted.fence.number() > mark, "{} is not above {mark}", granted.fence);
    let record = store.get(&granted.id).await.unwrap().expect("the claim is on record");
    assert_eq!(record.fence, granted.fence);
    database.end().await;
}

/// Without the mark, no fence is known to rise: nothing is granted.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_lost_high_water_mark_grants_nothing() {
    let database = Database::new().await;
    let store = database.store().await;
    win(&store, &claim(1, 1)).await;
    run(format!("DELETE FROM {}.oncekey_clock", database.0)).await;
    let error = store.claim(&claim(2, 1)).await.unwrap_err();
    assert_says(&error, ErrorKind::Corrupt, "insert the row");
    assert_eq!(store.get(&claim(2, 1).id).await.unwrap(), None);
    database.end().await;
}

/// A record goes from one database to another, with its fence and a body of megabytes, and never takes
/// anything back.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_record_is_restored_elsewhere() {
    let (here, there) = (Database::new().await, Database::new().await);
    let (from, to) = (here.store().await, there.store().await);
    assert_ne!(from.lineage().await.unwrap(), to.lineage().await.unwrap());
    assert_eq!(from.lineage().await.unwrap(), here.store().await.lineage().await.unwrap());
    let lease = win(&from, &claim(1, 1)).await;
    let running = from.get(&lease.id).await.unwrap().unwrap();
    let body = bytes::Bytes::from(vec![5; 3 * 1024 * 1024]);
    let saved = Saved { status: 200, headers: Headers::new(), body };
    let large = Completion { answer: Answer::Kept(saved), ..completion() };
    assert_eq!(from.complete(&lease, &large).await.unwrap(), Write::Applied);
    let done = from.get(&lease.id).await.unwrap().unwrap();
    assert_eq!(to.restore(&running).await.unwrap(), Restored::Written);
    assert_eq!(to.get(&lease.id).await.unwrap().unwrap(), running);
    assert_eq!(to.restore(&done).await.unwrap(), Restored::Written);
    assert_eq!(to.restore(&done).await.unwrap(), Restored::Kept);
    assert_eq!(to.restore(&running).await.unwrap(), Restored::Kept);
    assert_eq!(to.get(&lease.id).await.unwrap().unwrap(), done);
    let replay = to.claim(&claim(1, 2)).await.unwrap();
    assert!(matches!(replay, Claimed::Lost { refusal: Refusal::Replay, .. }), "a replay");
    here.end().await;
    there.end().await;
}

/// 64 connections of 16 programs race for 400 keys: exactly one winner for each, and no errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn many_programs_race_for_the_same_keys() {
    const PROGRAMS: u64 = 16;
    const KEYS: u64 = 400;
    let database = Database::new().await;
    let mut racing = Vec::new();
    for program in 0..PROGRAMS {
        let options = MysqlOptions::new(database.url()).writers(4).readers(1);
        let store = Arc::new(options.open().await.expect("the store opens"));
        for key in 0..KEYS {
            let store = Arc::clone(&store);
            racing.push(tokio::spawn(async move {
                let claim = claim(key, program * KEYS + key + 1);
                let claimed = store.claim(&claim).await.expect("no errors");
                match claimed {
                    Claimed::Won { lease, grant, .. } => {
                        assert_eq!(grant, Grant::Fresh, "a key is won once");
                        assert_eq!(
                            store.complete(&lease, &completion()).await.unwrap(),
                            Write::Applied
                        );
                        (key, 1)
                    }
                    Claimed::Lost { refusal, record, .. } => {
                        let fits = matches!(refusal, Refusal::InProgress(_) | Refusal::Replay);
                        assert!(fits, "{refusal:?}");
                        assert_eq!(record.id, claim.id, "an answer about this key");
                        (key, 0)
                    }
                }
            }));
        }
    }
    let mut winners: HashMap<u64, u32> = HashMap::new();
    for raced in racing {
        let (key, won) = raced.await.expect("no panic");
        *winners.entry(key).or_default() += won;
    }
    assert_eq!(winners.len(), usize::try_from(KEYS).unwrap());
    assert!(winners.values().all(|won| *won == 1), "one winner for each key: {winners:?}");
    database.end().await;
}

/// A caller that goes away midway leaves no connection behind that anybody else could trip over.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn callers_that_go_away_disturb_nobody() {
    let database = Database::new().await;
    let options = MysqlOptions::new(database.url()).writers(1).readers(1);
    let store = Arc::new(options.open().await.expect("the store opens"));
    for key in 0..60 {
        let lease = win(&store, &claim(key, 1)).await;
        erase_a_little(&store, lease.id, Duration::from_micros(key * 40)).await;
        assert!(store.get(&lease.id).await.expect("the next caller is served").is_some());
        assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
    }
    database.end().await;
}

/// Begins an erasure, which is a transaction of several round trips, and may walk away.
async fn erase_a_little(store: &MysqlStore, id: KeyId, patience: Duration) {
    if let Ok(erased) = tokio::time::timeout(patience, store.erase(&id)).await {
        assert!(erased.is_ok(), "{erased:?}");
    }
}

/// However many calls wait for a lock, and however many connections they hold while they do: leases are
/// renewed.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn renewals_wait_for_nothing_else() {
    let database = Database::new().await;
    let options = MysqlOptions::new(database.url()).readers(2).timeout(Duration::from_secs(60));
    let store = Arc::new(options.open().await.expect("the store opens"));
    let (live, stuck) = (win(&store, &claim(1, 1)).await, win(&store, &claim(2, 1)).await);
    let mut holder = connect().await;
    let digits: String = stuck.id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let hold = format!(
        "BEGIN; SELECT * FROM {}.oncekey_records WHERE key_id = x'{digits}' FOR UPDATE",
        database.0
    );
    holder.query_drop(hold).await.unwrap();
    let erase = || {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.erase(&stuck.id).await })
    };
    let waiting: Vec<_> = (0..24).map(|_| erase()).collect();
    let waits = format!(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{}' AND info LIKE '%FOR UPDATE%' \
         AND command = 'Query'",
        database.0
    );
    let mut watcher = connect().await;
    loop {
        let waiting: Option<u64> = watcher.query_first(waits.as_str()).await.unwrap();
        if waiting >= Some(2) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let renewed = store.renew(&[live], Duration::from_secs(60)).await.expect("a renewal");
    assert!(matches!(renewed[..], [Renewal::Until(_)]), "{renewed:?}");
    let is_waiting = waiting.iter().any(|erasing| !erasing.is_finished());
    assert!(is_waiting, "the others wait for the lock, or for a connection");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    holder.query_drop("ROLLBACK").await.unwrap();
    database.end().await;
}

/// I7: a row that somebody holds for longer than a lease costs no other lease its renewal, and its own is
/// not lost: nobody else has it.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_row_that_somebody_holds_costs_no_other_lease_its_renewal() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut leases = Vec::new();
    for key in 0..5 {
        leases.push(win(&store, &claim(key, 1)).await);
    }
    assert_eq!(store.complete(&leases[4], &completion()).await.unwrap(), Write::Applied);
    let digits: String = leases[2].id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let name = &database.0;
    // Whichever way the row was found, and whatever is done to it.
    let holds = [
        format!("SELECT * FROM {name}.oncekey_records WHERE key_id = x'{digits}' FOR UPDATE"),
        format!(
            "UPDATE {name}.oncekey_records SET at = at + 1 \
             WHERE born = {} AND key_id = x'{digits}'",
            leases[2].fence
        ),
        format!("DELETE FROM {name}.oncekey_records WHERE key_id = x'{digits}'"),
    ];
    for hold in holds {
        let mut holder = connect().await;
        holder.query_drop(format!("BEGIN; {hold}")).await.unwrap();
        let span = Duration::from_secs(600);
        // Sooner than the server gives up waiting for a lock.
        let renewing = tokio::time::timeout(Duration::from_secs(1), store.renew(&leases, span));
        let renewals = renewing.await.expect("nobody waits").expect("the others are renewed");
        for place in [0, 1, 3] {
            let Renewal::Until(until) = renewals[place] else { panic!("{hold}: {renewals:?}") };
            let record = store.get(&leases[place].id).await.unwrap().expect("a record");
            assert!(
                matches!(record.state, State::Running { until: u, .. } if u == until),
                "{hold}"
            );
        }
        assert_eq!(renewals[2], Renewal::Failed, "{hold}");
        assert_eq!(renewals[4], Renewal::Lost, "{hold}: it is done");
        // Nor does anybody else who comes in a batch.
        let send = |place: usize| store.send(&leases[place]);
        let sends = async { tokio::join!(send(0), send(1), send(3)) };
        let sending = tokio::time::timeout(Duration::from_secs(1), sends);
        let (first, second, third) = sending.await.expect("nobody waits");
        for sent in [first, second, third] {
            assert_eq!(sent.unwrap(), Write::Applied, "{hold}");
        }
        holder.query_drop("ROLLBACK").await.unwrap();
        let renewals = store.renew(&leases[2..3], span).await.unwrap();
        assert!(matches!(renewals[..], [Renewal::Until(_)]), "{hold}: {renewals:?}");
    }
    database.end().await;
}
