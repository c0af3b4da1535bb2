//! Callers that do everything that callers do, and write it down.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use bytes::Bytes;
use oncekey::clock::SystemClock;
use oncekey::core::saved::{Headers, Saved};
use oncekey::core::{
    Answer, Claim, Claimed, Clock as _, Completion, Erase, Fingerprint, Lease, Origin, Owner,
    Places, Refusal, Renewal, Sent, StoreError, Write,
};

use super::SPANS;
use super::book::class_of;
use super::log::{Act, Claiming, Deed, End, Event, Hold, Seen, Sight};
use crate::common::{Bits, key_id};

/// Enough to meet each other all the time.
const CALLERS: u64 = 48;

/// Few enough that most callers meet somebody, many enough that some do not.
const KEYS: u64 = 160;

/// How often a caller that was not told asks again before it gives up.
const TRIES: usize = 3;

/// Several stores that are one.
#[derive(Clone)]
pub(crate) struct Handles(Arc<RwLock<Vec<Arc<dyn Erase>>>>);

/// A part of a history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) calls: u64,
    /// Each part has keys of its own.
    pub(crate) part: u64,
    /// One of so many calls is dropped midway.
    pub(crate) abandons: u64,
}

/// What a history was made of.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    calls: u64,
    open: u64,
    refused: u64,
    won: u64,
    taken_over: u64,
    again: u64,
    applied: u64,
    fenced: u64,
    replays: u64,
}

struct Caller {
    bits: Bits,
    handles: Handles,
    plan: Plan,
    left: Arc<AtomicU64>,
    /// Leases that may be worth nothing any more.
    old: Vec<(u64, Lease)>,
    events: Vec<Event>,
}

impl Handles {
    pub(crate) fn new(stores: Vec<Arc<dyn Erase>>) -> Self {
        Self(Arc::new(RwLock::new(stores)))
    }

    pub(crate) fn replace(&self, index: usize, store: Arc<dyn Erase>) {
        let mut stores = self.0.write().expect("nobody panics here");
        let old = std::mem::replace(&mut stores[index], store);
        drop(stores);
        drop(old);
    }

    fn pick(&self, bits: &mut Bits) -> Arc<dyn Erase> {
        let stores = self.0.read().expect("nobody panics here");
        Arc::clone(&stores[bits.index(stores.len())])
    }
}

/// Runs one part and returns everything that happened in it.
pub(crate) async fn run(handles: &Handles, plan: Plan) -> Vec<Event> {
    let left = Arc::new(AtomicU64::new(plan.calls));
    let tasks: Vec<_> = (0..CALLERS)
        .map(|number| {
            let caller = Caller {
                bits: Bits::seeded(plan.seed.wrapping_mul(1_000_003).wrapping_add(number)),
                handles: handles.clone(),
                plan,
                left: Arc::clone(&left),
                old: Vec::new(),
                events: Vec::new(),
            };
            tokio::spawn(caller.work())
        })
        .collect();
    let mut events = Vec::new();
    for task in tasks {
        events.extend(task.await.expect("no caller panics"));
    }
    events
}

impl Caller {
    async fn work(mut self) -> Vec<Event> {
        while self.left.load(Ordering::Relaxed) > 0 {
            let key = self.plan.part * KEYS + self.bits.below(KEYS);
            match self.bits.below(20) {
                0..=12 => self.attempt(key).await,
                13..=16 => self.get(key).await,
                17 => self.erase_or_purge(key).await,
                _ => self.meddle().await,
            }
        }
        self.events
    }

    /// Makes a call, or gives up midway.
    async fn call<T>(
        &mut self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> (i64, i64, End<T>) {
        // More may be under way than are left; a history is at least as long as it should be.
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(1))
        });
        let is_patient = self.bits.below(self.plan.abandons) != 0;
        let limit = match is_patient {
            true => Duration::from_secs(60),
            false => Duration::from_micros(self.bits.below(3_000)),
        };
        let call = now();
        let ended = tokio::time::timeout(limit, work).await;
        let end = match ended {
            Ok(result) => End::of(result),
            Err(_) => {
                assert!(!is_patient, "a call did not end within {limit:?}");
                End::Open
            }
        };
        (call, now(), end)
    }

    fn note(&mut self, (call, ret): (i64, i64), key: u64, deed: Deed) {
        self.events.push(Event { call, ret, key, deed });
    }

    /// Claims, and on success lives through everything that an owner may do.
    async fn attempt(&mut self, key: u64) {
        let claim = self.claim_of(key);
        let mut won = None;
        for _ in 0..TRIES {
            let store = self.handles.pick(&mut self.bits);
            let (call, ret, end) = self.call(store.claim(&claim)).await;
            let (lease, unknown, is_told) = match &end {
                End::Said(Claimed::Won { lease, .. }) => (Some(*lease), None, true),
                End::Said(Claimed::Lost { refusal: Refusal::Unknown, record, .. }) => {
                    (None, Some(record.lease()), true)
                }
                End::Said(Claimed::Lost { .. }) => (None, None, true),
                End::Nothing | End::Open => (None, None, false),
            };
            let end = end.map(Claiming::from);
            self.note((call, ret), key, Deed::Claim { owner: claim.owner, sent: claim.sent, end });
            if let Some(lease) = unknown {
                // Somebody has found out what became of it.
                return self.end(key, lease).await;
            }
            won = lease;
            if is_told || self.bits.below(4) == 0 {
                break;
            }
        }
        let Some(lease) = won else { return };
        if self.bits.below(4) == 0 {
            self.renew(key, lease).await;
        }
        if self.bits.below(2) == 0 {
            self.write(key, lease, Act::Send).await;
        }
        if self.bits.below(8) == 0 {
            // Sleeps through its lease.
            let extra = Duration::from_millis(self.bits.below(40));
            tokio::time::sleep(SPANS.lease + SPANS.grace + extra).await;
        }
        if self.bits.below(5) != 0 {
            self.end(key, lease).await;
        }
        if self.bits.below(3) == 0 {
            self.old.push((key, lease));
        }
    }

    /// Ends an attempt, and asks again if it is not told.
    async fn end(&mut self, key: u64, lease: Lease) {
        let act = match self.bits.below(10) {
            0..=5 => Act::Complete(answer(self.bits.below(1_000_000)).outcome()),
            6..=8 => Act::Release,
            _ => Act::Unknown,
        };
        let number = self.bits.below(1_000_000);
        for _ in 0..TRIES {
            let is_told = match act {
                Act::Complete(_) => self.complete(key, lease, number).await,
                Act::Send | Act::Release | Act::Unknown => self.write(key, lease, act).await,
            };
            // Some give up: a second try would explain what the first is said not to have done.
            if is_told || self.bits.below(2) == 0 {
                break;
            }
        }
    }

    /// Says whether it was told what became of it.
    async fn write(&mut self, key: u64, lease: Lease, act: Act) -> bool {
        let store = self.handles.pick(&mut self.bits);
        let writing = async {
            match act {
                Act::Send => store.send(&lease).await,
                Act::Release => store.release(&lease).await,
                Act::Unknown => store.unknown(&lease).await,
                Act::Complete(_) => panic!("a completion has an answer"),
            }
        };
        let (call, ret, end) = self.call(writing).await;
        let is_told = matches!(end, End::Said(_));
        self.note((call, ret), key, Deed::Write { hold: Hold::from(&lease), act, end });
        is_told
    }

    async fn complete(&mut self, key: u64, lease: Lease, number: u64) -> bool {
        let (answer, store) = (answer(number), self.handles.pick(&mut self.bits));
        let act = Act::Complete(answer.outcome());
        let (retention, linger) = (SPANS.retention, SPANS.linger);
        let completion = Completion { answer, retention, linger };
        let (call, ret, end) = self.call(store.complete(&lease, &completion)).await;
        let is_told = matches!(end, End::Said(_));
        self.note((call, ret), key, Deed::Write { hold: Hold::from(&lease), act, end });
        is_told
    }

    async fn renew(&mut self, key: u64, lease: Lease) {
        let store = self.handles.pick(&mut self.bits);
        let leases = [lease];
        let (call, ret, end) = self.call(store.renew(&leases, SPANS.lease)).await;
        let end: End<Renewal> = end.map(|renewals| {
            assert_eq!(renewals.len(), 1, "one answer to one question");
            renewals[0]
        });
        self.note((call, ret), key, Deed::Renew { hold: Hold::from(&lease), end });
    }

    async fn get(&mut self, key: u64) {
        let (store, id) = (self.handles.pick(&mut self.bits), key_id(key));
        let (call, ret, end) = self.call(store.get(&id)).await;
        let end = end.map(|found| found.as_ref().map(Sight::from));
        self.note((call, ret), key, Deed::Get { end });
    }

    async fn erase_or_purge(&mut self, key: u64) {
        let (store, id) = (self.handles.pick(&mut self.bits), key_id(key));
        if self.bits.below(2) == 0 {
            // Written down whatever came of it: it is what explains a missing answer.
            let (call, ret, _) = self.call(store.erase(&id)).await;
            return self.note((call, ret), key, Deed::Erase);
        }
        let limit = 1 + self.bits.index(40);
        // A purge removes what is over, which needs no other explanation.
        let _ = self.call(store.purge(limit)).await;
    }

    /// Comes back with a lease of long ago.
    async fn meddle(&mut self) {
        if self.old.is_empty() {
            return;
        }
        let index = self.bits.index(self.old.len());
        let (key, lease) = self.old.swap_remove(index);
        match self.bits.below(4) {
            0 => self.renew(key, lease).await,
            1 => drop(self.write(key, lease, Act::Send).await),
            _ => self.end(key, lease).await,
        }
    }

    fn claim_of(&mut self, key: u64) -> Claim {
        Claim {
            id: key_id(key),
            owner: Owner::from_bytes(self.bits.bytes()),
            fingerprint: Fingerprint::from_parts(1, [1; 32]),
            class: class_of(key),
            lease: SPANS.lease,
            grace: SPANS.grace,
            sent: if self.bits.below(8) == 0 { Sent::Yes } else { Sent::No },
            origin: Origin { key: "key".into(), route: "POST /".into(), ..Origin::default() },
            places: Places::default(),
        }
    }
}

impl Totals {
    pub(crate) fn add(&mut self, events: &[Event]) {
        for Event { deed, .. } in events {
            self.calls += 1;
            let is_open = matches!(
                deed,
                Deed::Claim { end: End::Open, .. }
                    | Deed::Renew { end: End::Open, .. }
                    | Deed::Write { end: End::Open, .. }
            );
            let is_refused = matches!(
                deed,
                Deed::Claim { end: End::Nothing, .. }
                    | Deed::Renew { end: End::Nothing, .. }
                    | Deed::Write { end: End::Nothing, .. }
            );
            self.open += u64::from(is_open);
            self.refused += u64::from(is_refused);
            match deed {
                Deed::Claim { end: End::Said(Claiming::Won { grant, .. }), .. } => {
                    self.won += 1;
                    self.taken_over += u64::from(*grant == oncekey::core::Grant::TakenOver);
                    self.again += u64::from(*grant == oncekey::core::Grant::Again);
                }
                Deed::Claim { end: End::Said(Claiming::Lost(sight)), .. } => {
                    self.replays += u64::from(matches!(sight.state, Seen::Done { .. }));
                }
                Deed::Write { end: End::Said(Write::Applied), .. } => self.applied += 1,
                Deed::Write { end: End::Said(Write::Fenced), .. } => self.fenced += 1,
                Deed::Claim { .. }
                | Deed::Renew { .. }
                | Deed::Write { .. }
                | Deed::Get { .. }
                | Deed::Erase => {}
            }
        }
    }

    /// A history in which nothing happens proves nothing.
    pub(crate) fn must_be_varied(&self) {
        let Self { open, won, taken_over, again, applied, fenced, replays, .. } = self;
        for count in [open, won, taken_over, again, applied, fenced, replays] {
            assert!(*count > 10, "too little happened: {self:?}");
        }
    }
}

/// The answer with this number.
fn answer(number: u64) -> Answer {
    let body = Bytes::from(number.to_string());
    Answer::Kept(Saved { status: 201, headers: Headers::new(), body })
}

fn now() -> i64 {
    SystemClock.now().micros()
}
