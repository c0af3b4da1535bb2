//! The head of a request: its request line and its fields, up to the empty line.

use std::ops::Range;

use super::bytes::{Spelling, is_token};
use super::field::Field;
use super::lines::{Bound, Lines};
use super::names::is_protected;
use super::request::{Method, RequestLine, Version};
use super::{Limits, Violation, authority, framing};
use crate::lettering::{Lettering, Letters};

/// A head, as far as it has come.
///
/// It remembers places in the bytes that are held back, not copies of them.
#[derive(Debug, Default)]
pub(super) struct Head {
    lines: Lines,
    request: Option<RequestLine>,
    fields: usize,
    host: Option<Range<usize>>,
    length: Option<u64>,
    coding: Coding,
    expect: Expect,
    switch: Switch,
    persistence: Persistence,
    letters: Letters,
}

/// A head that may go on.
#[derive(Debug)]
pub(super) struct Approved {
    /// How long it is.
    pub(super) bytes: usize,
    pub(super) body: Body,
    pub(super) after: After,
    /// How its names are written, if that is worth remembering.
    pub(super) lettering: Option<Lettering>,
}

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Empty,
    /// So many bytes, at least one.
    Sized(u64),
    Chunked,
}

/// What follows a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The next head.
    Next,
    /// Another protocol, if the server agrees.
    Switch,
    /// Nothing that anybody reads.
    Nothing,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Coding {
    #[default]
    Plain,
    Chunked,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Expect {
    #[default]
    Nothing,
    Continue,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Switch {
    #[default]
    No,
    Asked,
}

/// What the client wants to happen to the connection afterwards.
#[derive(Debug, Default, PartialEq, Eq)]
enum Persistence {
    /// What is usual for the version.
    #[default]
    Usual,
    Keep,
    Close,
}

/// How many bytes the one empty line has that may come before a request line.
///
/// Old clients send it behind a body, and RFC 9112, section 2.2 asks servers to ignore it. It does no
/// harm: no upstream gets to see it. A second one has no such excuse.
const EMPTY_LINE: usize = 2;

impl Head {
    /// Goes on reading in what is held back, which begins with the first byte of the head. Nothing
    /// if the head has not ended yet.
    pub(super) fn read(
        &mut self,
        held: &[u8],
        limits: &Limits,
    ) -> Result<Option<Approved>, Violation> {
        let line_bound = Bound { bytes: limits.line, over: Violation::LineTooLong };
        while self.request.is_none() {
            check_first(held.get(self.lines.start()))?;
            let Some(line) = self.lines.next(held, &line_bound)? else { return Ok(None) };
            self.request_line(held, &line)?;
        }
        let head_bound = Bound { bytes: limits.head, over: Violation::HeadTooLarge };
        while let Some(line) = self.lines.next(held, &head_bound)? {
            if line.is_empty() {
                return self.approve(held, limits).map(Some);
            }
            if self.fields == limits.fields {
                return Err(Violation::TooManyFields);
            }
            self.fields += 1;
            self.field(&held[line.clone()], line.end)?;
        }
        Ok(None)
    }

    /// Whether more has come than the empty line that may come before a request line.
    pub(super) fn is_begun(&self) -> bool {
        self.request.is_some() || self.lines.looked() > self.lines.start()
    }

    fn request_line(&mut self, held: &[u8], line: &Range<usize>) -> Result<(), Violation> {
        if !line.is_empty() {
            let mut request = RequestLine::read(&held[line.clone()])?;
            request.authority =
                request.authority.map(|at| at.start + line.start..at.end + line.start);
            self.request = Some(request);
        } else if line.start >= EMPTY_LINE {
            return Err(Violation::EmptyLines);
        }
        Ok(())
    }

    /// Notes a field line that ends at `end` of what is held back.
    fn field(&mut self, line: &[u8], end: usize) -> Result<(), Violation> {
        let field = Field::read(line)?;
        self.letters.note(field.name);
        let is = |name: &[u8]| field.name.eq_ignore_ascii_case(name);
        match field.name.len() {
            4 if is(b"host") => self.host(&field, end)?,
            6 if is(b"expect") => self.expect(&field)?,
            7 if is(b"upgrade") => self.switch = Switch::Asked,
            10 if is(b"connection") => self.connection(&field)?,
            14 if is(b"content-length") => self.length(&field)?,
            17 if is(b"transfer-encoding") => self.coding(&field)?,
            _ if field.spelling == Spelling::Plain => {}
            // What goes on here goes on byte by byte, so nothing can be taken out.
            _ if is_protected(field.name) => return Err(Violation::Twin),
            _ => {}
        }
        Ok(())
    }

    fn host(&mut self, field: &Field<'_>, end: usize) -> Result<(), Violation> {
        let host = field.trimmed();
        authority::read(host).ok_or(Violation::Host)?;
        let behind = field.value.len() - field.value.trim_ascii_end().len();
        let end = end - behind;
        match self.host.replace(end - host.len()..end) {
            None => Ok(()),
            Some(_) => Err(Violation::HostRepeated),
        }
    }

    fn length(&mut self, field: &Field<'_>) -> Result<(), Violation> {
        match self.length.replace(framing::length(field.value)?) {
            None => Ok(()),
            // Equal ones too: they come from two hands, and the next reader may count them.
            Some(_) => Err(Violation::LengthRepeated),
        }
    }

    fn coding(&mut self, field: &Field<'_>) -> Result<(), Violation> {
        framing::coding(field.value)?;
        match std::mem::replace(&mut self.coding, Coding::Chunked) {
            Coding::Plain => Ok(()),
            Coding::Chunked => Err(Violation::CodingRepeated),
        }
    }

    fn expect(&mut self, field: &Field<'_>) -> Result<(), Violation> {
        let known = field.trimmed().eq_ignore_ascii_case(b"100-continue");
        // Said twice it is a list, and a list with two members is not what RFC 9110 defines.
        match std::mem::replace(&mut self.expect, Expect::Continue) {
            Expect::Nothing if known => Ok(()),
            Expect::Nothing | Expect::Continue => Err(Violation::Expectation),
        }
    }

    fn connection(&mut self, field: &Field<'_>) -> Result<(), Violation> {
        for option in field.value.split(|byte| *byte == b',') {
            let option = option.trim_ascii();
            if option.eq_ignore_ascii_case(b"close") {
                self.persistence = Persistence::Close;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                // Whoever says both means to close, in whatever order.
                if self.persistence == Persistence::Usual {
                    self.persistence = Persistence::Keep;
                }
            } else if !option.is_empty() && !is_token(option) {
                return Err(Violation::Connection);
            }
        }
        Ok(())
    }

    /// Judges the head as a whole, at its empty line.
    fn approve(&mut self, held: &[u8], limits: &Limits) -> Result<Approved, Violation> {
        let Some(request) = &self.request else { return Err(Violation::RequestLine) };
        if self.host.is_none() && request.version == Version::Http11 {
            return Err(Violation::HostMissing);
        }
        if let Some(named) = request.authority.clone() {
            let host = self.host.clone().unwrap_or(0..0);
            if !held[named].eq_ignore_ascii_case(&held[host]) {
                return Err(Violation::HostDiffers);
            }
        }
        let body = self.body(request.version)?;
        if body != Body::Empty && matches!(request.method, Method::Connect | Method::Trace) {
            return Err(Violation::BodyNotAllowed);
        }
        if matches!(body, Body::Sized(bytes) if bytes > limits.body) {
            return Err(Violation::BodyTooLarge);
        }
        let (bytes, after) = (self.lines.start(), self.after(request));
        let lettering = std::mem::take(&mut self.letters).finish();
        Ok(Approved { bytes, body, after, lettering })
    }

    fn body(&self, version: Version) -> Result<Body, Violation> {
        match (&self.coding, self.length, version) {
            (Coding::Chunked, _, Version::Http10) => Err(Violation::CodingInOldVersion),
            (Coding::Chunked, Some(_), Version::Http11) => Err(Violation::LengthAndCoding),
            (Coding::Chunked, None, Version::Http11) => Ok(Body::Chunked),
            (Coding::Plain, None | Some(0), _) => Ok(Body::Empty),
            (Coding::Plain, Some(bytes), _) => Ok(Body::Sized(bytes)),
        }
    }

    fn after(&self, request: &RequestLine) -> After {
        // An `Upgrade` that `Connection` does not name counts too: whoever comes behind us may not
        // look there, and answer with another protocol.
        if self.switch == Switch::Asked || request.method == Method::Connect {
            return After::Switch;
        }
        match (&self.persistence, request.version) {
            (Persistence::Close, _) | (Persistence::Usual, Version::Http10) => After::Nothing,
            (Persistence::Keep, _) | (Persistence::Usual, Version::Http11) => After::Next,
        }
    }
}

/// Looks at the first byte of a request line before the rest has come: who speaks another protocol
/// often waits for an answer before a line has ended.
fn check_first(byte: Option<&u8>) -> Result<(), Violation> {
    match byte {
        None | Some(b'\r') => Ok(()),
        Some(b'\n') => Err(Violation::BareLf),
        Some(byte) if is_token(&[*byte]) => Ok(()),
        Some(_) => Err(Violation::Method),
    }
}
