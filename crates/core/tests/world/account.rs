//! What happened to one key, as an outsider saw it, and what therefore must not happen.

use std::time::Duration;

use oncekey_core::saved::NotKept;
use oncekey_core::store::Purged;
use oncekey_core::{
    Answer, Claim, Claimed, Class, Completion, Fence, Fingerprint, Grant, Lease, Owner, Record,
    Refusal, Sent, State, Timestamp, Tombstone,
};

use super::Act;

/// The account.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    /// The highest fence ever granted.
    pub(crate) highest: Option<Fence>,
    /// What the present generation of the key has seen; none if it is free.
    generation: Option<Generation>,
}

#[derive(Clone, Debug)]
struct Generation {
    fingerprint: Fingerprint,
    /// The newest attempt.
    owner: Owner,
    fence: Fence,
    class: Class,
    until: Timestamp,
    /// Whether this attempt may have sent.
    sent: bool,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    Running,
    Unknown,
    Done { answer: Answer, expires: Timestamp, forget: Timestamp },
}

impl Account {
    /// The part of the account on which the future depends.
    pub(crate) fn summary(&self) -> impl std::fmt::Debug {
        let stage = |stage: &Stage| match stage {
            Stage::Running => 0,
            Stage::Unknown => 1,
            Stage::Done { answer, .. } => answer.status().map_or(2, usize::from),
        };
        self.generation.as_ref().map(|it| (it.class, it.sent, it.owner, stage(&it.stage)))
    }

    /// A claim was answered.
    pub(crate) fn claimed(&mut self, claim: &Claim, claimed: &Claimed, now: Timestamp) {
        let known = self.generation.as_ref().filter(|it| !it.is_forgotten(now));
        let Some(known) = known else {
            let Claimed::Won { lease, grant, .. } = claimed else {
                panic!("a key that nobody uses is granted, not {claimed:?}")
            };
            assert!(matches!(grant, Grant::Fresh | Grant::Reused), "nobody had it: {grant:?}");
            return self.begin(claim, lease, false);
        };
        match claimed {
            Claimed::Won { lease, grant: Grant::Again, .. } => {
                let same = known.owner == claim.owner && known.fence == lease.fence;
                assert!(same, "I5: only the owner itself is recognised, under its fence");
                assert_eq!(known.stage, Stage::Running, "I17: what has ended does not run again");
                assert_eq!(known.fingerprint, claim.fingerprint, "I23: another request");
                if let Some(known) = &mut self.generation {
                    known.until = lease.until;
                }
            }
            Claimed::Won { lease, grant, earlier } => {
                assert_eq!(*grant, Grant::TakenOver, "a key in use can only be taken over");
                known.may_be_taken_over(claim, now);
                let may_have_happened = known.sent || known.stage == Stage::Unknown;
                let told = *earlier == Sent::Yes;
                assert_eq!(told, may_have_happened, "I8: a takeover knows what may have happened");
                self.begin(claim, lease, may_have_happened);
            }
            Claimed::Lost { refusal, .. } => known.may_refuse(claim, *refusal, now),
        }
    }

    /// A new attempt begins, in a generation in which something may already have happened.
    fn begin(&mut self, claim: &Claim, lease: &Lease, may_have_happened: bool) {
        assert!(Some(lease.fence) > self.highest, "I1, I2: fences rise for ever, each once");
        self.highest = Some(lease.fence);
        self.generation = Some(Generation {
            fingerprint: claim.fingerprint,
            owner: claim.owner,
            fence: lease.fence,
            class: claim.class,
            until: lease.until,
            sent: may_have_happened || claim.sent == Sent::Yes,
            stage: Stage::Running,
        });
    }

    /// The holder of a lease wrote, or was fenced.
    pub(crate) fn wrote(
        &mut self,
        lease: &Lease,
        act: Act,
        applied: bool,
        (after, completion): (Option<&Record>, &Completion),
        now: Timestamp,
    ) {
        let newest = self.generation.as_mut();
        let newest = newest.filter(|it| it.owner == lease.owner && it.fence == lease.fence);
        let Some(known) = newest else {
            assert!(!applied, "I4: a lease that is not the newest writes nothing: {act:?}");
            return;
        };
        let allowed = match (&known.stage, act) {
            (Stage::Running, _)
            | (Stage::Unknown, Act::Complete(_) | Act::Release | Act::Unknown) => true,
            (Stage::Done { answer, .. }, Act::Complete(_)) => *answer == completion.answer,
            (Stage::Unknown | Stage::Done { .. }, _) => false,
        };
        // A finished record that was forgotten may or may not have been removed.
        if known.is_forgotten(now) {
            return;
        }
        assert_eq!(applied, allowed, "I10, I11, I17: {act:?} when {:?}", known.stage);
        match (act, &known.stage) {
            _ if !applied => {}
            (Act::Renew, _) => known.until = now.after(super::UNIT),
            (Act::Send, _) => known.sent = true,
            (Act::Release, _) => self.generation = None,
            (Act::Unknown, _) => known.stage = Stage::Unknown,
            (Act::Complete(_), Stage::Done { .. }) => {}
            (Act::Complete(_), Stage::Running | Stage::Unknown) => {
                let Some(State::Done { expires, forget, .. }) = after.map(|it| &it.state) else {
                    panic!("I3: a completed record is done, not {after:?}")
                };
                let (expires, forget) = (*expires, *forget);
                assert!(expires >= now.after(completion.retention), "I27: from completion on");
                let day = Duration::from_secs(24 * 60 * 60);
                assert!(expires <= now.after(day).after(completion.retention), "not for ever");
                assert_eq!(forget, expires.after(completion.linger), "then it lingers");
                let answer = completion.answer.clone();
                known.stage = Stage::Done { answer, expires, forget };
            }
        }
    }

    /// A purge went by. What it removed stays gone, even if the clock steps back.
    pub(crate) fn purged(&mut self, purged: Purged, now: Timestamp) {
        let forgotten = self.generation.as_ref().is_some_and(|it| it.is_forgotten(now));
        assert_eq!(purged.forgotten, usize::from(forgotten), "I27, I28: what is due is removed");
        self.generation.take_if(|_| forgotten);
    }

    /// Somebody reads the record.
    pub(crate) fn look(&self, record: Option<&Record>, now: Timestamp) {
        let known = self.generation.as_ref().filter(|it| !it.is_forgotten(now));
        let (known, record) = match (known, record) {
            (None, None) => return,
            (Some(known), Some(record)) => (known, record),
            (None, Some(record)) => panic!("I27: nobody should see {record:?}"),
            (Some(known), None) => panic!("I27, I28: {known:?} was lost"),
        };
        assert_eq!((record.owner, record.fence), (known.owner, known.fence), "I1: the newest");
        assert_eq!(record.fingerprint, known.fingerprint, "I11: the request stays");
        match (&record.state, &known.stage) {
            (State::Running { until, sent }, Stage::Running) => {
                assert_eq!(*until, known.until, "the lease is what was told");
                assert_eq!(*sent == Sent::Yes, known.sent, "I8: the send mark is what was told");
            }
            (State::Unknown { .. }, Stage::Unknown) => {}
            (State::Done { answer, outcome, .. }, Stage::Done { answer: given, .. }) => {
                let status = given.status();
                let stripped = Answer::Tombstone(Tombstone { status, reason: NotKept::Expired });
                assert!(answer == given || *answer == stripped, "I11: the answer never changes");
                assert_eq!(*outcome, given.outcome(), "I11: nor does its digest");
            }
            (state, stage) => panic!("I15, I17: {state:?} where {stage:?} was told"),
        }
    }
}

impl Generation {
    fn is_forgotten(&self, now: Timestamp) -> bool {
        matches!(self.stage, Stage::Done { forget, .. } if forget <= now)
    }

    fn may_be_taken_over(&self, claim: &Claim, now: Timestamp) {
        assert_eq!(self.fingerprint, claim.fingerprint, "I23: another request");
        let again = |class| matches!(class, Class::Keyed | Class::Retry);
        let harmless = again(self.class) && again(claim.class);
        match self.stage {
            Stage::Running => {
                assert!(now >= self.until.after(claim.grace), "I1, I6: the owner is still alive");
                assert!(!self.sent || harmless, "I8: what may have been sent is not sent again");
                assert_ne!(self.owner, claim.owner, "I5: an owner does not take over itself");
            }
            Stage::Unknown => assert!(harmless, "I15: unknown work is held"),
            Stage::Done { .. } => panic!("I17: finished work is not taken over"),
        }
    }

    /// Whether a refusal is the right one. Liveness, in a way: nobody is refused without a reason.
    fn may_refuse(&self, claim: &Claim, refusal: Refusal, now: Timestamp) {
        let again = |class| matches!(class, Class::Keyed | Class::Retry);
        let harmless = again(self.class) && again(claim.class);
        let right = match (&self.stage, refusal) {
            _ if self.fingerprint != claim.fingerprint => refusal == Refusal::Mismatch,
            (Stage::Running, Refusal::InProgress(until)) => {
                until == self.until
                    && now < self.until.after(claim.grace)
                    && self.owner != claim.owner
            }
            (Stage::Running, Refusal::Unknown) => {
                now >= self.until.after(claim.grace) && self.sent && !harmless
            }
            (Stage::Unknown, Refusal::Unknown) => !harmless,
            // A stripped answer does not come back when the clock steps back.
            (Stage::Done { expires, .. }, Refusal::Replay | Refusal::NotRetained) => now < *expires,
            (Stage::Done { expires, .. }, Refusal::Expired) => *expires <= now,
            _ => false,
        };
        assert!(right, "{refusal:?} is no reason to refuse {claim:?} at {now:?}: {self:?}");
    }
}
