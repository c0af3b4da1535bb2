//! An upstream for tests, byte by byte.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::stream::{Failed, Kind, Stream};

/// What an upstream does, in its order.
#[derive(Clone, Debug)]
pub(super) enum Does {
    /// Says this, in one read.
    Says(Vec<u8>),
    /// Says nothing until so many bytes of the request have come.
    Waits(usize),
    /// Ends the connection.
    Ends,
    /// Cuts it.
    Resets,
}

/// A connection to it. It says nothing more when the list is over.
#[derive(Clone, Debug)]
pub(super) struct Script(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    does: VecDeque<Does>,
    got: Vec<u8>,
    /// How many bytes it takes at a time.
    at_once: usize,
    /// After so many bytes it takes no more, and says so.
    takes: usize,
    /// Whether it says so in the very write of which it has taken a part, as TLS does.
    failed: Failed,
    writes: usize,
}

impl Script {
    pub(super) fn new(does: impl IntoIterator<Item = Does>) -> Self {
        let does = does.into_iter().collect();
        let (at_once, takes) = (usize::MAX, usize::MAX);
        let (got, failed) = (Vec::new(), Failed::WroteNothing);
        Self(Arc::new(Mutex::new(State { does, got, at_once, takes, failed, writes: 0 })))
    }

    /// Says all of it, in pieces of at most this size, and ends then.
    pub(super) fn saying(bytes: &[u8], size: usize) -> Self {
        let pieces = bytes.chunks(size.max(1)).map(|piece| Does::Says(piece.to_vec()));
        Self::new(pieces.chain([Does::Ends]))
    }

    pub(super) fn at_once(self, bytes: usize) -> Self {
        self.0.lock().unwrap().at_once = bytes;
        self
    }

    pub(super) fn takes(self, bytes: usize) -> Self {
        self.0.lock().unwrap().takes = bytes;
        self
    }

    pub(super) fn over_tls(self) -> Self {
        self.0.lock().unwrap().failed = Failed::MayHaveWritten;
        self
    }

    pub(super) fn failed_write(&self) -> Failed {
        self.0.lock().unwrap().failed
    }

    pub(super) fn stream(&self) -> Stream {
        Stream::new(Kind::Script(self.clone()))
    }

    /// Says more.
    pub(super) fn then(&self, does: impl IntoIterator<Item = Does>) {
        self.0.lock().unwrap().does.extend(does);
    }

    /// What has come of requests.
    pub(super) fn got(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().got.clone()).unwrap()
    }

    /// How often something was written.
    pub(super) fn writes(&self) -> usize {
        self.0.lock().unwrap().writes
    }
}

impl AsyncRead for Script {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.lock().unwrap();
        let got = state.got.len();
        match state.does.front_mut() {
            None => Poll::Pending,
            Some(Does::Waits(bytes)) if got < *bytes => Poll::Pending,
            Some(Does::Waits(_)) => {
                state.does.pop_front();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Does::Ends) => Poll::Ready(Ok(())),
            Some(Does::Resets) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Some(Does::Says(bytes)) => {
                let count = bytes.len().min(buffer.remaining());
                buffer.put_slice(&bytes[..count]);
                bytes.drain(..count);
                if bytes.is_empty() {
                    state.does.pop_front();
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Script {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock().unwrap();
        let room = state.takes - state.got.len().min(state.takes);
        if room == 0 {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = bytes.len().min(state.at_once).min(room);
        state.got.extend_from_slice(&bytes[..count]);
        state.writes += 1;
        if state.failed == Failed::MayHaveWritten && room < bytes.len() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A body that comes as a list says.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub(super) list: VecDeque<Piece>,
    pub(super) length: Option<u64>,
}

/// What comes of a body.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Data(Vec<u8>),
    /// Not yet, once.
    Later,
    /// It breaks off.
    Broken,
    /// Nothing more ever comes, not even an end.
    Never,
    Trailers,
}

impl http_body::Body for Pieces {
    type Data = bytes::Bytes;
    type Error = crate::proxy::BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        let this = self.get_mut();
        match this.list.pop_front() {
            None => Poll::Ready(None),
            Some(Piece::Later) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Piece::Never) => {
                this.list.push_front(Piece::Never);
                Poll::Pending
            }
            Some(Piece::Broken) => Poll::Ready(Some(Err(crate::proxy::BodyError::Slow))),
            Some(Piece::Data(data)) => Poll::Ready(Some(Ok(http_body::Frame::data(data.into())))),
            Some(Piece::Trailers) => {
                let fields = http::HeaderMap::from_iter([(
                    http::header::ETAG,
                    http::HeaderValue::from_static("x"),
                )]);
                Poll::Ready(Some(Ok(http_body::Frame::trailers(fields))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.list.is_empty()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.length.map_or_else(http_body::SizeHint::new, http_body::SizeHint::with_exact)
    }
}
