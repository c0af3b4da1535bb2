//! The streams of one HTTP/2 connection: when one was last at work, and whether its client takes what it
//! is sent (T12).
//!
//! A client that opens no window holds up one stream and not its connection, so the outlet sees nothing of
//! it. Nor does the body of the answer: hyper waits for room before it asks for more. So each stream is
//! attended from outside, by whoever runs its task.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

/// Runs the streams of a connection, each in a task of its own, and gives up those of which nothing is
/// taken for so long.
#[derive(Clone, Debug)]
pub(super) struct Attendant {
    pub(super) activity: Activity,
    pub(super) longest: Duration,
}

/// When a connection was last used.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Mutex<Moment>>);

#[derive(Debug)]
struct Moment {
    running: usize,
    last: Instant,
    is_fresh: bool,
}

/// A stream that is at work, until the last piece of its answer was handed over.
struct Busy(Activity);

pin_project! {
    /// A body that is given away in pieces, and tells whoever attends its stream that one waits.
    pub(super) struct Taken<B> {
        #[pin]
        body: B,
        rest: Bytes,
        taking: Option<Taking>,
    }
}

/// Since when a piece waits to be taken, if one does.
#[derive(Clone, Debug, Default)]
struct Taking(Arc<Mutex<Option<Instant>>>);

pin_project! {
    /// A stream and its deadline.
    struct Attended<F> {
        #[pin]
        stream: F,
        taking: Taking,
        longest: Duration,
        // Left as it was set for an earlier piece, and put forward only when it rings.
        alarm: Option<Pin<Box<Sleep>>>,
    }
}

tokio::task_local! {
    /// Of the stream whose task this is.
    static TAKING: Taking;
}

/// How much is given away at once. A client has to take so much in the time that it has, which is
/// slower than any modem; and no frame holds more.
const PIECE: usize = 16 * 1024;

impl<F> Executor<F> for Attendant
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (busy, taking, longest) = (self.activity.begin(), Taking::default(), self.longest);
        let attended = Attended { stream, taking: taking.clone(), longest, alarm: None };
        tokio::spawn(TAKING.scope(taking, async move {
            attended.await;
            drop(busy);
        }));
    }
}

impl<F: Future<Output = ()>> Future for Attended<F> {
    type Output = ();

    /// Ready at the end of the stream, or too late: it is reset then, because this goes.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.stream.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let Some(since) = *this.taking.since() else { return Poll::Pending };
        let due = since + *this.longest;
        let alarm = this.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        loop {
            ready!(alarm.as_mut().poll(cx));
            if alarm.deadline() >= due {
                tracing::debug!("a stream was reset: the client takes nothing of its answer");
                return Poll::Ready(());
            }
            alarm.as_mut().reset(due);
        }
    }
}

impl Taking {
    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> Taken<B> {
    /// The body of the answer on this task's stream.
    pub(super) fn new(body: B) -> Self {
        Self { body, rest: Bytes::new(), taking: TAKING.try_with(Clone::clone).ok() }
    }

    /// The same of a conversation, whose client may rest. Its stream would not be reset while its other
    /// direction is open: the client would wait for an end that never comes.
    pub(super) fn unattended(body: B) -> Self {
        Self { body, rest: Bytes::new(), taking: None }
    }
}

impl<B: Body<Data = Bytes>> Body for Taken<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if let Some(taking) = &this.taking {
            // Whoever asks for more has taken the last piece.
            *taking.since() = None;
        }
        if this.rest.is_empty() {
            match ready!(this.body.poll_frame(cx)).transpose()?.map(Frame::into_data) {
                None => return Poll::Ready(None),
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                Some(Ok(data)) => *this.rest = data,
            }
        }
        let count = this.rest.len().min(PIECE);
        if let (Some(taking), 1..) = (&this.taking, count) {
            *taking.since() = Some(Instant::now());
        }
        Poll::Ready(Some(Ok(Frame::data(this.rest.split_to(count)))))
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

impl Default for Activity {
    fn default() -> Self {
        let moment = Moment { running: 0, last: Instant::now(), is_fresh: true };
        Self(Arc::new(Mutex::new(moment)))
    }
}

impl Activity {
    fn begin(&self) -> Busy {
        let mut moment = self.moment();
        moment.running += 1;
        moment.is_fresh = false;
        Busy(self.clone())
    }

    /// Waits until there was nothing to do for so long, from now on.
    pub(super) async fn idle(&self, longest: Duration) {
        let mut until = Instant::now() + longest;
        while until > Instant::now() {
            sleep_until(until).await;
            until = self.idle_until(longest).max(until);
        }
    }

    fn idle_until(&self, longest: Duration) -> Instant {
        let moment = self.moment();
        (if moment.running == 0 { moment.last } else { Instant::now() }) + longest
    }

    /// Whether there never was a request.
    pub(super) fn is_fresh(&self) -> bool {
        self.moment().is_fresh
    }

    fn moment(&self) -> MutexGuard<'_, Moment> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut moment = self.0.moment();
        moment.running = moment.running.saturating_sub(1);
        moment.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    /// Runs a stream whose client takes so many pieces with so long between them, and says whether it
    /// came to its end.
    async fn comes_to_its_end(pieces: usize, pause: Duration) -> bool {
        let attendant = Attendant { activity: Activity::default(), longest: LONGEST };
        let (ended, end) = oneshot::channel();
        attendant.execute(async move {
            let mut body = Taken::new(Full::new(Bytes::from(vec![0; PIECE * pieces])));
            while let Some(piece) = body.frame().await {
                assert_eq!(piece.unwrap().into_data().unwrap().len(), PIECE);
                sleep(pause).await;
            }
            ended.send(()).unwrap();
        });
        let ended = end.await.is_ok();
        attendant.activity.idle(LONGEST).await;
        assert_eq!(attendant.activity.moment().running, 0);
        ended
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_which_nothing_is_taken_is_given_up() {
        assert!(!comes_to_its_end(2, LONGEST * 2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_its_time_is_waited_for() {
        assert!(comes_to_its_end(10, LONGEST * 9 / 10).await);
    }

    /// An upstream may say something once in an hour.
    #[tokio::test(start_paused = true)]
    async fn a_stream_that_waits_for_its_upstream_is_not_given_up() {
        let attendant = Attendant { activity: Activity::default(), longest: LONGEST };
        let (ended, end) = oneshot::channel();
        attendant.execute(async move {
            let slow = futures_util::stream::unfold(0, |at| async move {
                sleep(LONGEST * 60).await;
                let frame = Ok::<_, std::io::Error>(Frame::data(Bytes::from("x")));
                (at < 3).then_some((frame, at + 1))
            });
            let body = Taken::new(http_body_util::StreamBody::new(Box::pin(slow)));
            drop(ended.send(body.collect().await.unwrap().to_bytes()));
        });
        assert_eq!(end.await.unwrap(), "xxx");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_so_long_after_its_last_stream() {
        let attendant = Attendant { activity: Activity::default(), longest: LONGEST };
        let began = Instant::now();
        attendant.execute(sleep(LONGEST * 10));
        attendant.activity.idle(LONGEST).await;
        assert!(began.elapsed() >= LONGEST * 11, "{:?}", began.elapsed());
    }
}
