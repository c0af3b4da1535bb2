//! The head of an answer: its status, its fields, and where the answer ends.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use httparse::{Header, ParserConfig, Status};
use hyper::ext::ReasonPhrase;

use super::fault::Fault;
use super::lettered;
use crate::lettering::Letters;

/// The head of an answer that is not one of the many that may come before it.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) response: Response<()>,
    pub(super) framing: Framing,
    pub(super) after: After,
}

/// Where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// It has none.
    Empty,
    /// After so many bytes, at least one.
    Sized(u64),
    Chunked,
    /// With the connection.
    UntilClose,
    /// Nowhere: another protocol is spoken from here on.
    Switched,
}

/// What may become of the connection when the answer has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The next request may be put on it.
    Next,
    Close,
}

/// Which answers have a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// None has: the request was a `HEAD`.
    Head,
    /// Those whose status allows it.
    Other,
}

/// What stands at the front of what was read.
#[derive(Debug)]
pub(super) struct Parsed {
    /// So many bytes are heads, those of interim answers included.
    pub(super) bytes: usize,
    /// Not there if more has to be read.
    pub(super) head: Option<Head>,
}

/// How much an upstream may say before its body: more than common servers accept.
pub(super) const MAX_HEAD: u32 = 256 << 10;
/// How many lines that may be. The hundred that are usual in HTTP libraries are not enough: work that
/// is done must not become an unknown outcome because its answer sets many cookies.
pub(super) const MAX_FIELDS: usize = 1_024;
/// How many lines are read without asking for memory. Few answers have more than twenty.
const FEW: usize = 64;

impl Asked {
    pub(super) fn of(method: &Method) -> Self {
        if method == Method::HEAD { Self::Head } else { Self::Other }
    }
}

/// Reads the head of the answer, and passes over interim answers (1xx) before it: what they say is
/// between the upstream and us.
pub(super) fn read(bytes: &[u8], asked: Asked) -> Result<Parsed, Fault> {
    let mut passed = 0;
    while passed < bytes.len() {
        let rest = &bytes[passed..];
        let mut few = [const { MaybeUninit::uninit() }; FEW];
        let found = match read_one(rest, asked, &mut few) {
            Err(Fault::Head(httparse::Error::TooManyHeaders)) => {
                let mut many = vec![MaybeUninit::uninit(); MAX_FIELDS];
                read_one(rest, asked, &mut many)?
            }
            found => found?,
        };
        match found {
            None => break,
            Some((length, head)) => {
                passed += length;
                if head.is_some() {
                    return Ok(Parsed { bytes: passed, head });
                }
            }
        }
    }
    Ok(Parsed { bytes: passed, head: None })
}

/// The length of the head at the front, and what it says; nothing of an interim one.
fn read_one<'b>(
    bytes: &'b [u8],
    asked: Asked,
    slots: &mut [MaybeUninit<Header<'b>>],
) -> Result<Option<(usize, Option<Head>)>, Fault> {
    let mut parsed = httparse::Response::new(&mut []);
    let read =
        ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, bytes, slots);
    let length = match read.map_err(Fault::Head)? {
        Status::Complete(length) => length,
        Status::Partial => return Ok(None),
    };
    let status = StatusCode::from_u16(parsed.code.unwrap_or(0)).map_err(|_| Fault::Status)?;
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Some((length, None)));
    }
    // One copy for all values: what was read makes room for the next answer at once, and an answer
    // that is kept keeps no more than its own head.
    let own = Bytes::copy_from_slice(&bytes[..length]);
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = match parsed.version {
        Some(0) => Version::HTTP_10,
        Some(_) | None => Version::HTTP_11,
    };
    let mut letters = Letters::default();
    let headers = response.headers_mut();
    headers.reserve(parsed.headers.len());
    for line in parsed.headers.iter() {
        let name = HeaderName::from_bytes(line.name.as_bytes());
        let name = name.map_err(|_| Fault::Head(httparse::Error::HeaderName))?;
        let start = line.value.as_ptr().addr().saturating_sub(bytes.as_ptr().addr());
        // An empty value may point anywhere.
        let value = if line.value.is_empty() { 0..0 } else { start..start + line.value.len() };
        let value = HeaderValue::from_maybe_shared(own.slice(value));
        let value = value.map_err(|_| Fault::Head(httparse::Error::HeaderValue))?;
        letters.note(line.name.as_bytes());
        headers.append(name, value);
    }
    if let Some(lettering) = letters.finish() {
        *response.extensions_mut() = lettered::extensions(&lettering);
    }
    let reason = parsed.reason.unwrap_or_default();
    if status.canonical_reason() != Some(reason)
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        response.extensions_mut().insert(reason);
    }
    let (framing, after) = frame(&mut response, asked)?;
    Ok(Some((length, Some(Head { response, framing, after }))))
}

/// Where the answer ends (RFC 9112, section 6.3), and whether the connection can be used after it.
fn frame(response: &mut Response<()>, asked: Asked) -> Result<(Framing, After), Fault> {
    let (status, version) = (response.status(), response.version());
    let headers = response.headers_mut();
    let after = after(version, headers);
    match status {
        StatusCode::SWITCHING_PROTOCOLS => return Ok((Framing::Switched, After::Close)),
        // Whoever announces a body where none can be may send it all the same, and later.
        StatusCode::NO_CONTENT if announces_body(headers) => {
            return Ok((Framing::Empty, After::Close));
        }
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => return Ok((Framing::Empty, after)),
        _ if asked == Asked::Head => return Ok((Framing::Empty, after)),
        _ => {}
    }
    let after = match (version, coding(headers)) {
        (_, Coding::None) => after,
        // A word of old servers that changes nothing.
        (_, Coding::Identity) => After::Close,
        (Version::HTTP_10, _) | (_, Coding::Unknown) => return Err(Fault::Framing),
        // The chunks count, and the length is a lie that nobody else must be told. Whoever says both,
        // or one twice, may not be one server but two, so nothing more is read from there.
        (_, coding @ (Coding::Chunked | Coding::Repeated)) => {
            let is_odd = headers.remove(CONTENT_LENGTH).is_some() || coding == Coding::Repeated;
            return Ok((Framing::Chunked, if is_odd { After::Close } else { after }));
        }
    };
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok((Framing::UntilClose, After::Close)) };
    let mut is_repeated = false;
    let mut length = None;
    for value in std::iter::once(first).chain(lengths) {
        for number in value.as_bytes().split(|byte| *byte == b',') {
            let number = digits(number.trim_ascii()).ok_or(Fault::Framing)?;
            match length.replace(number) {
                None => {}
                Some(before) if before == number => is_repeated = true,
                Some(_) => return Err(Fault::Framing),
            }
        }
    }
    let framing = match length {
        None => return Err(Fault::Framing),
        Some(0) => Framing::Empty,
        Some(length) => Framing::Sized(length),
    };
    if is_repeated {
        // One number is what everybody behind us can read.
        headers.insert(CONTENT_LENGTH, length.unwrap_or_default().into());
    }
    Ok((framing, if is_repeated { After::Close } else { after }))
}

/// Whether a head speaks of a body.
fn announces_body(headers: &HeaderMap) -> bool {
    let is_long = |value: &HeaderValue| digits(value.as_bytes()) != Some(0);
    headers.contains_key(TRANSFER_ENCODING) || headers.get_all(CONTENT_LENGTH).iter().any(is_long)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    None,
    Chunked,
    /// The same, on several lines: applications that pass on what they got from elsewhere do so.
    Repeated,
    /// A word of old servers for none.
    Identity,
    /// One that would have to be undone, because the line that says so ends here.
    Unknown,
}

fn coding(headers: &HeaderMap) -> Coding {
    let lines = headers.get_all(TRANSFER_ENCODING).iter().map(|line| line.as_bytes().trim_ascii());
    lines.fold(Coding::None, |before, line| match before {
        Coding::None if line.eq_ignore_ascii_case(b"chunked") => Coding::Chunked,
        Coding::None if line.eq_ignore_ascii_case(b"identity") => Coding::Identity,
        Coding::Chunked | Coding::Repeated if line.eq_ignore_ascii_case(b"chunked") => {
            Coding::Repeated
        }
        Coding::None | Coding::Chunked | Coding::Repeated | Coding::Identity | Coding::Unknown => {
            Coding::Unknown
        }
    })
}

/// What the upstream wants to happen to the connection. Whoever says both means to close.
fn after(version: Version, headers: &HeaderMap) -> After {
    let mut after = if version == Version::HTTP_10 { After::Close } else { After::Next };
    let lines = headers.get_all(CONNECTION).iter();
    for option in lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')) {
        let option = option.trim_ascii();
        if option.eq_ignore_ascii_case(b"close") {
            return After::Close;
        }
        if option.eq_ignore_ascii_case(b"keep-alive") {
            after = After::Next;
        }
    }
    after
}

/// A number of nothing but digits.
pub(super) fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests;
