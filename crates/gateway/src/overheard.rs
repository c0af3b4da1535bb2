//! A request body that somebody overhears.
//!
//! Nothing is held back and nothing is copied: what passes is shared with the listener, up to a
//! limit.

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
    pieces: Vec<Bytes>,
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
        let heard = Heard { pieces: Vec::new(), length: 0, limit, state };
        let ear = Ear(Arc::new(Mutex::new(heard)));
        (Self { body, ear: Some(ear.clone()) }, ear)
    }
}

impl Ear {
    /// What was heard.
    pub(crate) fn listened(&self) -> Listened {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (heard.state, &heard.pieces[..]) {
            (State::TooLong, _) => Listened::TooLong,
            (State::Passing, _) => Listened::Broken,
            (State::Ended, [only]) => Listened::Whole(only.clone()),
            (State::Ended, pieces) => {
                let mut whole = BytesMut::with_capacity(heard.length);
                pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
                Listened::Whole(whole.freeze())
            }
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
            heard.state = State::Ended;
        }
    }
}

impl Heard {
    fn take(&mut self, data: &Bytes) {
        self.length = self.length.saturating_add(data.len());
        if self.length > self.limit {
            self.state = State::TooLong;
            self.pieces = Vec::new();
        }
        if self.state == State::Passing {
            self.pieces.push(data.clone());
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
