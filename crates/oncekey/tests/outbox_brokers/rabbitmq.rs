//! An exchange of RabbitMQ.

use std::collections::HashSet;
use std::time::Duration;

use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use oncekey::outbox::{Outbox, RabbitMqSink, Staged};

use crate::outbox_common::stage;
use crate::proxy::{Fault, Proxy, Way};
use crate::server::{Kind, Server};
use crate::{database, name, once, reason, relay, through_a_crash};

fn shared() -> String {
    std::env::var("ONCEKEY_TEST_RABBITMQ").expect("run `cargo xtask servers`")
}

/// The connection keeps the channel alive.
async fn channel(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

async fn declare(channel: &Channel, queue: &str) {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, FieldTable::default()).await.unwrap();
}

async fn get(channel: &Channel, queue: &str) -> Option<BasicGetMessage> {
    let message = channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap()?;
    message.ack(BasicAckOptions::default()).await.unwrap();
    Some(message)
}

fn id(message: &BasicGetMessage) -> String {
    message.properties.message_id().as_ref().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run cargo xtask test"]
async fn a_message_is_queued_with_its_id_and_key() {
    let (_folder, store) = database().await;
    let (_connection, channel) = channel(&shared()).await;
    let queue = name();
    declare(&channel, &queue).await;
    let relay = relay(&store, RabbitMqSink::new(&shared(), "").unwrap());
    let staged = Staged::new(queue.as_str(), &7).unwrap().order_key("kündin\n7");
    let expected = stage(&store, staged.header("x-tenant", "acme").header("CC", "x")).await;
    assert_eq!(once(&relay).await.sent, 1);
    let message = get(&channel, &queue).await.unwrap();
    assert_eq!((id(&message), &message.data[..]), (expected.to_string(), &b"7"[..]));
    let properties = &message.properties;
    assert_eq!(*properties.delivery_mode(), Some(2), "it is persistent");
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    let headers = properties.headers().as_ref().unwrap();
    let of = |name: &str| match headers.inner().get(name) {
        Some(AMQPValue::LongString(text)) => Some(text.to_string()),
        _ => None,
    };
    assert_eq!(of("order-key").as_deref(), Some("kündin\n7"));
    assert_eq!((of("x-tenant").as_deref(), of("CC")), (Some("acme"), None));
    assert!(get(&channel, &queue).await.is_none());
}

/// Both kinds are under way at the same time: none must be taken for another.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run cargo xtask test"]
async fn what_no_queue_is_bound_for_is_an_error_and_not_a_loss() {
    let (_folder, store) = database().await;
    let (_connection, channel) = channel(&shared()).await;
    let (queue, missing) = (name(), name());
    declare(&channel, &queue).await;
    let relay = relay(&store, RabbitMqSink::new(&shared(), "").unwrap()).attempts(3);
    let (mut bound, mut unbound) = (HashSet::new(), HashSet::new());
    for number in 0..200 {
        let (topic, ids) =
            if number % 2 == 0 { (&queue, &mut bound) } else { (&missing, &mut unbound) };
        ids.insert(stage(&store, Staged::raw(topic.as_str(), "one")).await.to_string());
    }
    let done = once(&relay).await;
    assert_eq!((done.sent, done.later), (100, 100));
    declare(&channel, &missing).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(once(&relay).await.sent, 100);
    for (queue, ids) in [(&queue, &bound), (&missing, &unbound)] {
        let mut queued = HashSet::new();
        while let Some(message) = get(&channel, queue).await {
            assert!(queued.insert(id(&message)), "it was queued once");
        }
        assert_eq!(queued, *ids);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run cargo xtask test"]
async fn an_exchange_that_does_not_exist_is_an_error_and_not_a_loss() {
    let (_folder, store) = database().await;
    let relay = relay(&store, RabbitMqSink::new(&shared(), &name()).unwrap());
    stage(&store, Staged::raw("t", "one")).await;
    assert_eq!(once(&relay).await.dead, 1);
    let (id, why) = reason(&store).await;
    assert_eq!(why, "the exchange does not exist: declare it");
    // The channel is closed, and the next attempt has another one.
    Outbox::new(store.clone()).replay(id).await.unwrap();
    assert_eq!(once(&relay).await.dead, 1);
    assert_eq!(reason(&store).await.1, why);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run cargo xtask test"]
async fn a_wrong_password_is_named_and_not_shown() {
    let (_folder, store) = database().await;
    let url = shared().replace("guest:guest", "guest:hunter2");
    let relay = relay(&store, RabbitMqSink::new(&url, "").unwrap());
    stage(&store, Staged::raw("t", "one")).await;
    assert_eq!(once(&relay).await.dead, 1);
    let (_, why) = reason(&store).await;
    assert_eq!(why, "RabbitMQ refused access: check user, password and permissions");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_tried_again() {
    let (_folder, store) = database().await;
    let relay = relay(&store, RabbitMqSink::new("amqp://u:hunter2@127.0.0.1:1/", "").unwrap());
    stage(&store, Staged::raw("t", "one")).await;
    assert_eq!(once(&relay).await.dead, 1);
    let (_, why) = reason(&store).await;
    assert_eq!(why, "RabbitMQ cannot be reached: see whether the server runs at this address");
}

/// A connection over which nothing comes back looks open for minutes. The message that finds it so is given
/// back in time, and the next one goes over another connection.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run cargo xtask test"]
async fn a_connection_that_falls_silent_is_not_used_again() {
    let (_folder, store) = database().await;
    let (_connection, channel) = channel(&shared()).await;
    let queue = name();
    declare(&channel, &queue).await;
    let url = shared();
    let port = url.rsplit(':').next().and_then(|end| end.split('/').next()).unwrap();
    let proxy = Proxy::start(port.parse().unwrap()).await;
    let url = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let relay = relay(&store, RabbitMqSink::new(&url, "").unwrap());
    stage(&store, Staged::raw(queue.as_str(), "1".to_owned())).await;
    assert_eq!(once(&relay).await.sent, 1);
    proxy.set(Fault::Lose(Way::Down));
    stage(&store, Staged::raw(queue.as_str(), "2".to_owned())).await;
    assert_eq!(once(&relay).await.sent, 0);
    let (_, why) = reason(&store).await;
    assert!(why.contains("does not answer"), "{why}");
    proxy.heal();
    proxy.listen();
    stage(&store, Staged::raw(queue.as_str(), "3".to_owned())).await;
    assert_eq!(once(&relay).await.sent, 1);
    // What a client says first over a new connection.
    let heard = proxy.heard().up;
    assert!(heard.windows(4).any(|bytes| bytes == b"AMQP"), "it used the silent connection again");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run cargo xtask test"]
async fn a_server_that_is_killed_and_comes_back_loses_nothing() {
    let (_folder, store) = database().await;
    let mut server = Server::start(Kind::RabbitMq);
    let url = server.url();
    let (connection, first) = channel(&url).await;
    declare(&first, "orders").await;
    server.wrote_down("orders").await;
    let sink = RabbitMqSink::new(&url, "").unwrap();
    let ids = through_a_crash(&store, sink, "orders", &mut server).await;
    drop((first, connection));
    let (_connection, channel) = channel(&url).await;
    let mut queued = Vec::new();
    while let Some(message) = get(&channel, "orders").await {
        queued.push(id(&message));
    }
    // Those that were under way may be there twice, and are recognised by their id.
    queued.sort_unstable();
    assert!(queued.len() <= ids.len() + 4, "{} for {}", queued.len(), ids.len());
    queued.dedup();
    assert_eq!(queued, ids);
}
