//! One HTTP/1.1 connection to an upstream.
//!
//! It is driven by whoever uses it: the task that waits for an answer also reads and writes. A task
//! of its own for each connection would cost two wake-ups for every request, and would hide from
//! us what was written when.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::Outgoing;
use super::stream::{Stream, Written};

/// A connection with nothing or one request on it.
pub(super) struct Line {
    sender: http1::SendRequest<Outgoing>,
    connection: http1::Connection<TokioIo<Stream>, Outgoing>,
    written: Written,
    /// When it was last used.
    pub(super) idle_since: Instant,
}

/// Why there is no answer on this connection.
pub(super) enum Broke {
    /// It was gone before the request was put on it. Here is the request.
    Untouched(Box<Request<Outgoing>>),
    /// It broke before any byte of the request was written.
    Unwritten(hyper::Error),
    /// It broke afterwards.
    Written(hyper::Error),
}

/// How much an upstream may say before its body: more than common servers accept.
pub(super) const MAX_HEAD: u32 = 256 << 10;
/// How many lines that may be. The hundred that hyper reads by itself are not enough: work that is
/// done must not become an unknown outcome because its answer sets many cookies.
const MAX_FIELDS: usize = 1_024;

impl Line {
    pub(super) async fn open(stream: Stream) -> hyper::Result<Box<Self>> {
        let written = stream.written();
        let (sender, connection) = http1::Builder::new()
            .preserve_header_case(true)
            .max_buf_size(usize::try_from(MAX_HEAD).unwrap_or(usize::MAX))
            .max_headers(MAX_FIELDS)
            .handshake(TokioIo::new(stream))
            .await?;
        Ok(Box::new(Self { sender, connection, written, idle_since: Instant::now() }))
    }

    /// Whether a request can be put on it now. Notices if the other side has hung up.
    pub(super) fn is_open(&mut self, cx: &mut Context<'_>) -> bool {
        let ended = self.drive(cx).is_ready();
        !ended && matches!(self.sender.poll_ready(cx), Poll::Ready(Ok(())))
    }

    /// How many bytes were ever written to it.
    pub(super) fn written(&self) -> Written {
        self.written.clone()
    }

    /// Sends a request and waits for the head of the answer.
    ///
    /// # Cancellation
    /// The connection is closed when it is dropped; how much was written says [`Line::written`].
    pub(super) async fn exchange(
        &mut self,
        request: Box<Request<Outgoing>>,
    ) -> Result<Response<Incoming>, Broke> {
        let before = self.written.bytes();
        let mut answer = pin!(self.sender.try_send_request(*request));
        let connection = &mut self.connection;
        let answered = poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            // Whatever ends the connection ends the answer too, with a reason.
            let _ = Pin::new(&mut *connection).poll(cx);
            answer.as_mut().poll(cx)
        });
        match answered.await {
            Ok(response) => Ok(response),
            Err(mut error) => Err(match (error.take_message(), self.written.bytes() == before) {
                (Some(request), true) => Broke::Untouched(Box::new(request)),
                (_, true) => Broke::Unwritten(error.into_error()),
                (_, false) => Broke::Written(error.into_error()),
            }),
        }
    }

    /// Reads and writes what can be read and written.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        Pin::new(&mut self.connection).poll(cx)
    }

    /// The bytes behind a 101 and the way to say more: the connection has become something else.
    pub(super) async fn switched(self) -> hyper::Result<(Stream, Bytes)> {
        let parts = self.connection.without_shutdown().await?;
        Ok((parts.io.into_inner(), parts.read_buf))
    }
}
