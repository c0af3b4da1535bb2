//! A connection whose client has to take what it is sent (T12).
//!
//! A client that asks for something large and reads none of it holds its place, and an upstream's
//! connection, for as long as it likes. Ten thousand of them are all that there are.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// What is written to, until nothing of it is taken for too long.
#[derive(Debug)]
pub(super) struct Outlet<IO> {
    io: IO,
    longest: Duration,
    /// Set while nothing is taken. Most connections never need it.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<IO> Outlet<IO> {
    pub(super) const fn new(io: IO, longest: Duration) -> Self {
        Self { io, longest, alarm: None }
    }

    /// Passes on what became of a write, or ends it if its time is over.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.alarm = None;
            return written;
        }
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(self.longest)));
        ready!(alarm.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Outlet<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Outlet<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, buf);
        this.judge(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match Pin::new(&mut this.io).poll_flush(cx) {
            // There may be nothing to flush while something waits to be written.
            Poll::Ready(flushed) => Poll::Ready(flushed),
            Poll::Pending => this.judge(cx, Poll::Pending),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (near, _far) = duplex(16);
        let began = tokio::time::Instant::now();
        let written = Outlet::new(near, LONGEST).write_all(&[0; 64]).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_its_time_is_not() {
        let (near, mut far) = duplex(16);
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            let mut some = [0; 16];
            while let Ok(1..) = far.read(&mut some).await {
                all.push(());
                tokio::time::sleep(LONGEST * 9 / 10).await;
            }
            all.len()
        });
        let mut outlet = Outlet::new(near, LONGEST);
        outlet.write_all(&[0; 16 * 10]).await.unwrap();
        drop(outlet);
        assert_eq!(reading.await.unwrap(), 10);
    }
}
