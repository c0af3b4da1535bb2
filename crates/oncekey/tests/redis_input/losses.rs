//! Servers that lose what they acknowledged, and what is noticed of it.

use std::time::Duration;

use oncekey::core::health::Verdict;
use oncekey::core::{
    Claimed, ErrorKind, Inspect, KeyId, Refusal, Renewal, Restore, Restored, Store, StoreError,
    Write,
};

use crate::server::{
    DURABLE, Door, Server, claim, completion, in_step, open, options, same_offset, win,
};

fn is_lost(error: &StoreError) {
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    assert!(error.to_string().contains("lost its data or failed over"), "{error}");
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_flush_stops_grants_until_the_store_is_adopted() {
    let server = Server::start(&[]).await;
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    let lease = win(&store, &claim(1, 1)).await;
    let record = store.get(&lease.id).await.unwrap().unwrap();
    let before = store.lineage().await.unwrap();
    assert_eq!(other.lineage().await.unwrap(), before);
    server.tell(&["FLUSHALL"]).await;
    for store in [&store, &other] {
        is_lost(&store.claim(&claim(1, 2)).await.unwrap_err());
        is_lost(&store.get(&lease.id).await.unwrap_err());
        is_lost(&store.complete(&lease, &completion("ok")).await.unwrap_err());
        is_lost(&store.renew(&[lease], Duration::from_secs(1)).await.unwrap_err());
        assert_ne!(store.lineage().await.unwrap(), before);
    }
    assert_eq!(store.restore(&record).await.unwrap(), Restored::Written);
    is_lost(&store.claim(&claim(2, 2)).await.unwrap_err());
    store.adopt().await.unwrap();
    is_lost(&other.claim(&claim(2, 2)).await.unwrap_err());
    other.adopt().await.unwrap();
    assert_eq!(other.lineage().await.unwrap(), store.lineage().await.unwrap());
    assert_ne!(store.lineage().await.unwrap(), before);
    // What was written back is still owned by whoever owned it, and everything goes on.
    let Claimed::Lost { refusal: Refusal::InProgress(_), .. } =
        other.claim(&claim(1, 2)).await.unwrap()
    else {
        panic!("the restored record stands in the way")
    };
    assert_eq!(store.complete(&lease, &completion("ok")).await.unwrap(), Write::Applied);
    win(&other, &claim(2, 2)).await;
}

/// I2: also if nothing was written back.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn fences_rise_across_a_flush() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    // A clock that was once an hour ahead.
    let ahead = win(&store, &claim(1, 1)).await.fence.number() + 3_600_000_000;
    let mark = format!("{{oncekey:{:02x}}}m", 1);
    server.tell(&["SETRANGE", &mark, "32", &format!("{ahead:016}")]).await;
    assert_eq!(store.release(&win(&store, &claim(1, 1)).await).await.unwrap(), Write::Applied);
    let high = win(&store, &claim(1, 1)).await;
    assert!(high.fence.number() > ahead);
    server.tell(&["FLUSHALL"]).await;
    store.adopt().await.unwrap();
    let next = win(&store, &claim(1, 2)).await;
    assert!(next.fence > high.fence, "{} after {}", next.fence, high.fence);
}

/// A shard that has forgotten what it acknowledged to this process is noticed at the next call.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_shard_that_falls_behind_is_noticed() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    let lease = win(&store, &claim(1, 1)).await;
    let mark = format!("{{oncekey:{:02x}}}m", 1);
    let before = format!("{:016}", lease.fence.number() - 1);
    server.tell(&["SETRANGE", &mark, "32", &before]).await;
    is_lost(&store.claim(&claim(1, 2)).await.unwrap_err());
    // Nobody knows what the other shards have lost.
    is_lost(&store.claim(&claim(2, 2)).await.unwrap_err());
    assert_eq!(store.inspect().await.unwrap().verdict(), Verdict::Refused);
    store.adopt().await.unwrap();
    assert_eq!(store.inspect().await.unwrap().verdict(), Verdict::Degraded);
    assert_eq!(store.release(&lease).await.unwrap(), Write::Applied);
    assert!(win(&store, &claim(1, 2)).await.fence > lease.fence);
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_promoted_replica_stops_grants_until_it_is_adopted() {
    let mut primary = Server::start(&["--repl-diskless-sync-delay", "0"]).await;
    let store = open(&primary.url()).await;
    let lease = win(&store, &claim(1, 1)).await;
    let port = primary.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]).await;
    in_step(&replica).await;
    primary.kill();
    replica.tell(&["REPLICAOF", "NO", "ONE"]).await;
    let store = open(&replica.url()).await;
    is_lost(&store.claim(&claim(2, 2)).await.unwrap_err());
    let health = store.inspect().await.unwrap();
    assert_eq!(health.verdict(), Verdict::Refused, "{health:?}");
    let before = store.lineage().await.unwrap();
    // What may still be finished is finished.
    assert_eq!(store.complete(&lease, &completion("ok")).await.unwrap(), Write::Applied);
    store.adopt().await.unwrap();
    assert_ne!(store.lineage().await.unwrap(), before);
    win(&store, &claim(2, 2)).await;
    let again = open(&replica.url()).await;
    win(&again, &claim(3, 3)).await;
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_crash_of_a_durable_server_loses_nothing_and_stops_nothing() {
    let mut server = Server::start(DURABLE).await;
    let store = open(&server.url()).await;
    let lease = win(&store, &claim(1, 1)).await;
    let lineage = store.lineage().await.unwrap();
    for round in 0..3 {
        server.crash_and_restart().await;
        // The first call finds the connection broken; it may or may not have been heard.
        let mut tries = 0;
        while let Err(error) = store.claim(&claim(10 + round, 1)).await {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::Ambiguous | ErrorKind::Unavailable), "{error}");
            tries += 1;
            assert!(tries < 20, "{error}");
        }
        assert_eq!(store.lineage().await.unwrap(), lineage);
    }
    assert_eq!(store.complete(&lease, &completion("ok")).await.unwrap(), Write::Applied);
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_volatile_server_that_restarts_has_lost_everything() {
    let mut server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    win(&store, &claim(1, 1)).await;
    server.crash_and_restart().await;
    let mut last = store.claim(&claim(1, 2)).await;
    for _ in 0..20 {
        if last.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsuitable) {
            break;
        }
        last = store.claim(&claim(1, 2)).await;
    }
    is_lost(&last.unwrap_err());
}

/// NOSCRIPT is nobody's business.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_server_that_forgets_its_scripts_is_told_again() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    for key in 0..8 {
        server.tell(&["SCRIPT", "FLUSH"]).await;
        let lease = win(&store, &claim(key, 1)).await;
        server.tell(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(store.complete(&lease, &completion("ok")).await.unwrap(), Write::Applied);
    }
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn restoring_never_takes_anything_back() {
    let server = Server::start(&[]).await;
    let (store, copy) = (open(&server.url()).await, options(&server.url()).prefix("copy"));
    let copy = copy.open().await.unwrap();
    let lease = win(&store, &claim(1, 1)).await;
    let running = store.get(&lease.id).await.unwrap().unwrap();
    assert_eq!(store.complete(&lease, &completion("ok")).await.unwrap(), Write::Applied);
    let done = store.get(&lease.id).await.unwrap().unwrap();
    for (record, expected) in [
        (&running, Restored::Written),
        (&running, Restored::Kept),
        (&done, Restored::Written),
        (&running, Restored::Kept),
        (&done, Restored::Kept),
    ] {
        assert_eq!(copy.restore(record).await.unwrap(), expected);
    }
    assert_eq!(copy.get(&lease.id).await.unwrap().unwrap(), done);
    let Claimed::Lost { refusal: Refusal::Replay, .. } = copy.claim(&claim(1, 2)).await.unwrap()
    else {
        panic!("a restored answer replays")
    };
    // Every fence is higher afterwards, also for a key of the same shard.
    let mut other = claim(1, 3);
    let mut id = *lease.id.as_bytes();
    id[31] = 99;
    other.id = KeyId::from_bytes(id);
    assert!(win(&copy, &other).await.fence > lease.fence);
}

/// A part of the store is gone before anybody looks: it opens, so that it can be put right.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_store_with_a_hole_opens_and_grants_nothing() {
    let server = Server::start(&[]).await;
    win(&open(&server.url()).await, &claim(1, 1)).await;
    for gone in ["{oncekey:07}m", "{oncekey}root"] {
        server.tell(&["DEL", gone]).await;
        let store = open(&server.url()).await;
        is_lost(&store.claim(&claim(2, 2)).await.unwrap_err());
        store.adopt().await.unwrap();
        let lease = win(&store, &claim(2, 2)).await;
        assert_eq!(store.release(&lease).await.unwrap(), Write::Applied);
    }
}

/// A primary that was made a replica still answers, and its connections stand. Whoever is refused there
/// asks where the address leads by now, and no call is lost for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_primary_that_was_demoted_is_left_for_the_new_one() {
    let primary = Server::start(&["--repl-diskless-sync-delay", "0"]).await;
    let port = primary.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]).await;
    let door = Door::to(&primary).await;
    let store = open(&door.url).await;
    let mut leases = Vec::new();
    // Enough for all connections of the store to be in use.
    for key in 0..16 {
        leases.push(win(&store, &claim(key, 1)).await);
    }
    let span = Duration::from_secs(60);
    store.renew(&leases, span).await.unwrap();
    in_step(&replica).await;
    same_offset(&primary, &replica).await;
    replica.tell(&["REPLICAOF", "NO", "ONE"]).await;
    // Of nobody who is there: it must not copy anything while it is asked.
    primary.tell(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = store.complete(&leases[0], &completion("ok")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "the failover has not ended: {error}");
    door.lead_to(&replica);
    let renewals = store.renew(&leases, span).await.unwrap();
    assert!(renewals.iter().all(|it| matches!(it, Renewal::Until(_))), "{renewals:?}");
    for lease in &leases {
        assert_eq!(store.complete(lease, &completion("ok")).await.unwrap(), Write::Applied);
    }
    // What it may have lost is seen to first.
    is_lost(&store.claim(&claim(20, 2)).await.unwrap_err());
    store.adopt().await.unwrap();
    win(&store, &claim(20, 2)).await;
}

/// The address stays and the server behind it changes, as in a managed service: the very first claim
/// on the new one is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_failover_behind_one_address_is_noticed_by_the_first_claim() {
    let mut primary = Server::start(&["--repl-diskless-sync-delay", "0"]).await;
    let port = primary.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]).await;
    let door = Door::to(&primary).await;
    let store = open(&door.url).await;
    let lease = win(&store, &claim(1, 1)).await;
    in_step(&replica).await;
    primary.kill();
    replica.tell(&["REPLICAOF", "NO", "ONE"]).await;
    door.lead_to(&replica);
    let mut refused = 0;
    for key in 10..40 {
        match store.claim(&claim(key, 2)).await {
            Ok(claimed) => panic!("nothing is granted by a promoted replica: {claimed:?}"),
            Err(error) if error.kind() == ErrorKind::Unsuitable => refused += 1,
            // Connections that were idle are found broken once each.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}"),
        }
    }
    assert!(refused >= 28, "{refused}");
    assert_eq!(store.complete(&lease, &completion("ok")).await.unwrap(), Write::Applied);
    store.adopt().await.unwrap();
    win(&store, &claim(2, 2)).await;
}
