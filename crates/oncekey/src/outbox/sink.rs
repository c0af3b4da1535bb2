//! Where messages go.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::message::Message;

/// Takes messages.
///
/// A message comes at least once. It comes again, under the same [`id`](Message::id), if the process
/// dies before the relay has settled it. A sink that must not act twice remembers ids.
///
/// # Cancellation
/// The future is dropped when the delivery takes longer than the relay allows, and when the relay is
/// dropped. The message then comes again.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Delivers one message and says what came of it. A panic counts as a failure.
    async fn deliver(&self, message: &Message) -> Delivery;
}

/// What came of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It has arrived.
    Sent,
    /// It may have arrived or not: once more, later.
    Retry {
        /// Not before this has passed, and not before the backoff of the relay has.
        after: Option<Duration>,
        /// Why, for people. No personal data: it is stored and shown.
        why: String,
    },
    /// It never will: it becomes a dead letter, which a person can replay.
    Dead(String),
}

impl Delivery {
    /// Once more, later, because of this.
    pub fn retry(why: impl Into<String>) -> Self {
        Self::Retry { after: None, why: why.into() }
    }
}

/// A sink in this process: an async function of the message.
pub struct Handler<F>(F);

impl<F, Fut> Handler<F>
where
    F: Fn(Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Delivery> + Send,
{
    /// Calls `handle` with each message.
    #[must_use]
    pub const fn new(handle: F) -> Self {
        Self(handle)
    }
}

impl<F> fmt::Debug for Handler<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Handler")
    }
}

#[async_trait]
impl<F, Fut> Sink for Handler<F>
where
    F: Fn(Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Delivery> + Send,
{
    async fn deliver(&self, message: &Message) -> Delivery {
        (self.0)(message.clone()).await
    }
}
