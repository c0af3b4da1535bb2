//! Claims: who may run, and what the others are told.

use std::collections::BTreeMap;

use oncekey::core::decide::{Grant, Refusal};
use oncekey::core::{Answer, Claim, Claimed, Lease, Record, Sent, State, Timestamp};

use super::Judge;
use super::books::{Attempt, Generation, Phase, Standing};
use crate::log::Who;

/// A grant, as the store told it.
struct Granted<'c> {
    by: Who,
    claim: &'c Claim,
    lease: Lease,
    earlier: Sent,
    now: Timestamp,
}

impl Judge<'_> {
    pub(super) fn claimed(&mut self, by: Who, claim: &Claim, claimed: &Claimed, now: Timestamp) {
        let request = claim.origin.request.as_bytes().to_vec();
        let first = self.owners.entry(claim.owner).or_insert((claim.id, request.clone()));
        if *first != (claim.id, request) {
            self.wrong("I5", format!("{:?} was drawn for two requests", claim.owner));
        }
        // The sweeper claims in the name of others, with a lease of its own.
        if claim.lease == self.history.options.lease {
            let named = (by, claim.origin.request.as_bytes().to_vec());
            let owner = *self.claims.entry(named).or_insert(claim.owner);
            if owner != claim.owner {
                self.wrong("I5", "a request was claimed under two owners".to_owned());
            }
        }
        match claimed {
            Claimed::Won { lease, grant, earlier } => {
                let granted = Granted { by, claim, lease: *lease, earlier: *earlier, now };
                match grant {
                    Grant::Again => self.granted_again(&granted),
                    Grant::Fresh | Grant::Reused | Grant::TakenOver => self.granted(&granted),
                }
            }
            Claimed::Lost { refusal, record, now: told } => {
                if *told != now {
                    self.wrong("I27", "the loser of a claim was told another time".to_owned());
                }
                self.refused(claim, *refusal, record, now);
            }
        }
    }

    /// I5: whoever asks again keeps what it has, and nobody else does.
    fn granted_again(&mut self, granted: &Granted<'_>) {
        let Granted { claim, lease, earlier, now, .. } = granted;
        let book = self.book(claim.id);
        let held = match &mut book.standing {
            Some(Standing { fence, owner, phase: Phase::Running { until, sent }, .. })
                if *owner == claim.owner && *fence == lease.fence && sent == earlier =>
            {
                *until = now.after(claim.lease);
                true
            }
            Some(_) | None => false,
        };
        if let Some(attempt) = book.attempts.get_mut(&lease.fence) {
            attempt.earlier = attempt.earlier.or(*earlier);
        }
        if !held {
            let stands = book.standing.clone();
            self.wrong("I5", format!("granted again, where {stands:?} stands"));
        }
    }

    fn granted(&mut self, granted: &Granted<'_>) {
        let Granted { by, claim, lease, earlier, now } = *granted;
        self.check_grant(granted);
        let book = self.book(claim.id);
        let generation = match book.visible(now) {
            Some(standing) => standing.generation,
            None => {
                book.generations.push(Generation::default());
                book.generations.len() - 1
            }
        };
        book.highest = book.highest.max(Some(lease.fence));
        let sent = claim.sent.or(earlier);
        book.standing = Some(Standing {
            fence: lease.fence,
            owner: claim.owner,
            fingerprint: claim.fingerprint,
            class: claim.class,
            generation,
            phase: Phase::Running { until: now.after(claim.lease), sent },
        });
        let attempt = Attempt {
            claim: claim.clone(),
            by,
            generation,
            earlier,
            marked: sent,
            known: BTreeMap::new(),
            request: None,
            visits: Vec::new(),
            found_out: None,
            completed: None,
            released: false,
            unknown: false,
        };
        book.attempts.insert(lease.fence, attempt);
    }

    fn check_grant(&mut self, granted: &Granted<'_>) {
        let Granted { claim, lease, earlier, now, .. } = granted;
        let book = self.book(claim.id);
        let (highest, repeated) = (book.highest, book.attempts.contains_key(&lease.fence));
        let standing = book.visible(*now).cloned();
        if repeated {
            self.wrong("I1", format!("fence {} was granted twice", lease.fence));
        } else if highest.is_some_and(|highest| lease.fence <= highest) {
            self.wrong("I2", format!("fence {} is not above {highest:?}", lease.fence));
        }
        if lease.until != now.after(claim.lease) || lease.owner != claim.owner {
            self.wrong("I6", format!("{lease:?} is no lease from {now:?} on"));
        }
        let Some(standing) = standing else {
            if *earlier == Sent::Yes {
                self.wrong("I16", "an attempt before the first one is said to have acted".into());
            }
            return;
        };
        if standing.fingerprint != claim.fingerprint {
            self.wrong("I23", "another request took the key over".to_owned());
        }
        let both_allow = standing.class.may_send_again() && claim.class.may_send_again();
        match standing.phase {
            Phase::Running { until, sent } => {
                if *now < until.after(claim.grace) {
                    self.wrong("I1", format!("a second owner before {until:?} and grace is over"));
                }
                if sent == Sent::Yes && !both_allow {
                    self.wrong("I8", "an attempt that may have acted was taken over".to_owned());
                }
                if *earlier != sent {
                    self.wrong("I8", "a takeover was not told whether something was sent".into());
                }
            }
            Phase::Unknown => {
                if !both_allow {
                    self.wrong("I15", "an unknown outcome was taken over".to_owned());
                }
                if *earlier != Sent::Yes {
                    self.wrong("I8", "a takeover was not told that it is unknown".to_owned());
                }
            }
            Phase::Done(_) => self.wrong("I27", "a live answer was overwritten".to_owned()),
        }
    }

    fn refused(&mut self, claim: &Claim, refusal: Refusal, record: &Record, now: Timestamp) {
        let Some(standing) = self.book(claim.id).visible(now).cloned() else {
            self.wrong("I16", format!("{refusal:?} where nothing stands"));
            return;
        };
        let differs = standing.fingerprint != claim.fingerprint;
        if differs != (refusal == Refusal::Mismatch) {
            let which = if differs { "another" } else { "the same" };
            self.wrong("I23", format!("{refusal:?} for {which} request"));
            return;
        }
        let both_allow = standing.class.may_send_again() && claim.class.may_send_again();
        let right = match (&standing.phase, refusal) {
            (_, Refusal::Mismatch) => true,
            (Phase::Done(done), Refusal::Replay) => {
                let same =
                    matches!(&record.state, State::Done { answer, .. } if *answer == done.answer);
                now < done.expires && same && matches!(done.answer, Answer::Kept(_))
            }
            (Phase::Done(done), Refusal::NotRetained) => {
                now < done.expires && matches!(done.answer, Answer::Tombstone(_))
            }
            (Phase::Done(done), Refusal::Expired) => done.expires <= now,
            (Phase::Running { until, .. }, Refusal::InProgress(told)) => {
                now < until.after(claim.grace) && told == *until
            }
            (Phase::Running { until, sent: Sent::Yes }, Refusal::Unknown) => {
                until.after(claim.grace) <= now && !both_allow
            }
            (Phase::Unknown, Refusal::Unknown) => !both_allow,
            (Phase::Running { .. } | Phase::Done(_) | Phase::Unknown, _) => false,
        };
        if !right {
            self.wrong("I12", format!("{refusal:?} at {now:?} where {standing:?} stands"));
        }
    }
}
