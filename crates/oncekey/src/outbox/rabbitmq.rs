//! Messages to an exchange of RabbitMQ.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ErrorKind};

use super::message::Message;
use super::sink::{Delivery, Sink};
use crate::clock::{SystemUptime, Uptime as _};

/// Publishes each message to an exchange, with its topic as the routing key, and waits until RabbitMQ
/// says that the queues have it.
///
/// The property `message_id` is the id of the message, by which readers recognise repetitions: RabbitMQ
/// does not. Messages are persistent, and are kept over a restart by queues that are durable. The header
/// `order-key` is the order key, if there is one. A message that no queue is bound for is tried again.
///
/// It connects with the first message, and again after the server was away.
///
/// The client library writes what comes back for want of a queue into the log, with its body, as a warning of
/// `lapin::returned_messages`: turn that off where bodies must not be logged.
pub struct RabbitMqSink {
    exchange: ShortString,
    connect: Box<Connect>,
    link: tokio::sync::Mutex<Link>,
    /// Channels on which nothing is under way.
    idle: Mutex<Vec<Channel>>,
}

type Connecting = futures_util::future::BoxFuture<'static, lapin::Result<Connection>>;
type Connect = dyn Fn() -> Connecting + Send + Sync;

/// The connection, if there is one.
#[derive(Default)]
struct Link {
    connection: Option<Arc<Connection>>,
    /// When connecting failed, and why.
    failed: Option<(Duration, &'static str)>,
}

/// A name or an address that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadBroker {
    /// The address.
    #[error("RabbitMQ is at amqp://user:password@host:port/vhost, or amqps")]
    Url,
    /// The exchange.
    #[error("the name of an exchange has at most 255 bytes")]
    Exchange,
}

/// How long connecting may take, and then a message: longer than a server takes to answer, and both
/// together shorter than the relay's limit.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long after a failure nobody tries again: deliveries that come together fail together.
const PAUSE: Duration = Duration::from_millis(500);
/// The header with the order key.
const ORDER_KEY: &str = "order-key";

impl RabbitMqSink {
    /// Publishes to this exchange of the server at this address. An empty name is the default exchange, in
    /// which the topic is the name of a queue. With `amqps`, the server's certificate is checked
    /// against the roots of the system.
    ///
    /// # Errors
    /// If the address or the name is none. Nothing is connected yet.
    pub fn new(url: &str, exchange: &str) -> Result<Self, BadBroker> {
        let uri: AMQPUri = url.parse().map_err(|_| BadBroker::Url)?;
        Self::connecting(exchange, move || {
            let named =
                ConnectionProperties::default().with_connection_name("oncekey outbox".into());
            Connection::connect_uri(uri.clone(), named)
        })
    }

    /// Publishes over connections of your own making, such as those with a private CA or to one of several
    /// servers. It is called when a connection is needed and there is none.
    ///
    /// # Errors
    /// If the name is none.
    pub fn connecting<F, Fut>(exchange: &str, connect: F) -> Result<Self, BadBroker>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = lapin::Result<Connection>> + Send + 'static,
    {
        let exchange = ShortString::try_new(exchange).map_err(|_| BadBroker::Exchange)?;
        let connect = Box::new(move || -> Connecting { Box::pin(connect()) });
        Ok(Self { exchange, connect, link: tokio::sync::Mutex::default(), idle: Mutex::default() })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle_channel(&self) -> Option<Channel> {
        let mut idle = self.idle();
        // What belongs to a connection that is gone goes with it.
        idle.retain(|channel| channel.status().connected());
        idle.pop()
    }

    /// A channel for one message alone. The client library gives what comes back to whichever confirmation
    /// is next: with two messages under way on a channel, the one that was lost could pass for the other.
    async fn channel(&self, connection: &Connection) -> Result<Channel, &'static str> {
        if let Some(channel) = self.idle_channel() {
            return Ok(channel);
        }
        let channel = connection.create_channel().await.map_err(|error| said(&error))?;
        let confirm = channel.confirm_select(ConfirmSelectOptions::default()).await;
        confirm.map_err(|error| said(&error))?;
        Ok(channel)
    }

    async fn connection(&self) -> Result<Arc<Connection>, &'static str> {
        let mut link = self.link.lock().await;
        if let Some(connection) = &link.connection
            && connection.status().connected()
        {
            return Ok(Arc::clone(connection));
        }
        link.connection = None;
        if let Some((at, why)) = link.failed
            && SystemUptime.elapsed().saturating_sub(at) < PAUSE
        {
            return Err(why);
        }
        let why = match tokio::time::timeout(PATIENCE, (self.connect)()).await {
            Ok(Ok(connection)) => {
                let connection = Arc::new(connection);
                link.connection = Some(Arc::clone(&connection));
                return Ok(connection);
            }
            Ok(Err(error)) => said(&error),
            Err(_) => UNREACHABLE,
        };
        link.failed = Some((SystemUptime.elapsed(), why));
        Err(why)
    }

    /// Lets go of a connection that does not answer. It may look open for as long as two heartbeats, and every
    /// message would wait for it again.
    async fn let_go(&self, of: &Arc<Connection>) {
        let mut link = self.link.lock().await;
        if link.connection.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, of)) {
            link.connection = None;
            self.idle().clear();
        }
    }

    /// Publishes one message over a channel of its own, and says what RabbitMQ made of it.
    async fn hand_over(&self, connection: &Connection, message: &Message) -> Delivery {
        let channel = match self.channel(connection).await {
            Ok(channel) => channel,
            Err(why) => return Delivery::retry(why),
        };
        let delivery = match self.publish(&channel, message).await {
            Ok(Confirmation::Ack(None)) => Delivery::Sent,
            Ok(Confirmation::Ack(Some(_))) => {
                Delivery::retry("no queue is bound for this routing key: bind one to the exchange")
            }
            Ok(Confirmation::Nack(_)) => Delivery::retry(
                "RabbitMQ could not keep the message: see the limits and the log of its queues",
            ),
            Ok(Confirmation::NotRequested) => {
                Delivery::Dead("the topic or a header has more than 255 bytes".to_owned())
            }
            // The channel is closed or nobody knows what it is about: it is not used again.
            Err(error) => return Delivery::retry(said(&error)),
        };
        self.idle().push(channel);
        delivery
    }

    async fn publish(&self, channel: &Channel, message: &Message) -> lapin::Result<Confirmation> {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let Ok(key) = ShortString::try_new(message.topic()) else {
            return Ok(Confirmation::NotRequested);
        };
        let Some(properties) = properties(message) else { return Ok(Confirmation::NotRequested) };
        let exchange = self.exchange.clone();
        channel.basic_publish(exchange, key, options, message.body(), properties).await?.await
    }
}

/// Nothing if something of it cannot be a property.
fn properties(message: &Message) -> Option<BasicProperties> {
    let mut headers = FieldTable::default();
    let text = |value: &str| AMQPValue::LongString(value.into());
    let id = ShortString::try_new(message.id().to_string()).ok()?;
    // 2 is persistent.
    let mut properties = BasicProperties::default().with_message_id(id).with_delivery_mode(2);
    for (name, value) in message.headers() {
        if name.eq_ignore_ascii_case("content-type") {
            properties = properties.with_content_type(ShortString::try_new(value.as_str()).ok()?);
        } else if !["CC", "BCC"].contains(&name.as_str()) {
            // The server sends what has these two to other queues as well.
            headers.insert(ShortString::try_new(name.as_str()).ok()?, text(value));
        }
    }
    if !message.order_key().is_empty() {
        headers.insert(ORDER_KEY.into(), text(message.order_key()));
    }
    Some(properties.with_headers(headers))
}

#[async_trait]
impl Sink for RabbitMqSink {
    async fn deliver(&self, message: &Message) -> Delivery {
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(why) => return Delivery::retry(why),
        };
        if let Ok(said) = tokio::time::timeout(PATIENCE, self.hand_over(&connection, message)).await
        {
            return said;
        }
        self.let_go(&connection).await;
        Delivery::retry(
            "RabbitMQ does not answer: see its log, and whether it lacks memory or disk",
        )
    }
}

const UNREACHABLE: &str = "RabbitMQ cannot be reached: see whether the server runs at this address";

/// What went wrong and what to do, without the text of the error.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are about the connection")]
fn said(error: &lapin::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ProtocolError(error) => match error.get_id() {
            403 => "RabbitMQ refused access: check user, password and permissions",
            404 => "the exchange does not exist: declare it",
            311 => "RabbitMQ takes no message of this size",
            530 => "RabbitMQ refused the connection: check the virtual host and its permissions",
            _ => "RabbitMQ closed the connection: its log says why",
        },
        ErrorKind::ChannelsLimitReached => {
            "RabbitMQ allows no more channels: deliver fewer messages at once"
        }
        _ => UNREACHABLE,
    }
}

impl fmt::Debug for RabbitMqSink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("RabbitMqSink")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_is_refused_without_its_password() {
        for url in ["", "localhost", "http://u:secret@a/", "amqp://u:secret@[::1"] {
            let error = RabbitMqSink::new(url, "").map(drop).unwrap_err();
            assert_eq!(error, BadBroker::Url, "{url}");
            assert!(!format!("{error} {error:?}").contains("secret"));
        }
        let long = RabbitMqSink::new("amqp://u:secret@localhost/", &"e".repeat(256));
        assert_eq!(long.map(drop), Err(BadBroker::Exchange));
        let sink = RabbitMqSink::new("amqp://u:secret@localhost/%2f", "orders").unwrap();
        assert_eq!(format!("{sink:?}"), "RabbitMqSink");
    }
}
