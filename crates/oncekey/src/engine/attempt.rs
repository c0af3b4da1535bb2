//! An attempt as the work sees it: who it is, and whether it may still act.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oncekey_core::{
    ErrorKind, Fence, Grant, Key, KeyId, Lease, Renewal, Scope, Sent, Store as _, Write,
    derived_key,
};
use tokio::sync::Notify;

use super::sentry::Word;
use super::{Call, Shared};

/// The right to do the work once, handed to the work.
///
/// The work calls [`send`](Self::send) right before its first foreign call, and not at all if it
/// never gets that far. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Attempt(pub(super) Arc<Held>);

/// Why an attempt must not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoSend {
    /// Somebody else has taken the key over, or the node is shutting down.
    #[error("another attempt has taken the key over")]
    Lost,
    /// The lease is nearly over by the local clock, for example after a pause of the process.
    #[error("too little is left of the lease to begin")]
    TooLate,
    /// The store could not be told, so nothing may be sent.
    #[error("the store could not be told about the send")]
    Store,
}

/// A key that is held, and what is known about it locally.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) shared: Arc<Shared>,
    pub(super) call: Arc<Call>,
    pub(super) id: KeyId,
    /// When it was claimed, by uptime.
    pub(super) began: Duration,
    /// `None` if the work runs unprotected.
    pub(super) grip: Option<Grip>,
    /// Whether the work was told that it may act.
    acted: AtomicBool,
    /// Whether the node wants the work to stop.
    stopped: AtomicBool,
    /// Whether the work is over. Clones of the attempt may live on, in tasks that it left behind.
    ended: AtomicBool,
    /// Rung when the lease is lost or the work is to stop.
    bell: Notify,
}

/// A lease and its local bookkeeping.
#[derive(Debug)]
pub(super) struct Grip {
    pub(super) lease: Lease,
    pub(super) grant: Grant,
    /// Whether an earlier attempt may have done the work.
    pub(super) earlier: Sent,
    /// How long the lease lasts after each renewal.
    pub(super) span: Duration,
    /// When the lease was asked for, by uptime.
    pub(super) asked: Duration,
    /// How often the store's clock had been seen to step by then.
    pub(super) steps: u64,
    /// When the request for the lease, or for its last renewal, left; in microseconds of uptime.
    /// Counting from then and not from the answer, the local deadline is never later than the
    /// store's.
    since: AtomicU64,
    /// Whether the store knows that the work may have happened.
    marked: AtomicBool,
    lost: AtomicBool,
}

/// An attempt that begins later than this before its deadline has no time to do anything.
const START_BUDGET: Duration = Duration::from_secs(2);
/// How often the store is asked again about a send mark, with a pause that doubles from 20 ms:
/// together a little more than a second, while the client waits.
const MARK_TRIES: u32 = 6;

impl Attempt {
    /// What the client sent.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0.call.key
    }

    /// Whom the key belongs to.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.0.call.scope
    }

    /// The id of the record.
    #[must_use]
    pub fn key_id(&self) -> &KeyId {
        &self.0.id
    }

    /// The number of this attempt: what outdates every older one. `None` if the work runs
    /// unprotected because the store is down and the route's policy says so.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.0.grip.as_ref().map(|grip| grip.lease.fence)
    }

    /// Whether it is an attempt of this engine that is still under way.
    #[cfg(feature = "tower")]
    pub(crate) fn is_under_way_in(&self, engine: &super::Engine) -> bool {
        let is_over = self.0.is_over() || self.0.ended.load(Ordering::SeqCst);
        Arc::ptr_eq(&self.0.shared, &engine.0) && !is_over
    }

    /// Whether an earlier attempt began the same work, and may have done some of it.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        self.0
            .grip
            .as_ref()
            .is_some_and(|grip| grip.earlier == Sent::Yes || matches!(grip.grant, Grant::TakenOver))
    }

    /// The key to send with a foreign call: the same for every attempt, different per step.
    #[must_use]
    pub fn derived_key(&self, step: &str) -> String {
        derived_key(&self.0.shared.namespace, &self.0.id, step)
    }

    /// Announces that from here on the work may have happened.
    ///
    /// May be called again before each further foreign call; the store is told once.
    ///
    /// # Errors
    /// The work must then send nothing, and end with
    /// [`Finish::never_sent`](super::Finish::never_sent) if it has sent nothing before.
    ///
    /// # Cancellation
    /// After a drop the store may or may not have the mark. The work has not sent, so it may
    /// still end with `never_sent`.
    pub async fn send(&self) -> Result<(), NoSend> {
        self.0.send().await
    }

    /// Whether the work should stop: its lease is lost, or the node is shutting down.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_over()
    }

    /// Waits until the work should stop. Never returns otherwise.
    pub async fn lost(&self) {
        self.0.over().await;
    }
}

impl Held {
    pub(super) fn new(
        shared: Arc<Shared>,
        call: &Arc<Call>,
        grip: Option<Grip>,
        began: Duration,
    ) -> Self {
        let (call, id) = (Arc::clone(call), call.id);
        let [acted, stopped, ended] = std::array::from_fn(|_| AtomicBool::new(false));
        let bell = Notify::new();
        Self { shared, call, id, began, grip, acted, stopped, ended, bell }
    }

    async fn send(&self) -> Result<(), NoSend> {
        if let Some(grip) = &self.grip {
            let now = self.shared.uptime.elapsed();
            self.still_holds(grip, now).await?;
            if !grip.marked.load(Ordering::Acquire) {
                let marked = self.mark(grip, now).await?;
                // The mark may have taken its time.
                self.still_holds(grip, marked).await?;
            }
        }
        self.acted.store(true, Ordering::SeqCst);
        // Whoever stops or ends the attempt sets its flag first and looks at ours second, and we
        // the other way round: at least one of the two sees the other.
        if self.stopped.load(Ordering::SeqCst) || self.ended.load(Ordering::SeqCst) {
            return Err(NoSend::Lost);
        }
        Ok(())
    }

    /// I7: nothing is sent unless enough is left of the lease by a clock that counts sleep.
    async fn still_holds(&self, grip: &Grip, now: Duration) -> Result<(), NoSend> {
        if self.is_over() || self.ended.load(Ordering::SeqCst) {
            return Err(NoSend::Lost);
        }
        match grip.has_time(now) {
            true => Ok(()),
            // In a box, because it is rare, and larger than everything else here.
            false => Box::pin(self.hold_again(grip)).await,
        }
    }

    /// The process slept, or the work came late. If nobody took over, the lease can be had anew.
    async fn hold_again(&self, grip: &Grip) -> Result<(), NoSend> {
        let asked = self.shared.uptime.elapsed();
        match self.shared.store.renew(&[grip.lease], grip.span).await.as_deref() {
            Ok([Renewal::Until(_)]) => grip.renewed(asked),
            Ok([Renewal::Lost]) if self.shared.word().await == Word::Doubtful => {
                return Err(NoSend::TooLate);
            }
            Ok([Renewal::Lost]) => self.lose(),
            Ok(_) | Err(_) => return Err(NoSend::TooLate),
        }
        if self.is_over() {
            return Err(NoSend::Lost);
        }
        // The answer may have taken longer than a lease lasts.
        match grip.has_time(self.shared.uptime.elapsed()) {
            true => Ok(()),
            false => Err(NoSend::TooLate),
        }
    }

    /// Tells the store that the work may happen from now on. Returns when it had heard, by uptime.
    async fn mark(&self, grip: &Grip, mut asked: Duration) -> Result<Duration, NoSend> {
        let mut pause = Duration::from_millis(20);
        for _ in 0..MARK_TRIES {
            let marked = self.shared.store.sent(&grip.lease, asked).await;
            match marked.result {
                Ok(Write::Applied) => {
                    grip.marked.store(true, Ordering::Release);
                    return Ok(marked.answered);
                }
                Ok(Write::Fenced) if Box::pin(self.shared.word()).await == Word::Doubtful => {
                    return Err(NoSend::Store);
                }
                Ok(Write::Fenced) => {
                    self.lose();
                    return Err(NoSend::Lost);
                }
                Err(error) => match error.kind() {
                    // Telling it again is harmless, whether or not it was heard.
                    ErrorKind::Unavailable | ErrorKind::Ambiguous => {
                        self.shared.health.failed(marked.answered);
                    }
                    ErrorKind::Corrupt | ErrorKind::Rejected | ErrorKind::Unsuitable | _ => {
                        return Err(NoSend::Store);
                    }
                },
            }
            Box::pin(tokio::time::sleep(pause)).await;
            pause *= 2;
            asked = self.shared.uptime.elapsed();
        }
        Err(NoSend::Store)
    }

    /// Lets nothing more be sent, because how the work ended is about to be decided. `true` if it
    /// was told that it may act; if not, provably nothing was sent, and nothing will be.
    pub(super) fn end(&self) -> bool {
        self.ended.store(true, Ordering::SeqCst);
        self.acted.load(Ordering::SeqCst)
    }

    /// Notes that somebody else has the key.
    pub(super) fn lose(&self) {
        if let Some(grip) = &self.grip
            && !grip.lost.swap(true, Ordering::AcqRel)
        {
            tracing::warn!(fence = %grip.lease.fence, "claim lost");
            let route = metrics::SharedString::from_shared(Arc::clone(&self.call.route));
            metrics::counter!("oncekey_claims_lost_total", "route" => route).increment(1);
        }
        self.bell.notify_waiters();
    }

    /// Asks the work to stop. `true` if it had not begun to act, and now never will.
    pub(super) fn stop(&self) -> bool {
        self.stopped.store(true, Ordering::SeqCst);
        self.bell.notify_waiters();
        !self.acted.load(Ordering::SeqCst)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn is_over(&self) -> bool {
        self.is_stopped() || self.grip.as_ref().is_some_and(Grip::is_lost)
    }

    async fn over(&self) {
        loop {
            let mut rung = std::pin::pin!(self.bell.notified());
            rung.as_mut().enable();
            if self.is_over() {
                return;
            }
            rung.await;
        }
    }

    /// Waits until the node wants the work to stop.
    pub(super) async fn stopped(&self) {
        loop {
            let mut rung = std::pin::pin!(self.bell.notified());
            rung.as_mut().enable();
            if self.is_stopped() {
                return;
            }
            rung.await;
        }
    }
}

impl Grip {
    /// A lease that was asked for at `asked`, and whose claim announced the send or not.
    pub(super) fn new(
        lease: Lease,
        (grant, earlier): (Grant, Sent),
        span: Duration,
        (asked, steps): (Duration, u64),
        announced: Sent,
    ) -> Self {
        Self {
            lease,
            grant,
            earlier,
            span,
            asked,
            steps,
            since: AtomicU64::new(micros(asked)),
            marked: AtomicBool::new(announced == Sent::Yes),
            lost: AtomicBool::new(false),
        }
    }

    /// When the lease, or its last renewal, was asked for.
    pub(super) fn since(&self) -> Duration {
        Duration::from_micros(self.since.load(Ordering::Acquire))
    }

    /// Notes a renewal that was asked for at `asked`.
    pub(super) fn renewed(&self, asked: Duration) {
        self.since.fetch_max(micros(asked), Ordering::AcqRel);
    }

    /// Whether the store knows that the work may have happened.
    pub(super) fn is_marked(&self) -> bool {
        self.marked.load(Ordering::Acquire)
    }

    /// Whether the store said that somebody else has the key.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether there is time to begin at `now`.
    fn has_time(&self, now: Duration) -> bool {
        let deadline = self.since().saturating_add(self.span);
        now.saturating_add(START_BUDGET.min(self.span / 4)) <= deadline
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
