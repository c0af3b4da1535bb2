//! Who may run and what an owner may write, bent by the bug.

use std::time::Duration;

use oncekey_core::decide::{Act, Decision, Grant, Judgement, Standing, decide, judge};
use oncekey_core::record::Owner;
use oncekey_core::store::Times;
use oncekey_core::{
    Claim, Class, Completion, Fence, KeyId, Lease, Record, Refusal, State, Timestamp,
};

use super::{Broken, Bug, Table};

const MICRO: Duration = Duration::from_micros(1);
const HOUR: Duration = Duration::from_secs(60 * 60);

impl Broken {
    /// Where a record is kept: here a text column folds and trims.
    pub(super) fn place(&self, id: &KeyId) -> KeyId {
        if !self.has(Bug::KeysAreText) {
            return *id;
        }
        let mut bytes = id.as_bytes().map(|byte| byte.to_ascii_lowercase());
        if let Some(last) = bytes.last_mut().filter(|last| **last == b' ') {
            *last = 0;
        }
        KeyId::from_bytes(bytes)
    }

    /// Bends what was found and what is asked, and lets the right table decide.
    pub(super) fn decide(&self, found: Option<&Record>, claim: &Claim, now: Timestamp) -> Decision {
        let Some(record) = found else { return decide(None, claim, now) };
        let (mut record, mut claim, mut now) = (record.clone(), claim.clone(), now);
        let mine = record.owner == claim.owner;
        match self.bug {
            Some(Bug::OwnerMayAlwaysRun) if mine => return Decision::Run(Grant::Again),
            Some(Bug::FingerprintVersionIgnored)
                if record.fingerprint.digest() == claim.fingerprint.digest() =>
            {
                claim.fingerprint = record.fingerprint;
            }
            Some(Bug::FingerprintComparedInASecondStep) => claim.fingerprint = record.fingerprint,
            Some(Bug::OwnersByPrefix) if starts_alike(&record.owner, &claim.owner) => {
                claim.owner = record.owner;
            }
            Some(Bug::GraceIgnored) => claim.grace = Duration::ZERO,
            Some(Bug::OnlyTheNewClassCounts) => record.class = claim.class,
            Some(Bug::ForgottenUntilRemoved) => now = self.clock_before_oblivion(&record, now),
            Some(_) | None => self.bend(&mut record, &mut claim, now),
        }
        decide(Some(&record), &claim, now)
    }

    fn bend(&self, record: &mut Record, claim: &mut Claim, now: Timestamp) {
        match (&mut record.state, self.bug) {
            (State::Running { .. }, Some(Bug::FingerprintComparedOnlyWhenDone)) => {
                claim.fingerprint = record.fingerprint;
            }
            (State::Running { .. }, Some(Bug::TakesOverWhatWasSent))
            | (State::Unknown { .. }, Some(Bug::UnknownIsTakenOver)) => {
                record.class = Class::Retry;
                claim.class = Class::Retry;
            }
            (State::Running { until, .. }, Some(Bug::TakesLiveLeases)) => {
                *until = now.before(HOUR);
            }
            (State::Running { until, .. }, Some(Bug::LeaseEndsTooLate)) => {
                *until = until.after(MICRO);
            }
            (State::Running { until, .. }, Some(Bug::LeasesFromTheFutureAreFree))
                if *until > now.after(claim.lease) =>
            {
                *until = now.before(HOUR);
            }
            (State::Done { at, expires, forget, .. }, Some(Bug::AnswersFromTheFutureAreGone))
                if *at > now.after(HOUR) =>
            {
                (*expires, *forget) = (now, now);
            }
            (State::Done { expires, forget, .. }, Some(Bug::ExpiredIsFree)) => *forget = *expires,
            (State::Done { expires, .. }, Some(Bug::RetentionEndsTooLate)) => {
                *expires = expires.after(MICRO);
            }
            _ => {}
        }
    }

    fn clock_before_oblivion(&self, record: &Record, now: Timestamp) -> Timestamp {
        match record.state {
            State::Done { forget, .. } => now.min(forget.before(MICRO)),
            State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => now,
        }
    }

    /// Bends the proof or the judgement.
    pub(super) fn judge(
        &self,
        found: Option<&Record>,
        lease: &Lease,
        act: Act,
        now: Timestamp,
    ) -> Judgement {
        let Some(record) = found else {
            let invents = self.has(Bug::CompletionMakesRecords) && matches!(act, Act::Complete(_));
            return if invents { Judgement::Apply } else { Judgement::Fenced };
        };
        let mut proof = *lease;
        proof.id = record.id;
        if self.has(Bug::FenceNotCompared) || self.has(Bug::ProofNotCompared) {
            proof.fence = record.fence;
        }
        if self.has(Bug::OwnerNotCompared) || self.has(Bug::ProofNotCompared) {
            proof.owner = record.owner;
        }
        let right = judge(Some(Standing::from(record)), &proof, act);
        match (&record.state, act, self.bug) {
            (_, Act::Renew, Some(Bug::RenewalRevives))
            | (State::Done { .. }, Act::Complete(_), Some(Bug::LastAnswerWins))
            | (State::Done { .. }, Act::Release, Some(Bug::DoneCanBeReleased)) => Judgement::Apply,
            (_, Act::Complete(_), Some(Bug::RepeatedCompletionMovesTheTimes))
            | (_, Act::Unknown, Some(Bug::UnknownMovesItsTime))
                if right == Judgement::Already =>
            {
                Judgement::Apply
            }
            (State::Done { .. }, Act::Complete(_), Some(Bug::RepeatedCompletionIsFenced))
            | (State::Unknown { .. }, Act::Complete(_), Some(Bug::UnknownCannotBeCompleted))
            | (State::Unknown { .. }, Act::Release, Some(Bug::UnknownCannotBeReleased)) => {
                Judgement::Fenced
            }
            (State::Running { until, .. }, _, Some(Bug::LateOwnersAreFenced)) if *until < now => {
                Judgement::Fenced
            }
            _ => right,
        }
    }

    /// The fence of the next attempt.
    pub(super) fn fence(
        &self,
        table: &mut Table,
        found: Option<&Record>,
        grant: Grant,
        now: Timestamp,
    ) -> Fence {
        let row = found.map(|record| record.fence);
        let fence = match (self.bug, row) {
            (Some(Bug::FencePerRow), _) => Fence::next(row, Timestamp::from_micros(0)),
            (Some(Bug::FenceIsTheClock), _) => Fence::next(row, now),
            (Some(Bug::FenceStaysAtTakeover), Some(old)) if grant == Grant::TakenOver => old,
            _ => Fence::next(table.highest, now),
        };
        table.highest = table.highest.max(Some(fence));
        fence
    }

    /// The times of a finished record.
    pub(super) fn times(&self, completion: &Completion, record: &Record, now: Timestamp) -> Times {
        let Completion { retention, linger, .. } = *completion;
        let from = |at: Timestamp| {
            let expires = at.after(retention);
            Times { at, expires, forget: expires.after(linger) }
        };
        let right = completion.times(record.fence, now);
        match self.bug {
            Some(Bug::RetentionFromTheClaim) => Times { at: right.at, ..from(record.created) },
            Some(Bug::RetentionFromTheClockAlone) => from(now),
            Some(Bug::FenceCountsForEver) => {
                from(now.max(Timestamp::from_micros(record.fence.number())))
            }
            Some(Bug::NoLinger) => Times { forget: right.expires, ..right },
            Some(Bug::TimesWrapAround) => {
                let wraps = |from: Timestamp, span: Duration| {
                    let micros = i64::try_from(span.as_micros() & u128::from(u64::MAX / 2));
                    let micros = micros.expect("63 bits fit");
                    Timestamp::from_micros(from.micros().wrapping_add(micros))
                };
                let expires = wraps(right.at, retention);
                Times { at: right.at, expires, forget: wraps(expires, linger) }
            }
            Some(_) | None => right,
        }
    }

    /// Whether a record is absent for everybody.
    pub(super) fn is_forgotten(&self, record: &Record, now: Timestamp) -> bool {
        let forgotten = matches!(record.state, State::Done { forget, .. } if forget <= now);
        forgotten && !self.has(Bug::ForgottenUntilRemoved)
    }
}

/// What a claim is told that came first with another request, where that is a step of its own.
pub(super) const MISMATCH: Decision = Decision::Refuse(Refusal::Mismatch);

fn starts_alike(one: &Owner, other: &Owner) -> bool {
    one.as_bytes()[..12] == other.as_bytes()[..12]
}
