//! A request on its way to the upstream: its head, and its body as it comes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _, Bytes};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Method, Request};
use http_body::Body;
use tokio::io::AsyncWrite;

use super::Outgoing;
use super::fault::Fault;
use super::head::digits;
use super::stream::Stream;
use crate::lettering::Lettering;
use crate::proxy::BodyError;

/// What of a request has yet to be written.
///
/// # Cancellation
/// Half a request may have been written. Whoever drops this before [`Sending::is_done`] closes the
/// connection.
pub(super) struct Sending<B = Outgoing> {
    /// Bytes to write, from `gone` on. Kept from request to request.
    out: Vec<u8>,
    gone: usize,
    /// A piece of the body that is too large to be copied; it stands behind `out`.
    piece: Bytes,
    /// The request whose head is still to be written.
    fresh: Option<Box<Request<B>>>,
    /// The request whose body is still to be read, and how it is framed.
    rest: Option<(Box<Request<B>>, Framing)>,
    flush: Flush,
    body: Framed,
}

/// Whether a request has a body, as its head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framed {
    Yes,
    No,
}

/// How a body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// So many bytes are left.
    Sized(u64),
    Chunked,
}

/// Whether everything that was written has also left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    Done,
    Due,
}

/// What comes of asking a body for more.
enum Asked {
    Got,
    Ended,
    Later,
}

/// What is copied behind a head or another piece rather than written as a list: a copy of so much
/// takes half a microsecond, and hardly any request to an API is larger.
const SMALL: usize = 8 * 1024;
/// How much of a body in small pieces is gathered before it is written.
const GATHERED: usize = 16 * 1024;
/// How much memory a connection keeps for its next request. Most heads fit.
const KEPT: usize = 2 * 1024;
/// Room for the first line and the line that frames the body, beside the fields.
const AROUND: usize = 128;

impl<B> Default for Sending<B> {
    fn default() -> Self {
        let (out, piece) = (Vec::new(), Bytes::new());
        let (flush, body) = (Flush::Done, Framed::No);
        Self { out, gone: 0, piece, fresh: None, rest: None, flush, body }
    }
}

impl<B> Sending<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    /// Puts a request on its way. Nothing is written yet.
    pub(super) fn start(&mut self, request: Box<Request<B>>) {
        self.out.clear();
        self.gone = 0;
        self.piece = Bytes::new();
        self.flush = Flush::Due;
        self.rest = None;
        self.body = Framed::No;
        self.fresh = Some(request);
    }

    /// Whether the head of the last request announced a body.
    pub(super) fn had_body(&self) -> bool {
        self.body == Framed::Yes
    }

    /// Whether all of it was written.
    pub(super) fn is_done(&self) -> bool {
        let is_all_read = self.fresh.is_none() && self.rest.is_none();
        is_all_read && !self.is_waiting() && self.flush == Flush::Done
    }

    /// Writes nothing more of it.
    pub(super) fn give_up(&mut self) {
        *self = Self { body: self.body, ..Self::default() };
    }

    /// Writes what can be written. Ready when all of it was, or when no more can ever be.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
    ) -> Poll<Result<(), Fault>> {
        loop {
            let asked = self.gather(cx)?;
            while self.is_waiting() {
                ready!(self.poll_write(cx, stream)).map_err(Fault::Io)?;
            }
            match asked {
                Asked::Got => {}
                Asked::Ended | Asked::Later => {
                    if self.flush == Flush::Due {
                        ready!(Pin::new(&mut *stream).poll_flush(cx)).map_err(Fault::Io)?;
                        self.flush = Flush::Done;
                    }
                    if let Asked::Later = asked {
                        return Poll::Pending;
                    }
                    self.out.clear();
                    self.out.shrink_to(KEPT);
                    self.gone = 0;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    fn is_waiting(&self) -> bool {
        self.gone < self.out.len() || !self.piece.is_empty()
    }

    /// Asks the body for more, until enough of it waits. A small body that has come with its head
    /// leaves with it.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<Asked, Fault> {
        if let Some(request) = self.fresh.take() {
            self.begin(cx, request)?;
        }
        while self.piece.is_empty() && self.out.len() - self.gone < GATHERED {
            let Some((request, _)) = &mut self.rest else { return Ok(Asked::Ended) };
            match Pin::new(request.body_mut()).poll_frame(cx) {
                Poll::Pending => return Ok(Asked::Later),
                Poll::Ready(None) => self.end()?,
                Poll::Ready(Some(Err(error))) => return Err(Fault::Body(error)),
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers are announced in a field that belongs to one connection, so nobody
                    // behind us expects them.
                    if let Ok(data) = frame.into_data() {
                        self.add(data)?;
                    }
                }
            }
        }
        Ok(Asked::Got)
    }

    /// Writes the head.
    ///
    /// A GET over HTTP/2 may leave open whether it has a body, and has none. Servers that read no body
    /// there do not know an empty one either, so it is asked for its first piece before it is announced.
    fn begin(&mut self, cx: &mut Context<'_>, mut request: Box<Request<B>>) -> Result<(), Fault> {
        let mut first = Bytes::new();
        let is_open = request.body().size_hint().exact().is_none()
            && matches!(*request.method(), Method::GET | Method::HEAD)
            && !request.headers().contains_key(CONTENT_LENGTH);
        while is_open && first.is_empty() && !request.body().is_end_stream() {
            match Pin::new(request.body_mut()).poll_frame(cx) {
                Poll::Pending | Poll::Ready(None) => break,
                Poll::Ready(Some(Err(error))) => return Err(Fault::Body(error)),
                Poll::Ready(Some(Ok(frame))) => first = frame.into_data().unwrap_or_default(),
            }
        }
        let framing = write_head(&mut self.out, &request, first.len());
        self.body = if framing.is_some() { Framed::Yes } else { Framed::No };
        self.rest = framing.map(|framing| (request, framing));
        self.add(first)
    }

    fn add(&mut self, data: Bytes) -> Result<(), Fault> {
        let Some((_, framing)) = &mut self.rest else { return Ok(()) };
        match framing {
            // It would end the body.
            Framing::Chunked if data.is_empty() => {}
            Framing::Chunked => {
                write_hex(&mut self.out, data.len());
                if data.len() <= SMALL {
                    self.out.extend_from_slice(&data);
                    self.out.extend_from_slice(b"\r\n");
                } else {
                    self.piece = data;
                }
            }
            Framing::Sized(_) if data.is_empty() => {}
            Framing::Sized(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(Fault::BodyLength)?;
                let is_last = *left == 0;
                if data.len() <= SMALL {
                    self.out.extend_from_slice(&data);
                } else {
                    self.piece = data;
                }
                if is_last {
                    self.rest = None;
                }
            }
        }
        Ok(())
    }

    /// The body has ended.
    fn end(&mut self) -> Result<(), Fault> {
        match self.rest.take() {
            Some((_, Framing::Chunked)) => self.out.extend_from_slice(b"0\r\n\r\n"),
            // Somebody promised more than came.
            Some((_, Framing::Sized(1..))) => return Err(Fault::BodyLength),
            Some((_, Framing::Sized(0))) | None => {}
        }
        Ok(())
    }

    /// Writes once.
    fn poll_write(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<()>> {
        let stream = Pin::new(stream);
        let small = &self.out[self.gone..];
        let written = match (small.is_empty(), self.piece.is_empty()) {
            (true, _) => ready!(stream.poll_write(cx, &self.piece))?,
            (false, false) if stream.is_write_vectored() => {
                let both = [IoSlice::new(small), IoSlice::new(&self.piece)];
                ready!(stream.poll_write_vectored(cx, &both))?
            }
            (false, _) => ready!(stream.poll_write(cx, small))?,
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.flush = Flush::Due;
        let of_small = written.min(small.len());
        self.gone += of_small;
        let had_piece = !self.piece.is_empty();
        self.piece.advance(written - of_small);
        if self.gone == self.out.len() {
            self.out.clear();
            self.gone = 0;
        }
        if had_piece && self.piece.is_empty() && self.is_chunked() {
            self.out.extend_from_slice(b"\r\n");
        }
        Poll::Ready(Ok(()))
    }

    fn is_chunked(&self) -> bool {
        matches!(self.rest, Some((_, Framing::Chunked)))
    }
}

/// Writes the head, and says how the body is framed; nothing if there is none. So many bytes of the body
/// are here already.
fn write_head<B: Body>(out: &mut Vec<u8>, request: &Request<B>, here: usize) -> Option<Framing> {
    let (headers, body) = (request.headers(), request.body());
    let fields: usize =
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    out.reserve(fields + AROUND);
    out.extend_from_slice(request.method().as_str().as_bytes());
    out.push(b' ');
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if !path.starts_with(['/', '*']) {
        out.push(b'/');
    }
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let lettering = request.extensions().get::<Lettering>();
    let is_over = body.is_end_stream() && here == 0;
    let (length, said) = length(headers);
    let framing = match (is_over, length, body.size_hint().exact()) {
        (true, ..) => None,
        (false, Some(length), _) => Some(Framing::Sized(length)),
        (false, None, Some(length)) => Some(Framing::Sized(length)),
        (false, None, None) => Some(Framing::Chunked),
    };
    // What a body is framed with is ours to say, and said once.
    let hidden = (said == Said::No).then_some(CONTENT_LENGTH);
    write_fields(out, headers, lettering, hidden.as_ref());
    if let (Some(framing), Said::No) = (framing, said) {
        let name = match framing {
            Framing::Sized(_) => CONTENT_LENGTH,
            Framing::Chunked => TRANSFER_ENCODING,
        };
        let spelled = lettering.and_then(|lettering| lettering.find(name.as_str(), 0));
        out.extend_from_slice(spelled.map_or(name.as_str().as_bytes(), |(spelled, _)| spelled));
        match framing {
            Framing::Sized(length) => {
                out.extend_from_slice(b": ");
                out.extend_from_slice(length.to_string().as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Framing::Chunked => out.extend_from_slice(b": chunked\r\n"),
        }
    }
    out.extend_from_slice(b"\r\n");
    framing
}

/// Whether the head that came says the length of its body, and so that everybody reads it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Yes,
    No,
}

/// The length that a head says. Zeros before it are octal to some, and of two lines each server takes
/// another one: such a length is said anew.
fn length(headers: &HeaderMap) -> (Option<u64>, Said) {
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let Some(line) = lines.next() else { return (None, Said::No) };
    let length = digits(line.as_bytes());
    let has_zeros = line.len() > 1 && line.as_bytes().starts_with(b"0");
    match lines.next().is_some() || length.is_none() || has_zeros {
        true => (length, Said::No),
        false => (length, Said::Yes),
    }
}

fn write_fields(
    out: &mut Vec<u8>,
    headers: &HeaderMap,
    lettering: Option<&Lettering>,
    hidden: Option<&HeaderName>,
) {
    let mut last: Option<&HeaderName> = None;
    let mut place = 0;
    for (name, value) in headers {
        if name == TRANSFER_ENCODING || hidden == Some(name) {
            continue;
        }
        // Lines of one name come one after the other.
        if last != Some(name) {
            (last, place) = (Some(name), 0);
        }
        match lettering.and_then(|lettering| lettering.find(name.as_str(), place)) {
            Some((spelled, behind)) => {
                out.extend_from_slice(spelled);
                place = behind;
            }
            None => {
                out.extend_from_slice(name.as_str().as_bytes());
                place = usize::MAX;
            }
        }
        // Without a space at the end of the line, which some servers do not take.
        out.extend_from_slice(if value.is_empty() { b":" } else { b": " });
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// The line before a chunk.
fn write_hex(out: &mut Vec<u8>, size: usize) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for at in (0..digits).rev() {
        out.put_u8(DIGITS[(size >> (4 * at)) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
