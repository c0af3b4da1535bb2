//! The store of `docs/how-to/write-a-store.md`: the page shows pieces of this file, and here they
//! are certified by the suite. `documents.rs` checks that the page and this file agree.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use oncekey_core::conformance::Rig;
use oncekey_core::decide::{Act, Decision, Grant, Judgement, Standing, decide, judge};
use oncekey_core::saved::{NotKept, Tombstone};
use oncekey_core::store::{Purged, Times};
use oncekey_core::{
    Answer, Claim, Claimed, Clock, Completion, Fence, KeyId, Lease, ManualClock, Record, Renewal,
    Sent, State, Store, StoreError, Timestamp, Write,
};

/// Keeps records in a map under a lock.
#[derive(Debug)]
struct SmallStore {
    clock: Arc<dyn Clock>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    records: HashMap<KeyId, Record>,
    /// The highest fence ever granted. It outlives the records.
    highest: Option<Fence>,
}

impl SmallStore {
    /// Where this store takes a lock, a database begins a transaction.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Every write after the claim: find, judge, change.
    fn write(&mut self, lease: &Lease, act: Act, change: impl FnOnce(&mut Self)) -> Write {
        let standing = self.records.get(&lease.id).map(Standing::from);
        match judge(standing, lease, act) {
            Judgement::Apply => {
                change(self);
                Write::Applied
            }
            Judgement::Already => Write::Applied,
            Judgement::Fenced => Write::Fenced,
        }
    }

    /// Writes a new attempt over whatever stands there.
    fn grant(&mut self, claim: &Claim, created: Timestamp, earlier: Sent, now: Timestamp) -> Lease {
        let fence = Fence::next(self.highest, now);
        self.highest = Some(fence);
        let record = Record {
            id: claim.id,
            fence,
            owner: claim.owner,
            fingerprint: claim.fingerprint,
            class: claim.class,
            created,
            origin: claim.origin.clone(),
            places: claim.places.clone(),
            state: State::Running { until: now.after(claim.lease), sent: claim.sent.or(earlier) },
        };
        let lease = record.lease();
        self.records.insert(claim.id, record);
        lease
    }

    fn set_state(&mut self, id: &KeyId, state: State) {
        if let Some(record) = self.records.get_mut(id) {
            record.state = state;
        }
    }

    fn extend(&mut self, lease: &Lease, end: Timestamp) {
        if let Some(Record { state: State::Running { until, .. }, .. }) =
            self.records.get_mut(&lease.id)
        {
            *until = end;
        }
    }
}

#[async_trait]
impl Store for SmallStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        claim.check()?;
        let mut table = self.table();
        let now = self.clock.now();
        let found = table.records.get(&claim.id);
        match (decide(found, claim, now), found) {
            (Decision::Refuse(refusal), Some(record)) => {
                Ok(Claimed::Lost { refusal, record: Box::new(record.clone()), now })
            }
            (Decision::Run(Grant::Again), Some(record)) => {
                let earlier = Grant::Again.earlier(found);
                let lease = Lease { until: now.after(claim.lease), ..record.lease() };
                table.extend(&lease, lease.until);
                Ok(Claimed::Won { lease, grant: Grant::Again, earlier })
            }
            (Decision::Run(grant), found) => {
                let (created, earlier) = (grant.created(found, now), grant.earlier(found));
                let lease = table.grant(claim, created, earlier, now);
                Ok(Claimed::Won { lease, grant, earlier })
            }
            (Decision::Refuse(_), None) => unreachable!("a refusal is about a record"),
        }
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        let mut table = self.table();
        let until = self.clock.now().after(span);
        let renewed = |lease: &Lease| match table
            .write(lease, Act::Renew, |table| table.extend(lease, until))
        {
            Write::Applied => Renewal::Until(until),
            Write::Fenced => Renewal::Lost,
        };
        Ok(leases.iter().map(renewed).collect())
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        Ok(self.table().write(lease, Act::Send, |table| {
            if let Some(Record { state: State::Running { sent, .. }, .. }) =
                table.records.get_mut(&lease.id)
            {
                *sent = Sent::Yes;
            }
        }))
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        completion.check()?;
        let answer = completion.answer.clone();
        let outcome = answer.outcome();
        let mut table = self.table();
        let Times { at, expires, forget } = completion.times(lease.fence, self.clock.now());
        Ok(table.write(lease, Act::Complete(outcome), |table| {
            table.set_state(&lease.id, State::Done { at, expires, forget, outcome, answer });
        }))
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        let forget = |table: &mut Table| drop(table.records.remove(&lease.id));
        Ok(self.table().write(lease, Act::Release, forget))
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        let mut table = self.table();
        let since = self.clock.now();
        Ok(table.write(lease, Act::Unknown, |table| {
            table.set_state(&lease.id, State::Unknown { since });
        }))
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        let now = self.clock.now();
        let found = self.table().records.get(id).cloned();
        Ok(found.filter(|record| !is_forgotten(record, now)))
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        let now = self.clock.now();
        let mut purged = Purged::default();
        // Looks at every record. A real store has an index on the time of the next change.
        self.table().records.retain(|_, record| {
            if purged.total() == limit {
                return true;
            }
            if is_forgotten(record, now) {
                purged.forgotten += 1;
                return false;
            }
            if strip(record, now) {
                purged.stripped += 1;
            }
            true
        });
        Ok(purged)
    }
}

fn is_forgotten(record: &Record, now: Timestamp) -> bool {
    matches!(record.state, State::Done { forget, .. } if forget <= now)
}

/// Takes the answer of an expired record away, if it is still there. The fact that it ran stays.
fn strip(record: &mut Record, now: Timestamp) -> bool {
    let State::Done { expires, answer, .. } = &mut record.state else { return false };
    let stripped = Tombstone { status: answer.status(), reason: NotKept::Expired };
    if *expires > now || *answer == Answer::Tombstone(stripped) {
        return false;
    }
    *answer = Answer::Tombstone(stripped);
    true
}

struct SmallRig {
    clock: Arc<ManualClock>,
    store: Arc<SmallStore>,
}

impl SmallRig {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_000_000)));
        let store = SmallStore { clock: clock.clone(), table: Mutex::default() };
        Self { clock, store: Arc::new(store) }
    }
}

impl Rig for SmallRig {
    type Store = SmallStore;

    fn store(&self) -> Arc<SmallStore> {
        Arc::clone(&self.store)
    }

    /// A durable store closes everything here and opens it again.
    async fn reopen(&self) -> Arc<SmallStore> {
        self.store()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn step_back(&self, by: Duration) {
        self.clock.step_back(by);
    }

    fn clock(&self) -> Option<Arc<dyn Clock>> {
        Some(self.clock.clone())
    }
}

oncekey_core::conformance!(async || SmallRig::new());
oncekey_core::clock_conformance!(async || SmallRig::new());
