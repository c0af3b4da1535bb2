//! A connection that lets only strictly framed HTTP/1 through to whoever reads from it.
//!
//! The reader sees the end of the stream where the client was stopped, and the [`Verdict`] says
//! why. The reader has to be one that finishes its answers then (hyper: `half_close(true)`): a
//! mistake in the third of three pipelined requests must not cost the first two their answers.

mod farewell;
mod patience;
mod verdict;

use std::io;
use std::mem::{self, MaybeUninit};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::farewell::Farewell;
pub(super) use self::farewell::{Executed, document, note};
pub(super) use self::patience::{Pace, Patience};
use self::verdict::Settled;
pub(super) use self::verdict::{End, Verdict, Why};
use super::sieve::{Limits, Passed, Place, Sieve};
use crate::together::poll_write_together;

/// A connection from a client, read through a [`Sieve`].
///
/// A read that ends with a message or within a body goes straight into the reader's buffer.
/// Copied is only what is held back: the front of a head, of the line before a chunk, of trailers.
#[derive(Debug)]
pub(super) struct Strict<IO> {
    io: IO,
    sieve: Sieve,
    patience: Patience,
    verdict: Verdict,
    /// What was read and has not gone on.
    held: BytesMut,
    /// So many bytes of it, at the front, may go on.
    approved: usize,
    /// So many bytes of it, at the end, came before anybody wanted to read them: the sieve has not seen
    /// them. What is wrong with them must not be said into an answer that is under way.
    early: usize,
    farewell: Farewell,
}

/// How much is read at once behind something that is held back: most heads come in two reads at
/// most, and what follows is read without a copy again.
const SCRATCH: usize = 4 * 1024;

impl<IO> Strict<IO> {
    pub(super) fn new(io: IO, limits: Limits, pace: Pace) -> Self {
        Self {
            io,
            sieve: Sieve::new(limits),
            patience: Patience::new(pace),
            verdict: Verdict::default(),
            held: BytesMut::new(),
            approved: 0,
            early: 0,
            farewell: Farewell::default(),
        }
    }

    /// What is to be known about this connection by those who do not read from it.
    pub(super) fn verdict(&self) -> Verdict {
        self.verdict.clone()
    }

    /// Gives the reader what may go on of what was held back.
    fn give(&mut self, buf: &mut ReadBuf<'_>) {
        let count = self.approved.min(buf.remaining());
        buf.put_slice(&self.held[..count]);
        self.held.advance(count);
        self.approved -= count;
    }

    /// Shows the sieve again what is held back: there is more of it, or other rules hold now.
    fn sift(&mut self) -> Passed {
        let passed = self.sieve.pass(&self.held);
        self.approved = passed.bytes;
        self.note(passed);
        passed
    }

    fn note(&mut self, passed: Passed) {
        self.verdict.note(self.sieve.letterings());
        if let Some(violation) = passed.refused {
            self.verdict.finish(End { why: Why::Refused(violation), place: self.sieve.place() });
        }
    }

    /// Asks whether the server has agreed to another protocol.
    fn settle(&mut self, cx: &Context<'_>) -> Poll<()> {
        match ready!(self.verdict.poll_settled(cx)) {
            Settled::Upgraded => self.sieve.upgraded(),
            Settled::Declined => self.sieve.declined(),
        }
        self.sift();
        Poll::Ready(())
    }
}

impl<IO: AsyncRead + Unpin> Strict<IO> {
    /// Reads into the reader's buffer. Gives how many bytes came.
    fn poll_direct(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let read = &buf.filled()[before..];
        let count = read.len();
        let passed = self.sieve.pass(read);
        self.held.extend_from_slice(&read[passed.bytes..]);
        buf.set_filled(before + passed.bytes);
        self.note(passed);
        self.patience.arrived(count, passed.bytes, self.sieve.place());
        Poll::Ready(Ok(count))
    }

    /// Reads behind what is held back. Gives how many bytes came.
    fn poll_behind(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let count = ready!(self.poll_more(cx))?;
        self.came(count);
        Poll::Ready(Ok(count))
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut scratch = [const { MaybeUninit::uninit() }; SCRATCH];
        let mut read = ReadBuf::uninit(&mut scratch);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
        self.held.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    fn came(&mut self, count: usize) {
        let passed = self.sift();
        self.patience.arrived(count, passed.bytes, self.sieve.place());
    }

    /// Looks whether the client has left, while the reader waits for an answer and reads nothing. Of the
    /// next request no more is taken than one read brings, and from then on nobody looks.
    fn look_out(&mut self, cx: &mut Context<'_>) {
        let is_behind_a_request =
            matches!(self.sieve.place(), Place::Between | Place::Waiting | Place::Last);
        if !self.verdict.is_watched()
            || self.verdict.has_left()
            || !self.held.is_empty()
            || !is_behind_a_request
        {
            return;
        }
        match self.poll_more(cx) {
            // After an error the system says that the stream has ended, to whoever reads next.
            Poll::Ready(Ok(0) | Err(_)) => self.verdict.leave(),
            Poll::Ready(Ok(count)) => self.early = count,
            Poll::Pending => {}
        }
    }

    /// The client is silent. Ends the connection for the reader if that takes too long.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let place = self.sieve.place();
        let why = ready!(self.patience.poll_spent(cx, place));
        self.verdict.finish(End { why, place });
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Strict<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if this.early > 0 {
            let count = mem::take(&mut this.early);
            this.came(count);
        }
        loop {
            if this.approved > 0 {
                this.give(buf);
                return Poll::Ready(Ok(()));
            }
            if buf.filled().len() > before || this.verdict.end().is_some() {
                return Poll::Ready(Ok(()));
            }
            let place = this.sieve.place();
            if place == Place::Waiting && this.settle(cx).is_ready() {
                continue;
            }
            // Nobody may read what is held back here, so there is no use in reading more. While
            // there is nothing, reading goes on: to notice that the client went away.
            if matches!(place, Place::Waiting | Place::Last) && !this.held.is_empty() {
                return Poll::Pending;
            }
            let polled =
                if this.held.is_empty() { this.poll_direct(cx, buf) } else { this.poll_behind(cx) };
            match polled {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return this.poll_silence(cx),
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Strict<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_write_together(&mut self.get_mut().io, cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// Whoever waits for an answer flushes whenever it is woken, and reads nothing: so this is where a
    /// client that has left is noticed.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.look_out(cx);
        Pin::new(&mut this.io).poll_flush(cx)
    }

    /// Tells a client that was stopped why, before the connection ends.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, verdict, farewell, .. } = self.get_mut();
        farewell.poll_say(cx, io, verdict.end())
    }
}

#[cfg(test)]
mod tests;
