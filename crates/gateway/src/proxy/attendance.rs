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
    /// How long clients may take over the ends of answers whose streams are over.
    tails: Instant,
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

/// How the client of a stream takes its answer.
#[derive(Clone, Debug)]
struct Taking {
    handed: Arc<Mutex<Handed>>,
    longest: Duration,
}

#[derive(Debug, Default)]
struct Handed {
    /// Since when a piece waits to be taken, if one does.
    since: Option<Instant>,
    /// How much was given away since a piece last waited for longer than any client may take over one.
    run: u64,
}

pin_project! {
    /// A stream and its deadline.
    struct Attended<F> {
        #[pin]
        stream: F,
        taking: Taking,
        // Left as it was set for an earlier piece, and put forward only when it rings. One that would
        // ring too late is put back at once.
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
/// For so much that was handed over, a client has its time once more. Many say that they have room again
/// only when half of their window was read, and their windows hold 16 MiB: somebody who reads all the
/// time may be silent for 8 MiB. With the defaults a client has to read 4 kB in a second, and half
/// of a window of 1 MiB gives it more than once the time also if a piece is missing there.
const SHARE: u64 = 256 * 1024;
/// No client has its time more often than this, whatever it holds. With the defaults, 8 MiB in a quarter
/// of an hour are 9 kB in a second, and whoever opens windows of 16 MiB has a link for more than that.
const MOST_SHARES: u64 = 16;

impl<F> Executor<F> for Attendant
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (busy, taking) = (self.activity.begin(), Taking::new(self.longest));
        let attended = Attended { stream, taking: taking.clone(), alarm: None };
        tokio::spawn(TAKING.scope(taking.clone(), async move {
            attended.await;
            busy.0.leave_tail(taking.patience());
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
        let Some(due) = this.taking.due() else { return Poll::Pending };
        let alarm = this.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if alarm.deadline() > due {
            alarm.as_mut().reset(due);
        }
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
    fn new(longest: Duration) -> Self {
        Self { handed: Arc::default(), longest }
    }

    /// Something is given away.
    fn give(&self, count: usize) {
        let mut handed = self.handed();
        handed.since = Some(Instant::now());
        handed.run = handed.run.saturating_add(count as u64);
    }

    /// What was given away last was taken. Whoever needed more than the usual time for it has used up
    /// what it got for the pieces before: else it could take a piece in every quarter of an hour, for
    /// ever.
    fn take(&self) {
        let mut handed = self.handed();
        if handed.since.take().is_some_and(|since| since.elapsed() > self.longest) {
            handed.run = 0;
        }
    }

    /// When the piece that waits has waited for too long, if one does.
    fn due(&self) -> Option<Instant> {
        let since = self.handed().since?;
        Some(since + self.patience())
    }

    /// How long a client may be silent that has got so much.
    fn patience(&self) -> Duration {
        let shares = (1 + self.handed().run / SHARE).min(MOST_SHARES);
        self.longest.saturating_mul(u32::try_from(shares).unwrap_or(u32::MAX))
    }

    fn handed(&self) -> MutexGuard<'_, Handed> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
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
            taking.take();
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
            taking.give(count);
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
        let now = Instant::now();
        let moment = Moment { running: 0, last: now, tails: now, is_fresh: true };
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

    /// A stream is over. The end of its answer may still wait for room at the client, which has as long
    /// for it as for any other piece.
    fn leave_tail(&self, patience: Duration) {
        let mut moment = self.moment();
        moment.tails = moment.tails.max(Instant::now() + patience);
    }

    /// The same as `idle`, and no client has any time left for the end of an answer.
    pub(super) async fn over(&self, longest: Duration) {
        loop {
            self.idle(longest).await;
            let tails = self.moment().tails;
            if tails <= Instant::now() {
                return;
            }
            sleep_until(tails).await;
        }
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

    /// Runs a stream whose client takes so many pieces at once before each of these pauses, and says
    /// whether it came to its end, and when.
    async fn with_pauses(pauses: &'static [(usize, u32)]) -> (bool, Duration) {
        let attendant = Attendant { activity: Activity::default(), longest: LONGEST };
        let (ended, end) = oneshot::channel();
        let began = Instant::now();
        attendant.execute(async move {
            let pieces: usize = pauses.iter().map(|(pieces, _)| pieces).sum();
            let mut body = Taken::new(Full::new(Bytes::from(vec![0; PIECE * pieces])));
            for (pieces, pause) in pauses {
                for _ in 0..*pieces {
                    body.frame().await.unwrap().unwrap();
                }
                sleep(LONGEST * *pause / 10).await;
            }
            ended.send(()).unwrap();
        });
        (end.await.is_ok(), began.elapsed())
    }

    /// 16 pieces are a share.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_got_much_may_be_silent_for_longer() {
        assert!(with_pauses(&[(16, 19), (32, 29), (15, 9)]).await.0);
        assert_eq!(with_pauses(&[(16, 30)]).await, (false, LONGEST * 2));
        assert_eq!(with_pauses(&[(2048, 170)]).await, (false, LONGEST * 16));
    }

    /// The alarm that was set for much does not ring too late for little.
    #[tokio::test(start_paused = true)]
    async fn a_silence_uses_up_what_was_got_before() {
        assert_eq!(with_pauses(&[(512, 20), (1, 20)]).await, (false, LONGEST * 3));
        assert!(with_pauses(&[(512, 9), (1, 20)]).await.0);
    }

    /// What waits at the end of an answer is in nobody's hands but the connection's.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_an_answer_has_as_long_as_its_pieces() {
        let attendant = Attendant { activity: Activity::default(), longest: LONGEST };
        let began = Instant::now();
        attendant.execute(async {
            let body = Taken::new(Full::new(Bytes::from(vec![0; PIECE * 64])));
            drop(body.collect().await);
        });
        attendant.activity.idle(LONGEST).await;
        assert_eq!(began.elapsed().as_secs(), LONGEST.as_secs());
        attendant.activity.over(LONGEST).await;
        assert!(began.elapsed() >= LONGEST * 5, "{:?}", began.elapsed());
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
