//! What is staged, and what a sink is given.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncekey_core::{KeyId, Timestamp};
use serde::Serialize;

use super::encoding::{hex, unhex};

/// The id of a message: the same over all deliveries and replays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub(super) [u8; 16]);

impl MessageId {
    /// An id of the caller's own making. Staging the same one twice is refused by the database.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Reads what [`Display`](fmt::Display) writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = unhex(text.strip_prefix("msg_")?)?;
        bytes.try_into().ok().map(Self)
    }
}

/// As it goes over the wire. Standard Webhooks forbids a dot in it.
impl fmt::Display for MessageId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "msg_{}", hex(&self.0))
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// A message on its way into the outbox.
#[derive(Clone)]
pub struct Staged {
    pub(super) id: Option<MessageId>,
    pub(super) topic: String,
    pub(super) order_key: String,
    pub(super) collapse: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    pub(super) after: Duration,
}

/// Why a message cannot be staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadMessage {
    /// The body has no form in JSON.
    #[error("the body of the message has no form in JSON")]
    Body,
    /// A topic, order key or collapse name that the columns of some database cannot hold.
    #[error(
        "topic, order key and collapse name have at most 255 bytes and no NUL, and a topic is not empty"
    )]
    Name,
    /// Headers that could not be sent.
    #[error("a header of the message has a name or a value that cannot be sent")]
    Header,
    /// More than a row should hold: 16 MiB.
    #[error("the body of the message has more than 16 MiB")]
    Size,
}

/// What MySQL takes in one packet by default, and more than a message should be.
const LARGEST: usize = 16 << 20;
/// What the columns of all databases hold.
const LONGEST: usize = 255;

impl Staged {
    /// A message with a body in JSON.
    ///
    /// # Errors
    /// If the body has no form in JSON.
    pub fn new(
        topic: impl Into<String>,
        body: &(impl Serialize + ?Sized),
    ) -> Result<Self, BadMessage> {
        let body = serde_json::to_vec(body).map_err(|_| BadMessage::Body)?;
        Ok(Self::raw(topic, body).header("content-type", "application/json"))
    }

    /// A message with these bytes as its body.
    #[must_use]
    pub fn raw(topic: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self {
            id: None,
            topic: topic.into(),
            order_key: String::new(),
            collapse: String::new(),
            headers: Vec::new(),
            body: body.into(),
            after: Duration::ZERO,
        }
    }

    /// An id of the caller's own making; otherwise it is random.
    #[must_use]
    pub const fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Messages of one order key are delivered one after the other, in the order in which their
    /// transactions staged them. Two transactions that stage under one key wait for each other from
    /// there to their end, because nobody could say otherwise which of them was first.
    #[must_use]
    pub fn order_key(mut self, key: impl Into<String>) -> Self {
        self.order_key = key.into();
        self
    }

    /// Replaces messages of the same name that no relay has taken yet. What comes while an earlier one
    /// is being delivered is never dropped.
    #[must_use]
    pub fn collapse(mut self, name: impl Into<String>) -> Self {
        self.collapse = name.into();
        self
    }

    /// Delivered with the message, by sinks that have headers.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Not before this time has passed, by the database's clock.
    #[must_use]
    pub const fn after(mut self, delay: Duration) -> Self {
        self.after = delay;
        self
    }

    pub(super) fn check(&self) -> Result<(), BadMessage> {
        let holds = |text: &str| text.len() <= LONGEST && !text.contains('\0');
        let names = [&self.topic, &self.order_key, &self.collapse];
        if self.topic.is_empty() || !names.into_iter().all(|name| holds(name)) {
            return Err(BadMessage::Name);
        }
        let sendable = |(name, value): &(String, String)| {
            http::HeaderName::try_from(name.as_str()).is_ok()
                && http::HeaderValue::try_from(value.as_str()).is_ok()
        };
        if !self.headers.iter().all(sendable) {
            return Err(BadMessage::Header);
        }
        if self.body.len() > LARGEST { Err(BadMessage::Size) } else { Ok(()) }
    }
}

/// Says how much there is, and not what: it may be personal.
impl fmt::Debug for Staged {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (topic, size) = (&self.topic, self.body.len());
        write!(out, "Staged({topic}, {size} bytes)")
    }
}

/// A message as a sink is given it. Clones share it.
#[derive(Clone)]
pub struct Message(pub(super) Arc<Taken>);

/// A message under a lease.
pub(super) struct Taken {
    pub(super) seq: i64,
    pub(super) id: MessageId,
    pub(super) topic: String,
    pub(super) order_key: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) attempt: i64,
    pub(super) created: i64,
    pub(super) flow: Option<KeyId>,
    pub(super) form: Form,
}

/// Whether a row is what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Sound,
    /// It cannot be read. It must not keep the others from being delivered.
    Damaged,
}

impl Message {
    /// The same over all deliveries: what a receiver recognises repetitions by.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.0.id
    }

    /// What it is about.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.0.topic
    }

    /// Empty if its order does not matter.
    #[must_use]
    pub fn order_key(&self) -> &str {
        &self.0.order_key
    }

    /// As they were staged.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.0.headers
    }

    /// As it was staged.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.0.body
    }

    /// Which attempt at delivering it this is, the first being 1.
    #[must_use]
    pub fn attempt(&self) -> i64 {
        self.0.attempt
    }

    /// When it was staged, by the database's clock.
    #[must_use]
    pub fn created(&self) -> Timestamp {
        Timestamp::from_micros(self.0.created)
    }

    /// The flow that staged it, if one did.
    #[must_use]
    pub fn flow_id(&self) -> Option<&KeyId> {
        self.0.flow.as_ref()
    }

    /// The body, read as JSON.
    ///
    /// # Errors
    /// If it is none, or of another shape.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0.body)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = &self.0;
        let (topic, size) = (&taken.topic, taken.body.len());
        write!(out, "Message({}, {topic}, {size} bytes, attempt {})", taken.id, taken.attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = MessageId([0xa5; 16]);
        assert_eq!(MessageId::parse(&id.to_string()), Some(id));
        for text in ["", "msg_", "msg_a5", &format!("{id}0"), &id.to_string()[4..]] {
            assert_eq!(MessageId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_no_database_or_wire_can_hold_is_refused() {
        let good = Staged::raw("topic", "body");
        assert_eq!(good.check(), Ok(()));
        assert_eq!(Staged::raw("", "").check(), Err(BadMessage::Name));
        assert_eq!(good.clone().order_key("a\0b").check(), Err(BadMessage::Name));
        assert_eq!(good.clone().order_key("k".repeat(256)).check(), Err(BadMessage::Name));
        assert_eq!(good.clone().header("a b", "").check(), Err(BadMessage::Header));
        assert_eq!(good.header("a", "b\r\nc: d").check(), Err(BadMessage::Header));
        assert_eq!(Staged::raw("t", vec![0; LARGEST + 1]).check(), Err(BadMessage::Size));
    }

    #[test]
    fn no_body_is_shown() {
        let staged = Staged::raw("topic", "secret").order_key("anna");
        let shown = format!("{staged:?}");
        assert!(!shown.contains("secret") && !shown.contains("anna"), "{shown}");
    }
}
