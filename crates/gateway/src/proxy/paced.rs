//! A request body whose sender must not stand still for too long.
//!
//! Over HTTP/1 the connection sees to that, because it belongs to one request at a time. Over
//! HTTP/2 every stream has to be watched by itself: the others on its connection may be fast.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::sieve::Place;
use super::strict::{End, Pace, Patience, Verdict, Why};

/// A body as it comes from a client.
#[derive(Debug)]
pub(crate) struct Paced {
    body: Incoming,
    ends: Ends,
    /// Not there if somebody else watches.
    watch: Option<(Patience, Verdict)>,
}

/// By what the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// By its framing, of which hyper tells the end from a break.
    ByFraming,
    /// By a flag of its stream. hyper takes a stream that was reset without an error for one that has ended.
    ByFlag,
}

/// Why a body has no end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body broke off")]
    Broken(#[source] hyper::Error),
    #[error("the body broke off without a word")]
    Reset,
    #[error("the body came too slowly")]
    Slow,
}

impl Paced {
    /// A body whose connection is watched.
    pub(super) fn free(body: Incoming) -> Self {
        Self { body, ends: Ends::ByFraming, watch: None }
    }

    /// A body of HTTP/2, which ends if it is too slow, which the verdict says then.
    pub(super) fn new(body: Incoming, pace: Pace, verdict: Verdict) -> Self {
        Self { body, ends: Ends::ByFlag, watch: Some((Patience::new(pace), verdict)) }
    }

    /// Lets it take as long as it likes from now on.
    pub(super) fn relax(&mut self) {
        self.watch = None;
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, ends, watch } = self.get_mut();
        let mut polled = Pin::new(&mut *body).poll_frame(cx).map_err(BodyError::Broken);
        // What is not whole must never be taken for the whole of another, smaller request (F11).
        if *ends == Ends::ByFlag && matches!(polled, Poll::Ready(None)) && !body.is_end_stream() {
            polled = Poll::Ready(Some(Err(BodyError::Reset)));
        }
        let Some((patience, verdict)) = watch else { return polled };
        if let Poll::Ready(frame) = polled {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            let bytes = data.map_or(0, Bytes::len);
            patience.arrived(bytes, bytes, Place::Body);
            return Poll::Ready(frame);
        }
        let why = ready!(patience.poll_spent(cx, Place::Body));
        debug_assert_eq!(why, Why::SlowBody, "a body is no head");
        verdict.finish(End { why, place: Place::Body });
        Poll::Ready(Some(Err(BodyError::Slow)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
