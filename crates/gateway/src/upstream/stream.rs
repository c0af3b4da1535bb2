//! A connection to an upstream, whatever it is made of, that knows whether anything was written.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use crate::together::poll_write_together;

/// Bytes to an upstream and back.
pub(crate) struct Stream {
    kind: Kind,
    written: Written,
}

/// How many bytes of requests a connection has taken. What a TLS layer has taken and not yet sent
/// counts as written: it may be on its way.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(Arc<AtomicU64>);

/// What a connection is made of.
pub(super) enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, written: Written::default() }
    }

    pub(super) fn written(&self) -> Written {
        self.written.clone()
    }
}

impl Written {
    /// Whoever looks drives the connection itself, or has heard of its end over a channel. Either
    /// puts what was written before, so no order between threads is needed here.
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &polled {
            self.0.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Kind::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Kind::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { kind, written } = self.get_mut();
        written.add(match kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Kind::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Kind::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        })
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { kind, written } = self.get_mut();
        written.add(match kind {
            Kind::Tcp(stream) => poll_write_together(stream, cx, slices),
            Kind::Unix(stream) => poll_write_together(stream, cx, slices),
            Kind::Tls(stream) => poll_write_together(stream, cx, slices),
        })
    }

    fn is_write_vectored(&self) -> bool {
        match &self.kind {
            Kind::Tcp(stream) => stream.is_write_vectored(),
            Kind::Unix(stream) => stream.is_write_vectored(),
            Kind::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
