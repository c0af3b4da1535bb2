//! What was read from an upstream and not yet understood.

use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memchr;
use tokio::io::{AsyncRead as _, AsyncReadExt as _, ReadBuf};

use super::fault::Fault;
use super::head::{self, Asked, Head, MAX_HEAD, Parsed};
use super::stream::Stream;

/// The bytes that are held, and how the next ones are read.
///
/// Most answers come with one read, into memory that belongs to nobody: so a connection that waits
/// has no buffer, and an answer that is kept keeps no more than itself.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    held: BytesMut,
    reads: Reads,
}

/// How much is read at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reads {
    #[default]
    Small,
    /// The last read was as much as could be: there is more.
    Large,
}

/// A small read: more than most answers have, and little enough to lie on the stack.
const SMALL: usize = 8 * 1024;
/// A large one. What is passed on is a sixteenth of a second at 8 Mbit/s, and a system call for it
/// takes longer than the copy that it spares.
const LARGE: usize = 64 * 1024;

impl Inbox {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// What is held.
    pub(super) fn held(&mut self) -> &mut BytesMut {
        &mut self.held
    }

    /// Everything that is held, for whoever speaks another protocol.
    pub(super) fn into_bytes(self) -> Bytes {
        self.held.freeze()
    }

    /// Forgets that much came, and the memory for it.
    pub(super) fn rest(&mut self) {
        *self = Self::default();
    }

    /// Reads until the head of an answer has come.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        asked: Asked,
    ) -> Poll<Result<Head, Fault>> {
        loop {
            let mut scratch = [const { MaybeUninit::uninit() }; SMALL];
            let mut read = ReadBuf::uninit(&mut scratch);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut read)).map_err(Fault::Io)?;
            if let Some(head) = self.head(read.filled(), asked)? {
                return Poll::Ready(Ok(head));
            }
        }
    }

    /// Looks for the head of an answer in what is held and what has come.
    fn head(&mut self, new: &[u8], asked: Asked) -> Result<Option<Head>, Fault> {
        if new.is_empty() {
            return Err(Fault::Ended);
        }
        if self.held.is_empty() {
            let parsed = head::read(new, asked)?;
            self.held.extend_from_slice(&new[parsed.bytes..]);
            return Ok(parsed.head);
        }
        self.held.extend_from_slice(new);
        // Heads end with a line: what comes drop by drop is not read again for each drop.
        let parsed = match memchr(b'\n', new) {
            Some(_) => head::read(&self.held, asked)?,
            None => Parsed { bytes: 0, head: None },
        };
        self.held.advance(parsed.bytes);
        let length = if parsed.head.is_some() { parsed.bytes } else { self.held.len() };
        let most = usize::try_from(MAX_HEAD).unwrap_or(usize::MAX);
        if length > most { Err(Fault::HeadTooLarge) } else { Ok(parsed.head) }
    }

    /// Reads once, behind what is held. Gives how many bytes came; none at the end.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
    ) -> Poll<io::Result<usize>> {
        let Self { held, reads } = self;
        if *reads == Reads::Large {
            held.reserve(LARGE);
            let count = ready!(pin!(stream.read_buf(held)).poll(cx))?;
            if count < LARGE / 2 {
                *reads = Reads::Small;
            }
            return Poll::Ready(Ok(count));
        }
        let mut scratch = [const { MaybeUninit::uninit() }; SMALL];
        let mut read = ReadBuf::uninit(&mut scratch);
        ready!(Pin::new(stream).poll_read(cx, &mut read))?;
        held.extend_from_slice(read.filled());
        if read.remaining() == 0 {
            *reads = Reads::Large;
        }
        Poll::Ready(Ok(read.filled().len()))
    }

    /// Takes so many bytes off the front. They keep at most twice their size of memory.
    pub(super) fn take(&mut self, count: usize) -> Bytes {
        if count == self.held.len() && self.held.capacity() / 2 <= count {
            return std::mem::take(&mut self.held).freeze();
        }
        let taken = Bytes::copy_from_slice(&self.held[..count]);
        self.held.advance(count);
        taken
    }
}
