//! A small world around one key, searched exhaustively: whatever two owners with two requests can
//! do, in every order, until no new state turns up.
//!
//! The invariants are written down here a second time, as a plain account of what happened, and
//! without `decide` and `judge`: what the reference store and every other store share cannot vouch
//! for itself.

mod account;

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use oncekey_core::{
    Answer, Claim, Claimed, Class, Clock, Completion, Fingerprint, Headers, KeyId, Lease,
    ManualClock, Origin, Owner, Places, Record, Renewal, Saved, Sent, State, Store, StoreError,
    Timestamp, Write,
};

use self::account::Account;

/// One unit of time. Leases and grace last one each, retention and linger three.
const UNIT: Duration = Duration::from_secs(60);

/// What somebody may do next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Claim {
        owner: u8,
        request: u8,
        class: Class,
        sent: Sent,
    },
    /// With a lease of one sort or another.
    Write {
        proof: Proof,
        act: Act,
    },
    Purge,
    Advance(u32),
    Rewind(u32),
}

#[derive(Clone, Copy, Debug)]
enum Proof {
    /// The newest lease that this owner was ever granted.
    Newest(u8),
    /// The one before that.
    Older(u8),
    /// The newest lease of all, but with the other owner's name on it.
    Forged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Renew,
    Send,
    Complete(u8),
    Release,
    Unknown,
}

const ACTS: [Act; 6] =
    [Act::Renew, Act::Send, Act::Complete(0), Act::Complete(1), Act::Release, Act::Unknown];

/// The store, and the account of what was seen of it.
struct World {
    clock: Arc<ManualClock>,
    store: Arc<dyn Store>,
    /// What each owner was granted, oldest first.
    leases: [Vec<Lease>; 2],
    account: Account,
}

/// Two worlds with the same face have the same future, as far as this search cares.
type Face = (Option<String>, Vec<usize>, String);

impl Step {
    /// The two owners are alike, so one of them may as well be the one who begins.
    fn is_by_the_first(self) -> bool {
        matches!(self, Self::Claim { owner: 0, .. })
    }
}

impl World {
    fn new((clock, store): (Arc<ManualClock>, Arc<dyn Store>)) -> Self {
        Self { clock, store, leases: [Vec::new(), Vec::new()], account: Account::default() }
    }

    /// Takes a step and checks it against the account.
    fn take(&mut self, step: Step) {
        let before = self.record();
        match step {
            Step::Claim { owner, request, class, sent } => {
                let claim = claim(owner, request, class, sent);
                let claimed = at_once(self.store.claim(&claim));
                let mine = &mut self.leases[usize::from(owner)];
                if let Claimed::Won { lease, .. } = &claimed
                    && mine.last().is_none_or(|last| last.fence != lease.fence)
                {
                    mine.push(*lease);
                }
                self.account.claimed(&claim, &claimed, self.clock.now());
            }
            Step::Write { proof, act } => {
                let Some(lease) = self.lease(proof) else { return };
                let applied = self.write(&lease, act);
                let after = self.record();
                if !applied {
                    assert_eq!(after, before, "I4: a fenced {act:?} changes nothing");
                }
                let completion = completion(match act {
                    Act::Complete(answer) => answer,
                    Act::Renew | Act::Send | Act::Release | Act::Unknown => 0,
                });
                let now = self.clock.now();
                self.account.wrote(&lease, act, applied, (after.as_ref(), &completion), now);
            }
            Step::Purge => {
                let purged = at_once(self.store.purge(9));
                self.account.purged(purged, self.clock.now());
            }
            Step::Advance(units) => self.clock.advance(UNIT * units),
            Step::Rewind(units) => self.clock.step_back(UNIT * units),
        }
    }

    /// Reads the record, and tries every proof that proves nothing: that leads nowhere, so it can
    /// be tried in passing.
    fn look_around(&mut self) {
        self.account.look(self.record().as_ref(), self.clock.now());
        for proof in [Proof::Older(0), Proof::Older(1), Proof::Forged] {
            ACTS.into_iter().for_each(|act| self.take(Step::Write { proof, act }));
        }
    }

    fn write(&self, lease: &Lease, act: Act) -> bool {
        let write = match act {
            Act::Renew => {
                let renewed = at_once(self.store.renew(&[*lease], UNIT));
                return matches!(renewed[..], [Renewal::Until(_)]);
            }
            Act::Send => at_once(self.store.send(lease)),
            Act::Complete(answer) => at_once(self.store.complete(lease, &completion(answer))),
            Act::Release => at_once(self.store.release(lease)),
            Act::Unknown => at_once(self.store.unknown(lease)),
        };
        write == Write::Applied
    }

    fn lease(&self, proof: Proof) -> Option<Lease> {
        match proof {
            Proof::Newest(owner) => self.leases[usize::from(owner)].last().copied(),
            Proof::Older(owner) => self.leases[usize::from(owner)].iter().rev().nth(1).copied(),
            Proof::Forged => {
                let newest = self.leases.iter().flatten().max_by_key(|lease| lease.fence)?;
                let [name, ..] = *newest.owner.as_bytes();
                Some(Lease { owner: Owner::from_bytes([1 - name; 16]), ..*newest })
            }
        }
    }

    fn record(&self) -> Option<Record> {
        at_once(self.store.get(&KeyId::from_bytes([7; 32])))
    }

    /// The record with its times relative to the clock, and the order of all fences.
    fn face(&self) -> Face {
        let now = self.clock.now().micros();
        let units = |time: Timestamp| {
            let unit = i64::try_from(UNIT.as_micros()).expect("a minute fits");
            (time.micros() - now).div_euclid(unit).clamp(-9, 9)
        };
        let record = self.record();
        let state = record.as_ref().map(|record| match &record.state {
            State::Running { until, sent } => format!("running {} {sent:?}", units(*until)),
            State::Done { expires, forget, answer, .. } => {
                format!("done {} {} {:?}", units(*expires), units(*forget), answer.status())
            }
            State::Unknown { .. } => "unknown".to_owned(),
            State::Parked { .. } => "parked".to_owned(),
        });
        let state = record.as_ref().zip(state).map(|(record, state)| {
            let Record { class, owner, fingerprint, .. } = record;
            format!("{state} {class:?} {owner:?} {:?}", fingerprint.digest()[0])
        });
        let fences = [record.map(|record| record.fence)].into_iter();
        let leases = [Proof::Newest(0), Proof::Newest(1)]
            .map(|proof| self.lease(proof).map(|lease| lease.fence));
        let fences: Vec<_> = fences.chain(leases).chain([self.account.highest]).collect();
        let mut order = fences.clone();
        order.sort();
        order.dedup();
        let ranks = fences.iter().filter_map(|fence| order.iter().position(|it| it == fence));
        let ahead = self
            .account
            .highest
            .map_or(0, |fence| units(Timestamp::from_micros(fence.number())).max(0));
        (state, ranks.collect(), format!("{:?} {ahead}", self.account.summary()))
    }
}

/// Tries every step in every state that can be reached, and says how many states there are.
///
/// # Panics
/// If an invariant breaks.
pub(crate) fn search(store: impl Fn() -> (Arc<ManualClock>, Arc<dyn Store>)) -> usize {
    let steps = steps();
    let mut seen: HashSet<Face> = HashSet::new();
    let mut frontier: VecDeque<Vec<Step>> = VecDeque::from([Vec::new()]);
    // The shortest histories first, so that the one that is reported is a shortest.
    while let Some(path) = frontier.pop_front() {
        for step in steps.iter().filter(|step| !path.is_empty() || step.is_by_the_first()) {
            let mut longer = path.clone();
            longer.push(*step);
            let played = catch_unwind(AssertUnwindSafe(|| {
                let mut world = World::new(store());
                longer.iter().for_each(|step| world.take(*step));
                world.look_around();
                world.face()
            }));
            let face = played.unwrap_or_else(|broken| {
                let said = broken.downcast_ref::<String>().map(String::as_str);
                let said = said.or(broken.downcast_ref::<&str>().copied()).unwrap_or("a panic");
                panic!("{said}: at the end of {longer:?}")
            });
            if seen.insert(face) {
                frontier.push_back(longer);
            }
        }
    }
    seen.len()
}

fn steps() -> Vec<Step> {
    let mut steps =
        vec![Step::Advance(1), Step::Advance(2), Step::Advance(6), Step::Rewind(2), Step::Purge];
    for owner in 0..2 {
        for (request, class, sent) in [
            (0, Class::Once, Sent::No),
            (0, Class::Once, Sent::Yes),
            (0, Class::Retry, Sent::No),
            (0, Class::Tx, Sent::No),
            (1, Class::Retry, Sent::No),
        ] {
            steps.push(Step::Claim { owner, request, class, sent });
        }
        steps.extend(ACTS.map(|act| Step::Write { proof: Proof::Newest(owner), act }));
    }
    steps
}

fn claim(owner: u8, request: u8, class: Class, sent: Sent) -> Claim {
    Claim {
        id: KeyId::from_bytes([7; 32]),
        owner: Owner::from_bytes([owner; 16]),
        fingerprint: Fingerprint::from_parts(1, [request; 32]),
        class,
        lease: UNIT,
        grace: UNIT,
        sent,
        origin: Origin::default(),
        places: Places::default(),
    }
}

fn completion(number: u8) -> Completion {
    let body = vec![number].into();
    let saved = Saved { status: 200 + u16::from(number), headers: Headers::new(), body };
    Completion { answer: Answer::Kept(saved), retention: UNIT * 3, linger: UNIT * 3 }
}

/// The stores that are searched never wait, so their futures need no runtime.
fn at_once<T>(future: impl Future<Output = Result<T, StoreError>>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value.expect("a decision is not an error"),
        Poll::Pending => panic!("this store should never wait"),
    }
}
