//! A server that is killed in the middle of a payment, as a real process: F3.
//!
//! The next server on the same file waits until the lease of the dead one has lapsed, and then
//! does what the class of the route says.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use http::Request;
use oncekey::core::{Class, Policy};
use oncekey::layer::IdempotencyContext;
use oncekey::store::sqlite::SqliteStore;

use crate::common::child::{Orders, Process, command, tell};
use crate::row;
use crate::scene::{Server, created};
use crate::wire::{Client, pay};

const BODY: &str = r#"{"amount": 500}"#;

/// As short as a policy allows, because the tests wait for it in real time.
const LEASE: Duration = Duration::from_secs(1);
const CLASSES: [Class; 3] = [Class::Once, Class::Keyed, Class::Retry];

fn policy(class: Class) -> Policy {
    let grace = Duration::from_millis(100);
    Policy { class, lease: LEASE, grace, ..Policy::default() }
}

fn derived_key(request: &Request<Body>) -> String {
    request.extensions().get::<IdempotencyContext>().unwrap().derived_key("charge")
}

/// The server that is killed: it says where it is and when it is in the middle of a payment, which
/// it never ends.
pub(crate) async fn serve(orders: &Orders) {
    let store = Arc::new(SqliteStore::open(&orders.file).unwrap());
    let class = CLASSES[usize::try_from(orders.number).unwrap()];
    let server = Server::start_on(store, policy(class), |_, request| {
        tell(&derived_key(&request));
        Box::pin(std::future::pending())
    })
    .await;
    tell(&server.address.to_string());
    std::future::pending::<()>().await;
}

/// Starts a server, lets it begin a payment, and kills it. Returns the key that the payment
/// forwarded.
async fn begin_and_kill(file: &Path, number: u64) -> String {
    let mut process = Process::start(&mut command("serve", file, number));
    let address = process.hear().unwrap().parse().unwrap();
    let mut client = Client::open(address).await;
    client.write(&pay(BODY).bytes()).await;
    let forwarded = process.hear().unwrap();
    process.kill();
    assert!(client.is_at_its_end().await, "the client learns nothing");
    forwarded
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_whose_server_was_killed_is_unknown_or_made_again_by_class() {
    row(async {
        for (number, class) in (0..).zip(CLASSES) {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("keys.db");
            let forwarded = begin_and_kill(&file, number).await;
            let seen = Arc::new(Mutex::new(Vec::new()));
            let sees = Arc::clone(&seen);
            let store = Arc::new(SqliteStore::open(&file).unwrap());
            let server = Server::start_on(store, policy(class), move |run, request| {
                sees.lock().unwrap().push(derived_key(&request));
                Box::pin(async move { created(run) })
            })
            .await;
            let retry = server.send(&pay(BODY)).await;
            match class {
                Class::Once | Class::Tx => {
                    retry.assert_refused(409, "idempotency_outcome_unknown", "unknown");
                    assert_eq!(server.runs(), 0, "the dead one may have paid");
                }
                Class::Keyed | Class::Retry => {
                    assert_eq!((retry.status, retry.is_replay(), server.runs()), (201, false, 1));
                    assert_eq!(*seen.lock().unwrap(), [forwarded], "a provider recognises it");
                    server.send(&pay(BODY)).await.assert_replays(&retry);
                }
            }
            // Another request under the key is refused, whatever became of the first.
            server.send(&pay("{}")).await.assert_refused(422, "idempotency_key_reused", "no");
        }
    })
    .await;
}
