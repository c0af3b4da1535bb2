//! From a call to a lease, or to the reason why there is none.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::policy::InFlight;
use oncekey_core::record::{Origin, Record, Text};
use oncekey_core::{
    Answer, Claim, Claimed, Class, Decision, ErrorKind, Grant, Lease, Owner, Refusal, Saved, Sent,
    State, Store as _, Timestamp, decide,
};

use super::attempt::{Grip, Held};
use super::cache::original;
use super::gate::{Admission, ClaimPass};
use super::give_back::Taken;
use super::lead::Leader;
use super::measured::Timed;
use super::reply::{Refused, Replayed, Unavailable};
use super::resolve::Probed;
use super::ring::{Note, What};
use super::sentry::{Pass, Sentry, Ticket};
use super::{Call, Shared};

/// What came of the wish to own a key.
#[derive(Debug)]
pub(super) enum Win {
    /// The key is held.
    Held(Arc<Held>),
    /// Somebody did the work before.
    Replayed(Box<Replayed>),
    /// It is not to be had.
    Refused(Refused),
}

/// How the store answered a claim.
enum Asked {
    Answered { claimed: Claimed, asked: Duration, answered: Duration },
    Refused(Refused),
}

/// A ticket from the sentry, if there is one; or why nothing is granted, and when to come back.
type Passed = Result<Option<Ticket>, (Unavailable, Duration)>;

/// Why a wait for another process is over.
enum Rested {
    /// Something may have changed: the store is asked again.
    AskAgain,
    /// The client, or the node, waits no longer.
    Enough,
}

/// How often a claim is asked again, with a pause that doubles from 20 ms: together about a
/// seventh of a second, while the client waits. A longer outage is told to the client.
const CLAIM_TRIES: u32 = 4;
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Nobody is told to come back sooner or later than this.
pub(super) const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(10);

impl Shared {
    /// Claims the key of a call, and waits for it if somebody else holds it and the policy says so. It
    /// is [`now`](Leader::now), or a moment later: a lease that is reckoned from a little earlier ends a
    /// little earlier here, and never later than in the store.
    pub(super) async fn win(leader: &mut Leader) -> Win {
        let mut claim = leader.shared.claim_of(&leader.call);
        let mut taken = Taken::No;
        let win = Self::ask_until_told(&mut claim, &mut taken, leader).await;
        match win {
            Win::Held(_) => {}
            // Whatever else this caller was told in the end: a try of which nobody heard may land yet.
            Win::Replayed(_) | Win::Refused(_) => leader.shared.give_back_later(&claim, taken),
        }
        win
    }

    /// Asks for the key, and again after every wait.
    async fn ask_until_told(claim: &mut Claim, taken: &mut Taken, leader: &mut Leader) -> Win {
        let erasures = leader.shared.finished.erasures();
        let mut patience = None;
        let mut probed = false;
        loop {
            let (refusal, record, stored, asked) = match Self::ask(claim, taken, leader).await {
                Asked::Refused(refused) => return Win::Refused(refused),
                Asked::Answered { claimed, asked, answered } => match claimed {
                    Claimed::Won { lease, grant, earlier } => {
                        let times = (asked, answered);
                        let Leader { shared, call, .. } = leader;
                        return Win::Held(shared.held(call, lease, (grant, earlier), times));
                    }
                    Claimed::Lost { refusal, record, now } => (refusal, record, now, asked),
                },
            };
            let Leader { shared, call, began, .. } = &*leader;
            let until = match refusal {
                Refusal::InProgress(until) => until,
                Refusal::Unknown
                    if !probed
                        && Box::pin(shared.ask_probe(&record, &call.policy)).await
                            == Probed::Settled =>
                {
                    probed = true;
                    leader.now = shared.uptime.elapsed();
                    continue;
                }
                Refusal::Mismatch
                | Refusal::Replay
                | Refusal::NotRetained
                | Refusal::Expired
                | Refusal::Unknown
                | Refusal::Parked => {
                    return shared.lost(call, refusal, &record, (stored, asked, erasures));
                }
            };
            let busy = shared.busy_elsewhere(call, &record, (stored, until), *began);
            // Worked out only here, because whatever is kept while the store is asked makes the future
            // of every claim larger.
            let longest = shared.may_wait(call, *began);
            if longest.is_zero() || shared.gate.is_crowded() {
                return Win::Refused(busy);
            }
            let most = call.policy.limits.waiters.saturating_sub(shared.flights.waiting());
            let Some(wait) = shared.waits.wait(call.id, record.fence, most) else {
                return Win::Refused(busy);
            };
            if let Some(flight) = &leader.flight {
                flight.announce();
            }
            // Its lease may lapse, which nobody announces. While the store's clock is in doubt no
            // lease lapses, and for how long that lasts is learned by asking.
            let lapse = until.after(claim.grace).since(stored).saturating_add(FIRST_PAUSE);
            let lapse = lapse.min(claim.lease.max(SOONEST));
            let patience = patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)));
            // In a box, because only few have to wait, and everybody would carry the timers.
            let rested = Box::pin(async {
                tokio::select! {
                    biased;
                    () = patience => Rested::Enough,
                    () = shared.gate.closed() => Rested::Enough,
                    () = wait.rung() => Rested::AskAgain,
                    () = tokio::time::sleep(lapse) => Rested::AskAgain,
                }
            });
            if let Rested::Enough = rested.await {
                return Win::Refused(busy);
            }
            leader.now = shared.uptime.elapsed();
        }
    }

    /// For how long a call that came at `began` may still wait for another process.
    fn may_wait(&self, call: &Call, began: Duration) -> Duration {
        match call.policy.in_flight {
            // Whoever followed another call before has waited for a while already.
            InFlight::Wait(longest) => {
                longest.saturating_sub(self.uptime.elapsed().saturating_sub(began))
            }
            InFlight::Conflict | InFlight::Accepted => Duration::ZERO,
        }
    }

    fn claim_of(&self, call: &Call) -> Claim {
        let id = call.id;
        let mut owner = [0; 16];
        self.entropy.fill(&mut owner);
        let owner = Owner::from_bytes(owner);
        Claim {
            id,
            owner,
            fingerprint: call.fingerprint,
            class: call.policy.class,
            lease: call.policy.lease,
            grace: call.policy.grace,
            sent: call.policy.announced(),
            origin: self.vault.seal_origin(&id, &owner, origin_of(call)),
            places: call.places.clone(),
        }
    }

    /// Asks the store until it answers, for a short while. An error never becomes a grant (I33).
    async fn ask(claim: &mut Claim, taken: &mut Taken, leader: &Leader) -> Asked {
        let shared = &leader.shared;
        let mut asked = leader.now;
        let _pass = match let_in(shared.gate.admit()) {
            Ok(pass) => pass,
            Err(why) => {
                claim.grace = shared.suspicion.grace(leader.call.policy.grace, asked);
                return Box::pin(Self::stopped(claim, leader, *taken, (why, SOONEST))).await;
            }
        };
        let mut pause = FIRST_PAUSE;
        for tries in 0..CLAIM_TRIES {
            if let Err(rest) = shared.health.may_ask(asked) {
                return down(rest);
            }
            if let Some(backlog) = shared.backlog.as_ref().filter(|ends| ends.holds(&claim.id)) {
                Box::pin(backlog.bring_forward(&claim.id, shared)).await;
            }
            claim.grace = shared.suspicion.grace(leader.call.policy.grace, asked);
            let (passed, begins) = shared.pass(asked).await;
            let ticket = match passed {
                Ok(ticket) => ticket,
                Err(why) => return Box::pin(Self::stopped(claim, leader, *taken, why)).await,
            };
            let Timed { result, answered } = shared.store.claimed(claim, begins).await;
            match result {
                Ok(claimed) => {
                    shared.health.answered();
                    let store = store_time(&claimed, claim.lease);
                    shared.suspicion.look(store, asked, answered, Some(claim.lease));
                    if let Claimed::Won { lease, .. } = &claimed {
                        if shared.is_void(ticket) {
                            *taken = Taken::Maybe;
                            return untrusted();
                        }
                        shared.give_back_lost_tries(claim, *taken, lease.fence);
                    }
                    return Asked::Answered { claimed, asked, answered };
                }
                Err(error) => match error.kind() {
                    ErrorKind::Unavailable | ErrorKind::Ambiguous => {
                        tracing::debug!(%error, "the store did not answer a claim");
                        if error.kind() == ErrorKind::Ambiguous {
                            *taken = Taken::Maybe;
                        }
                        shared.did_not_answer(answered);
                    }
                    // It may have failed over: then it is looked at and adopted, or put right.
                    ErrorKind::Unsuitable if shared.sentry.is_some() && tries + 1 < CLAIM_TRIES => {
                        tracing::warn!(%error, "the store refuses to grant");
                        Box::pin(shared.word()).await;
                    }
                    ErrorKind::Unsuitable => {
                        tracing::error!(%error, "the store refuses to work");
                        return untrusted();
                    }
                    ErrorKind::Corrupt | ErrorKind::Rejected | _ => {
                        tracing::error!(%error, "a record cannot be trusted, or a claim is refused");
                        return Asked::Refused(Refused::Damaged);
                    }
                },
            }
            Box::pin(tokio::time::sleep(pause)).await;
            pause *= 2;
            asked = shared.uptime.elapsed();
        }
        down(SOONEST)
    }

    /// The store failed a call, as was known at `now`.
    fn did_not_answer(&self, now: Duration) {
        self.health.failed(now);
        if let Some(sentry) = &self.sentry {
            sentry.doubt();
        }
    }

    /// The store may not be asked for a grant. Says what it knows nevertheless, and asks nobody else: only a
    /// claim may say that a lease has lapsed, because the clock by which this is judged may be off, the end
    /// may be in our journal, and the store may have forgotten it.
    ///
    /// If a try of this claim may have landed, the call does not wait for others either, but hears at once what
    /// it would have heard in the end: nobody looks for that try before the call is over.
    async fn stopped(
        claim: &Claim,
        leader: &Leader,
        taken: Taken,
        (why, rest): (Unavailable, Duration),
    ) -> Asked {
        let Leader { shared, call, .. } = leader;
        let told = shared.replay_at_least(claim, why, rest).await;
        let Asked::Answered { claimed: Claimed::Lost { refusal, record, now }, asked, .. } = &told
        else {
            return told;
        };
        let refusal = match (*refusal, taken) {
            (Refusal::Unknown, _)
                if matches!(record.state, State::Running { .. }) || shared.owes(&claim.id) =>
            {
                Refusal::InProgress(*now)
            }
            (refusal @ Refusal::Unknown, _) | (refusal @ Refusal::InProgress(_), Taken::Maybe) => {
                refusal
            }
            (_, _) => return told,
        };
        match shared.lost(call, refusal, record, (*now, *asked, 0)) {
            Win::Refused(refused) => Asked::Refused(refused),
            Win::Held(_) | Win::Replayed(_) => unreachable!("neither was answered"),
        }
    }

    /// As [`pass`], and when that was known. Without a ring there is nothing to know.
    async fn pass(&self, now: Duration) -> (Passed, Duration) {
        match &self.sentry {
            None => (Ok(None), now),
            // In a box, because few nodes have one.
            Some(sentry) => (Box::pin(pass(sentry, now)).await, self.uptime.elapsed()),
        }
    }

    /// Whether what was won with `ticket` is void, because the store was found to have regressed while it was
    /// asked. What it granted then, somebody else may have owned.
    fn is_void(&self, ticket: Option<Ticket>) -> bool {
        self.sentry.as_ref().zip(ticket).is_some_and(|(sentry, ticket)| !sentry.holds_good(ticket))
    }

    /// Replays are shed after claims: a node that takes no claims still answers what is done, and says what
    /// else it finds. "Nothing was executed" is only for keys of which the store knows nothing, or whose
    /// work could be done again.
    async fn replay_at_least(
        &self,
        claim: &Claim,
        why: Unavailable,
        retry_after: Duration,
    ) -> Asked {
        let refused = |why| Asked::Refused(Refused::Unavailable { why, retry_after });
        let asked = self.uptime.elapsed();
        if self.health.is_resting() {
            return refused(why);
        }
        let Ok(found) = self.store.get(&claim.id).await else { return refused(why) };
        let replay = found.zip(self.suspicion.store_time(asked)).and_then(|(record, now)| {
            let Decision::Refuse(refusal) = decide(Some(&record), claim, now) else {
                return None;
            };
            let claimed = Claimed::Lost { refusal, record: Box::new(record), now };
            Some(Asked::Answered { claimed, asked, answered: asked })
        });
        replay.unwrap_or_else(|| {
            refused(match why {
                // It answers, so nobody may say that it is down and run without it.
                Unavailable::Store => Unavailable::Regressed,
                Unavailable::Regressed
                | Unavailable::Busy
                | Unavailable::Draining
                | Unavailable::LeaseLost => why,
            })
        })
    }

    fn held(
        self: &Arc<Self>,
        call: &Arc<Call>,
        lease: Lease,
        (grant, earlier): (Grant, Sent),
        (asked, answered): (Duration, Duration),
    ) -> Arc<Held> {
        if grant == Grant::TakenOver {
            let route = metrics::SharedString::from_shared(Arc::clone(&call.route));
            metrics::counter!("oncekey_takeovers_total", "route" => route).increment(1);
            tracing::info!(fence = %lease.fence, "a key was taken over");
        }
        let earlier = match (grant, call.policy.class.may_send_again()) {
            // What was sent before is never taken over in these classes: the mark is our own claim's.
            (Grant::Again, false) => Sent::No,
            (Grant::Again, true) | (Grant::Fresh | Grant::Reused | Grant::TakenOver, _) => earlier,
        };
        let announced = match call.policy.class {
            // Its effects commit with its end or not at all, so there is nothing to announce.
            Class::Tx => Sent::Yes,
            Class::Once | Class::Keyed | Class::Retry => call.policy.announced(),
        };
        if let Some(sentry) = &self.sentry {
            sentry.ring.stands(Note {
                lease,
                fingerprint: call.fingerprint,
                class: call.policy.class,
                created: lease.until.before(call.policy.lease),
                request: call.request.text(),
                route: Text::shared(Arc::clone(&call.route)),
                what: What::Running,
            });
        }
        let asked = (asked, self.suspicion.steps());
        let grip = Grip::new(lease, (grant, earlier), call.policy.lease, asked, announced);
        Arc::new(Held::new(Arc::clone(self), call, Some(grip), answered))
    }

    /// What a call is told about a record that stands in its way.
    fn lost(
        &self,
        call: &Call,
        refusal: Refusal,
        record: &Record,
        (now, asked, erasures): (Timestamp, Duration, u64),
    ) -> Win {
        let original = original(record);
        if record.fingerprint.version() != call.fingerprint.version() {
            // Written by another version of us: whether the requests are the same cannot be told.
            return Win::Refused(Refused::Damaged);
        }
        let refused = match refusal {
            Refusal::Mismatch => Refused::Mismatch {
                differs: record.places.differing(&call.places),
                original,
                first_used: record.created,
            },
            Refusal::Replay => return self.replay(call, record, (now, asked, erasures)),
            Refusal::NotRetained => match &record.state {
                State::Done { answer: Answer::Tombstone(tombstone), .. } => Refused::NotRetained {
                    status: tombstone.status,
                    reason: tombstone.reason,
                    original,
                },
                State::Done { answer: Answer::Kept(_), .. }
                | State::Running { .. }
                | State::Unknown { .. }
                | State::Parked { .. } => Refused::Damaged,
            },
            Refusal::Expired => Refused::Expired { original },
            Refusal::Unknown => Refused::Unknown { original },
            Refusal::Parked => Refused::Parked { original },
            Refusal::InProgress(until) => {
                self.busy_elsewhere(call, record, (now, until), self.uptime.elapsed())
            }
        };
        Win::Refused(refused)
    }

    /// The answer of a record as it was given; `None` if it cannot be decrypted.
    pub(super) fn opened(&self, record: &Record, saved: &Saved) -> Option<Saved> {
        let opened = self.vault.open_answer(record, saved);
        if let Err(error) = &opened {
            tracing::error!(%error, fence = %record.fence, "an answer cannot be replayed");
        }
        opened.ok()
    }

    /// Another process holds the key until a time.
    fn busy_elsewhere(
        &self,
        call: &Call,
        record: &Record,
        (now, until): (Timestamp, Timestamp),
        began: Duration,
    ) -> Refused {
        let left = until.since(now).max(SOONEST);
        let retry_after = come_back_after(now.since(record.created)).min(left);
        let original = Some(original(record));
        match call.policy.in_flight {
            InFlight::Accepted => Refused::Accepted { retry_after, original },
            InFlight::Wait(_) | InFlight::Conflict => {
                let waited = self.uptime.elapsed().saturating_sub(began);
                Refused::InProgress { retry_after, waited, original }
            }
        }
    }
}

/// The store cannot be asked.
fn down(rest: Duration) -> Asked {
    let retry_after = rest.clamp(SOONEST, LATEST);
    Asked::Refused(Refused::Unavailable { why: Unavailable::Store, retry_after })
}

/// The store is there, and may have lost something: this very key, perhaps. So nobody may say that it is
/// down and run without it.
fn untrusted() -> Asked {
    let (why, retry_after) = (Unavailable::Regressed, LATEST);
    Asked::Refused(Refused::Unavailable { why, retry_after })
}

/// The right to ask the store, or why there is none.
fn let_in(admission: Admission<'_>) -> Result<ClaimPass<'_>, Unavailable> {
    match admission {
        Admission::Admitted(pass) => Ok(pass),
        Admission::Busy => Err(Unavailable::Busy),
        Admission::Draining => Err(Unavailable::Draining),
    }
}

/// Where a call comes from, for people.
pub(super) fn origin_of(call: &Call) -> Origin {
    Origin {
        key: call.key.to_text(),
        scope: call.scope.to_text(),
        route: Text::shared(Arc::clone(&call.route)),
        request: call.request.text(),
    }
}

/// Whether the store is known to be what it was; if not, why nothing is granted and when to come
/// back.
async fn pass(sentry: &Sentry, now: Duration) -> Passed {
    match sentry.admit(now).await {
        Pass::Granted(ticket) => Ok(Some(ticket)),
        Pass::Unsure => Err((Unavailable::Store, SOONEST)),
        Pass::Stopped(left) => Err((Unavailable::Regressed, left.clamp(SOONEST, LATEST))),
    }
}

/// When to come back to work that has run for `age`: what took long takes long. A constant second
/// would make the clients of slow work ask ten times as often as it helps.
pub(super) fn come_back_after(age: Duration) -> Duration {
    age.clamp(SOONEST, LATEST)
}

/// The store's clock at the decision.
pub(super) fn store_time(claimed: &Claimed, lease: Duration) -> Timestamp {
    match claimed {
        Claimed::Won { lease: won, .. } => won.until.before(lease),
        Claimed::Lost { now, .. } => *now,
    }
}
