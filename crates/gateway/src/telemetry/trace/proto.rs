//! The messages of OTLP that we send, as protocol buffers: opentelemetry/proto/trace/v1.

use std::borrow::Cow;

use super::context::Context;

/// A span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) context: Context,
    pub(super) parent: Option<[u8; 8]>,
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Both in nanoseconds since 1970.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) attributes: Vec<(&'static str, Value)>,
    /// The span that did the work, if this one only replays it.
    pub(super) link: Option<Context>,
    pub(super) status: Status,
}

/// On which side of a call a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Server,
    Client,
}

/// Whether it went well. What the client did wrong is no fault of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Unset,
    Error,
}

/// What an attribute can be.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(Cow<'static, str>),
    Number(u16),
    Flag(bool),
}

/// A message that is being written.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

/// How a field is written: a number of variable length, eight bytes, a length and bytes, four bytes.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// An `ExportTraceServiceRequest` with all spans of a batch, all of one program.
pub(super) fn request(resource: &[(&'static str, Value)], spans: &[Span]) -> Vec<u8> {
    let mut of_program = Message::default();
    for (name, value) in resource {
        of_program.message(1, &attribute(name, value));
    }
    let mut scope = Message::default();
    scope.bytes(1, b"oncekey");
    scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
    let mut of_scope = Message::default();
    of_scope.message(1, &scope);
    for span in spans {
        of_scope.message(2, &span.message());
    }
    let mut of_resource = Message::default();
    of_resource.message(1, &of_program);
    of_resource.message(2, &of_scope);
    let mut request = Message::default();
    request.message(1, &of_resource);
    request.0
}

impl Span {
    fn message(&self) -> Message {
        let mut span = Message::default();
        span.bytes(1, &self.context.trace);
        span.bytes(2, &self.context.span);
        if let Some(parent) = &self.parent {
            span.bytes(4, parent);
        }
        span.bytes(5, self.name.as_bytes());
        span.varint(
            6,
            match self.kind {
                Kind::Server => 2,
                Kind::Client => 3,
            },
        );
        span.fixed64(7, self.start);
        span.fixed64(8, self.end);
        for (name, value) in &self.attributes {
            span.message(9, &attribute(name, value));
        }
        if let Some(to) = &self.link {
            let mut link = Message::default();
            link.bytes(1, &to.trace);
            link.bytes(2, &to.span);
            link.fixed32(6, u32::from(to.flags));
            span.message(13, &link);
        }
        if self.status == Status::Error {
            let mut status = Message::default();
            status.varint(3, 2);
            span.message(15, &status);
        }
        span.fixed32(16, u32::from(self.context.flags));
        span
    }
}

/// A `KeyValue`.
fn attribute(name: &str, value: &Value) -> Message {
    let mut any = Message::default();
    match value {
        Value::Text(text) => any.bytes(1, text.as_bytes()),
        Value::Flag(flag) => any.varint(2, u64::from(*flag)),
        Value::Number(number) => any.varint(3, u64::from(*number)),
    }
    let mut pair = Message::default();
    pair.bytes(1, name.as_bytes());
    pair.message(2, &any);
    pair
}

impl Message {
    fn message(&mut self, field: u64, inner: &Self) {
        self.bytes(field, &inner.0);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.number(field << 3 | BYTES);
        self.number(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.0.extend_from_slice(bytes);
    }

    fn varint(&mut self, field: u64, value: u64) {
        self.number(field << 3 | VARINT);
        self.number(value);
    }

    fn fixed64(&mut self, field: u64, value: u64) {
        self.number(field << 3 | FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn fixed32(&mut self, field: u64, value: u32) {
        self.number(field << 3 | FIXED32);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Seven bits a byte, the lowest first; all but the last say that more follow.
    fn number(&mut self, mut value: u64) {
        loop {
            let [low, ..] = value.to_le_bytes();
            value >>= 7;
            if value == 0 {
                self.0.push(low & 0x7f);
                return;
            }
            self.0.push(low | 0x80);
        }
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_bytes_as_they_need() {
        for (number, bytes) in [
            (0, &[0][..]),
            (1, &[1]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (u64::MAX, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ] {
            let mut message = Message::default();
            message.number(number);
            assert_eq!(message.0, bytes, "{number}");
        }
    }

    /// Byte for byte, as `protoc --encode` writes it.
    #[test]
    fn an_attribute_is_a_key_value() {
        let text = attribute("a", &Value::from("bc"));
        assert_eq!(text.0, [0x0a, 1, b'a', 0x12, 4, 0x0a, 2, b'b', b'c']);
        let number = attribute("a", &Value::Number(201));
        assert_eq!(number.0, [0x0a, 1, b'a', 0x12, 3, 0x18, 0xc9, 1]);
        let flag = attribute("a", &Value::Flag(true));
        assert_eq!(flag.0, [0x0a, 1, b'a', 0x12, 2, 0x10, 1]);
    }
}
