//! The body of a request on a connection that somebody else drives, which tells how far it has come.
//!
//! hyper takes a request as a whole and says nothing until there is an answer. But the time for an
//! answer counts from the last byte of the request, and of a body that breaks off nobody must say that
//! the upstream did not answer.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::Outgoing;
use super::places::Place;
use crate::proxy::BodyError;

/// A body that is taken piece by piece.
pub(super) struct Upload<B = Outgoing> {
    body: B,
    /// What has come of it and was not taken yet.
    rest: Bytes,
    course: Arc<Course>,
}

/// How far a request has come.
pub(super) struct Course {
    progress: Mutex<Progress>,
    /// Kept until neither the request nor its answer is on the connection any more.
    _place: Option<Place>,
}

struct Progress {
    last: Instant,
    broken: Option<BodyError>,
}

/// How much is given away at once. Only a piece that was taken counts as progress, so one that takes
/// the upstream longer than it may take for an answer would be too large; and no frame holds more.
const PIECE: usize = 16 * 1024;

impl Course {
    pub(super) fn new(place: Option<Place>) -> Arc<Self> {
        let progress = Progress { last: Instant::now(), broken: None };
        Arc::new(Self { progress: Mutex::new(progress), _place: place })
    }

    /// When something of the request was last taken.
    pub(super) fn last(&self) -> Instant {
        self.progress().last
    }

    /// Why the body has no end, if that is so.
    pub(super) fn broken(&self) -> Option<BodyError> {
        self.progress().broken.take()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> Upload<B> {
    pub(super) fn new(body: B, course: &Arc<Course>) -> Self {
        Self { body, rest: Bytes::new(), course: Arc::clone(course) }
    }

    /// The body again, of which nothing was taken.
    pub(super) fn untouched(self) -> B {
        self.body
    }

    fn piece(&mut self) -> Frame<Bytes> {
        let count = self.rest.len().min(PIECE);
        Frame::data(self.rest.split_to(count))
    }
}

impl<B> Body for Upload<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = if this.rest.is_empty() {
            ready!(Pin::new(&mut this.body).poll_frame(cx))
        } else {
            Some(Ok(this.piece()))
        };
        let mut progress = this.course.progress();
        progress.last = Instant::now();
        let frame = match frame {
            Some(Err(error)) => {
                progress.broken = Some(error);
                // hyper does not pass on what it is told here.
                return Poll::Ready(Some(Err(BodyError::Reset)));
            }
            frame => frame,
        };
        drop(progress);
        Poll::Ready(frame.map(|frame| {
            Ok(match frame?.into_data() {
                Ok(data) if data.len() > PIECE => {
                    this.rest = data;
                    this.piece()
                }
                Ok(data) => Frame::data(data),
                Err(trailers) => trailers,
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, mut hint) = (self.rest.len() as u64, self.body.size_hint());
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt as _;

    use super::super::script::{Piece, Pieces};
    use super::*;

    fn upload(list: impl IntoIterator<Item = Piece>) -> (Upload<Pieces>, Arc<Course>) {
        let course = Course::new(None);
        let body = Pieces { list: list.into_iter().collect(), length: None };
        (Upload::new(body, &course), course)
    }

    #[tokio::test(start_paused = true)]
    async fn every_piece_that_is_taken_is_progress() {
        let whole: Vec<u8> = (0..PIECE * 2 + 7).map(|at| at.to_be_bytes()[7]).collect();
        let (mut body, course) = upload([Piece::Data(whole.clone()), Piece::Trailers]);
        let mut taken = Vec::new();
        for expected in [PIECE, PIECE, 7] {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!body.is_end_stream());
            let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!((data.len(), course.last()), (expected, Instant::now()));
            taken.extend_from_slice(&data);
        }
        assert_eq!(taken, whole);
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
        assert!(body.is_end_stream() && body.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_client_is_none() {
        let (mut body, course) = upload([Piece::Data(vec![1]), Piece::Never]);
        body.frame().await.unwrap().unwrap();
        let last = course.last();
        tokio::time::timeout(Duration::from_secs(1), body.frame()).await.unwrap_err();
        assert_eq!(course.last(), last);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_says_why() {
        let (mut body, course) = upload([Piece::Broken]);
        assert!(body.frame().await.unwrap().is_err());
        assert!(matches!(course.broken(), Some(BodyError::Slow)));
        assert!(course.broken().is_none());
    }

    #[test]
    fn what_was_not_taken_yet_counts_in_its_length() {
        let (mut body, _) = upload([]);
        body.body.length = Some(5);
        assert_eq!(body.size_hint().exact(), Some(5));
        body.rest = Bytes::from_static(b"abc");
        assert_eq!(body.size_hint().exact(), Some(8));
    }
}
