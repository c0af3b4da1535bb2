//! Sinks that give messages to brokers.
//!
//! - `nats`: a stream of NATS JetStream.
//! - `rabbitmq`: an exchange of RabbitMQ.
//! - `proxy`: a way to a broker that can be broken.
//! - `server`: a broker of its own for each test that kills it.
#![cfg(all(
    feature = "outbox-nats",
    feature = "outbox-rabbitmq",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql"
))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]

mod nats;
#[path = "../outbox_common/mod.rs"]
mod outbox_common;
#[expect(dead_code, reason = "other tests need the rest of it")]
#[path = "../common/proxy.rs"]
mod proxy;
mod rabbitmq;
mod server;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::flow::sqlx::SqlxSqlite;
use oncekey::outbox::{Delivery, Message, MessageId, Outbox, Relay, Relayed, Sink, Staged};

use self::outbox_common::{MOMENT, made, sqlite, stage_all};
use self::server::Server;

async fn database() -> (tempfile::TempDir, SqlxSqlite) {
    let folder = tempfile::tempdir().unwrap();
    let store = made(sqlite(folder.path().join("app.db")).await).await;
    (folder, store)
}

/// A name that nobody else uses on a server that tests share.
fn name() -> String {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    format!("t{:x}", u64::from_le_bytes(bytes))
}

fn relay(store: &SqlxSqlite, sink: impl Sink) -> Relay<SqlxSqlite> {
    Relay::new(store.clone()).route("*", sink).backoff(MOMENT, MOMENT).attempts(1)
}

async fn once(relay: &Relay<SqlxSqlite>) -> Relayed {
    relay.run_once().await.unwrap()
}

/// Why the only dead letter is one, and its id.
async fn reason(store: &SqlxSqlite) -> (MessageId, String) {
    let dead = Outbox::new(store.clone()).dead_letters(10).await.unwrap();
    assert_eq!(dead.len(), 1);
    (dead[0].id, dead[0].reason.clone())
}

/// Delivers, and lets the answer to the first attempt be lost.
struct Doubtful<S>(S);

#[async_trait::async_trait]
impl<S: Sink> Sink for Doubtful<S> {
    async fn deliver(&self, message: &Message) -> Delivery {
        match (self.0.deliver(message).await, message.attempt()) {
            (Delivery::Sent, 1) => Delivery::retry("the answer was lost"),
            (said, _) => said,
        }
    }
}

/// Counts what has arrived, and remembers why something has not.
struct Counted<S>(S, Arc<Tally>);

#[derive(Default)]
struct Tally {
    arrived: AtomicUsize,
    refused: Mutex<Option<Delivery>>,
}

#[async_trait::async_trait]
impl<S: Sink> Sink for Counted<S> {
    async fn deliver(&self, message: &Message) -> Delivery {
        let said = self.0.deliver(message).await;
        match &said {
            Delivery::Sent => drop(self.1.arrived.fetch_add(1, Ordering::SeqCst)),
            Delivery::Retry { .. } | Delivery::Dead(_) => {
                *self.1.refused.lock().unwrap() = Some(said.clone());
            }
        }
        said
    }
}

/// Delivers messages of this topic, kills the broker in the middle, starts it again, and waits until all
/// are delivered. Returns their ids.
async fn through_a_crash(
    store: &SqlxSqlite,
    sink: impl Sink,
    topic: &str,
    server: &mut Server,
) -> Vec<String> {
    const MESSAGES: usize = 400;
    let staged = (0..MESSAGES).map(|number| Staged::raw(topic, number.to_string())).collect();
    let ids = stage_all(store, staged).await;
    let tally = Arc::new(Tally::default());
    let second = Duration::from_secs(1);
    let relay = Relay::new(store.clone()).route("*", Counted(sink, Arc::clone(&tally)));
    // Few at once, so that there is a middle; enough attempts for as long as the broker is away.
    let relay = relay.at_once(2).batch(40).every(MOMENT).backoff(second, second).attempts(1_000);
    let relay = tokio::spawn(async move { relay.run(std::future::pending()).await });
    let some = async {
        while tally.arrived.load(Ordering::SeqCst) < 50 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), some).await.expect("some are delivered");
    server.kill();
    let before = tally.arrived.load(Ordering::SeqCst);
    assert!(before < MESSAGES, "it was killed too late");
    server.start_again();
    let outbox = Outbox::new(store.clone());
    let all = async {
        while outbox.backlog().await.unwrap().waiting > 0 {
            tokio::time::sleep(MOMENT).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(120), all).await.is_err() {
        let (left, refused) = (outbox.backlog().await, tally.refused.lock().unwrap().clone());
        panic!("{left:?} were not delivered, {refused:?}; the broker says:\n{}", server.log());
    }
    relay.abort();
    assert_eq!(outbox.backlog().await.unwrap().dead, 0);
    let mut ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    ids.sort_unstable();
    ids
}
