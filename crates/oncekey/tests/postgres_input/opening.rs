//! What stands in the way of opening a store is explained, and no error shows a password.

use std::time::Duration;

use oncekey::core::health::{Inspect, Tier, Verdict};
use oncekey::core::{ErrorKind, Store, StoreError, Write};
use oncekey::store::postgres::{Migrations, PostgresOptions, Prepared};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::scene::{admin, claim, completion, drop_schema, fresh_schema, url, url_with, win};

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

/// A server that answers everybody with this error.
async fn server_that_says(code: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut asked = [0; 1_024];
            // The first question is for TLS, which this server does not speak.
            let _ = client.read(&mut asked).await;
            let _ = client.write_all(b"N").await;
            let _ = client.read(&mut asked).await;
            let fields = format!("SFATAL\0VFATAL\0C{code}\0Mas the test says\0\0");
            let length = u32::try_from(fields.len() + 4).expect("a short text");
            let _ = client.write_all(b"E").await;
            let _ = client.write_all(&length.to_be_bytes()).await;
            let _ = client.write_all(fields.as_bytes()).await;
        }
    });
    format!("postgres://user:hunter2@127.0.0.1:{port}/db")
}

#[tokio::test]
async fn what_a_server_says_is_explained() {
    for (code, kind, words) in [
        ("28P01", ErrorKind::Unsuitable, "refuses the user or the password"),
        ("3D000", ErrorKind::Unsuitable, "the database does not exist"),
        ("53300", ErrorKind::Unavailable, "no connection left"),
        ("57P03", ErrorKind::Unavailable, "starting or stopping"),
        ("53100", ErrorKind::Unavailable, "disk of PostgreSQL is full"),
    ] {
        let options = PostgresOptions::new(server_that_says(code).await);
        assert_says(&refused(options).await, kind, words);
    }
    // Whoever insists on TLS hears that there is none.
    let url = format!("{}?sslmode=require", server_that_says("00000").await);
    let error = refused(PostgresOptions::new(url)).await;
    assert_says(&error, ErrorKind::Unsuitable, "no encrypted connection");
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
    let as_role =
        || PostgresOptions::new(url_with(|url| url.set_username(&role).unwrap())).schema(&schema);
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

/// Another node makes its tables, and takes longer than a row may be locked. Nothing is wrong then, so
/// nobody is refused.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_node_that_starts_beside_a_migration_waits_for_its_end() {
    let mut admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let migration = admin.transaction().await.unwrap();
    // "oncekey" as a number: the lock under which tables are made.
    let lock = format!("SELECT pg_advisory_xact_lock({})", 0x6f_6e63_656b_6579_i64);
    migration.batch_execute(&lock).await.unwrap();
    let options = PostgresOptions::new(url()).schema(&schema);
    let opening = options.lock_timeout(Duration::from_millis(50)).open();
    let mut opening = std::pin::pin!(opening);
    let early = tokio::time::timeout(Duration::from_millis(500), &mut opening).await;
    assert!(early.is_err(), "it waits: {:?}", early.map(|opened| opened.map(drop)));
    migration.commit().await.unwrap();
    win(&opening.await.unwrap(), &claim(1, 1)).await;
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
    for (setting, kind, words) in [
        ("synchronous_commit=off", ErrorKind::Unsuitable, "synchronous_commit is off"),
        // Another host of the same URL may take writes, now or later.
        ("default_transaction_read_only=on", ErrorKind::Unavailable, "is read-only"),
    ] {
        let url = url_with(|url| {
            url.set_query(Some(&format!("options=-c%20{setting}")));
        });
        assert_says(&refused(PostgresOptions::new(url).schema(&schema)).await, kind, words);
    }
    // What a role is set to does not matter on a direct connection; behind a pooler it does.
    let role = format!("{schema}_role");
    let make = format!(
        "DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN SUPERUSER;
         ALTER ROLE {role} SET default_transaction_isolation = 'serializable'"
    );
    admin.batch_execute(&make).await.unwrap();
    let as_role =
        || PostgresOptions::new(url_with(|url| url.set_username(&role).unwrap())).schema(&schema);
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

/// Settings of a user hold from its next connection on, and connections come and go.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn settings_that_break_a_promise_are_refused_on_later_connections_too() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let role = format!("{schema}_role");
    let make = format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN SUPERUSER");
    admin.batch_execute(&make).await.unwrap();
    let url = url_with(|url| url.set_username(&role).unwrap());
    let store = PostgresOptions::new(url).schema(&schema).open().await.unwrap();
    let lease = win(&store, &claim(1, 1)).await;
    let turn = format!(
        "ALTER ROLE {role} SET synchronous_commit = off;
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
    );
    admin.batch_execute(&turn).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    for error in [
        store.claim(&claim(2, 1)).await.unwrap_err(),
        store.complete(&lease, &completion()).await.unwrap_err(),
        store.renew(&[lease], Duration::from_secs(30)).await.unwrap_err(),
    ] {
        assert_says(&error, ErrorKind::Unsuitable, "synchronous_commit is off");
    }
    let back = format!("ALTER ROLE {role} RESET synchronous_commit");
    admin.batch_execute(&back).await.unwrap();
    // It comes back by itself, within the pauses between attempts to connect.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
    drop(store);
    drop_schema(&admin, &schema).await;
    admin.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
}
