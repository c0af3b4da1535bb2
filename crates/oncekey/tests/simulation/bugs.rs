//! The planted bugs, and those of them that sit between the store and the nodes.
//!
//! Each is a mistake that somebody has made in production, planted from outside: in the store, on
//! the way to it, in the node's clocks and tasks, in the work, or in the configuration. The number
//! is the bug's place in the list that the checker was written against.

use std::sync::{Arc, PoisonError};

use oncekey::core::decide::{Grant, Refusal};
use oncekey::core::{
    Claim, Claimed, ErrorKind, Fence, Lease, Record, Renewal, Sent, State, Timestamp, Write,
};

use crate::broken;
use crate::log::{Ask, Told, Who};
use crate::store::StoreSide;

/// What is wrong in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Bug {
    /// In the store itself.
    Store(broken::Bug),
    /// 2 and 3: a claim that came to nothing counts as won.
    RefusedClaimsAreWon,
    /// 12: whoever renews is told that it still owns the key.
    RenewalsAreNeverLost,
    /// 14: a purge takes what is running.
    PurgeTakesRunning,
    /// 36: a commit whose acknowledgement was lost is reported as if nothing had happened.
    LostRepliesAreFailures,
    /// I3: a write that got lost is acknowledged.
    LostWritesAreApplied,
    /// 45: what a journal brings after a crash is written over whatever stands there.
    JournalWithoutFence,
    /// I5: an engine draws the same owner for every attempt.
    OwnersRepeat,
    /// I7: the local clock stands still while the node is paused.
    UptimeSleeps,
    /// 29: the work ends when the client hangs up.
    WorkEndsWithTheRequest,
    /// 11: leases are not renewed while the work runs.
    NoHeartbeat,
    /// I7 and I8: the work sends without asking.
    WorkDoesNotAsk,
    /// 26: the work sends again by itself when no answer comes.
    WorkSendsTwice,
    /// 28: the work says that nothing was sent when it gets no answer.
    WorkDeniesItsSend,
    /// 24: half an answer is kept as if it were whole.
    HalfAnswersAreKept,
    /// 25: our own 500 is kept as the upstream's answer.
    OwnErrorsAreKept,
    /// 38: the key for the upstream differs from attempt to attempt.
    DerivedKeyHasTheFence,
    /// 27: a route whose upstream does not dedupe is declared as `retry`.
    OnceIsDeclaredRetry,
    /// 4: keys are compared without case.
    KeysFold,
    /// 5: keys are trimmed.
    KeysAreTrimmed,
    /// 15: the fingerprint leaves the body out.
    FingerprintWithoutBody,
    /// 19: the scope leaves the principal out.
    ScopeWithoutPrincipal,
}

impl StoreSide {
    /// Does what nobody asked for.
    pub(crate) async fn spoil(&self, question: &Ask) {
        let (Ask::Purge(_), Some(Bug::PurgeTakesRunning)) = (question, self.bug) else { return };
        for id in &self.keys {
            let Some(record) = self.look(id).await else { continue };
            if let State::Running { .. } = record.state {
                // It is held, so it can be released.
                let _ = self.inner.release(&record.lease()).await;
            }
        }
    }

    /// Another question in place of this one.
    pub(crate) async fn bend(&self, by: Who, question: &Ask) -> Option<Ask> {
        let (Ask::Complete(lease, completion), Some(Bug::JournalWithoutFence)) =
            (question, self.bug)
        else {
            return None;
        };
        let claimant = {
            let claimants = self.claimants.lock().unwrap_or_else(PoisonError::into_inner);
            claimants.get(&lease.owner).copied()
        };
        // Only what another life of the node has claimed comes out of a journal.
        if matches!(by, Who::Operator | Who::Forger) || claimant.is_none() || claimant == Some(by) {
            return None;
        }
        let record = self.inner.get(&lease.id).await.ok().flatten()?;
        Some(Ask::Complete(record.lease(), completion.clone()))
    }

    /// Bends an answer on its way out.
    pub(crate) fn lie(&self, question: &Ask, told: Arc<Told>) -> Arc<Told> {
        let lie = match (self.bug, question, &*told) {
            (
                Some(Bug::RefusedClaimsAreWon),
                Ask::Claim(claim),
                Told::Claimed(Claimed::Lost { refusal: Refusal::InProgress(_), record, now }),
            ) => Told::Claimed(won_by_mistake(claim, record, *now)),
            (Some(Bug::RenewalsAreNeverLost), Ask::Renew(leases, span), Told::Renewed(told)) => {
                let held = |(lease, renewal): (&Lease, &Renewal)| match renewal {
                    Renewal::Lost => Renewal::Until(lease.until.after(*span)),
                    Renewal::Until(_) | Renewal::Failed => *renewal,
                };
                Told::Renewed(leases.iter().zip(told).map(held).collect())
            }
            (_, _, _) => return told,
        };
        Arc::new(lie)
    }

    /// What is said about a question whose reply, or which itself, got lost.
    pub(crate) fn lie_about_a_lost_reply(
        &self,
        question: &Ask,
        told: &Told,
        right: Arc<Told>,
    ) -> Arc<Told> {
        let arrived = !matches!(told, Told::Failed(_));
        match (self.bug, question.lease()) {
            (Some(Bug::LostRepliesAreFailures), _) if arrived => {
                Arc::new(Told::Failed(ErrorKind::Unavailable))
            }
            (Some(Bug::LostWritesAreApplied), Some(_)) if !arrived => {
                Arc::new(Told::Wrote(Write::Applied))
            }
            (_, _) => right,
        }
    }
}

fn won_by_mistake(claim: &Claim, stands: &Record, now: Timestamp) -> Claimed {
    let fence = Fence::next(Some(stands.fence), now);
    let lease = Lease { id: claim.id, fence, owner: claim.owner, until: now.after(claim.lease) };
    Claimed::Won { lease, grant: Grant::Fresh, earlier: Sent::No }
}
