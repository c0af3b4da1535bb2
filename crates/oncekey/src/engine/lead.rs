//! The story of owned work: claim, run, record, answer.
//!
//! From its first wait on, everything in here runs in a task of its own that nobody can cancel but
//! the runtime. The caller waits at the other end of a channel; if it goes away, the story goes on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncekey_core::policy::{Ending, Fit, Panicked, Policy, StoreDown, Verdict};
use oncekey_core::saved::Tombstone;
use oncekey_core::{Answer, Completion, Fence, Headers, Saved, Sent};

use super::attempt::{Attempt, Held};
use super::caught::caught;
use super::claim::Win;
use super::end::End;
use super::flight::{Lead, Settled};
use super::gate::Tracked;
use super::record::Progress;
use super::reply::{Ran, Recorded, Refused, Replayed, Reply, Source, Unavailable};
use super::{Call, Finish, Shared};

/// A call that leads its flight, or travels alone.
pub(super) struct Leader {
    pub(super) shared: Arc<Shared>,
    pub(super) call: Arc<Call>,
    /// Who waits for the same answer. `None` for a call that met another request under its key.
    pub(super) flight: Option<Lead>,
    pub(super) tracked: Tracked,
    /// When the call came, by uptime.
    pub(super) began: Duration,
    /// When the store is asked next, by uptime, or a moment earlier. In here with the rest, because
    /// what a claim borrows in one piece makes its future smaller than what it is given in five.
    pub(super) now: Duration,
}

/// How the work ended, and what is known about it.
struct Ended<T> {
    ending: Ending,
    saved: Option<Saved>,
    value: Option<T>,
}

impl Leader {
    /// Leads to the end.
    pub(super) async fn lead<T, W, F>(mut self, work: W) -> Reply<T>
    where
        T: Send + 'static,
        W: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Finish<T>> + Send + 'static,
    {
        match Shared::win(&mut self).await {
            Win::Held(held) => self.run(held, work).await,
            Win::Replayed(replayed) => {
                self.settle(|_| Settled::Answer(replayed.clone()));
                Reply::Replayed(*replayed)
            }
            Win::Refused(Refused::Unavailable { why: Unavailable::Store, .. })
                if self.call.policy.store_down == StoreDown::PassUnprotected
                    // This node did the work, and has its end in hand: to run it again is no wish of
                    // any policy.
                    && !self.shared.owes(&self.call.id) =>
            {
                self.run_unprotected(work).await
            }
            Win::Refused(refused) => {
                // Who has waited less may wait on; what else stands in the way stands there for all.
                let waits_on =
                    matches!(refused, Refused::InProgress { .. } | Refused::Accepted { .. });
                self.settle(|_| match waits_on {
                    true => Settled::AskAgain,
                    false => Settled::Refused(refused.clone()),
                });
                Reply::Refused(refused)
            }
        }
    }

    /// Runs the work under a lease and records how it ended.
    async fn run<T, W, F>(self, held: Arc<Held>, work: W) -> Reply<T>
    where
        T: Send + 'static,
        W: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Finish<T>> + Send + 'static,
    {
        let Some(grip) = &held.grip else { unreachable!("what was won is held by a lease") };
        if let Some(flight) = &self.flight {
            flight.announce();
        }
        self.shared.heart.keep(&held);
        if self.shared.gate.is_stopping() {
            // Its claim was under way when the node began to shut down, and took its time.
            held.stop();
        }
        let guard = Abandoned(&held);
        let panicked = self.call.policy.panic;
        // Taken apart at once: what is kept across a wait is kept once.
        let Ended { ending, saved, value } = work_through(&held, work, panicked).await;
        self.shared.heart.let_go(&held);
        let shared = Arc::clone(&self.shared);
        let policy = &self.call.policy;
        let verdict = policy.verdict(grip.earlier, ending);
        let kept = kept_of(policy, verdict, saved.as_ref());
        let now = shared.uptime.elapsed();
        let erasures = shared.finished.erasures();
        let mut entry = shared.entry(grip, policy, (verdict, ending), kept.as_ref());
        // In a box, because a story that is too large for the allocator's quick lists costs more than
        // two that are not.
        let progress = Box::pin(shared.record(&mut entry, now)).await;
        std::mem::forget(guard);

        let (recorded, pending) = match progress {
            Progress::Final(recorded) => (recorded, None),
            Progress::Pending(entry) => (Recorded::Unrecorded, Some(entry)),
        };
        if let (Recorded::Kept, Some(kept)) = (recorded, kept) {
            shared.remember(&held, kept, now, erasures);
        }
        let fence = Some(grip.lease.fence);
        // Before anybody who waited can ask again.
        let owed = pending.map(|entry| (entry, shared.unwritten.add(grip.lease.id)));
        let tracked = self.settle(|call| settled(call, fence, (verdict, ending, recorded), saved));
        if let Some((entry, owed)) = owed {
            shared.keep_trying_apart(entry, (tracked, owed));
        }
        Reply::Ran(Ran { value, recorded, fence })
    }

    /// Runs the work without a lease, because the route's policy prefers that to a refusal.
    async fn run_unprotected<T, W, F>(self, work: W) -> Reply<T>
    where
        T: Send + 'static,
        W: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Finish<T>> + Send + 'static,
    {
        let route = metrics::SharedString::from_shared(Arc::clone(&self.call.route));
        metrics::counter!("oncekey_unprotected_requests_total", "route" => route, "reason" => "store_down")
            .increment(1);
        tracing::warn!(route = &*self.call.route, "unprotected");
        if let Some(flight) = &self.flight {
            flight.announce();
        }
        let now = self.shared.uptime.elapsed();
        let held = Arc::new(Held::new(Arc::clone(&self.shared), &self.call, None, now));
        let panicked = self.call.policy.panic;
        let Ended { ending, saved, value } = work_through(&held, work, panicked).await;
        let verdict = self.call.policy.verdict(Sent::No, ending);
        let ran = Ran { value, recorded: Recorded::Unprotected, fence: None };
        // Nothing is recorded, but whoever asked at the same time need not run it too.
        self.settle(|call| settled(call, None, (verdict, ending, ran.recorded), saved));
        Reply::Ran(ran)
    }

    /// Answers everybody who waited. What they get is made only if somebody did.
    fn settle(self, settled: impl FnOnce(&Call) -> Settled) -> Tracked {
        if let Some(flight) = self.flight {
            flight.settle(|| settled(&self.call));
        }
        self.tracked
    }
}

/// What is kept of the answer that work ended with, if anything is.
fn kept_of(policy: &Policy, verdict: Verdict, saved: Option<&Saved>) -> Option<Saved> {
    match verdict {
        Verdict::Keep => Shared::kept_form(policy, saved?),
        Verdict::Tombstone(_) | Verdict::Release | Verdict::Unknown => None,
    }
}

/// What those who waited get: what every retry will get (I13), also if the store does not know it yet.
fn settled(
    call: &Call,
    fence: Option<Fence>,
    (verdict, ending, recorded): (Verdict, Ending, Recorded),
    saved: Option<Saved>,
) -> Settled {
    let answer = match (verdict, recorded) {
        (_, Recorded::Tombstone(_) | Recorded::Unknown | Recorded::Fenced) => None,
        // The upstream said "not now" to all of them, or something in front of it that it is gone, and no
        // record will ever say more.
        (Verdict::Release, _) | (Verdict::Unknown, Recorded::Unprotected) => saved,
        (Verdict::Tombstone(_) | Verdict::Unknown, _) => None,
        (Verdict::Keep, _) => kept_of(&call.policy, verdict, saved.as_ref()),
    };
    let ttl = match (verdict, recorded) {
        (Verdict::Keep, Recorded::Kept | Recorded::Journalled) => call.policy.retention,
        // Nobody keeps anything, or not for sure.
        (_, _) => Duration::ZERO,
    };
    match (answer, recorded) {
        (Some(saved), _) => Settled::Answer(Box::new(Replayed {
            saved,
            source: Source::Coalesced,
            age: Duration::ZERO,
            ttl,
            original: call.request.shared(),
            fence,
        })),
        // There is no record that could tell them.
        (None, Recorded::Unprotected) => told_without_record(call, verdict, ending),
        (None, _) => Settled::AskAgain,
    }
}

/// What a record would say to those who waited, if there were one. Who asked again would run it again.
fn told_without_record(call: &Call, verdict: Verdict, ending: Ending) -> Settled {
    let original = call.request.shared();
    match End::of(&call.policy, verdict, ending, None) {
        End::Release | End::Complete(Completion { answer: Answer::Kept(_), .. }) => {
            Settled::AskAgain
        }
        End::Unknown if call.policy.class.may_send_again() => Settled::AskAgain,
        End::Unknown => Settled::Refused(Refused::Unknown { original }),
        End::Complete(Completion {
            answer: Answer::Tombstone(Tombstone { status, reason }),
            ..
        }) => Settled::Refused(Refused::NotRetained { status, reason, original }),
    }
}

/// Runs the work until it ends, panics, or the node wants it to stop.
async fn work_through<T, W, F>(held: &Arc<Held>, work: W, panicked: Panicked) -> Ended<T>
where
    W: FnOnce(Attempt) -> F + Send + 'static,
    F: Future<Output = Finish<T>> + Send + 'static,
{
    let attempt = Attempt(Arc::clone(held));
    // In a box, because nobody knows how large it is, and every future around it would be larger.
    let work = Box::pin(async move { work(attempt).await });
    let finish = tokio::select! {
        biased;
        finish = caught(work) => finish,
        () = held.stopped() => None,
    };
    let may_have_acted = held.end();
    match finish {
        Some(Finish { ending, saved, value }) => Ended { ending, saved, value: Some(value) },
        None if !may_have_acted => Ended { ending: Ending::NeverSent, saved: None, value: None },
        None if panicked == Panicked::Answer500 && !held.is_stopped() => {
            let saved = Saved { status: 500, headers: Headers::new(), body: Bytes::new() };
            let ending = Ending::Answered { status: 500, fit: Fit::Whole };
            Ended { ending, saved: Some(saved), value: None }
        }
        None => Ended { ending: Ending::Broke, saved: None, value: None },
    }
}

/// Notices work whose task was dropped, which only the end of a runtime does.
///
/// A drop cannot talk to the store. The lease lapses, and what may have happened is then unknown
/// or taken over, as after a crash.
struct Abandoned<'a>(&'a Arc<Held>);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        self.0.shared.heart.let_go(self.0);
        metrics::counter!("oncekey_abandoned_total").increment(1);
        tracing::warn!("an attempt was abandoned: its lease will lapse");
    }
}
