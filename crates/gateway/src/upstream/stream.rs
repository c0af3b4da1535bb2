//! A connection to an upstream, whatever it is made of, that knows whether anything was written.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use crate::together::poll_write_together;

/// Bytes to an upstream and back.
pub(crate) struct Stream {
    kind: Kind,
    written: u64,
}

/// What a connection is made of.
pub(super) enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// What a test says that it does.
    #[cfg(test)]
    Script(super::script::Script),
}

impl Stream {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, written: 0 }
    }

    /// How many bytes of requests the connection has taken, at least. What a TLS layer has taken and
    /// not yet sent counts as written: it may be on its way. So does one that failed.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Counts what was written. A socket that fails has taken nothing. A TLS layer writes several times
    /// in one call, and if it fails at the second it does not tell of the first.
    fn count(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match (&polled, self.kind.failed_write()) {
            (Poll::Ready(Ok(bytes)), _) => self.written += *bytes as u64,
            (Poll::Ready(Err(_)), Failed::MayHaveWritten) => self.written += 1,
            (Poll::Ready(Err(_)), Failed::WroteNothing) | (Poll::Pending, _) => {}
        }
        polled
    }
}

/// What a write that failed may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    WroteNothing,
    MayHaveWritten,
}

impl Kind {
    fn failed_write(&self) -> Failed {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Failed::WroteNothing,
            Self::Tls(_) => Failed::MayHaveWritten,
            #[cfg(test)]
            Self::Script(script) => script.failed_write(),
        }
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
            #[cfg(test)]
            Kind::Script(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = match &mut this.kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Kind::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Kind::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(test)]
            Kind::Script(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        this.count(polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = match &mut this.kind {
            Kind::Tcp(stream) => poll_write_together(stream, cx, slices),
            Kind::Unix(stream) => poll_write_together(stream, cx, slices),
            Kind::Tls(stream) => poll_write_together(stream, cx, slices),
            #[cfg(test)]
            Kind::Script(stream) => poll_write_together(stream, cx, slices),
        };
        this.count(polled)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.kind {
            Kind::Tcp(stream) => stream.is_write_vectored(),
            Kind::Unix(stream) => stream.is_write_vectored(),
            Kind::Tls(stream) => stream.is_write_vectored(),
            #[cfg(test)]
            Kind::Script(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(test)]
            Kind::Script(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(test)]
            Kind::Script(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
