//! Messages as entries of a Redis stream.

use std::fmt;

use async_trait::async_trait;
use redis::aio::ConnectionLike;

use super::message::Message;
use super::sink::{Delivery, Sink};

/// Appends each message to a stream, with the fields `id`, `topic`, `key`, `headers` (JSON) and `body`.
///
/// A message may be appended twice, when the process dies between the append and the settlement: whoever
/// reads the stream recognises it by `id`. What an append survives is up to the server.
pub struct RedisStream<C> {
    connection: C,
    stream: String,
    about: Option<u64>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStream<C> {
    /// Appends to this stream. A connection whose clones share it, such as `MultiplexedConnection` or
    /// `ConnectionManager`, sends what is delivered at the same time in one go.
    #[must_use]
    pub fn new(connection: C, stream: impl Into<String>) -> Self {
        Self { connection, stream: stream.into(), about: None }
    }

    /// Keeps about so many entries. Otherwise the stream grows until somebody trims it.
    #[must_use]
    pub fn keep_about(mut self, entries: u64) -> Self {
        self.about = Some(entries);
        self
    }
}

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync + 'static> Sink for RedisStream<C> {
    async fn deliver(&self, message: &Message) -> Delivery {
        let Ok(headers) = serde_json::to_string(message.headers()) else {
            return Delivery::Dead("the headers have no form in JSON".to_owned());
        };
        let mut append = redis::cmd("XADD");
        append.arg(&self.stream);
        if let Some(about) = self.about {
            append.arg("MAXLEN").arg("~").arg(about);
        }
        append.arg("*").arg("id").arg(message.id().to_string());
        append.arg("topic").arg(message.topic()).arg("key").arg(message.order_key());
        append.arg("headers").arg(headers).arg("body").arg(&message.body()[..]);
        let mut connection = self.connection.clone();
        match append.query_async::<redis::Value>(&mut connection).await {
            Ok(_) => Delivery::Sent,
            // The kind and not the text, which may say what was sent.
            Err(error) => Delivery::retry(format!("Redis refused: {}", error.category())),
        }
    }
}

impl<C> fmt::Debug for RedisStream<C> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("RedisStream")
    }
}
