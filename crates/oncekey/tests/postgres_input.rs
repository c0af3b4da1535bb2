//! What people and servers do to the PostgreSQL store that the suite does not: wrong URLs, missing
//! rights, lost tables, a standby; and what it costs the server.

#![cfg(feature = "postgres")]

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use oncekey::core::health::{Inspect, Tier, Verdict};
use oncekey::core::restore::{Restore, Restored};
use oncekey::core::saved::{Headers, Saved};
use oncekey::core::wake::{Feed, Wake, Woken};
use oncekey::core::{
    Answer, Claim, Claimed, Class, Completion, ErrorKind, Fingerprint, KeyId, Lease, Origin, Owner,
    Places, Refusal, Renewal, Sent, Store, StoreError, Write,
};
use oncekey::store::postgres::{Migrations, PostgresOptions, PostgresStore, Prepared};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::{Client, NoTls};

fn url() -> String {
    env::var("ONCEKEY_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "ONCEKEY_TEST_POSTGRES is not set: run `cargo xtask test`, or `cargo xtask servers` \
             and its exports"
        )
    })
}

/// The URL with other parts.
fn url_with(change: impl Fn(&mut url::Url)) -> String {
    let mut url = url::Url::parse(&url()).unwrap();
    change(&mut url);
    url.to_string()
}

async fn admin() -> Client {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.expect("PostgreSQL");
    tokio::spawn(connection);
    client
}

/// A name that no other test uses. What an earlier process left under it is removed.
async fn fresh_schema(admin: &Client) -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let schema = format!("oncekey_input_{}_{number}", std::process::id());
    admin.batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await.unwrap();
    schema
}

async fn drop_schema(admin: &Client, schema: &str) {
    admin.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await.unwrap();
}

fn claim(number: u32, owner: u32) -> Claim {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let mut bits = [0; 16];
    bits[..4].copy_from_slice(&number.to_be_bytes());
    bits[4..8].copy_from_slice(&owner.to_be_bytes());
    Claim {
        id: KeyId::from_bytes(id),
        owner: Owner::from_bytes(bits),
        fingerprint: Fingerprint::from_parts(1, [1; 32]),
        class: Class::Once,
        lease: Duration::from_secs(30),
        grace: Duration::from_secs(1),
        sent: Sent::No,
        origin: Origin { key: "key".into(), route: "POST /".into(), ..Origin::default() },
        places: Places::default(),
    }
}

fn completion() -> Completion {
    let body = Bytes::from_static(b"{\"id\":1}");
    Completion {
        answer: Answer::Kept(Saved { status: 201, headers: Headers::new(), body }),
        retention: Duration::from_secs(3_600),
        linger: Duration::from_secs(3_600),
    }
}

async fn win(store: &PostgresStore, claim: &Claim) -> Lease {
    match store.claim(claim).await.unwrap() {
        Claimed::Won { lease, .. } => lease,
        Claimed::Lost { refusal, .. } => panic!("the key was free: {refusal:?}"),
    }
}

/// What opening came to, which must not be a store.
async fn refused(options: PostgresOptions) -> StoreError {
    match options.open().await {
        Ok(_) => panic!("the store must not open"),
        Err(error) => error,
    }
}

/// I52: whatever is wrong with a URL, no error shows the password, not even in its causes.
fn assert_says(error: &StoreError, kind: ErrorKind, words: &str) {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    assert!(!text.contains("hunter2"), "the password is shown");
    assert!(!format!("{error:?}").contains("hunter2"), "the password is shown");
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(words), "{words:?} is not in {text:?}");
}

#[tokio::test]
async fn a_wrong_url_is_explained_and_not_shown() {
    for (url, words) in [
        ("localhost:5432", "postgres://user:password@host"),
        ("mysql://user:hunter2@localhost/db", "postgres://user:password@host"),
        ("postgres://user:hunter2@localhost:port/db", "cannot be read"),
        ("postgres://user:hunter2@localhost/db?sslmode=perhaps", "sslmode must be"),
        ("postgres://user:hunter2@localhost/db?sslrootcert=/nowhere", "sslrootcert"),
        ("postgres://user:hunter2@localhost/db?speed=high", "cannot be read"),
    ] {
        let options = PostgresOptions::new(url);
        assert!(!format!("{options:?}").contains("hunter2"), "options show no password");
        assert_says(&refused(options).await, ErrorKind::Unsuitable, words);
    }
    let options = PostgresOptions::new("postgres://u@localhost/db").schema("a; DROP TABLE b");
    assert_says(&refused(options).await, ErrorKind::Unsuitable, "the schema must be");
}

/// Nobody listens on this port, because nobody may.
#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let options = PostgresOptions::new("postgres://user:hunter2@127.0.0.1:1/db");
    assert_says(&refused(options).await, ErrorKind::Unavailable, "cannot be reached");
}

/// A server that accepts and then says nothing must not hang anybody.
#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let options = PostgresOptions::new(format!("postgres://user:hunter2@127.0.0.1:{port}/db"))
        .connect_timeout(Duration::from_millis(200));
    assert_says(&refused(options).await, ErrorKind::Unavailable, "no connection to PostgreSQL");
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_database_that_does_not_exist_is_named_as_the_cause() {
    let options = PostgresOptions::new(url_with(|url| url.set_path("/nowhere")));
    assert_says(&refused(options).await, ErrorKind::Unsuitable, "the database does not exist");
}

/// The test server trusts everybody who exists, so a role that does not is what can be tried.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_user_who_is_not_let_in_is_told_what_to_check() {
    let options = PostgresOptions::new(url_with(|url| {
        url.set_username("nobody_here").unwrap();
        url.set_password(Some("hunter2")).unwrap();
    }));
    assert_says(&refused(options).await, ErrorKind::Unsuitable, "user or the password");
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn missing_rights_are_named() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let role = format!("{schema}_role");
    let as_role = || {
        PostgresOptions::new(url_with(|url| url.set_username(&role).unwrap())).schema(&schema)
    };
    let make = format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN");
    admin.batch_execute(&make).await.unwrap();
    let error = refused(as_role()).await;
    assert_says(&error, ErrorKind::Unsuitable, "migration_sql()");
    // Made by hand by somebody who may, with one right left out.
    admin.batch_execute(&as_role().migration_sql()).await.unwrap();
    let grant = format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role};
         GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO {role}"
    );
    admin.batch_execute(&grant).await.unwrap();
    let error = refused(as_role().migrations(Migrations::Check)).await;
    assert_says(&error, ErrorKind::Unsuitable, "grant DELETE on oncekey_records");
    let grant = format!("GRANT DELETE ON {schema}.oncekey_records TO {role}");
    admin.batch_execute(&grant).await.unwrap();
    let store = as_role().migrations(Migrations::Check).open().await.unwrap();
    let lease = win(&store, &claim(1, 1)).await;
    assert_eq!(store.release(&lease).await.unwrap(), Write::Applied);
    drop(store);
    drop_schema(&admin, &schema).await;
    admin.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn tables_that_are_missing_or_dropped_are_noticed() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let options = PostgresOptions::new(url()).schema(&schema);
    let error = refused(options.clone().migrations(Migrations::Check)).await;
    assert_says(&error, ErrorKind::Unsuitable, "missing or too old");
    let store = options.clone().open().await.unwrap();
    let lease = win(&store, &claim(1, 1)).await;
    drop_schema(&admin, &schema).await;
    for error in [
        store.claim(&claim(2, 1)).await.unwrap_err(),
        store.complete(&lease, &completion()).await.unwrap_err(),
        store.get(&lease.id).await.unwrap_err(),
        store.purge(10).await.unwrap_err(),
    ] {
        assert_says(&error, ErrorKind::Unsuitable, "tables of oncekey are gone");
    }
    // Made anew, by another process for instance, they are found without a restart.
    drop(options.open().await.unwrap());
    win(&store, &claim(2, 1)).await;
    drop_schema(&admin, &schema).await;
}

/// A newer program has been here. If it says that we can go on, we do, else we say why not.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn newer_tables_are_accepted_only_if_they_say_so() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let options = PostgresOptions::new(url()).schema(&schema);
    drop(options.clone().open().await.unwrap());
    let ledger = format!("INSERT INTO {schema}.oncekey_migrations VALUES (999, 1, 'later', 0)");
    admin.batch_execute(&ledger).await.unwrap();
    drop(options.clone().open().await.unwrap());
    let ledger = format!("UPDATE {schema}.oncekey_migrations SET oldest = 999 WHERE version = 999");
    admin.batch_execute(&ledger).await.unwrap();
    assert_says(&refused(options).await, ErrorKind::Unsuitable, "upgrade oncekey");
    drop_schema(&admin, &schema).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn settings_that_break_a_promise_are_refused() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    drop(PostgresOptions::new(url()).schema(&schema).open().await.unwrap());
    for (setting, words) in [
        ("synchronous_commit=off", "synchronous_commit is off"),
        ("default_transaction_read_only=on", "read-only"),
    ] {
        let url = url_with(|url| {
            url.set_query(Some(&format!("options=-c%20{setting}")));
        });
        // The driver itself looks for a server that takes writes, and finds none.
        let error = refused(PostgresOptions::new(url).schema(&schema)).await;
        if setting.starts_with("default") {
            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unsuitable));
        } else {
            assert_says(&error, ErrorKind::Unsuitable, words);
        }
    }
    // What a role is set to does not matter on a direct connection; behind a pooler it does.
    let role = format!("{schema}_role");
    let make = format!(
        "DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN SUPERUSER;
         ALTER ROLE {role} SET default_transaction_isolation = 'serializable'"
    );
    admin.batch_execute(&make).await.unwrap();
    let as_role = || {
        PostgresOptions::new(url_with(|url| url.set_username(&role).unwrap())).schema(&schema)
    };
    drop(as_role().open().await.unwrap());
    let error = refused(as_role().prepared(Prepared::Off)).await;
    assert_says(&error, ErrorKind::Unsuitable, "default_transaction_isolation");
    drop_schema(&admin, &schema).await;
    admin.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn the_store_says_how_its_server_is_set_up() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let store = PostgresOptions::new(url()).schema(&schema).open().await.unwrap();
    let health = store.inspect().await.unwrap();
    assert!(health.name.starts_with("PostgreSQL "), "{}", health.name);
    assert_eq!((health.tier, health.verdict()), (Tier::Durable, Verdict::Good), "{health:?}");
    drop(store);
    drop_schema(&admin, &schema).await;
}

/// A standby refuses writes. It is told apart from a primary that is only slow or away.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_primary_that_turned_read_only_is_unavailable() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let role = format!("{schema}_role");
    let make = format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN SUPERUSER");
    admin.batch_execute(&make).await.unwrap();
    let url = url_with(|url| url.set_username(&role).unwrap());
    let store = PostgresOptions::new(url).schema(&schema).open().await.unwrap();
    win(&store, &claim(1, 1)).await;
    // From now on, for new connections; the old ones are closed by the server.
    let turn = format!(
        "ALTER ROLE {role} SET default_transaction_read_only = on;
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
    );
    admin.batch_execute(&turn).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let error = store.claim(&claim(2, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    admin
        .batch_execute(&format!("ALTER ROLE {role} RESET default_transaction_read_only"))
        .await
        .unwrap();
    // It comes back by itself, within the pauses between attempts to connect.
    tokio::time::sleep(Duration::from_millis(300)).await;
    win(&store, &claim(3, 1)).await;
    drop(store);
    drop_schema(&admin, &schema).await;
    admin.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
}

/// How far the write-ahead log has come.
async fn wal(admin: &Client) -> u64 {
    let text = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint::text";
    let row = admin.query_typed_one(text, &[]).await.unwrap();
    row.get::<_, &str>(0).parse().unwrap()
}

/// Replays must not cost the server a sync. Others write to the same log now and then, so of several
/// rounds the quietest counts.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn replays_and_refusals_write_nothing() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let open = || async { PostgresOptions::new(url()).schema(&schema).open().await.unwrap() };
    let (store, stranger) = (open().await, open().await);
    for number in 0..200 {
        let lease = win(&store, &claim(number, 1)).await;
        if number % 2 == 0 {
            assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
        }
    }
    // Through a process that has met the keys, and through one that meets each for the first time.
    for (who, round_of) in [("who knows the keys", 0), ("who does not", 1)] {
        let mut quietest = u64::MAX;
        for round in 0..10 {
            let before = wal(&admin).await;
            for number in (round * 20)..(round * 20 + 20) {
                let store = if round_of == 0 { &store } else { &stranger };
                match store.claim(&claim(number, 9)).await.unwrap() {
                    Claimed::Lost { refusal, .. } => assert!(
                        matches!(refusal, Refusal::Replay | Refusal::InProgress(_)),
                        "{refusal:?}"
                    ),
                    Claimed::Won { .. } => panic!("the key was taken"),
                }
            }
            quietest = quietest.min(wal(&admin).await - before);
        }
        assert_eq!(quietest, 0, "twenty replays and refusals of one {who} write nothing");
    }
    drop((store, stranger));
    drop_schema(&admin, &schema).await;
}

/// I1: sixty-four rivals with a connection each, four hundred keys that everybody wants.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn of_sixty_four_stores_one_wins_each_of_four_hundred_keys() {
    const KEYS: u32 = 400;
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let options = PostgresOptions::new(url()).schema(&schema).writers(1).readers(1);
    drop(options.clone().open().await.unwrap());
    let mut rivals = Vec::new();
    for rival in 0..64 {
        let store = options.clone().open().await.unwrap();
        rivals.push(tokio::spawn(async move {
            let store = Arc::new(store);
            let claims = (0..KEYS).map(|step| {
                // Everybody begins elsewhere, every second one goes backwards.
                let place = (step + rival * 7) % KEYS;
                let number = if rival % 2 == 0 { place } else { KEYS - 1 - place };
                let store = Arc::clone(&store);
                async move { store.claim(&claim(number, rival)).await }
            });
            let mut won = 0;
            // Eight at a time: so claims of one store share batches.
            let claims: Vec<_> = claims.collect();
            let mut claims = claims.into_iter();
            loop {
                let some: Vec<_> = claims.by_ref().take(8).map(tokio::spawn).collect();
                if some.is_empty() {
                    return won;
                }
                for one in some {
                    match one.await.unwrap().expect("no claim fails") {
                        Claimed::Won { .. } => won += 1,
                        Claimed::Lost { refusal, .. } => {
                            assert!(matches!(refusal, Refusal::InProgress(_)), "{refusal:?}");
                        }
                    }
                }
            }
        }));
    }
    let mut won = 0;
    for rival in rivals {
        won += rival.await.unwrap();
    }
    assert_eq!(won, KEYS, "every key has one owner");
    let text = format!("SELECT count(DISTINCT key_id)::int FROM {schema}.oncekey_records");
    let keys: i32 = admin.query_typed_one(&text, &[]).await.unwrap().get(0);
    assert_eq!(keys, 400);
    drop_schema(&admin, &schema).await;
}

/// A renewal must not touch an index: it happens to every lease every ten seconds.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn renewals_and_send_marks_touch_the_row_alone() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let store = PostgresOptions::new(url()).schema(&schema).open().await.unwrap();
    let mut leases = Vec::new();
    for number in 0..50 {
        leases.push(win(&store, &claim(number, 1)).await);
    }
    for lease in &leases {
        assert_eq!(store.send(lease).await.unwrap(), Write::Applied);
    }
    let renewed = store.renew(&leases, Duration::from_secs(30)).await.unwrap();
    assert!(renewed.iter().all(|renewal| matches!(renewal, Renewal::Until(_))));
    // The server writes its statistics when a connection ends, at the latest.
    drop(store);
    let text = format!(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
         WHERE schemaname = '{schema}' AND relname = 'oncekey_records'"
    );
    let mut counted = (0, 0);
    for _ in 0..100 {
        let row = admin.query_typed_one(&text, &[]).await.unwrap();
        counted = (row.get::<_, i64>(0), row.get::<_, i64>(1));
        if counted.0 == 100 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // An index on the lease would leave none. Some find no room on their page: while another
    // transaction of the server is old enough to see them, versions that are over stay.
    assert_eq!(counted.0, 100, "all updates");
    assert!(counted.1 >= 60, "only {} of 100 updates touched no index", counted.1);
    drop_schema(&admin, &schema).await;
}

/// Passes bytes on and counts how often the client's side falls silent before the server speaks:
/// those are round trips.
async fn counting_proxy(trips: Arc<AtomicUsize>) -> u16 {
    let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = front.local_addr().unwrap().port();
    let target = url::Url::parse(&url()).unwrap();
    let back = format!("127.0.0.1:{}", target.port().unwrap_or(5432));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = front.accept().await {
            let mut server = TcpStream::connect(&back).await.unwrap();
            let trips = Arc::clone(&trips);
            tokio::spawn(async move {
                let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
                let mut has_asked = false;
                loop {
                    tokio::select! {
                        read = client.read(&mut asked) => match read {
                            Ok(0) | Err(_) => return,
                            Ok(bytes) => {
                                has_asked = true;
                                server.write_all(&asked[..bytes]).await.unwrap();
                            }
                        },
                        read = server.read(&mut answered) => match read {
                            Ok(0) | Err(_) => return,
                            Ok(bytes) => {
                                if std::mem::take(&mut has_asked) {
                                    trips.fetch_add(1, Ordering::SeqCst);
                                }
                                client.write_all(&answered[..bytes]).await.unwrap();
                            }
                        },
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_claim_a_completion_and_a_replay_cost_one_round_trip_each() {
    let admin = admin().await;
    let trips = Arc::new(AtomicUsize::new(0));
    let port = counting_proxy(Arc::clone(&trips)).await;
    for prepared in [Prepared::Auto, Prepared::Off] {
        let schema = fresh_schema(&admin).await;
        let url = url_with(|url| {
            url.set_ip_host([127, 0, 0, 1].into()).unwrap();
            url.set_port(Some(port)).unwrap();
        });
        let options = PostgresOptions::new(url).schema(&schema).prepared(prepared);
        let store = options.writers(1).readers(1).open().await.unwrap();
        // The first of each opens connections and prepares statements.
        for number in 0..2 {
            let lease = win(&store, &claim(number, 1)).await;
            assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
            assert!(matches!(store.claim(&claim(number, 2)).await, Ok(Claimed::Lost { .. })));
        }
        let mut counts = Vec::new();
        for number in 2..42 {
            let before = trips.load(Ordering::SeqCst);
            let lease = win(&store, &claim(number, 1)).await;
            let claimed = trips.load(Ordering::SeqCst);
            assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
            let completed = trips.load(Ordering::SeqCst);
            assert!(matches!(store.claim(&claim(number, 2)).await, Ok(Claimed::Lost { .. })));
            let replayed = trips.load(Ordering::SeqCst);
            counts.push([claimed - before, completed - claimed, replayed - completed]);
        }
        // Answers may reach the proxy in two pieces with a question in between, but that is rare.
        let cheap = counts.iter().filter(|counts| **counts == [1, 1, 1]).count();
        assert!(cheap >= 36, "{prepared:?}: {counts:?}");
        drop(store);
        drop_schema(&admin, &schema).await;
    }
}

/// A statement that was prepared is gone, as behind a pooler: the store goes on without.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_pooler_that_was_not_announced_is_noticed() {
    let Ok(pooler) = env::var("ONCEKEY_TEST_PGBOUNCER") else { return };
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let store = PostgresOptions::new(pooler).schema(&schema).open().await.unwrap();
    for number in 0..40 {
        let lease = win(&store, &claim(number, 1)).await;
        assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
    }
    drop(store);
    drop_schema(&admin, &schema).await;
}

async fn heard(feed: &mut dyn Feed) -> Woken {
    tokio::time::timeout(Duration::from_secs(10), feed.next()).await.expect("a wake-up")
}

/// Wake-ups reach other processes, also after the connection that listens was lost.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_feed_says_that_it_lagged_when_it_has_listened_anew() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let open = || async { PostgresOptions::new(url()).schema(&schema).open().await.unwrap() };
    let (here, there) = (open().await, open().await);
    let mut feed = here.watch().await.unwrap();
    // Until it listens, and a second later, it says that it may have missed something.
    assert_eq!(heard(&mut *feed).await, Woken::Lagged);
    assert_eq!(heard(&mut *feed).await, Woken::Lagged);
    let lease = win(&there, &claim(1, 1)).await;
    assert_eq!(there.complete(&lease, &completion()).await.unwrap(), Write::Applied);
    assert_eq!(heard(&mut *feed).await, Woken::Finished(lease.id), "another process finished it");
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    admin.batch_execute(cut).await.unwrap();
    assert_eq!(heard(&mut *feed).await, Woken::Lagged, "the connection was lost");
    drop((here, there, feed));
    drop_schema(&admin, &schema).await;
}

/// Fences rise although the clock of the server is behind those of records that are gone.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn fences_rise_above_records_that_are_gone_and_ahead_of_the_clock() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let store = PostgresOptions::new(url()).schema(&schema).open().await.unwrap();
    let mut last = win(&store, &claim(1, 1)).await;
    // As if it had been granted before the clock stepped back by a day.
    let ahead = format!("UPDATE {schema}.oncekey_records SET fence = fence + 86400000000");
    admin.batch_execute(&ahead).await.unwrap();
    last.fence = store.get(&last.id).await.unwrap().unwrap().fence;
    for owner in 2..6 {
        assert_eq!(store.release(&last).await.unwrap(), Write::Applied);
        let next = win(&store, &claim(1, owner)).await;
        assert!(next.fence > last.fence, "{} after {}", next.fence, last.fence);
        let stands = store.get(&next.id).await.unwrap().unwrap();
        assert_eq!(stands.fence, next.fence, "the fence that was granted is the one that stands");
        last = next;
    }
    drop(store);
    drop_schema(&admin, &schema).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_record_from_elsewhere_is_restored_once() {
    let admin = admin().await;
    let (here, there) = (fresh_schema(&admin).await, fresh_schema(&admin).await);
    let open = |schema: &str| PostgresOptions::new(url()).schema(schema).open();
    let (old, new) = (open(&here).await.unwrap(), open(&there).await.unwrap());
    assert_ne!(old.lineage().await.unwrap(), new.lineage().await.unwrap());
    assert_eq!(old.lineage().await.unwrap(), old.lineage().await.unwrap());
    let lease = win(&old, &claim(1, 1)).await;
    let running = old.get(&lease.id).await.unwrap().unwrap();
    assert_eq!(old.complete(&lease, &completion()).await.unwrap(), Write::Applied);
    let done = old.get(&lease.id).await.unwrap().unwrap();
    assert_eq!(new.restore(&running).await.unwrap(), Restored::Written);
    assert_eq!(new.get(&lease.id).await.unwrap().as_ref(), Some(&running));
    assert_eq!(new.restore(&done).await.unwrap(), Restored::Written);
    for record in [&done, &running] {
        assert_eq!(new.restore(record).await.unwrap(), Restored::Kept);
    }
    assert_eq!(new.get(&lease.id).await.unwrap().as_ref(), Some(&done));
    match new.claim(&claim(1, 9)).await.unwrap() {
        Claimed::Lost { refusal, record, .. } => {
            assert_eq!((refusal, *record), (Refusal::Replay, done));
        }
        Claimed::Won { .. } => panic!("the work was done"),
    }
    drop((old, new));
    drop_schema(&admin, &here).await;
    drop_schema(&admin, &there).await;
}
