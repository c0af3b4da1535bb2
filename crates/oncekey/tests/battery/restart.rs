//! What survives the end of a process: the answers in the file, and the promise about the work
//! that was under way. Only SQLite has anything to survive.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oncekey::core::Policy;
use oncekey::engine::Drained;
use oncekey::store::sqlite::SqliteStore;

use crate::row;
use crate::scene::{Server, at_once, stage};
use crate::wire::pay;

const BODY: &str = r#"{"amount": 500}"#;

/// F5: an answer that was given is given again by the next process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_survives_a_restart() {
    row(async {
        let folder = tempfile::tempdir().unwrap();
        let open = || Arc::new(SqliteStore::open(folder.path().join("keys.db")).unwrap());
        let before = Server::start_on(open(), Policy::default(), at_once).await;
        let first = before.send(&pay(BODY)).await;
        assert_eq!(before.engine.shutdown(Duration::from_secs(10)).await, Drained::default());
        drop(before);
        let after = Server::start_on(open(), Policy::default(), at_once).await;
        after.send(&pay(BODY)).await.assert_replays(&first);
        after.send(&pay("{}")).await.assert_refused(422, "idempotency_key_reused", "no");
        assert_eq!(after.runs(), 0);
    })
    .await;
}

/// A shutdown finishes what runs, begins nothing new, and still replays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_finishes_what_runs_and_begins_nothing() {
    row(async {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(folder.path().join("keys.db")).unwrap());
        let (stage, mut director) = stage();
        let server =
            Server::start_on(store, Policy::default(), move |run, _| stage.payment(run)).await;
        let first = server.begin(&pay(BODY));
        director.reached().await;
        let mut drained = Box::pin(server.engine.shutdown(Duration::from_secs(30)));
        // Polled once, it has closed the gate.
        let waits = poll_fn(|cx| Poll::Ready(drained.as_mut().poll(cx).is_pending())).await;
        assert!(waits, "a payment is under way");
        let refused = server.send(&pay(BODY).key("another-key-of-a-client")).await;
        refused.assert_refused(503, "idempotency_store_unavailable", "no");
        director.open();
        let first = first.await.unwrap();
        assert_eq!(first.status, 201);
        assert_eq!(drained.await, Drained::default());
        server.send(&pay(BODY)).await.assert_replays(&first);
        assert_eq!(server.runs(), 1);
    })
    .await;
}
