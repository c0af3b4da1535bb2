//! Messages in a stream of NATS JetStream.

use std::fmt;

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream::Context;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_trait::async_trait;

use super::message::Message;
use super::sink::{Delivery, Sink};

/// Publishes each message to JetStream under its topic, and waits until a stream has stored it.
///
/// `Nats-Msg-Id` is the id of the message: the server drops a repetition that comes within the stream's
/// `duplicate_window`, and whoever reads the stream recognises a later one. `order-key` is the order key,
/// if there is one. A topic for which there is no stream is tried again until there is one.
///
/// The client that the context comes from connects again by itself after the server was away.
#[derive(Clone)]
pub struct NatsSink {
    context: Context,
    before: String,
}

/// The header with the order key.
const ORDER_KEY: &str = "order-key";

impl NatsSink {
    /// Publishes over this context: address, credentials and TLS are up to its client.
    #[must_use]
    pub const fn new(context: Context) -> Self {
        Self { context, before: String::new() }
    }

    /// Publishes under this subject, a dot, and the topic.
    #[must_use]
    pub fn under(mut self, subject: impl Into<String>) -> Self {
        self.before = subject.into() + ".";
        self
    }
}

/// Whether the server would take it as the name of one subject. One with wildcards is many.
fn is_subject(text: &str) -> bool {
    let sound = |token: &str| !token.is_empty() && token != "*" && token != ">";
    let hidden = |letter: char| letter.is_whitespace() || letter.is_control();
    text.split('.').all(sound) && !text.contains(hidden)
}

/// Nothing if something of it cannot be a header.
fn headers(message: &Message) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in message.headers() {
        // The server acts upon these: one of them even empties a stream.
        let acted_upon = name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
        if !acted_upon {
            let name: HeaderName = name.parse().ok()?;
            let value: HeaderValue = value.parse().ok()?;
            headers.append(name, value);
        }
    }
    if !message.order_key().is_empty() {
        let value: HeaderValue = message.order_key().parse().ok()?;
        headers.insert(ORDER_KEY, value);
    }
    headers.insert(NATS_MESSAGE_ID, message.id().to_string().as_str());
    Some(headers)
}

#[async_trait]
impl Sink for NatsSink {
    async fn deliver(&self, message: &Message) -> Delivery {
        let subject = format!("{}{}", self.before, message.topic());
        if !is_subject(&subject) {
            return Delivery::Dead("the topic is no subject of NATS".to_owned());
        }
        let Some(headers) = headers(message) else {
            return Delivery::Dead("the order key or a header has a line break".to_owned());
        };
        let publish = PublishMessage::build().payload(message.body().clone()).headers(headers);
        let stored = match self.context.send_publish(subject, publish).await {
            Ok(stored) => stored.await,
            Err(error) => Err(error),
        };
        match stored {
            Ok(_) => Delivery::Sent,
            Err(error) => Delivery::retry(said(&error)),
        }
    }
}

/// What went wrong and what to do, without the text of the error.
fn said(error: &PublishError) -> &'static str {
    match error.kind() {
        PublishErrorKind::StreamNotFound => {
            "no stream of JetStream takes this subject: create one whose subjects include it"
        }
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => {
            "NATS did not say that it has stored the message: see whether the server can be reached"
        }
        PublishErrorKind::MaxPayloadExceeded => {
            "NATS takes no message of this size: see `max_payload` of the server"
        }
        PublishErrorKind::MaxAckPending => {
            "too many messages wait for NATS: see `max_ack_inflight` of the context"
        }
        PublishErrorKind::WrongLastMessageId
        | PublishErrorKind::WrongLastSequence
        | PublishErrorKind::Other => {
            "NATS refused the message: see the limits of the stream and the permissions of the user"
        }
    }
}

impl fmt::Debug for NatsSink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("NatsSink")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_one_subject_or_none() {
        for text in ["orders", "orders.paid", "a.b-c.d_e", "päid", "a*"] {
            assert!(is_subject(text), "{text}");
        }
        for text in ["", ".", "a.", ".a", "a..b", "a b", "a\r\nPUB b", "a.*", "a.>", ">", "a\u{0}"]
        {
            assert!(!is_subject(text), "{text}");
        }
    }
}
