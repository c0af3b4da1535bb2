//! The body of an upstream's answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::fault::Fault;
use super::line::Line;
use super::pool::Pool;
use super::stream::Stream;
use super::upload::Course;

/// A body as it comes from the upstream. Reading it drives the connection; when it has been read to
/// its end, the connection goes back to the pool, and if not, it is closed.
pub(crate) struct Answer {
    source: Source,
    /// How long it may stand still. In a box, because few answers are not there at once.
    haste: Option<Box<Haste>>,
}

/// A limit on how long nothing may come.
struct Haste {
    longest: Duration,
    /// Set while nothing comes.
    alarm: Option<Pin<Box<Sleep>>>,
}

enum Source {
    /// It has come as a whole, as most do, and its connection is free again.
    Whole(Bytes),
    /// It comes over a connection that belongs to it alone. In a box: an answer changes hands half a
    /// dozen times on its way to the client.
    Line(Box<Line>, Pool),
    /// It comes over a connection that somebody else drives, and has its place there.
    Stream { body: Incoming, _course: Arc<Course> },
    /// It broke off, and is never whole.
    Broken,
}

impl Answer {
    /// The body of the answer whose head was just read from a connection.
    pub(super) fn of_line(mut line: Box<Line>, pool: &Pool) -> Self {
        match line.whole() {
            Some(body) => {
                pool.give(line);
                Self::of(Source::Whole(body))
            }
            None => Self::of(Source::Line(line, pool.clone())),
        }
    }

    const fn of(source: Source) -> Self {
        Self { source, haste: None }
    }

    /// A body of a connection that somebody else drives.
    pub(super) fn of_stream(body: Incoming, course: Arc<Course>) -> Self {
        Self::of(Source::Stream { body, _course: course })
    }

    /// From now on it breaks off if nothing comes for so long. Whoever waits for its end would else wait
    /// for ever for an upstream that has hung up without a word, and its key with it.
    pub(crate) fn hurry(&mut self, longest: Duration) {
        match self.source {
            Source::Whole(_) | Source::Broken => {}
            Source::Line(..) | Source::Stream { .. } => {
                self.haste = Some(Box::new(Haste { longest, alarm: None }));
            }
        }
    }

    /// Takes the connection out, because it has become something else; with what came behind the
    /// answer that said so.
    pub(crate) fn switch(&mut self) -> Option<(Stream, Bytes)> {
        match std::mem::replace(&mut self.source, Source::Whole(Bytes::new())) {
            Source::Line(line, _) => line.switched(),
            Source::Whole(_) | Source::Stream { .. } | Source::Broken => None,
        }
    }
}

impl Source {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        Poll::Ready(match self {
            Self::Whole(body) if body.is_empty() => None,
            Self::Whole(body) => Some(Ok(Frame::data(std::mem::take(body)))),
            Self::Stream { body, .. } => {
                match ready!(Pin::new(&mut *body).poll_frame(cx)).transpose() {
                    // hyper takes a stream that was reset without an error for one that has ended. It is
                    // whole only if its end was seen (I14).
                    Ok(None) if !body.is_end_stream() => Some(Err(Fault::Ended)),
                    Ok(frame) => frame.map(Ok),
                    Err(error) => Some(Err(Fault::Http2(error))),
                }
            }
            Self::Line(line, _) => ready!(line.poll_frame(cx)),
            Self::Broken => Some(Err(Fault::Ended)),
        })
    }
}

impl Haste {
    fn poll_spent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(self.longest)));
        alarm.as_mut().poll(cx)
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let Self { source, haste } = self.get_mut();
        let frame = match (source.poll(cx), haste) {
            (Poll::Ready(frame), None) => frame,
            (Poll::Ready(frame), Some(haste)) => {
                haste.alarm = None;
                frame
            }
            (Poll::Pending, None) => return Poll::Pending,
            (Poll::Pending, Some(haste)) => {
                ready!(haste.poll_spent(cx));
                Some(Err(Fault::Late))
            }
        };
        if let Some(Err(_)) = frame {
            *source = Source::Broken;
        }
        // Given back at once: the next request need not wait until this answer was delivered.
        if let Source::Line(line, _) = source
            && line.is_ended()
            && let Source::Line(line, pool) = std::mem::replace(source, Source::Whole(Bytes::new()))
        {
            pool.give(line);
        }
        if let Source::Stream { body, .. } = source
            && body.is_end_stream()
        {
            *source = Source::Whole(Bytes::new());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Whole(body) => body.is_empty(),
            Source::Line(line, _) => line.is_ended(),
            Source::Broken => false,
            Source::Stream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(body) => SizeHint::with_exact(body.len() as u64),
            Source::Line(line, _) => line.left().map_or_else(SizeHint::new, SizeHint::with_exact),
            Source::Stream { body, .. } => body.size_hint(),
            Source::Broken => SizeHint::new(),
        }
    }
}
