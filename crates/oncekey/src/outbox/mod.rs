//! Messages that are sent if and only if the rows that they speak of are committed.
//!
//! [`PhaseTx::stage`](crate::flow::PhaseTx::stage) and [`Outbox::stage`] write a message into the
//! caller's transaction. A [`Relay`] takes staged messages under a lease, gives them to a [`Sink`], and
//! settles each by row, attempt and taking. It never remembers how far it has come: a transaction that
//! began early and commits late is met like any other. Each message is delivered at least once and
//! keeps its id over all deliveries, so a receiver can tell repetitions.

mod claim;
mod dead;
mod deliver;
mod encoding;
mod http;
mod lane;
#[cfg(any(feature = "flow-postgres", feature = "postgres"))]
mod listen;
mod message;
#[cfg(feature = "outbox-nats")]
mod nats;
#[cfg(feature = "outbox-rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
mod relay;
mod settle;
mod signature;
mod sink;
mod sql;
mod stage;

pub use self::dead::{Backlog, DeadLetter, Replayed};
pub use self::http::{BadEndpoint, HttpSink};
pub use self::message::{BadMessage, Message, MessageId, Staged};
#[cfg(feature = "outbox-nats")]
pub use self::nats::NatsSink;
#[cfg(feature = "outbox-rabbitmq")]
pub use self::rabbitmq::{BadBroker, RabbitMqSink};
#[cfg(feature = "redis")]
pub use self::redis::RedisStream;
pub use self::relay::{AfterDead, Relay, Relayed};
pub use self::signature::{BadSecret, Secret};
pub use self::sink::{Delivery, Handler, Sink};
pub(crate) use self::sql::Shared;
pub use self::stage::{Outbox, StageError};
