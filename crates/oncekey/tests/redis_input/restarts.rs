//! Servers that come back, with everything or not.

use oncekey::core::{Claim, Claimed, ErrorKind, Restore, Store, StoreError, Write};
use oncekey::store::redis::RedisStore;

use crate::server::{DURABLE, Server, claim, completion, open, options, win};

const EVERY_SECOND: &[&str] = &["--appendonly", "yes", "--appendfsync", "everysec"];

/// What a claim gets once every connection has been found broken.
async fn claim_at_last(store: &RedisStore, claim: &Claim) -> Result<Claimed, StoreError> {
    for _ in 0..20 {
        match store.claim(claim).await {
            Err(error) if matches!(error.kind(), ErrorKind::Ambiguous | ErrorKind::Unavailable) => {
            }
            answered => return answered,
        }
    }
    panic!("the store never answers");
}

async fn is_refused(store: &RedisStore, claim: &Claim) {
    let error = claim_at_last(store, claim).await.expect_err("nothing is granted");
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    assert!(error.to_string().contains("was restarted"), "{error}");
}

/// What a process was told, no other process can miss. So every restart that may have lost something
/// stops everybody: those who were there, and those who come later.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn writes_of_another_process_that_a_restart_lost_stop_grants() {
    let mut server = Server::start(&[]).await;
    let (one, two) = (open(&server.url()).await, open(&server.url()).await);
    let before = one.lineage().await.unwrap();
    server.tell(&["SAVE"]).await;
    let lease = win(&two, &claim(5, 2)).await;
    assert_eq!(two.complete(&lease, &completion("ok")).await.unwrap(), Write::Applied);
    drop(two);
    server.crash_and_restart().await;
    is_refused(&one, &claim(5, 1)).await;
    is_refused(&one, &claim(6, 1)).await;
    assert_ne!(one.lineage().await.unwrap(), before);
    // Looking does not help: whoever comes next finds the same.
    for _ in 0..2 {
        is_refused(&open(&server.url()).await, &claim(5, 3)).await;
    }
    one.adopt().await.unwrap();
    win(&one, &claim(6, 1)).await;
    let late = open(&server.url()).await;
    win(&late, &claim(7, 3)).await;
}

/// The same for a server that syncs once a second, whatever it was that ended it.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_restart_without_a_sync_of_every_write_stops_grants_until_somebody_adopts() {
    let mut server = Server::start(EVERY_SECOND).await;
    let store = options(&server.url()).connections(1).open().await.unwrap();
    let lease = win(&store, &claim(1, 1)).await;
    server.crash_and_restart().await;
    is_refused(&store, &claim(2, 2)).await;
    // What may still be finished is finished.
    assert_eq!(store.complete(&lease, &completion("ok")).await.unwrap(), Write::Applied);
    let late = open(&server.url()).await;
    is_refused(&late, &claim(2, 2)).await;
    late.adopt().await.unwrap();
    win(&late, &claim(2, 2)).await;
    is_refused(&store, &claim(3, 3)).await;
    store.adopt().await.unwrap();
    win(&store, &claim(3, 3)).await;
}

/// And for one that has lost nothing there is no alarm, for nobody.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_restart_of_a_durable_server_stops_nobody() {
    let mut server = Server::start(DURABLE).await;
    let store = open(&server.url()).await;
    win(&store, &claim(1, 1)).await;
    for round in 0..3 {
        server.crash_and_restart().await;
        let late = open(&server.url()).await;
        win(&late, &claim(10 + round, 1)).await;
        let claimed = claim_at_last(&store, &claim(20 + round, 1)).await.unwrap();
        assert!(matches!(claimed, Claimed::Won { .. }), "{claimed:?}");
        assert_eq!(store.lineage().await.unwrap(), late.lineage().await.unwrap());
    }
}
