//! The kept answer: status, header lines, body; or the fact that there is none to keep.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::key::all;
use crate::preimage::Domain;

static OUTCOME: Domain = Domain::new("oncekey/outcome", 1);

/// What became of finished work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer, to be sent again byte for byte.
    Kept(Saved),
    /// The work ran, but its answer is not here. It does not run again before it is forgotten.
    Tombstone(Tombstone),
}

/// A kept answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Saved {
    /// The HTTP status, or any other number by which the caller knows its outcomes.
    pub status: u16,
    /// The raw header lines in the order in which they came, repeated ones included.
    pub headers: Headers,
    /// The body. Shared, because one answer may go to a thousand waiters.
    pub body: Bytes,
}

/// Stands where an answer would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tombstone {
    /// The status that the first caller got, if there was one.
    pub status: Option<u16>,
    /// Why the answer is not here.
    pub reason: NotKept,
}

/// Why an answer was not kept, or is not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotKept {
    /// It was larger than the policy's limit.
    TooLarge,
    /// It was a stream without an end in sight.
    Streamed,
    /// The connection became something else (101, CONNECT).
    Upgraded,
    /// The policy keeps the status alone.
    StatusOnly,
    /// It was erased on request. The fact that the work ran stays.
    Erased,
    /// Its retention is over.
    Expired,
    /// The store lost it, as in a failover to a stale replica. That the work was done was known
    /// elsewhere.
    Lost,
}

/// Header lines as they were on the wire: bytes, in order, repetitions kept.
///
/// Cheap to clone, because one answer may go to a thousand waiters. Checked on the way in and again
/// when read from a store, so that a corrupted row can never inject a line into a response.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Headers {
    /// Kept as they are stored: two lengths, the name and the value of each line. A list of lines
    /// took two allocations for each of them, at every answer.
    encoded: Arc<Vec<u8>>,
    lines: usize,
}

/// The length of a name and the length of a value.
const LENGTHS: usize = 8;

/// Digest of an answer: two completions with the same outcome are one completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Outcome([u8; 16]);

/// A header line that no HTTP message may carry, or stored header bytes that nobody wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The name is empty or has a byte that is not a token character.
    #[error("header name has a character that is not allowed there")]
    Name,
    /// The value has a CR, LF, NUL or another control character.
    #[error("header value has a control character")]
    Value,
    /// The stored form does not decode.
    #[error("stored header lines are damaged")]
    Damaged,
}

impl Answer {
    /// The status that the first caller got, if it is known.
    #[must_use]
    pub const fn status(&self) -> Option<u16> {
        match self {
            Self::Kept(saved) => Some(saved.status),
            Self::Tombstone(tombstone) => tombstone.status,
        }
    }

    /// The digest that identifies this answer.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let mut preimage = OUTCOME.start(None);
        match self {
            Self::Kept(saved) => {
                preimage.tag(0);
                preimage.field(&saved.status.to_be_bytes());
                preimage.field(saved.headers.as_encoded());
                preimage.field(&saved.body);
            }
            Self::Tombstone(tombstone) => {
                preimage.tag(tombstone.reason.code());
                let status = tombstone.status.map(u16::to_be_bytes);
                preimage.optional(status.as_ref().map(<[u8; 2]>::as_slice));
            }
        }
        Outcome(preimage.first_half())
    }
}

impl NotKept {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::TooLarge,
        Self::Streamed,
        Self::Upgraded,
        Self::StatusOnly,
        Self::Erased,
        Self::Expired,
        Self::Lost,
    ];

    /// The word for it in logs, metrics, JSON and SQL.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::Streamed => "streamed",
            Self::Upgraded => "upgraded",
            Self::StatusOnly => "status_only",
            Self::Erased => "erased",
            Self::Expired => "expired",
            Self::Lost => "lost",
        }
    }

    /// How it is written down. Zero is never used, so that a store can take it for "kept".
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::TooLarge => 1,
            Self::Streamed => 2,
            Self::Upgraded => 3,
            Self::StatusOnly => 4,
            Self::Erased => 5,
            Self::Expired => 6,
            Self::Lost => 7,
        }
    }

    /// Reads a [`code`](Self::code) back.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl Headers {
    /// No lines yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line at the end.
    ///
    /// # Errors
    /// If the name is not an HTTP token or the value could break the framing.
    pub fn push(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
        if name.is_empty() || !name.iter().all(|byte| TOKEN_BYTES[usize::from(*byte)]) {
            return Err(HeaderError::Name);
        }
        if !all(value, is_value_byte) {
            return Err(HeaderError::Value);
        }
        let encoded = Arc::make_mut(&mut self.encoded);
        encoded.reserve(LENGTHS + name.len() + value.len());
        encoded.extend_from_slice(&short_length(name));
        encoded.extend_from_slice(&short_length(value));
        encoded.extend_from_slice(name);
        encoded.extend_from_slice(value);
        self.lines += 1;
        Ok(())
    }

    /// No lines yet, and room for so many bytes of them.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { encoded: Arc::new(Vec::with_capacity(bytes)), lines: 0 }
    }

    /// The lines in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = self.encoded.as_slice();
        std::iter::from_fn(move || {
            let (name, value, after) = split_line(rest)?;
            rest = after;
            Some((name, value))
        })
    }

    /// How many lines there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines
    }

    /// Returns true if and only if there are no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// The stored form: for each line two lengths (32 bits, big endian), the name, the value.
    ///
    /// Lengths instead of separators: a peer that split stored headers on commas replayed one
    /// line as two.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encoded.to_vec()
    }

    /// The stored form, borrowed.
    #[must_use]
    pub fn as_encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// How long the stored form is.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.encoded.len()
    }

    /// Reads the stored form and checks every line again.
    ///
    /// # Errors
    /// If the bytes are not exactly what [`encode`](Self::encode) writes.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, HeaderError> {
        let mut headers = Self::with_capacity(bytes.len());
        while !bytes.is_empty() {
            let (name, value, rest) = split_line(bytes).ok_or(HeaderError::Damaged)?;
            headers.push(name, value)?;
            bytes = rest;
        }
        Ok(headers)
    }
}

/// The first line of an encoded form, and the rest.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (lengths, rest) = bytes.split_first_chunk::<LENGTHS>()?;
    let [a, b, c, d, e, f, g, h] = *lengths;
    let (name, rest) = rest.split_at_checked(long_length([a, b, c, d])?)?;
    let (value, rest) = rest.split_at_checked(long_length([e, f, g, h])?)?;
    Some((name, value, rest))
}

impl Outcome {
    /// A digest that was stored.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The digest.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Answers hold personal data, so `Debug` shows sizes alone.
impl fmt::Debug for Saved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, headers, body } = self;
        write!(out, "Saved({status}, {headers:?}, body of {} bytes)", body.len())
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} header lines", self.lines)
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(out, "Outcome({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

/// The answers of [`is_token_byte`], because every line of every answer asks.
const TOKEN_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    loop {
        table[byte as usize] = is_token_byte(byte);
        if byte == u8::MAX {
            break table;
        }
        byte += 1;
    }
};

/// RFC 9110 5.6.2, `tchar`.
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// RFC 9110 5.5: visible characters, space, tab and obs-text; never CR, LF or NUL.
const fn is_value_byte(byte: u8) -> bool {
    (byte == b'\t') | ((byte >= b' ') & (byte != 0x7f))
}

/// No header line comes near 4 GiB: [`Limits`](crate::policy::Limits) stop it long before. If one
/// did, the saturated length would make the stored form undecodable rather than ambiguous.
fn short_length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

fn long_length(bytes: [u8; 4]) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(bytes)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &[u8])]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in lines {
            headers.push(name.as_bytes(), value).unwrap();
        }
        headers
    }

    /// I12: order, repetition, commas and odd bytes survive being stored.
    #[test]
    fn header_lines_come_back_in_order_and_as_often_as_they_came() {
        let lines = headers(&[
            ("Link", b"</a>; rel=\"x\", </b>"),
            ("x-odd", b"\t caf\xe9 \xff"),
            ("LINK", b"</c>"),
            ("Link", b""),
        ]);
        let read = Headers::decode(&lines.encode()).unwrap();
        assert_eq!(read, lines);
        assert_eq!(read.len(), 4);
        assert_eq!(Headers::decode(&[]).unwrap(), Headers::new());
    }

    /// I40: nothing that could break a response's framing gets in, or out of a damaged row.
    #[test]
    fn lines_that_could_break_the_framing_are_refused() {
        for name in [&b""[..], b"a b", b"a:b", b"a\r\nb", b"\0", b"caf\xc3\xa9"] {
            assert_eq!(Headers::new().push(name, b"v"), Err(HeaderError::Name), "{name:?}");
        }
        for value in [&b"a\r\nSet-Cookie: x"[..], b"\n", b"\0", b"\x7f", b"\x1b[31m"] {
            assert_eq!(Headers::new().push(b"n", value), Err(HeaderError::Value), "{value:?}");
        }
        let mut injected = headers(&[("a", b"bcdef")]).encode();
        let last = injected.len() - 1;
        injected[last] = b'\n';
        assert_eq!(Headers::decode(&injected), Err(HeaderError::Value));
    }

    /// F55: truncated or stretched header bytes are an error, never other headers.
    #[test]
    fn damaged_header_bytes_do_not_decode() {
        let whole = headers(&[("content-type", b"text/plain"), ("a", b"")]).encode();
        for cut in 1..whole.len() {
            let read = Headers::decode(&whole[..cut]);
            assert!(read.is_err() || read.unwrap().len() == 1, "cut at {cut}");
        }
        assert!(Headers::decode(&[0xff; 40]).is_err());
    }

    /// I5: the outcome tells answers apart that differ anywhere, also across field borders.
    #[test]
    fn answers_that_differ_anywhere_have_different_outcomes() {
        let kept = |status, lines: &[(&str, &[u8])], body: &'static [u8]| {
            Answer::Kept(Saved { status, headers: headers(lines), body: Bytes::from_static(body) })
        };
        let tomb = |status, reason| Answer::Tombstone(Tombstone { status, reason });
        let answers = [
            kept(200, &[], b""),
            kept(201, &[], b""),
            kept(200, &[("a", b"")], b""),
            kept(200, &[("a", b"b")], b""),
            kept(200, &[("ab", b"")], b""),
            kept(200, &[], b"ab"),
            tomb(None, NotKept::TooLarge),
            tomb(Some(0), NotKept::TooLarge),
            tomb(Some(200), NotKept::TooLarge),
            tomb(Some(200), NotKept::Streamed),
        ];
        for (i, a) in answers.iter().enumerate() {
            for (j, b) in answers.iter().enumerate() {
                assert_eq!(a.outcome() == b.outcome(), i == j, "{a:?} and {b:?}");
            }
        }
    }

    /// I52: an answer in a log shows no byte of it.
    #[test]
    fn debug_output_hides_bodies_and_header_values() {
        let saved = Saved {
            status: 200,
            headers: headers(&[("authorization", b"canary")]),
            body: Bytes::from_static(b"canary"),
        };
        assert!(!format!("{saved:?} {:?}", Answer::Kept(saved.clone())).contains("canary"));
    }
}
