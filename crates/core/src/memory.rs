//! The reference store: a map under a lock.
//!
//! It calls [`decide`] and [`judge`] itself, so it is the model that every other store is compared
//! with. It keeps every promise of [`Store`] except durability: what it holds ends with the
//! process. Good for tests and demonstrations, not for money.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::browse::{Browse, Count, Cursor, Filter, Listing, Page, Summary};
use crate::clock::{Clock, Timestamp};
use crate::decide::{Act, Decision, Grant, Judgement, Standing, decide, judge};
use crate::erase::{Erase, Erased, blank};
use crate::health::{Finding, Inspect, StoreHealth, Tier};
use crate::key_id::{KeyId, KeyIdHash};
use crate::record::{Fence, Lease, Record, Sent, State, StateKind, Text};
use crate::restore::{self, Lineage, Restore, Restored, supersedes};
use crate::saved::{Answer, NotKept, Tombstone};
use crate::store::{Claim, Claimed, Completion, Purged, Renewal, Store, StoreError, Times, Write};
use crate::wake::{Feed, Hub, Wake};

/// Keeps records in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    table: Mutex<Table>,
    hub: Hub,
    lineage: Lineage,
}

#[derive(Debug, Default)]
struct Table {
    /// In boxes, so that a growing map moves pointers and not records.
    records: HashMap<KeyId, Box<Record>, KeyIdHash>,
    /// When something is to be done about a finished record, soonest first, so that a purge looks at
    /// nothing else. What has become of the record meanwhile is looked at then: a date that is out of
    /// date costs less than an order in which it could be found.
    due: BinaryHeap<Reverse<(Timestamp, KeyId)>>,
    /// The highest fence ever granted, for any key: it outlives the records.
    highest: Option<Fence>,
}

impl MemoryStore {
    /// An empty store that judges time by `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        // The number tells the stores of a process apart, the time those of two processes.
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let lineage = Lineage::new(format!("memory-{}-{number}", clock.now().micros()));
        Self { clock, table: Mutex::default(), hub: Hub::default(), lineage }
    }

    /// No method leaves the table half-changed when it panics: each inserts or removes whole
    /// records. So a poisoned lock may be used on.
    ///
    /// The clock is read after this, never before: whoever waited for the lock would judge by a
    /// time that is over.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges `act` and, if it may be, lets `change` make the change. The record is looked for once.
    fn write(&self, lease: &Lease, act: Act, change: impl FnOnce(&mut Record, Timestamp)) -> Write {
        let mut table = self.table();
        let now = self.clock.now();
        let Table { records, due: dates, .. } = &mut *table;
        let mut found = records.get_mut(&lease.id);
        match judge(found.as_deref().map(|record| Standing::from(&**record)), lease, act) {
            Judgement::Apply => {
                if let Some(record) = &mut found {
                    change(record, now);
                    dates.extend(due(record).map(|moment| Reverse((moment, lease.id))));
                }
            }
            Judgement::Already => {}
            Judgement::Fenced => return Write::Fenced,
        }
        Write::Applied
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        claim.check()?;
        let mut table = self.table();
        let now = self.clock.now();
        let found = table.get(&claim.id);
        match (decide(found, claim, now), found) {
            (Decision::Refuse(refusal), Some(record)) => {
                Ok(Claimed::Lost { refusal, record: Box::new(record.clone()), now })
            }
            (Decision::Run(Grant::Again), Some(record)) => {
                let (held, earlier) = (record.lease(), Grant::Again.earlier(found));
                let lease = table.extend(held, now.after(claim.lease));
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
        let now = self.clock.now();
        let mut renewals = Vec::with_capacity(leases.len());
        for lease in leases {
            let standing = table.get(&lease.id).map(Standing::from);
            renewals.push(match judge(standing, lease, Act::Renew) {
                Judgement::Apply | Judgement::Already => {
                    Renewal::Until(table.extend(*lease, now.after(span)).until)
                }
                Judgement::Fenced => Renewal::Lost,
            });
        }
        Ok(renewals)
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        Ok(self.write(lease, Act::Send, |record, _| {
            if let State::Running { sent, .. } = &mut record.state {
                *sent = Sent::Yes;
            }
        }))
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        completion.check()?;
        let outcome = completion.answer.outcome();
        let write = self.write(lease, Act::Complete(outcome), |record, now| {
            let Times { at, expires, forget } = completion.times(lease.fence, now);
            let answer = completion.answer.clone();
            record.state = State::Done { at, expires, forget, outcome, answer };
        });
        self.hub.finished(&[lease.id]);
        Ok(write)
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        let mut table = self.table();
        let write = match judge(table.get(&lease.id).map(Standing::from), lease, Act::Release) {
            Judgement::Apply => {
                table.records.remove(&lease.id);
                Write::Applied
            }
            Judgement::Already => Write::Applied,
            Judgement::Fenced => Write::Fenced,
        };
        drop(table);
        self.hub.finished(&[lease.id]);
        Ok(write)
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        let write = self.write(lease, Act::Unknown, |record, now| {
            record.state = State::Unknown { since: now };
        });
        self.hub.finished(&[lease.id]);
        Ok(write)
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        let table = self.table();
        let now = self.clock.now();
        Ok(table.get(id).filter(|record| !is_forgotten(record, now)).cloned())
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        let mut table = self.table();
        let now = self.clock.now();
        let mut purged = Purged::default();
        while purged.total() < limit
            && let Some(&Reverse((moment, id))) = table.due.peek()
            && moment <= now
        {
            table.due.pop();
            if table.get(&id).and_then(due) != Some(moment) {
                continue;
            }
            if table.get(&id).is_some_and(|record| is_forgotten(record, now)) {
                table.records.remove(&id);
                purged.forgotten += 1;
            } else {
                table.strip(id);
                purged.stripped += 1;
            }
        }
        Ok(purged)
    }
}

#[async_trait]
impl Browse for MemoryStore {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        let table = self.table();
        let now = self.clock.now();
        // Sorting everything for every page would be no way to run a database; this is none.
        let mut matching: Vec<&Record> = table
            .all()
            .filter(|record| filter.matches(record, now) && !is_forgotten(record, now))
            .filter(|record| page.after.as_ref().is_none_or(|after| place(record) > after.0))
            .collect();
        matching.sort_by_cached_key(|record| place(record));
        let limit = page.bounded_limit();
        let next = match matching.get(..limit) {
            Some([.., last]) if matching.len() > limit => Some(Cursor(place(last))),
            Some(_) | None => None,
        };
        let summaries = matching.into_iter().take(limit).map(Summary::from).collect();
        Ok(Listing { summaries, next, now })
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        let table = self.table();
        let now = self.clock.now();
        let counts = |record: &&Record| filter.matches(record, now) && !is_forgotten(record, now);
        match table.all().filter(counts).take(cap.saturating_add(1)).count() {
            count if count > cap => Ok(Count::AtLeast(cap)),
            count => Ok(Count::Exactly(count)),
        }
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        let table = self.table();
        let now = self.clock.now();
        let wanted = |record: &&Record| record.origin.key == *key && !is_forgotten(record, now);
        Ok(table.all().filter(wanted).take(limit).map(Summary::from).collect())
    }
}

#[async_trait]
impl Erase for MemoryStore {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        let mut table = self.table();
        let now = self.clock.now();
        match table.get_mut(id) {
            Some(record) if is_forgotten(record, now) => {
                table.records.remove(id);
                Ok(Erased::Absent)
            }
            // When the purge has something to do stays the same: an erased answer expires, too.
            Some(record) => Ok(blank(record)),
            None => Ok(Erased::Absent),
        }
    }
}

#[async_trait]
impl Restore for MemoryStore {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        restore::check(record)?;
        {
            let mut table = self.table();
            if !supersedes(record, table.get(&record.id).map(Standing::from)) {
                return Ok(Restored::Kept);
            }
            table.replace(record.clone());
        }
        if record.state.kind() != StateKind::Running {
            self.hub.finished(&[record.id]);
        }
        Ok(Restored::Written)
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        Ok(self.lineage.clone())
    }
}

#[async_trait]
impl Inspect for MemoryStore {
    async fn inspect(&self) -> Result<StoreHealth, StoreError> {
        let text = "records are in the memory of this process and end with it: for tests and demos";
        Ok(StoreHealth {
            name: "memory".to_owned(),
            tier: Tier::Volatile,
            findings: vec![Finding::degraded("durability", text)],
            skew: None,
        })
    }
}

#[async_trait]
impl Wake for MemoryStore {
    async fn watch(&self) -> Result<Box<dyn Feed>, StoreError> {
        Ok(self.hub.watch())
    }
}

impl Table {
    fn get(&self, id: &KeyId) -> Option<&Record> {
        self.records.get(id).map(Box::as_ref)
    }

    fn get_mut(&mut self, id: &KeyId) -> Option<&mut Record> {
        self.records.get_mut(id).map(Box::as_mut)
    }

    fn all(&self) -> impl Iterator<Item = &Record> {
        self.records.values().map(Box::as_ref)
    }

    /// Writes a new attempt over whatever stands there.
    fn grant(&mut self, claim: &Claim, created: Timestamp, earlier: Sent, now: Timestamp) -> Lease {
        let fence = Fence::next(self.highest, now);
        self.highest = Some(fence);
        let lease =
            Lease { id: claim.id, fence, owner: claim.owner, until: now.after(claim.lease) };
        let record = Record {
            id: claim.id,
            fence,
            owner: claim.owner,
            fingerprint: claim.fingerprint,
            class: claim.class,
            created,
            origin: claim.origin.clone(),
            places: claim.places.clone(),
            state: State::Running { until: lease.until, sent: claim.sent.or(earlier) },
        };
        self.records.insert(claim.id, Box::new(record));
        lease
    }

    /// Writes a record as it is over whatever stands there.
    fn replace(&mut self, record: Record) {
        self.highest = self.highest.max(Some(record.fence));
        self.due.extend(due(&record).map(|moment| Reverse((moment, record.id))));
        self.records.insert(record.id, Box::new(record));
    }

    fn extend(&mut self, lease: Lease, end: Timestamp) -> Lease {
        if let Some(Record { state: State::Running { until, .. }, .. }) = self.get_mut(&lease.id) {
            *until = end;
        }
        Lease { until: end, ..lease }
    }

    /// Takes the answer of an expired record away and leaves the fact that it ran.
    fn strip(&mut self, id: KeyId) {
        let Some(record) = self.get_mut(&id) else { return };
        if let State::Done { answer, .. } = &mut record.state {
            let status = answer.status();
            *answer = Answer::Tombstone(Tombstone { status, reason: NotKept::Expired });
        }
        let next = due(record).map(|moment| Reverse((moment, id)));
        self.due.extend(next);
    }
}

/// When a purge has something to do: at expiry if there is an answer to strip and a time to
/// linger, else when the record may be forgotten.
fn due(record: &Record) -> Option<Timestamp> {
    match &record.state {
        State::Done { expires, answer, .. } if !is_stripped(answer) => Some(*expires),
        State::Done { forget, .. } => Some(*forget),
        State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => None,
    }
}

fn is_stripped(answer: &Answer) -> bool {
    matches!(answer, Answer::Tombstone(Tombstone { reason: NotKept::Expired, .. }))
}

fn is_forgotten(record: &Record, now: Timestamp) -> bool {
    matches!(record.state, State::Done { forget, .. } if forget <= now)
}

/// Where a record stands in a list: newest first, then by id.
fn place(record: &Record) -> Vec<u8> {
    let newest_first = i64::MAX.saturating_sub(record.created.micros());
    let mut place = newest_first.to_be_bytes().to_vec();
    place.extend_from_slice(record.id.as_bytes());
    place
}
