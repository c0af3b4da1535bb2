//! The body of an upstream's answer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::fault::Fault;
use super::line::Line;
use super::pool::Pool;
use super::stream::Stream;

/// A body as it comes from the upstream. Reading it drives the connection; when it has been read to
/// its end, the connection goes back to the pool, and if not, it is closed.
pub(crate) struct Answer(Source);

enum Source {
    /// It has come as a whole, as most do, and its connection is free again.
    Whole(Bytes),
    /// It comes over a connection that belongs to it alone. In a box: an answer changes hands half a
    /// dozen times on its way to the client.
    Line(Box<Line>, Pool),
    /// It comes over a connection that somebody else drives.
    Stream(Incoming),
    /// It broke off, and is never whole.
    Broken,
}

impl Answer {
    /// The body of the answer whose head was just read from a connection.
    pub(super) fn of_line(mut line: Box<Line>, pool: &Pool) -> Self {
        match line.whole() {
            Some(body) => {
                pool.give(line);
                Self(Source::Whole(body))
            }
            None => Self(Source::Line(line, pool.clone())),
        }
    }

    /// A body of a connection that somebody else drives.
    pub(super) fn of_stream(body: Incoming) -> Self {
        Self(Source::Stream(body))
    }

    /// Takes the connection out, because it has become something else; with what came behind the
    /// answer that said so.
    pub(crate) fn switch(&mut self) -> Option<(Stream, Bytes)> {
        match std::mem::replace(&mut self.0, Source::Whole(Bytes::new())) {
            Source::Line(line, _) => line.switched(),
            Source::Whole(_) | Source::Stream(_) | Source::Broken => None,
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let source = &mut self.get_mut().0;
        let frame = match source {
            Source::Whole(body) if body.is_empty() => None,
            Source::Whole(body) => Some(Ok(Frame::data(std::mem::take(body)))),
            Source::Stream(body) => {
                return Pin::new(body).poll_frame(cx).map_err(Fault::Http2);
            }
            Source::Line(line, _) => ready!(line.poll_frame(cx)),
            Source::Broken => Some(Err(Fault::Ended)),
        };
        if let Some(Err(_)) = frame {
            *source = Source::Broken;
        }
        // Given back at once: the next request need not wait until this answer was delivered.
        if let Source::Line(line, _) = source
            && line.is_ended()
            && let Source::Line(line, pool) = std::mem::replace(source, Source::Whole(Bytes::new()))
        {
            pool.give(line);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Whole(body) => body.is_empty(),
            Source::Line(line, _) => line.is_ended(),
            Source::Broken => false,
            Source::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Whole(body) => SizeHint::with_exact(body.len() as u64),
            Source::Line(line, _) => line.left().map_or_else(SizeHint::new, SizeHint::with_exact),
            Source::Stream(body) => body.size_hint(),
            Source::Broken => SizeHint::new(),
        }
    }
}
