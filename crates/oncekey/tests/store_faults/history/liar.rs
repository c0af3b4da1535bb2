//! A store with a planted bug.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use oncekey::core::store::Purged;
use oncekey::core::{
    Answer, Claim, Claimed, Completion, Erase, Erased, ErrorKind, Fence, Grant, KeyId, Lease,
    MemoryStore, Record, Refusal, Renewal, Sent, State, Store, StoreError, Write,
};

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Nothing.
    None,
    /// Grants a key that somebody owns.
    GrantsTwice,
    /// Grants the fence of the owner before to the next one.
    RepeatsAFence,
    /// Grants a lower fence than before.
    LowersAFence,
    /// Says that a completion is applied, and forgets it.
    ForgetsACompletion,
    /// Says that a send is marked, and forgets it.
    ForgetsASend,
    /// Says that a lease is renewed, and forgets it.
    ForgetsARenewal,
    /// Says that a release is applied, and forgets it.
    ForgetsARelease,
    /// Says that a key is granted, and forgets it.
    ForgetsAClaim,
    /// Lets whoever is fenced off complete the record of somebody else, and says that it did not.
    AppliesAFencedWrite,
    /// Says to whoever is fenced off that the write is applied.
    AcceptsAFencedWrite,
    /// Completes, and says that nothing has changed.
    DeniesACompletion,
    /// Claims, and says that nothing has changed.
    DeniesAClaim,
    /// Shows another answer than the recorded one.
    ChangesAnAnswer,
    /// Shows a record as it was some time ago.
    ShowsThePast,
    /// Takes over before the lease has lapsed.
    TakesOverEarly,
}

/// A memory store that has the bug now and then.
#[derive(Debug)]
pub(crate) struct Liar {
    bug: Bug,
    store: MemoryStore,
    turns: AtomicU64,
    /// The newest fence of each key.
    fences: Mutex<HashMap<KeyId, Fence>>,
    /// What was read of each key long ago.
    past: Mutex<HashMap<KeyId, Record>>,
}

/// One of so many occasions is taken: rare enough that everything else goes on as usual.
const OCCASIONS: u64 = 12;

impl Bug {
    pub(crate) const ALL: [Self; 15] = [
        Self::GrantsTwice,
        Self::RepeatsAFence,
        Self::LowersAFence,
        Self::ForgetsACompletion,
        Self::ForgetsASend,
        Self::ForgetsARenewal,
        Self::ForgetsARelease,
        Self::ForgetsAClaim,
        Self::AppliesAFencedWrite,
        Self::AcceptsAFencedWrite,
        Self::DeniesACompletion,
        Self::DeniesAClaim,
        Self::ChangesAnAnswer,
        Self::ShowsThePast,
        Self::TakesOverEarly,
    ];
}

impl Liar {
    pub(crate) fn new(bug: Bug, store: MemoryStore) -> Self {
        let (fences, past) = (Mutex::default(), Mutex::default());
        Self { bug, store, turns: AtomicU64::new(0), fences, past }
    }

    /// Whether this is an occasion for this bug, and one that is taken.
    fn lies(&self, bug: Bug) -> bool {
        self.bug == bug && self.turns.fetch_add(1, Ordering::Relaxed) % OCCASIONS == OCCASIONS / 2
    }

    async fn tell(&self, told: Write) -> Write {
        // A real store takes a moment, in which others come by.
        tokio::task::yield_now().await;
        if told == Write::Fenced && self.lies(Bug::AcceptsAFencedWrite) {
            return Write::Applied;
        }
        told
    }

    /// Tells of a grant as the bug has it.
    fn granted(&self, mut lease: Lease, grant: Grant) -> Lease {
        let mut fences = self.fences.lock().expect("nobody panics here");
        let before = fences.insert(lease.id, lease.fence);
        let Some(before) = before.filter(|_| grant != Grant::Again) else { return lease };
        let number = before.number();
        if self.lies(Bug::RepeatsAFence) {
            lease.fence = before;
        } else if self.lies(Bug::LowersAFence) {
            lease.fence = Fence::from_number(number - 1).expect("it is far from zero");
        }
        lease
    }
}

fn unavailable() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "nothing has changed")
}

#[async_trait]
impl Store for Liar {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        if self.lies(Bug::TakesOverEarly)
            && let Some(record) = self.store.get(&claim.id).await?
            && matches!(record.state, State::Running { sent: Sent::No, .. })
        {
            // As if the lease had never been.
            let _ = self.store.release(&record.lease()).await?;
        }
        let claimed = self.store.claim(claim).await?;
        tokio::task::yield_now().await;
        match claimed {
            Claimed::Won { .. } if self.lies(Bug::DeniesAClaim) => Err(unavailable()),
            Claimed::Won { lease, grant: Grant::Fresh, earlier }
                if self.lies(Bug::ForgetsAClaim) =>
            {
                let _ = self.store.release(&lease).await?;
                Ok(Claimed::Won { lease, grant: Grant::Fresh, earlier })
            }
            Claimed::Won { lease, grant, earlier } => {
                let lease = self.granted(lease, grant);
                Ok(Claimed::Won { lease, grant, earlier })
            }
            Claimed::Lost { refusal: Refusal::InProgress(until), record, .. }
                if self.lies(Bug::GrantsTwice) =>
            {
                let fence = Fence::next(Some(record.fence), until.before(claim.lease));
                let until = until.after(Duration::from_millis(1));
                let lease = Lease { id: claim.id, fence, owner: claim.owner, until };
                Ok(Claimed::Won { lease, grant: Grant::TakenOver, earlier: Sent::No })
            }
            lost @ Claimed::Lost { .. } => Ok(lost),
        }
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        if self.lies(Bug::ForgetsARenewal) {
            let held = |lease: &Lease| Renewal::Until(lease.until.after(span));
            return Ok(leases.iter().map(held).collect());
        }
        self.store.renew(leases, span).await
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        if self.lies(Bug::ForgetsASend) {
            return Ok(Write::Applied);
        }
        let told = self.store.send(lease).await?;
        Ok(self.tell(told).await)
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        if self.lies(Bug::ForgetsACompletion) {
            return Ok(Write::Applied);
        }
        let told = self.store.complete(lease, completion).await?;
        if told == Write::Applied && self.lies(Bug::DeniesACompletion) {
            return Err(unavailable());
        }
        // Every time: there are few leases that somebody else's attempt has replaced.
        if told == Write::Fenced
            && self.bug == Bug::AppliesAFencedWrite
            && let Some(record) = self.store.get(&lease.id).await?
        {
            let _ = self.store.complete(&record.lease(), completion).await?;
        }
        Ok(self.tell(told).await)
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        if self.lies(Bug::ForgetsARelease) {
            return Ok(Write::Applied);
        }
        let told = self.store.release(lease).await?;
        Ok(self.tell(told).await)
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        let told = self.store.unknown(lease).await?;
        Ok(self.tell(told).await)
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        let mut found = self.store.get(id).await?;
        if let Some(record) = &mut found {
            let past = self.past.lock().expect("nobody panics here").insert(*id, record.clone());
            if let Some(past) = past.filter(|_| self.lies(Bug::ShowsThePast)) {
                return Ok(Some(past));
            }
            if let State::Done { answer: Answer::Kept(saved), .. } = &mut record.state
                && self.lies(Bug::ChangesAnAnswer)
            {
                saved.body = Bytes::from_static(b"something else");
            }
        }
        Ok(found)
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        self.store.purge(limit).await
    }
}

#[async_trait]
impl Erase for Liar {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        self.store.erase(id).await
    }
}
