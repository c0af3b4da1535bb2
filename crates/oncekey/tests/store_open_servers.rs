//! One URL opens a store on each server: made or expected, known again, and with its settings.

#![cfg(all(
    feature = "dynamodb",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]

mod common;
#[path = "common/dynamodb.rs"]
mod dynamodb;
#[path = "common/servers.rs"]
mod places;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::health::{Tier, Verdict};
use oncekey::core::{
    Claimed, ErrorKind, Inspect, KeyId, Refusal, Renewal, Restore, Store, StoreError, Write,
};
use oncekey::store::{Opened, open, open_existing};

use self::common::{claim, completion, win};
use self::places::{Place, url_of};

/// An error with everything that led to it, as people and logs may see it.
fn told(error: &StoreError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(" {error} {error:?}"));
        cause = error.source();
    }
    text
}

/// What was not there before is not made by a look, and is found afterwards.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs all servers: run cargo xtask test"]
async fn a_store_is_made_or_expected_and_known_again() {
    for place in Place::all().await {
        let (url, label) = (&place.url, place.label);
        for _ in 0..2 {
            // Twice: the first look made nothing.
            let error = open_existing(url).await.expect_err("nobody has made it");
            let kinds = [ErrorKind::Unavailable, ErrorKind::Unsuitable];
            assert!(kinds.contains(&error.kind()), "{label}: {error}");
        }
        let store = open(url).await.unwrap_or_else(|error| panic!("{label}: {}", told(&error)));
        assert_eq!(store.label(), label);
        let wakes = ["postgres", "redis"].contains(&label);
        assert_eq!(store.wake().is_some(), wakes, "{label}");
        let (lease, _) = win(&store, &claim(1, 1)).await;
        let write = store.complete(&lease, &completion(common::answer(1, 100))).await.unwrap();
        assert_eq!(write, Write::Applied);
        store.adopt().await.expect("nothing was lost, so there is nothing to it");
        let lineage = store.lineage().await.unwrap();
        drop(store);
        let again = open_existing(url).await.expect("now it is there");
        assert_eq!(again.lineage().await.unwrap(), lineage, "{label}");
        assert_replays(&again, &lease.id).await;
        let health = again.inspect().await.unwrap();
        assert_ne!(health.verdict(), Verdict::Refused, "{label}: {health:?}");
        assert_ne!(health.tier, Tier::Volatile, "{label}: {health:?}");
    }
}

async fn assert_replays(store: &Opened, id: &KeyId) {
    let again = claim(1, 2);
    assert_eq!(again.id, *id);
    let claimed = store.claim(&again).await.expect("an answer");
    assert!(matches!(claimed, Claimed::Lost { refusal: Refusal::Replay, .. }), "{claimed:?}");
}

/// A setting of ours reaches the store, one of the driver's the driver.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs all servers: run cargo xtask test"]
async fn settings_reach_whom_they_are_for() {
    let place = Place::postgres();
    let named = format!("{}&application_name=from-the-url&lock_timeout=700ms", place.url);
    let store = open(&named).await.unwrap();
    let server = url_of("ONCEKEY_TEST_POSTGRES");
    let (client, wire) = tokio_postgres::connect(&server, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(wire);
    let text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'from-the-url'";
    let seen: i64 = client.query_one(text, &[]).await.unwrap().get(0);
    assert!(seen > 0, "the driver was told the name");
    drop(store);
    // Another schema is another store.
    let other = Place::postgres();
    open_existing(&other.url).await.expect_err("it has no tables");
    let by_hand = format!("{}&migrations=check", other.url);
    let error = open(&by_hand).await.expect_err("somebody else makes the tables");
    assert!(error.to_string().contains("oncekey store migrate"), "{error}");

    let place = Place::mariadb();
    let error = open(&format!("{}&migrations=check", place.url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    assert!(error.to_string().contains("oncekey store migrate"), "{error}");
    let error = open(&format!("{}&require_ssl=true", place.url)).await.unwrap_err();
    assert!(!error.to_string().contains("no setting"), "the server has no TLS: {error}");

    let place = Place::redis();
    let error = open(&format!("{}&accept=durable", place.url)).await;
    let tier = open(&place.url).await.unwrap().inspect().await.unwrap().tier;
    assert_eq!(error.is_err(), tier > Tier::Durable, "a tier below is refused: {tier:?}");

    let place = Place::dynamodb().await;
    let strict = place.url.replace("missing=create", "missing=refuse");
    let error = open(&strict).await.expect_err("nobody has made the table");
    assert!(error.to_string().contains("there is no table"), "{error}");
}

/// The printed statements make a store that opens without rights to make tables.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs all servers: run cargo xtask test"]
async fn the_printed_statements_make_a_store_that_opens() {
    use mysql_async::prelude::Queryable as _;

    let place = Place::postgres();
    let sql = oncekey::store::migration_sql(&place.url).unwrap();
    let server = url_of("ONCEKEY_TEST_POSTGRES");
    let (client, wire) = tokio_postgres::connect(&server, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(wire);
    client.batch_execute(&sql).await.unwrap();
    open_existing(&place.url).await.unwrap();

    let place = Place::mariadb();
    let sql = oncekey::store::migration_sql(&place.url).unwrap();
    let options = mysql_async::Opts::from_url(&url_of("ONCEKEY_TEST_MYSQL")).unwrap();
    mysql_async::Conn::new(options).await.unwrap().query_drop(sql).await.unwrap();
    open_existing(&place.url).await.unwrap();
}

/// I52: a server that is not there, or that does not let us in, and no password in what is told.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs all servers: run cargo xtask test"]
async fn no_error_of_a_server_shows_a_password() {
    let with_password = |url: &str| {
        let (scheme, place) = url.split_once("://").expect("a URL");
        let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
        format!("{scheme}://nobody:hunter2@{place}")
    };
    let strangers = [
        with_password(&Place::mariadb().url),
        with_password(&Place::redis().url),
        with_password(&Place::cluster().url),
        with_password(&Place::pgbouncer().url).replace("nobody", "no%20body"),
    ];
    let nowhere = [
        "postgres://u:hunter2@127.0.0.1:1/db?connect_timeout=3",
        "mysql://u:hunter2@127.0.0.1:1/db",
        "redis://u:hunter2@127.0.0.1:1/0",
        "redis+cluster://u:hunter2@127.0.0.1:1,127.0.0.1:2",
        "dynamodb://table?region=us-east-1&endpoint=http://u:hunter2@127.0.0.1:1",
    ];
    for url in strangers.iter().map(String::as_str).chain(nowhere) {
        for opened in [open(url).await, open_existing(url).await] {
            // Whoever is let in without a password has nothing to tell.
            let Err(error) = opened else { continue };
            let told = told(&error);
            assert!(!told.contains("hunter2"), "{url}: {told}");
        }
    }
    for url in nowhere {
        let error = open(url).await.expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error}");
    }
}

/// What was opened hands every call on, an adoption too.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_store_that_was_emptied_is_adopted_through_what_was_opened() {
    let place = Place::redis();
    let store = Arc::new(open(&place.url).await.unwrap());
    let (lease, _) = win(&*store, &claim(1, 1)).await;
    let record = store.get(&lease.id).await.unwrap().expect("it is there");
    let (_, prefix) = place.url.split_once("prefix=").expect("a prefix");
    let client = redis::Client::open(url_of("ONCEKEY_TEST_REDIS")).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS")
        .arg(format!("{{{prefix}*"))
        .query_async(&mut connection)
        .await
        .expect("the names");
    assert!(keys.len() > 256, "a root, and a mark for each shard");
    let _: i64 = redis::cmd("DEL").arg(keys).query_async(&mut connection).await.expect("emptied");
    let error = store.claim(&claim(2, 2)).await.expect_err("it has lost everything");
    assert!(error.to_string().contains("lost its data"), "{error}");
    store.restore(&record).await.unwrap();
    store.adopt().await.unwrap();
    win(&*store, &claim(2, 2)).await;
    let claimed = store.claim(&claim(1, 3)).await.unwrap();
    assert!(matches!(claimed, Claimed::Lost { .. }), "what was restored stands: {claimed:?}");
}

/// I7: leases are renewed by a thread of their own, which must depend on no thread of the program: they
/// may all be blocked.
#[test]
#[ignore = "needs all servers: run cargo xtask test"]
fn leases_are_renewed_while_the_program_stands_still() {
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime")
    };
    // Nothing in it moves between two calls.
    let program = runtime();
    for place in program.block_on(Place::all()) {
        let label = place.label;
        let (store, leases) = program.block_on(async {
            let store = open(&place.url).await.unwrap_or_else(|error| panic!("{}", told(&error)));
            let mut leases = Vec::new();
            for key in 0..8 {
                leases.push(win(&store, &claim(key, 1)).await.0);
            }
            (store, leases)
        });
        let heart = runtime();
        let span = Duration::from_secs(60);
        for round in 0..2 {
            let renewed = heart.block_on(async {
                tokio::time::timeout(Duration::from_secs(20), store.renew(&leases, span)).await
            });
            let renewed = renewed.unwrap_or_else(|_| panic!("{label} waits for the program"));
            let renewed = renewed.unwrap_or_else(|error| panic!("{label}: {}", told(&error)));
            let is_held = |renewal: &Renewal| matches!(renewal, Renewal::Until(_));
            assert!(renewed.iter().all(is_held), "{label}, {round}: {renewed:?}");
        }
        program.block_on(async {
            let answer = completion(common::answer(1, 100));
            assert_eq!(store.complete(&leases[0], &answer).await.unwrap(), Write::Applied);
        });
    }
}
