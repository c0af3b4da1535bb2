//! Small pieces that leave as one.
//!
//! hyper hands over a head and its body as a list, even if the list has one piece. The system call
//! for lists has to fetch and check the list first. Measured on the pass-through of small answers: a
//! microsecond for each of the two writes of a request, a twentieth of what the gateway spends on it.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncWrite, ReadBuf};

/// What is copied rather than listed: a copy of so much takes a tenth of a microsecond, and most
/// heads with the answers of an API fit.
const SMALL: usize = 2 * 1024;

/// Writes as [`AsyncWrite::poll_write_vectored`] does.
pub(crate) fn poll_write_together<IO: AsyncWrite + Unpin>(
    io: &mut IO,
    cx: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let io = Pin::new(io);
    if let [only] = pieces {
        return io.poll_write(cx, only);
    }
    if pieces.iter().map(|piece| piece.len()).sum::<usize>() > SMALL {
        return io.poll_write_vectored(cx, pieces);
    }
    let mut copy = [const { MaybeUninit::uninit() }; SMALL];
    let mut whole = ReadBuf::uninit(&mut copy);
    for piece in pieces {
        whole.put_slice(piece);
    }
    io.poll_write(cx, whole.filled())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, and notes how it was asked.
    #[derive(Default)]
    struct Taker {
        got: Vec<u8>,
        most: usize,
        lists: usize,
    }

    impl Taker {
        fn take(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.most);
            self.got.extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        }
    }

    impl AsyncWrite for Taker {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.get_mut().take(bytes)
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            pieces: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let this = self.get_mut();
            this.lists += 1;
            let whole: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            this.take(&whole)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Writes pieces of these lengths, and returns how many lists were written.
    fn write(lengths: &[usize], most: usize) -> usize {
        let bytes: Vec<u8> = (0..=250).cycle().take(lengths.iter().sum()).collect();
        let mut rest = &bytes[..];
        let mut pieces: Vec<_> = lengths
            .iter()
            .map(|length| {
                let (piece, behind) = rest.split_at(*length);
                rest = behind;
                IoSlice::new(piece)
            })
            .collect();
        let mut left = &mut pieces[..];
        let mut taker = Taker { most, ..Taker::default() };
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while !left.is_empty() {
            match poll_write_together(&mut taker, &mut cx, left) {
                Poll::Ready(Ok(count)) => IoSlice::advance_slices(&mut left, count),
                Poll::Ready(Err(error)) => panic!("{error}"),
                Poll::Pending => panic!("it takes something each time"),
            }
        }
        assert_eq!(taker.got, bytes, "{lengths:?} in steps of {most}");
        taker.lists
    }

    #[test]
    fn what_is_written_is_what_was_given_however_little_is_taken_at_a_time() {
        for lengths in [&[7][..], &[120, 0, 30], &[SMALL - 1, 1], &[SMALL, 1], &[9_000, 9_000]] {
            for most in [1, 64, SMALL, usize::MAX] {
                write(lengths, most);
            }
        }
    }

    #[test]
    fn only_what_is_large_is_written_as_a_list() {
        assert_eq!(write(&[200_000], usize::MAX), 0);
        assert_eq!(write(&[120, 30], usize::MAX), 0);
        assert_eq!(write(&[120, SMALL], usize::MAX), 1);
    }
}
