//! A connection that has become something else: bytes in both directions, until one side ends, nothing is
//! said for too long, or the program has no more time.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf, copy_bidirectional};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};

use crate::stop::Stop;
use crate::upstream::Stream;

/// What ties a tunnel to the connection of the client that it once was.
#[derive(Clone, Debug)]
pub(super) struct Tether {
    /// Its place among the clients.
    pub(super) place: Arc<OwnedSemaphorePermit>,
    /// How long both sides may be silent. One of them may have gone without a word.
    pub(super) idle: Duration,
    pub(super) stop: Stop,
}

/// Passes on whatever comes, once both sides have switched.
pub(super) async fn tunnel(
    client: OnUpgrade,
    tether: Tether,
    (mut upstream, first): (Stream, Bytes),
) {
    let client = match client.await {
        Ok(client) => client,
        Err(error) => {
            tracing::debug!(%error, "a connection was not switched");
            return;
        }
    };
    let heard = Heard::default();
    let mut client = Overheard { io: TokioIo::new(client), heard: heard.clone() };
    let conversation = async {
        // How a conversation ends that we do not understand is the business of those who have it.
        if client.write_all(&first).await.is_ok() {
            drop(copy_bidirectional(&mut client, &mut upstream).await);
        }
    };
    tokio::select! {
        () = conversation => {}
        () = heard.silence(tether.idle) => tracing::debug!("a tunnel was silent for too long"),
        () = tether.stop.insisted() => tracing::debug!("a tunnel was cut at the end of the drain"),
    }
    drop(tether.place);
}

/// When something was last said. What one side says the other has to take.
#[derive(Clone, Debug)]
struct Heard(Arc<Mutex<Instant>>);

/// One of both sides: whatever is said passes through it.
#[derive(Debug)]
struct Overheard<IO> {
    io: IO,
    heard: Heard,
}

impl Default for Heard {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Heard {
    /// Waits until nothing was said for so long.
    async fn silence(&self, longest: Duration) {
        let mut until = *self.last() + longest;
        while until > Instant::now() {
            sleep_until(until).await;
            until = *self.last() + longest;
        }
    }

    fn note(&self) {
        *self.last() = Instant::now();
    }

    fn last(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Overheard<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = ready!(Pin::new(&mut this.io).poll_read(cx, buffer));
        this.heard.note();
        Poll::Ready(read)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Overheard<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.io).poll_write(cx, bytes));
        this.heard.note();
        Poll::Ready(written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, duplex};
    use tokio::time::sleep;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn words_of_either_side_break_the_silence() {
        let (near, mut far) = duplex(16);
        let heard = Heard::default();
        let mut near = Overheard { io: near, heard: heard.clone() };
        let began = Instant::now();
        let talking = async {
            for _ in 0..5 {
                sleep(LONGEST * 9 / 10).await;
                far.write_all(b"hello").await.unwrap();
                near.read_exact(&mut [0; 5]).await.unwrap();
                sleep(LONGEST * 9 / 10).await;
                near.write_all(b"hello").await.unwrap();
                far.read_exact(&mut [0; 5]).await.unwrap();
            }
        };
        tokio::join!(talking, heard.silence(LONGEST));
        assert_eq!(began.elapsed(), LONGEST * 10);
    }
}
