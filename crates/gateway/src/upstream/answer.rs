//! The body of an upstream's answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::line::Line;
use super::pool::Pool;
use super::stream::Stream;

/// A body as it comes from the upstream. Reading it drives the connection; when it has been read to
/// its end, the connection goes back to the pool, and if not, it is closed.
pub(crate) struct Answer {
    body: Incoming,
    /// In a box: an answer changes hands half a dozen times on its way to the client.
    line: Option<Box<Line>>,
    pool: Option<Pool>,
}

impl Answer {
    /// A body of a connection that belongs to it alone.
    pub(super) fn of_line(body: Incoming, line: Box<Line>, pool: Pool) -> Self {
        Self { body, line: Some(line), pool: Some(pool) }
    }

    /// A body of a connection that somebody else drives.
    pub(super) fn of_stream(body: Incoming) -> Self {
        Self { body, line: None, pool: None }
    }

    /// Takes the connection out, because it has become something else; with what came behind the
    /// answer that said so.
    pub(crate) fn switch(
        &mut self,
    ) -> Option<impl Future<Output = hyper::Result<(Stream, Bytes)>> + Send + use<>> {
        self.line.take().map(|line| line.switched())
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { body, line, .. } = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let Some(line) = line else { return Poll::Pending };
        // Whatever ends the connection ends the body too, with a reason.
        let _ = line.drive(cx);
        Pin::new(body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let (Some(line), Some(pool), true) =
            (self.line.take(), self.pool.take(), self.body.is_end_stream())
        {
            pool.give(line);
        }
    }
}
