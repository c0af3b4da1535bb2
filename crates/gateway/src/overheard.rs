//! A request body that somebody overhears.
//!
//! Nothing is held back, and a body of a single piece is not copied: it is shared with the listener, up
//! to a limit.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use crate::proxy::{BodyError, Paced};

/// A body on its way, and who listens.
pub(crate) struct Overheard {
    body: Paced,
    ear: Option<Ear>,
}

/// Listens to a body. All clones hear the same.
#[derive(Clone, Debug)]
pub(crate) struct Ear(Arc<Mutex<Heard>>);

/// What was heard so far.
#[derive(Debug)]
struct Heard {
    /// The only piece so far, or all of it once it has ended.
    whole: Bytes,
    /// Several pieces, copied: each would keep the buffer that it was read into, and a body of a million
    /// pieces of one byte would take forty times its length.
    gathered: BytesMut,
    length: usize,
    limit: usize,
    state: State,
}

/// How far a body got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Passing,
    Ended,
    TooLong,
}

/// What came of listening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listened {
    /// All of it.
    Whole(Bytes),
    /// More than there is room for.
    TooLong,
    /// It never came to its end.
    Broken,
}

impl Overheard {
    /// A body that nobody listens to.
    pub(crate) fn alone(body: Paced) -> Self {
        Self { body, ear: None }
    }

    /// A body and the one who listens to at most `limit` bytes of it.
    pub(crate) fn heard(body: Paced, limit: usize) -> (Self, Ear) {
        let state = if body.is_end_stream() { State::Ended } else { State::Passing };
        let heard = Heard::new(limit, state);
        let ear = Ear(Arc::new(Mutex::new(heard)));
        (Self { body, ear: Some(ear.clone()) }, ear)
    }
}

impl Ear {
    /// What was heard.
    pub(crate) fn listened(&self) -> Listened {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match heard.state {
            State::TooLong => Listened::TooLong,
            State::Passing => Listened::Broken,
            State::Ended => Listened::Whole(heard.whole.clone()),
        }
    }

    fn hear(&self, polled: &Poll<Option<Result<Frame<Bytes>, BodyError>>>, ended: bool) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    heard.take(data);
                }
            }
            Poll::Ready(Some(Err(_))) | Poll::Pending => return,
            Poll::Ready(None) => {}
        }
        // A body of known length need not be asked once more after its last byte.
        let is_over = ended || matches!(polled, Poll::Ready(None));
        if is_over && heard.state == State::Passing {
            heard.end();
        }
    }
}

impl Heard {
    fn new(limit: usize, state: State) -> Self {
        Self { whole: Bytes::new(), gathered: BytesMut::new(), length: 0, limit, state }
    }

    fn take(&mut self, data: &Bytes) {
        let is_first = self.length == 0;
        self.length = self.length.saturating_add(data.len());
        if self.length > self.limit {
            self.state = State::TooLong;
            (self.whole, self.gathered) = (Bytes::new(), BytesMut::new());
        }
        if self.state != State::Passing || data.is_empty() {
            return;
        }
        if is_first {
            self.whole = data.clone();
            return;
        }
        self.gathered.extend_from_slice(&std::mem::take(&mut self.whole));
        self.gathered.extend_from_slice(data);
    }

    fn end(&mut self) {
        self.state = State::Ended;
        if !self.gathered.is_empty() {
            self.whole = std::mem::take(&mut self.gathered).freeze();
        }
    }
}

impl Body for Overheard {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, ear } = self.get_mut();
        let polled = Pin::new(&mut *body).poll_frame(cx);
        if let Some(ear) = ear {
            ear.hear(&polled, body.is_end_stream());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_many_pieces_does_not_keep_the_buffers_that_it_was_read_into() {
        let buffer = Bytes::from(vec![7; 8_192]);
        let mut heard = Heard::new(100, State::Passing);
        (0..30).for_each(|at| heard.take(&buffer.slice(at..=at)));
        assert!(buffer.is_unique(), "somebody holds a piece of it");
        heard.end();
        assert_eq!(heard.whole, [7; 30][..]);
    }

    #[test]
    fn a_body_of_one_piece_is_shared_and_one_that_is_too_long_is_let_go() {
        let only = Bytes::from(vec![7; 100]);
        let mut heard = Heard::new(100, State::Passing);
        [&only, &Bytes::new()].into_iter().for_each(|data| heard.take(data));
        heard.end();
        assert_eq!(heard.whole.as_ptr(), only.as_ptr());
        let mut heard = Heard::new(101, State::Passing);
        [&only, &only].into_iter().for_each(|data| heard.take(data));
        assert_eq!(heard.state, State::TooLong);
        assert!(heard.whole.is_empty() && heard.gathered.is_empty());
    }
}
