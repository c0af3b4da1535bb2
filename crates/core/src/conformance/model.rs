//! A store and the decision tables, step by step, through random histories.
//!
//! The cases name promises one by one; this looks for what nobody thought of. Every operation is
//! done to the store and to a model that consists of [`decide`], [`judge`] and a map, and every
//! answer and every record is compared after every step.
//!
//! Fences are the store's own: the model takes each over and checks that it is higher than every
//! earlier one of its key. Times are compared to the microsecond if the rig has a
//! [`clock`](Rig::clock), else only the decisions that follow from them are. Without a clock the
//! history leaves [`Op::StepBack`] out, because a rig that moves stored times instead of a clock
//! cannot put a fence ahead of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub use super::history::{Ended, Held, Op};
use super::history::{UNIT, claim, completion, id, owner};
use super::rig::Rig;
use super::scene::Probe;
use crate::clock::{Clock, Timestamp};
use crate::decide::{Act, Decision, Grant, Judgement, Refusal, Standing, decide, judge};
use crate::erase::{Erase, Erased, blank};
use crate::key_id::KeyId;
use crate::record::{Fence, Lease, Record, Sent, State};
use crate::saved::{Answer, NotKept, Tombstone};
use crate::store::{Claim, Claimed, Completion, Purged, Renewal, Store, Times, Write};

/// Does every operation to the store and to the model, and compares.
///
/// # Panics
/// If an answer or a record differs from what the decision tables say.
pub async fn agrees_with_the_model(rig: &impl Rig, history: &[Op]) {
    let mut run = Run::new(rig);
    for (step, op) in history.iter().enumerate() {
        run = run.step(rig, op, &format!("step {step}, {op:?}")).await;
    }
}

/// Does the same, and has somebody erase records all the time.
///
/// # Panics
/// If an answer or a record differs from what the decision tables and [`blank`] say.
pub async fn agrees_while_erasing(rig: &impl Rig<Store: Erase>, history: &[Op]) {
    let mut run = Run::new(rig);
    for (step, op) in history.iter().enumerate() {
        run = run.step(rig, op, &format!("step {step}, {op:?}")).await;
        // Every fourth step, each key in turn: often enough to meet every state, rarely enough
        // that there is something to erase.
        if step % 4 == 3 {
            let key = [0, 1, 2][step / 4 % 3];
            run.erase(key, &format!("erasing after step {step}")).await;
        }
    }
}

/// What nobody thought of: through a long random history the store says and shows what the
/// decision tables do. More and shorter ones are a store's own test, which makes a rig for each.
pub async fn a_long_history_agrees_with_the_decision_tables(rig: &impl Rig) {
    agrees_with_the_model(rig, &Op::history(41, LONG)).await;
}

/// The same while somebody erases.
pub async fn a_long_history_agrees_while_somebody_erases(rig: &impl Rig<Store: Erase>) {
    agrees_while_erasing(rig, &Op::history(42, LONG)).await;
}

/// So many steps meet every operation in every state a few times. Each costs a server five round
/// trips, and a case must end within its patience on a slow one.
const LONG: usize = 200;

/// A history under way.
struct Run<S> {
    store: Probe<S>,
    clock: Option<Arc<dyn Clock>>,
    /// The model's own time, for rigs without a clock.
    now: Timestamp,
    records: HashMap<KeyId, Record>,
    /// Every lease ever granted, by key, oldest first.
    granted: HashMap<KeyId, Vec<Lease>>,
}

impl<S: Erase> Run<S> {
    async fn erase(&mut self, key: u8, at: &str) {
        let id = id(key);
        let said = self.store.store().erase(&id).await.expect("an erasure is never an error");
        let expected = match self.visible(&id) {
            Some(mut record) => {
                let said = blank(&mut record);
                self.records.insert(id, record);
                said
            }
            None => {
                self.records.remove(&id);
                Erased::Absent
            }
        };
        assert_eq!(said, expected, "{at}: what is there");
        let (found, expected) = (self.store.get(&id).await, self.visible(&id));
        assert_eq!(self.blur(found), self.blur(expected), "{at}: the record");
    }
}

impl<S: Store> Run<S> {
    fn new(rig: &impl Rig<Store = S>) -> Self {
        Self {
            store: Probe::of(rig),
            clock: rig.clock(),
            now: Timestamp::from_micros(1_000_000_000_000_000),
            records: HashMap::new(),
            granted: HashMap::new(),
        }
    }

    async fn step(mut self, rig: &impl Rig<Store = S>, op: &Op, at: &str) -> Self {
        match op {
            Op::Claim { .. } => self.claim(&claim(op), at).await,
            Op::Renew(held) => self.renew(held, at).await,
            Op::Send(held) => self.write(*held, Act::Send, None, at).await,
            Op::Complete(held, ended) => {
                let completion = completion(*ended);
                let act = Act::Complete(completion.answer.outcome());
                self.write(*held, act, Some(&completion), at).await;
                if self.clock.is_none() {
                    // A fence may be a little ahead of a clock that stands still, and completion
                    // counts from it. A little time makes that the past, as it does on a server.
                    rig.advance(Duration::from_secs(1)).await;
                }
            }
            Op::Release(held) => self.write(*held, Act::Release, None, at).await,
            Op::Unknown(held) => self.write(*held, Act::Unknown, None, at).await,
            Op::Purge(limit) => self.purge(usize::from(*limit), at).await,
            Op::Advance(units) => {
                rig.advance(UNIT * u32::from(*units)).await;
                self.now = self.now.after(UNIT * u32::from(*units));
            }
            Op::StepBack(units) => {
                if self.clock.is_some() {
                    rig.step_back(UNIT * u32::from(*units)).await;
                }
            }
            Op::Reopen => self.store = self.store.reopened(rig).await,
        }
        for key in 0..3 {
            let found = self.store.get(&id(key)).await;
            let expected = self.visible(&id(key));
            assert_eq!(self.blur(found), self.blur(expected), "{at}: the record of key {key}");
        }
        self
    }

    async fn claim(&mut self, claim: &Claim, at: &str) {
        let now = self.now();
        let found = self.records.get(&claim.id).cloned();
        let expected = decide(found.as_ref(), claim, now);
        match (self.store.claim(claim).await, expected, found) {
            (
                Claimed::Lost { refusal, record, now: told },
                Decision::Refuse(reason),
                Some(mut found),
            ) => {
                let mut record = *record;
                if self.clock.is_some() {
                    assert_eq!(refusal, reason, "{at}: the refusal");
                    assert_eq!(told, now, "{at}: the store's clock");
                } else {
                    let (told, expected) = (Decision::Refuse(refusal), Decision::Refuse(reason));
                    assert_eq!(told.label(), expected.label(), "{at}: the refusal");
                }
                if !matches!(reason, Refusal::Replay) {
                    // A store may leave the body out where it is not replayed.
                    without_answer(&mut record);
                    without_answer(&mut found);
                }
                let (record, found) = (self.blur(Some(record)), self.blur(Some(found)));
                assert_eq!(record, found, "{at}: the record that stands in the way");
            }
            (Claimed::Won { lease, grant, earlier }, Decision::Run(Grant::Again), Some(found)) => {
                assert_eq!(grant, Grant::Again, "{at}: the owner is recognised");
                assert_eq!(earlier, grant.earlier(Some(&found)), "{at}: what may have happened");
                assert_eq!(lease.fence, found.fence, "{at}: the owner keeps its fence");
                self.extend(&claim.id, now.after(claim.lease));
            }
            (Claimed::Won { lease, grant, earlier }, Decision::Run(expected), found) => {
                let may_have_happened = expected.earlier(found.as_ref());
                assert_eq!(earlier, may_have_happened, "{at}: what may have happened");
                // Whether a forgotten record was still there is the store's business.
                let anew = expected == Grant::Reused && grant == Grant::Fresh;
                assert!(grant == expected || anew, "{at}: {grant:?} instead of {expected:?}");
                self.grant(claim, lease, expected, at);
            }
            (claimed, expected, _) => panic!("{at}: {claimed:?} instead of {expected:?}"),
        }
    }

    fn grant(&mut self, claim: &Claim, lease: Lease, grant: Grant, at: &str) {
        let now = self.now();
        let earlier = self.granted.entry(claim.id).or_default();
        let highest = earlier.iter().map(|lease| lease.fence).max();
        assert!(Some(lease.fence) > highest, "{at}: fences of a key rise for ever");
        earlier.push(lease);
        let until = now.after(claim.lease);
        if self.clock.is_some() {
            assert_eq!(lease.until, until, "{at}: the end of the lease");
        }
        let found = self.records.get(&claim.id);
        let record = Record {
            id: claim.id,
            fence: lease.fence,
            owner: claim.owner,
            fingerprint: claim.fingerprint,
            class: claim.class,
            created: grant.created(found, now),
            origin: claim.origin.clone(),
            places: claim.places.clone(),
            state: State::Running { until, sent: claim.sent.or(grant.earlier(found)) },
        };
        self.records.insert(claim.id, record);
    }

    async fn renew(&mut self, held: &[Held], at: &str) {
        let leases: Vec<Lease> = held.iter().map(|held| self.lease(*held)).collect();
        let renewals = self.store.renew(&leases, UNIT * 2).await;
        assert_eq!(renewals.len(), leases.len(), "{at}: one answer for each lease");
        let until = self.now().after(UNIT * 2);
        for (lease, renewal) in leases.iter().zip(renewals) {
            let may = self.judge(lease, Act::Renew) == Judgement::Apply;
            match renewal {
                Renewal::Until(told) => {
                    assert!(may, "{at}: a lease that is lost is not renewed");
                    assert!(self.clock.is_none() || told == until, "{at}: the end of the lease");
                    self.extend(&lease.id, until);
                }
                Renewal::Lost => assert!(!may, "{at}: a lease that is held is renewed"),
                Renewal::Failed => panic!("{at}: nothing stood in the way of a renewal"),
            }
        }
    }

    async fn write(&mut self, held: Held, act: Act, completion: Option<&Completion>, at: &str) {
        let lease = self.lease(held);
        let write = match (act, completion) {
            (Act::Send, _) => self.store.send(&lease).await,
            (Act::Release, _) => self.store.release(&lease).await,
            (Act::Unknown, _) => self.store.unknown(&lease).await,
            (Act::Complete(_), Some(completion)) => self.store.complete(&lease, completion).await,
            (Act::Complete(_) | Act::Renew, _) => unreachable!("not written here"),
        };
        let now = self.now();
        let expected = match self.judge(&lease, act) {
            Judgement::Fenced => Write::Fenced,
            Judgement::Already => Write::Applied,
            Judgement::Apply => {
                self.apply(&lease, act, completion, now);
                Write::Applied
            }
        };
        assert_eq!(write, expected, "{at}: whether the write is applied");
    }

    fn apply(&mut self, lease: &Lease, act: Act, completion: Option<&Completion>, now: Timestamp) {
        let exact = self.clock.is_some();
        let Some(record) = self.records.get_mut(&lease.id) else { return };
        match (act, &mut record.state, completion) {
            (Act::Release, _, _) => {
                self.records.remove(&lease.id);
            }
            (Act::Send, State::Running { sent, .. }, _) => *sent = Sent::Yes,
            (Act::Unknown, state, _) => *state = State::Unknown { since: now },
            (Act::Complete(outcome), state, Some(completion)) => {
                // The model's own time has nothing to do with the clock in the store's fences.
                let fence = if exact { lease.fence } else { Fence::next(None, now) };
                let Times { at, expires, forget } = completion.times(fence, now);
                let answer = completion.answer.clone();
                *state = State::Done { at, expires, forget, outcome, answer };
            }
            (Act::Send | Act::Complete(_) | Act::Renew, _, _) => {}
        }
    }

    async fn purge(&mut self, limit: usize, at: &str) {
        let now = self.now();
        let (mut forgotten, mut strippable) = (Vec::new(), Vec::new());
        for record in self.records.values() {
            if let State::Done { expires, forget, answer, .. } = &record.state {
                if *forget <= now {
                    forgotten.push(record.id);
                } else if *expires <= now && !is_stripped(answer) {
                    strippable.push(record.id);
                }
            }
        }
        // Which of the forgotten ones a limited purge takes cannot be seen from outside, so then
        // it may take them all.
        let limit = if forgotten.is_empty() { limit } else { 1_000 };
        let purged = self.store.purge(limit).await;
        let stripped = strippable.len().min(limit);
        assert_eq!(purged, Purged { forgotten: forgotten.len(), stripped }, "{at}: what was due");
        for id in forgotten {
            self.records.remove(&id);
        }
        for id in strippable {
            let record = self.store.record(&id, at).await;
            if let (State::Done { answer: stands, .. }, Some(mine)) =
                (record.state, self.records.get_mut(&id))
                && is_stripped(&stands)
                && let State::Done { answer, .. } = &mut mine.state
            {
                let status = answer.status();
                *answer = Answer::Tombstone(Tombstone { status, reason: NotKept::Expired });
            }
        }
    }

    fn extend(&mut self, id: &KeyId, end: Timestamp) {
        if let Some(Record { state: State::Running { until, .. }, .. }) = self.records.get_mut(id) {
            *until = end;
        }
    }

    fn judge(&self, lease: &Lease, act: Act) -> Judgement {
        judge(self.records.get(&lease.id).map(Standing::from), lease, act)
    }

    fn now(&self) -> Timestamp {
        self.clock.as_ref().map_or(self.now, |clock| clock.now())
    }

    /// The lease that is meant; a forged one if there was never so old a lease.
    fn lease(&self, held: Held) -> Lease {
        let granted = self.granted.get(&id(held.key)).map_or(&[][..], Vec::as_slice);
        let lease = granted.iter().rev().nth(held.back.into()).copied();
        lease.unwrap_or_else(|| Lease {
            id: id(held.key),
            fence: granted.last().map_or(Fence::next(None, Timestamp::default()), |it| it.fence),
            // No owner of any claim.
            owner: owner(9),
            until: self.now,
        })
    }

    /// What a reader must see.
    fn visible(&self, id: &KeyId) -> Option<Record> {
        let now = self.now();
        let forgotten =
            |record: &Record| matches!(record.state, State::Done { forget, .. } if forget <= now);
        self.records.get(id).filter(|record| !forgotten(record)).cloned()
    }

    /// Without the times, unless they can be compared.
    fn blur(&self, record: Option<Record>) -> Option<Record> {
        let mut record = record?;
        if self.clock.is_some() {
            return Some(record);
        }
        let zero = Timestamp::default();
        record.created = zero;
        match &mut record.state {
            State::Running { until, .. } => *until = zero,
            State::Done { at, expires, forget, .. } => {
                (*at, *expires, *forget) = (zero, zero, zero)
            }
            State::Unknown { since } | State::Parked { since } => *since = zero,
        }
        Some(record)
    }
}

fn is_stripped(answer: &Answer) -> bool {
    matches!(answer, Answer::Tombstone(Tombstone { reason: NotKept::Expired, .. }))
}

fn without_answer(record: &mut Record) {
    if let State::Done { answer, .. } = &mut record.state {
        *answer = Answer::Tombstone(Tombstone { status: None, reason: NotKept::Erased });
    }
}
