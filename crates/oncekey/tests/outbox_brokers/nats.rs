//! A stream of NATS JetStream.

use async_nats::jetstream::{self, Context, stream};
use oncekey::outbox::{NatsSink, Outbox, Staged};

use crate::outbox_common::stage;
use crate::server::{Kind, Server};
use crate::{Doubtful, database, name, once, reason, relay, through_a_crash};

async fn context(url: &str) -> Context {
    jetstream::new(async_nats::connect(url).await.unwrap())
}

async fn shared() -> Context {
    context(&std::env::var("ONCEKEY_TEST_NATS").expect("run `cargo xtask servers`")).await
}

async fn stream(context: &Context, name: &str) -> stream::Stream {
    let subjects = vec![format!("{name}.>")];
    let config = stream::Config { name: name.to_owned(), subjects, ..stream::Config::default() };
    context.create_stream(config).await.unwrap()
}

async fn count(stream: &mut stream::Stream) -> u64 {
    stream.info().await.unwrap().state.messages
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NATS: run cargo xtask test"]
async fn a_message_is_stored_in_a_stream_with_its_id_and_key() {
    let (_folder, store) = database().await;
    let (context, name) = (shared().await, name());
    let mut stream = stream(&context, &name).await;
    let relay = relay(&store, NatsSink::new(context).under(name.as_str()));
    let staged = Staged::raw("order.paid", [0, 159, 146]).order_key("kündin 7");
    // What is staged cannot pretend to be ours, nor empty the stream.
    let staged = staged.header("x-tenant", "acme");
    let staged = staged.header("nats-msg-id", "forged").header("Nats-Rollup", "all");
    let id = stage(&store, staged).await.to_string();
    assert_eq!(once(&relay).await.sent, 1);
    assert_eq!(count(&mut stream).await, 1);
    let message = stream.get_raw_message(1).await.unwrap();
    assert_eq!(message.subject.as_str(), format!("{name}.order.paid"));
    assert_eq!(message.payload[..], [0, 159, 146]);
    let of =
        |name: &str| -> Vec<_> { message.headers.get_all(name).map(ToString::to_string).collect() };
    assert_eq!(of("Nats-Msg-Id"), [id]);
    assert_eq!(of("order-key"), ["kündin 7"]);
    assert_eq!(of("x-tenant"), ["acme"]);
    assert_eq!((of("nats-msg-id").len(), of("Nats-Rollup").len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NATS: run cargo xtask test"]
async fn a_repetition_is_dropped_by_the_stream() {
    let (_folder, store) = database().await;
    let (context, name) = (shared().await, name());
    let mut stream = stream(&context, &name).await;
    let sink = Doubtful(NatsSink::new(context).under(name.as_str()));
    let relay = relay(&store, sink).attempts(3);
    stage(&store, Staged::raw("t", "one")).await;
    stage(&store, Staged::raw("t", "two")).await;
    assert_eq!(once(&relay).await.later, 2);
    assert_eq!(count(&mut stream).await, 2);
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(once(&relay).await.sent, 2);
    assert_eq!(count(&mut stream).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NATS: run cargo xtask test"]
async fn a_subject_without_a_stream_is_an_error_and_not_a_loss() {
    let (_folder, store) = database().await;
    let (context, name) = (shared().await, name());
    let relay = relay(&store, NatsSink::new(context.clone()).under(name.as_str()));
    stage(&store, Staged::raw("t", "one")).await;
    assert_eq!(once(&relay).await.dead, 1);
    let (id, why) = reason(&store).await;
    assert!(why.contains("create one whose subjects include it"), "{why}");
    let mut stream = stream(&context, &name).await;
    Outbox::new(store.clone()).replay(id).await.unwrap();
    assert_eq!(once(&relay).await.sent, 1);
    assert_eq!(count(&mut stream).await, 1);
    Outbox::new(store.clone()).backlog().await.unwrap();
}

/// A topic with a line break would be a command of its own on the wire.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NATS: run cargo xtask test"]
async fn what_cannot_be_sent_becomes_a_dead_letter() {
    let (_folder, store) = database().await;
    let (context, name) = (shared().await, name());
    let mut stream = stream(&context, &name).await;
    let relay = relay(&store, NatsSink::new(context).under(name.as_str()));
    for topic in ["a\r\nPUB b 0\r\n\r\n", "a b", "a.>", "*", "a."] {
        stage(&store, Staged::raw(topic, "one")).await;
    }
    stage(&store, Staged::raw("t", "one").order_key("a\r\nb")).await;
    assert_eq!(once(&relay).await.dead, 6);
    stage(&store, Staged::raw("t", vec![0; 2 << 20])).await;
    assert_eq!(once(&relay).await.dead, 1);
    let dead = Outbox::new(store.clone()).dead_letters(10).await.unwrap();
    assert!(dead[6].reason.contains("max_payload"), "{}", dead[6].reason);
    stage(&store, Staged::raw("t", "two")).await;
    assert_eq!((once(&relay).await.sent, count(&mut stream).await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NATS: run cargo xtask test"]
async fn a_server_that_is_killed_and_comes_back_loses_nothing() {
    let (_folder, store) = database().await;
    let mut server = Server::start(Kind::Nats);
    let context = context(&server.url()).await;
    let mut stream = stream(&context, "orders").await;
    let sink = NatsSink::new(context);
    let ids = through_a_crash(&store, sink, "orders.paid", &mut server).await;
    let mut stored = Vec::new();
    for number in 1..=count(&mut stream).await {
        let message = stream.get_raw_message(number).await.unwrap();
        stored.push(message.headers.get("Nats-Msg-Id").unwrap().to_string());
    }
    stored.sort_unstable();
    // Not one of them twice: the server remembers ids over its restart.
    assert_eq!(stored, ids);
}
