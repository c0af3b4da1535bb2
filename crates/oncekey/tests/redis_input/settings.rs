//! Servers that are not there, do not let us in, or are set up so that promises cannot be kept.

use std::error::Error as _;
use std::time::Duration;

use oncekey::core::browse::{Browse as _, Filter, Page};
use oncekey::core::health::{Tier, Verdict};
use oncekey::core::wake::{Wake as _, Woken};
use oncekey::core::{
    Erase as _, Erased, ErrorKind, Inspect, Restore as _, Store, StoreError, Write,
};
use oncekey::store::redis::RedisOptions;

use crate::server::{DURABLE, Server, claim, completion, open, options, win};

async fn refusal(options: RedisOptions) -> StoreError {
    options.open().await.map(drop).expect_err("the store does not open")
}

/// The whole chain, as a log would show it.
fn chain(error: &StoreError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause} {cause:?}");
        source = cause.source();
    }
    text
}

#[tokio::test]
async fn a_wrong_url_says_what_is_expected() {
    for url in ["", "localhost", "http://a", "redis://", "redis+cluster://", "redis://u:geheim@["] {
        let error = refusal(options(url)).await;
        assert!(matches!(error.kind(), ErrorKind::Unsuitable), "{url}: {error}");
        assert!(error.to_string().contains("redis://host"), "{url}: {error}");
        assert!(!chain(&error).contains("geheim"), "{error:?}");
    }
    let error = refusal(options("redis://127.0.0.1").prefix("a{b")).await;
    assert_eq!(error.kind(), ErrorKind::Unsuitable);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    for url in ["redis://u:geheim@127.0.0.1:1", "redis+cluster://u:geheim@127.0.0.1:1,127.0.0.1:2"]
    {
        let error = refusal(options(url)).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(!chain(&error).contains("geheim"), "{error:?}");
    }
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_wrong_password_is_refused_and_never_shown() {
    let server = Server::start(&["--requirepass", "richtig"]).await;
    for user in ["", ":geheim@", "nobody:geheim@"] {
        let error = refusal(options(&format!("redis://{user}127.0.0.1:{}", server.port))).await;
        assert_eq!(error.kind(), ErrorKind::Unsuitable, "{user}: {}", chain(&error));
        assert!(error.to_string().contains("password"), "{error}");
        assert!(!chain(&error).contains("geheim"), "{}", chain(&error));
    }
    let store = open(&format!("redis://:richtig@127.0.0.1:{}", server.port)).await;
    win(&store, &claim(1, 1)).await;
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn an_eviction_policy_is_refused() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = Server::start(&["--maxmemory-policy", policy]).await;
        let error = refusal(options(&server.url())).await;
        assert_eq!(error.kind(), ErrorKind::Unsuitable);
        assert!(error.to_string().contains("noeviction"), "{error}");
        assert!(error.to_string().contains(policy), "{error}");
    }
}

/// Also one that was set while nobody was connected, as in a restart with another file of settings.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn an_eviction_policy_that_came_later_stops_grants_on_the_next_connection() {
    let server = Server::start(&[]).await;
    let store = options(&server.url()).connections(1).open().await.unwrap();
    let lease = win(&store, &claim(1, 1)).await;
    server.tell(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    server.tell(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let mut refused = store.claim(&claim(2, 2)).await;
    for _ in 0..20 {
        if refused.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsuitable) {
            break;
        }
        refused = store.claim(&claim(2, 2)).await;
    }
    let error = refused.expect_err("nothing is granted");
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    assert!(error.to_string().contains("noeviction"), "{error}");
    // What runs may end.
    assert_eq!(store.complete(&lease, &completion("ok")).await.unwrap(), Write::Applied);
    server.tell(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    win(&store, &claim(2, 2)).await;
}

/// And one that is set later is found by whoever looks.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn health_says_how_the_server_is_set_up() {
    let server = Server::start(DURABLE).await;
    let store = open(&server.url()).await;
    let health = store.inspect().await.unwrap();
    assert_eq!((health.tier, health.verdict()), (Tier::Durable, Verdict::Good), "{health:?}");
    assert!(health.name.starts_with("Redis 7"), "{}", health.name);
    server.tell(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    server.tell(&["CONFIG", "SET", "appendfsync", "everysec"]).await;
    let health = store.inspect().await.unwrap();
    assert_eq!((health.tier, health.verdict()), (Tier::Process, Verdict::Refused), "{health:?}");
    let checks: Vec<_> = health.complaints().map(|finding| finding.check).collect();
    assert_eq!(checks, ["eviction", "persistence"]);
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_server_that_forgets_must_be_asked_for() {
    let server = Server::start(&["--appendonly", "no"]).await;
    let error = refusal(RedisOptions::new(server.url())).await;
    assert_eq!(error.kind(), ErrorKind::Unsuitable);
    assert!(error.to_string().contains("appendonly"), "{error}");
    let store = open(&server.url()).await;
    assert_eq!(store.inspect().await.unwrap().tier, Tier::Volatile);
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_replica_is_refused() {
    let primary = Server::start(&[]).await;
    let port = primary.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]).await;
    let error = refusal(options(&replica.url())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_full_server_says_what_to_do_and_lets_keys_go() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    let lease = win(&store, &claim(1, 1)).await;
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = store.claim(&claim(2, 2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", chain(&error));
    assert!(error.to_string().contains("maxmemory"), "{error}");
    let error = store.complete(&lease, &completion("ok")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", chain(&error));
    assert_eq!(store.release(&lease).await.unwrap(), Write::Applied, "a key can always go");
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]).await;
    win(&store, &claim(2, 2)).await;
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn too_few_replicas_are_unavailable_or_ambiguous() {
    let server = Server::start(&[]).await;
    let waits = options(&server.url()).wait_for_replicas(1, Duration::from_millis(50));
    let waits = waits.open().await.unwrap();
    let error = waits.claim(&claim(1, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert!(error.to_string().contains("0 of 1"), "{error}");
    let stands = waits.get(&claim(1, 1).id).await.unwrap();
    assert!(stands.is_some(), "the write stands");
    server.tell(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let error = waits.claim(&claim(2, 2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", chain(&error));
    assert!(error.to_string().contains("min-replicas-to-write"), "{error}");
    assert_eq!(waits.get(&claim(2, 2).id).await.unwrap(), None, "nothing was written");
}

/// With a replica in step, the same store grants.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_replica_in_step_confirms() {
    let primary = Server::start(&["--repl-diskless-sync-delay", "0"]).await;
    let port = primary.port.to_string();
    let _replica = Server::start(&["--replicaof", "127.0.0.1", &port]).await;
    let second = Duration::from_secs(5);
    let store = options(&primary.url()).wait_for_replicas(1, second).open().await.unwrap();
    let mut granted = 0;
    for key in 0..20 {
        // The first ones may come before the replica is in step.
        if store.claim(&claim(key, 1)).await.is_ok() {
            granted += 1;
        }
    }
    assert!(granted > 10, "{granted}");
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn an_old_server_is_refused_where_it_lacks_a_command() {
    let server = Server::start(&[]).await;
    let info: String = redis::cmd("INFO").query_async(&mut server.raw().await).await.unwrap();
    if info.contains("redis_version:7.0") {
        let within = Duration::from_millis(50);
        let error = refusal(options(&server.url()).wait_for_disks(0, within)).await;
        assert_eq!(error.kind(), ErrorKind::Unsuitable);
        assert!(error.to_string().contains("7.2"), "{error}");
    }
}

/// What the manual says that a user needs is what a user needs.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_user_needs_the_rights_that_the_manual_lists() {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explanation/redis-store.md");
    let manual = std::fs::read_to_string(manual).expect("the manual");
    let (_, rules) = manual.split_once("A user for the store needs these rules").expect("rules");
    let (rules, _) = rules.split_once("for a cluster").expect("what only a cluster needs");
    let mut words = vec!["ACL".to_owned(), "SETUSER".into(), "app".into(), "on".into()];
    words.push(">geheim".into());
    for word in rules.split('`').skip(1).step_by(2) {
        let is_command = word.starts_with(|first: char| first.is_ascii_uppercase());
        words.push(if is_command { format!("+{}", word.to_lowercase()) } else { word.to_owned() });
    }
    let server = Server::start(DURABLE).await;
    let said: Vec<&str> = words.iter().map(String::as_str).collect();
    server.tell(&said).await;
    let url = format!("redis://app:geheim@127.0.0.1:{}", server.port);
    let store = open(&url).await;
    assert_eq!(store.inspect().await.unwrap().tier, Tier::Process, "CONFIG is forbidden");
    let mut feed = store.watch().await.unwrap();
    let lease = win(&store, &claim(1, 1)).await;
    assert_eq!(store.send(&lease).await.unwrap(), Write::Applied);
    let large: &'static str = "x".repeat(1 << 20).leak();
    assert_eq!(store.complete(&lease, &completion(large)).await.unwrap(), Write::Applied);
    assert_eq!(feed.next().await, Woken::Finished(lease.id));
    assert!(store.get(&lease.id).await.unwrap().is_some());
    let listing = store.list(&Filter::default(), &Page::default()).await.unwrap();
    assert_eq!(listing.summaries.len(), 1);
    assert_eq!(store.erase(&lease.id).await.unwrap(), Erased::Blank);
    assert_eq!(store.purge(10).await.unwrap().total(), 0);
    store.adopt().await.unwrap();
    server.tell(&["ACL", "SETUSER", "app", "-evalsha"]).await;
    let error = store.claim(&claim(2, 2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{}", chain(&error));
    assert!(error.to_string().contains("rules"), "{error}");
    assert!(!chain(&error).contains("geheim"), "{}", chain(&error));
}
