//! What to do with a keyed request, given what the store already holds.
//!
//! Two tables, and together they are the whole state machine: [`decide`] says who may run,
//! [`judge`] says what an owner may still write. Both are pure: time arrives as an argument, and
//! nothing here knows about HTTP or any database. `MemoryStore` calls them under its lock. The
//! other stores encode only the row "nothing is there" as the condition of one atomic write; for
//! everything else they read the record, ask these functions, and write under a compare-and-set
//! on what they read. The conformance suite checks that they agree.

use crate::clock::Timestamp;
use crate::policy::Class;
use crate::record::{Fence, Lease, Owner, Record, Sent, State};
use crate::saved::{Answer, Outcome};
use crate::store::Claim;

/// The fate of a claim. Neither arm is an error.
///
/// Closed on purpose: a new answer must break every `match`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The claimant may run the work.
    Run(Grant),
    /// It may not, and this is why.
    Refuse(Refusal),
}

/// Why a claimant may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grant {
    /// Nobody has ever used the key, or it was released or forgotten.
    Fresh,
    /// The claimant owns the key already: its acknowledgement was lost. It keeps its fence.
    Again,
    /// A finished record stands there whose time is over. A new generation begins.
    Reused,
    /// The owner is gone, and either it sent nothing or the class says that sending again is
    /// harmless.
    TakenOver,
}

/// Why a claimant may not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The key was first used for a different request.
    Mismatch,
    /// The work is done; send this answer again.
    Replay,
    /// The work is done, but its answer was not kept.
    NotRetained,
    /// The work was done so long ago that its answer is gone. It is too late to retry.
    Expired,
    /// Another attempt owns the key until this time.
    InProgress(Timestamp),
    /// The work may have happened and nobody knows.
    Unknown,
    /// A flow that waits for a person.
    Parked,
}

/// What an owner wants to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Extend the lease.
    Renew,
    /// Mark the point of no return.
    Send,
    /// Record an answer with this digest.
    Complete(Outcome),
    /// Give the key back.
    Release,
    /// Record that nobody knows.
    Unknown,
}

/// Whether an owner may write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Judgement {
    /// It may: make the change.
    Apply,
    /// The same change was made before: change nothing and say that it is applied.
    Already,
    /// It may not: change nothing and say so.
    Fenced,
}

/// The few facts of a record that [`judge`] looks at, so that a store need not read the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    /// The number of the newest attempt.
    pub fence: Fence,
    /// Who made it.
    pub owner: Owner,
    /// What has become of it.
    pub phase: Phase,
}

/// A [`State`] without its times and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// [`State::Running`].
    Running(Sent),
    /// [`State::Done`].
    Done(Outcome),
    /// [`State::Unknown`].
    Unknown,
    /// [`State::Parked`].
    Parked,
}

/// Decides the fate of `claim` at `now`, given the record that was found under its key id.
#[must_use]
pub fn decide(found: Option<&Record>, claim: &Claim, now: Timestamp) -> Decision {
    let Some(record) = found else {
        return Decision::Run(Grant::Fresh);
    };
    // Expiry comes first: a forgotten record is absent, even if nobody has removed it yet.
    if let State::Done { forget, .. } = record.state
        && forget <= now
    {
        return Decision::Run(Grant::Reused);
    }
    // Before the state: a different request must never replay, wait for or take over this one,
    // because the first attempt may have had effects.
    if record.fingerprint != claim.fingerprint {
        return Decision::Refuse(Refusal::Mismatch);
    }
    match &record.state {
        State::Done { expires, .. } if *expires <= now => Decision::Refuse(Refusal::Expired),
        State::Done { answer: Answer::Kept(_), .. } => Decision::Refuse(Refusal::Replay),
        State::Done { answer: Answer::Tombstone(_), .. } => Decision::Refuse(Refusal::NotRetained),
        // Whether or not the lease has lapsed: nobody took over, so the fence is still good.
        State::Running { .. } if record.owner == claim.owner => Decision::Run(Grant::Again),
        State::Running { until, .. } if now < until.after(claim.grace) => {
            Decision::Refuse(Refusal::InProgress(*until))
        }
        State::Running { sent: Sent::No, .. } => Decision::Run(Grant::TakenOver),
        State::Running { sent: Sent::Yes, .. } | State::Unknown { .. } => {
            match sends_again(record.class, claim.class) {
                true => Decision::Run(Grant::TakenOver),
                false => Decision::Refuse(Refusal::Unknown),
            }
        }
        State::Parked { .. } => Decision::Refuse(Refusal::Parked),
    }
}

/// Judges whether the holder of `lease` may do `act` to the record that was found.
///
/// The lease's time plays no part: an owner that is late but was not replaced still knows best
/// what became of its work.
#[must_use]
pub fn judge(found: Option<Standing>, lease: &Lease, act: Act) -> Judgement {
    let Some(Standing { fence, owner, phase }) = found else {
        return Judgement::Fenced;
    };
    if fence != lease.fence || owner != lease.owner {
        return Judgement::Fenced;
    }
    match (phase, act) {
        (Phase::Running(Sent::Yes), Act::Send) => Judgement::Already,
        (Phase::Running(_), _) => Judgement::Apply,
        (Phase::Unknown, Act::Unknown) => Judgement::Already,
        (Phase::Unknown, Act::Complete(_) | Act::Release) => Judgement::Apply,
        (Phase::Parked, Act::Complete(_) | Act::Release | Act::Unknown) => Judgement::Apply,
        (Phase::Done(given), Act::Complete(again)) if given == again => Judgement::Already,
        // An outcome that is unknown or final is not running: its owner must not send, and a
        // recorded answer never changes.
        (Phase::Unknown | Phase::Parked, Act::Renew | Act::Send) | (Phase::Done(_), _) => {
            Judgement::Fenced
        }
    }
}

impl From<&Record> for Standing {
    fn from(record: &Record) -> Self {
        let phase = match &record.state {
            State::Running { sent, .. } => Phase::Running(*sent),
            State::Done { outcome, .. } => Phase::Done(*outcome),
            State::Unknown { .. } => Phase::Unknown,
            State::Parked { .. } => Phase::Parked,
        };
        Self { fence: record.fence, owner: record.owner, phase }
    }
}

impl Grant {
    /// When the generation began that an attempt under this grant belongs to: a takeover goes on
    /// with the one that it found, any other new attempt begins one.
    #[must_use]
    pub fn created(self, found: Option<&Record>, now: Timestamp) -> Timestamp {
        match (self, found) {
            (Self::Again | Self::TakenOver, Some(record)) => record.created,
            (Self::Again | Self::TakenOver, None) | (Self::Fresh | Self::Reused, _) => now,
        }
    }

    /// Whether work of this generation may have happened before an attempt under this grant.
    ///
    /// A takeover must not forget it: an attempt that itself sent nothing would otherwise be taken
    /// for a generation in which nothing happened.
    #[must_use]
    pub fn earlier(self, found: Option<&Record>) -> Sent {
        match (self, found.map(|record| &record.state)) {
            (Self::Again | Self::TakenOver, Some(State::Running { sent, .. })) => *sent,
            (Self::Again | Self::TakenOver, Some(State::Unknown { .. })) => Sent::Yes,
            (
                Self::Again | Self::TakenOver,
                Some(State::Done { .. } | State::Parked { .. }) | None,
            )
            | (Self::Fresh | Self::Reused, _) => Sent::No,
        }
    }
}

impl Decision {
    /// The word for it in logs and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Run(Grant::Fresh) => "fresh",
            Self::Run(Grant::Again) => "again",
            Self::Run(Grant::Reused) => "reused",
            Self::Run(Grant::TakenOver) => "taken_over",
            Self::Refuse(Refusal::Mismatch) => "mismatch",
            Self::Refuse(Refusal::Replay) => "replay",
            Self::Refuse(Refusal::NotRetained) => "not_retained",
            Self::Refuse(Refusal::Expired) => "expired",
            Self::Refuse(Refusal::InProgress(_)) => "in_progress",
            Self::Refuse(Refusal::Unknown) => "unknown",
            Self::Refuse(Refusal::Parked) => "parked",
        }
    }
}

/// Whether what may have happened under one class may be sent again under another.
///
/// Both must allow it. A route that was `once` when the request left and is `keyed` today did not
/// forward the derived key back then, so the upstream would not recognise the second send.
const fn sends_again(then: Class, now: Class) -> bool {
    then.may_send_again() && now.may_send_again()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fingerprint::{Fingerprint, Places};
    use crate::key_id::KeyId;
    use crate::record::Origin;
    use crate::saved::{NotKept, Saved, Tombstone};

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
    const GRACE: Duration = Duration::from_micros(10);
    const ME: Owner = Owner::from_bytes([1; 16]);
    const OTHER: Owner = Owner::from_bytes([2; 16]);

    fn fingerprint(byte: u8) -> Fingerprint {
        Fingerprint::from_parts(1, [byte; 32])
    }

    fn claim(class: Class) -> Claim {
        Claim {
            id: KeyId::from_bytes([7; 32]),
            owner: ME,
            fingerprint: fingerprint(1),
            class,
            lease: Duration::from_secs(30),
            grace: GRACE,
            sent: Sent::No,
            origin: Origin::default(),
            places: Places::default(),
        }
    }

    fn record(owner: Owner, class: Class, state: State) -> Record {
        Record {
            id: KeyId::from_bytes([7; 32]),
            fence: Fence::next(None, NOW),
            owner,
            fingerprint: fingerprint(1),
            class,
            created: NOW,
            origin: Origin::default(),
            places: Places::default(),
            state,
        }
    }

    fn kept() -> Answer {
        let body = bytes::Bytes::from_static(b"ok");
        Answer::Kept(Saved { status: 201, headers: crate::saved::Headers::new(), body })
    }

    fn tombstone() -> Answer {
        Answer::Tombstone(Tombstone { status: Some(200), reason: NotKept::TooLarge })
    }

    fn done(answer: Answer, expires: i64, forget: i64) -> State {
        State::Done {
            at: NOW,
            expires: Timestamp::from_micros(NOW.micros() + expires),
            forget: Timestamp::from_micros(NOW.micros() + forget),
            outcome: answer.outcome(),
            answer,
        }
    }

    fn running(until: i64, sent: Sent) -> State {
        State::Running { until: Timestamp::from_micros(NOW.micros() + until), sent }
    }

    /// Every state that can matter, with what `decide` must say for a claim of the same request
    /// by another owner, in a class that may (`true`) or may not (`false`) send again.
    fn table() -> Vec<(State, [Decision; 2])> {
        use Decision::{Refuse, Run};
        let both = |decision| [decision; 2];
        let until = |micros| Timestamp::from_micros(NOW.micros() + micros);
        vec![
            (done(kept(), 1, 1), both(Refuse(Refusal::Replay))),
            (done(kept(), 1, 5), both(Refuse(Refusal::Replay))),
            (done(kept(), 0, 1), both(Refuse(Refusal::Expired))),
            (done(kept(), -9, 1), both(Refuse(Refusal::Expired))),
            (done(kept(), 0, 0), both(Run(Grant::Reused))),
            (done(kept(), -9, -9), both(Run(Grant::Reused))),
            (done(tombstone(), 1, 1), both(Refuse(Refusal::NotRetained))),
            (done(tombstone(), 0, 1), both(Refuse(Refusal::Expired))),
            (done(tombstone(), -1, 0), both(Run(Grant::Reused))),
            (running(1, Sent::No), both(Refuse(Refusal::InProgress(until(1))))),
            (running(1, Sent::Yes), both(Refuse(Refusal::InProgress(until(1))))),
            // The lease has lapsed but grace has not.
            (running(0, Sent::No), both(Refuse(Refusal::InProgress(until(0))))),
            (running(-9, Sent::Yes), both(Refuse(Refusal::InProgress(until(-9))))),
            (running(-10, Sent::No), both(Run(Grant::TakenOver))),
            (running(-10, Sent::Yes), [Run(Grant::TakenOver), Refuse(Refusal::Unknown)]),
            (State::Unknown { since: NOW }, [Run(Grant::TakenOver), Refuse(Refusal::Unknown)]),
            (State::Parked { since: NOW }, both(Refuse(Refusal::Parked))),
        ]
    }

    #[test]
    fn a_free_key_runs_in_every_class() {
        for class in Class::ALL {
            assert_eq!(decide(None, &claim(class), NOW), Decision::Run(Grant::Fresh));
        }
    }

    /// The whole table, for every pair of classes: I6, I8, I15, I27, I28.
    #[test]
    fn every_state_gets_its_decision_in_every_pair_of_classes() {
        for (state, [if_resendable, if_not]) in table() {
            for then in Class::ALL {
                for now in Class::ALL {
                    let resendable = |class| matches!(class, Class::Keyed | Class::Retry);
                    let expected =
                        if resendable(then) && resendable(now) { if_resendable } else { if_not };
                    let found = record(OTHER, then, state.clone());
                    let decision = decide(Some(&found), &claim(now), NOW);
                    assert_eq!(decision, expected, "{state:?} from {then:?} asked by {now:?}");
                }
            }
        }
    }

    /// I23: another request under the same key never runs, replays or waits, in any state.
    #[test]
    fn another_request_is_a_mismatch_in_every_state_until_the_record_is_forgotten() {
        for (state, [expected, _]) in table() {
            for owner in [ME, OTHER] {
                let mut found = record(owner, Class::Retry, state.clone());
                found.fingerprint = fingerprint(2);
                let decision = decide(Some(&found), &claim(Class::Retry), NOW);
                let forgotten = expected == Decision::Run(Grant::Reused);
                let mismatch = Decision::Refuse(Refusal::Mismatch);
                assert_eq!(decision, if forgotten { expected } else { mismatch }, "{state:?}");
            }
        }
    }

    /// I25: the same digest under another fingerprint version is another fingerprint.
    #[test]
    fn another_fingerprint_version_is_a_mismatch() {
        let mut found = record(OTHER, Class::Retry, done(kept(), 1, 1));
        found.fingerprint = Fingerprint::from_parts(2, [1; 32]);
        let decision = decide(Some(&found), &claim(Class::Retry), NOW);
        assert_eq!(decision, Decision::Refuse(Refusal::Mismatch));
    }

    /// I5: a claimant whose acknowledgement was lost keeps its key, however late it asks.
    #[test]
    fn an_owner_that_asks_again_keeps_its_key_and_nothing_else() {
        for (state, [_, for_others]) in table() {
            let found = record(ME, Class::Once, state.clone());
            let decision = decide(Some(&found), &claim(Class::Once), NOW);
            let expected = match state {
                State::Running { .. } => Decision::Run(Grant::Again),
                State::Done { .. } | State::Unknown { .. } | State::Parked { .. } => for_others,
            };
            assert_eq!(decision, expected, "{state:?}");
        }
    }

    /// I4, I10, I11, I17: what an owner may write, in every phase.
    #[test]
    fn every_act_gets_its_judgement_in_every_phase() {
        use Judgement::{Already, Apply, Fenced};
        let same = kept().outcome();
        let other = tombstone().outcome();
        let acts = [
            Act::Renew,
            Act::Send,
            Act::Complete(same),
            Act::Complete(other),
            Act::Release,
            Act::Unknown,
        ];
        let rows = [
            (Phase::Running(Sent::No), [Apply, Apply, Apply, Apply, Apply, Apply]),
            (Phase::Running(Sent::Yes), [Apply, Already, Apply, Apply, Apply, Apply]),
            (Phase::Done(same), [Fenced, Fenced, Already, Fenced, Fenced, Fenced]),
            (Phase::Unknown, [Fenced, Fenced, Apply, Apply, Apply, Already]),
            (Phase::Parked, [Fenced, Fenced, Apply, Apply, Apply, Apply]),
        ];
        let held = record(ME, Class::Once, running(1, Sent::No)).lease();
        for (phase, expected) in rows {
            for (act, expected) in acts.into_iter().zip(expected) {
                let standing = Standing { fence: held.fence, owner: ME, phase };
                assert_eq!(judge(Some(standing), &held, act), expected, "{phase:?} {act:?}");
                let replaced = Standing { owner: OTHER, ..standing };
                assert_eq!(judge(Some(replaced), &held, act), Fenced, "another owner");
                let newer = Standing { fence: Fence::next(Some(held.fence), NOW), ..standing };
                assert_eq!(judge(Some(newer), &held, act), Fenced, "a newer fence");
                assert_eq!(judge(None, &held, act), Fenced, "a record that is gone");
            }
        }
    }
}
