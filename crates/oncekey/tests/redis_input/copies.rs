//! Writes that count only when replicas have them.

use std::time::Duration;

use oncekey::core::{Erase as _, ErrorKind, Restore as _, Store};

use crate::server::{Door, Server, claim, in_step, open, options, win};

/// A server with a replica of its own says that all its writes have a copy. It speaks of its own
/// writes, and not of those of the server whose place it took.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn copies_are_confirmed_by_the_server_that_has_the_write() {
    let old = Server::start(&["--repl-diskless-sync-delay", "0"]).await;
    let door = Door::to(&old).await;
    let waits = options(&door.url).connections(1);
    let store = waits.wait_for_replicas(1, Duration::from_millis(500)).open().await.unwrap();
    win(&open(&old.url()).await, &claim(9, 9)).await;
    let settings = ["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1"];
    let new = Server::start(&[&settings[..], &[&old.port.to_string()]].concat()).await;
    in_step(&new).await;
    let copy = Server::start(&[&settings[..], &[&new.port.to_string()]].concat()).await;
    in_step(&copy).await;
    new.tell(&["REPLICAOF", "NO", "ONE"]).await;
    confirms(&new).await;
    door.lead_to(&new);
    // The first connection stands and leads to the old server; the one that waits is made now.
    let error = store.claim(&claim(1, 1)).await.expect_err("the new server has no such write");
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert!(error.to_string().contains("replaced"), "{error}");
    let id = claim(1, 1).id;
    let record = [&b"{oncekey:01}r"[..], id.as_bytes()].concat();
    for (server, expected) in [(&old, 1), (&new, 0)] {
        let mut exists = redis::cmd("EXISTS");
        let found: i64 =
            exists.arg(&record[..]).query_async(&mut server.raw().await).await.unwrap();
        assert_eq!(found, expected);
    }
}

/// What is erased or put back counts when replicas have it, like everything else.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn erasing_and_restoring_wait_for_copies() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    let lease = win(&store, &claim(1, 1)).await;
    let record = store.get(&lease.id).await.unwrap().unwrap();
    let waits = options(&server.url()).wait_for_replicas(1, Duration::from_millis(50));
    let waits = waits.open().await.unwrap();
    for (what, answer) in [
        ("erase", waits.erase(&lease.id).await.map(drop)),
        ("erase nothing", waits.erase(&claim(2, 2).id).await.map(drop)),
        ("restore", waits.restore(&record).await.map(drop)),
    ] {
        let error = answer.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{what}: {error}");
        assert!(error.to_string().contains("0 of 1"), "{what}: {error}");
    }
}

/// Waits until a replica of `server` confirms what it writes.
async fn confirms(server: &Server) {
    for _ in 0..50 {
        let mut both = redis::pipe();
        both.cmd("SET").arg("foreign").arg(1).ignore().cmd("WAIT").arg(1).arg(200);
        let (copies,): (i64,) = both.query_async(&mut server.raw().await).await.expect("copies");
        if copies == 1 {
            return;
        }
    }
    panic!("the replica never gets in step");
}
