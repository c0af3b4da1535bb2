//! A store of which only the URL was known.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncekey_core::browse::{Browse, Count, Filter, Listing, Page, Summary};
use oncekey_core::record::Text;
use oncekey_core::store::Purged;
use oncekey_core::{
    Claim, Claimed, Completion, Erase, Erased, Inspect, KeyId, Lease, Lineage, Record, Renewal,
    Restore, Restored, Store, StoreError, StoreHealth, Wake, Write,
};

/// A store that [`open`](super::open) has opened.
///
/// It can do what every store of ours can: it is a [`Store`] that can be browsed, that erases, that
/// says how it is set up, and that takes records from elsewhere. What only some can is asked for:
/// see [`Opened::wake`]. Cheap to clone; all clones are one store.
#[derive(Clone, Debug)]
pub struct Opened {
    store: Arc<dyn Whole>,
    wake: Option<Arc<dyn Wake>>,
    label: &'static str,
}

/// What every store of ours can do.
trait Whole: Browse + Erase + Inspect + Restore {}
impl<S: Browse + Erase + Inspect + Restore> Whole for S {}

impl Opened {
    /// A store that does not wake those who wait: they ask again and again.
    pub fn silent<S>(label: &'static str, store: S) -> Self
    where
        S: Browse + Erase + Inspect + Restore,
    {
        Self { store: Arc::new(store), wake: None, label }
    }

    /// A store that also wakes those who wait.
    pub fn waking<S>(label: &'static str, store: S) -> Self
    where
        S: Browse + Erase + Inspect + Restore + Wake,
    {
        let store = Arc::new(store);
        let wake: Arc<dyn Wake> = Arc::clone(&store) as _;
        Self { store, wake: Some(wake), label }
    }

    /// The word for its kind in metrics: `sqlite`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        self.label
    }

    /// Tells when keys are finished, if the store can.
    #[must_use]
    pub fn wake(&self) -> Option<Arc<dyn Wake>> {
        self.wake.clone()
    }
}

#[async_trait]
impl Store for Opened {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.store.claim(claim).await
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        self.store.renew(leases, span).await
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.store.send(lease).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        self.store.complete(lease, completion).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.store.release(lease).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.store.unknown(lease).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        self.store.get(id).await
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        self.store.purge(limit).await
    }
}

#[async_trait]
impl Browse for Opened {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        self.store.list(filter, page).await
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        self.store.count(filter, cap).await
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        self.store.find(key, limit).await
    }
}

#[async_trait]
impl Erase for Opened {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        self.store.erase(id).await
    }
}

#[async_trait]
impl Restore for Opened {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        self.store.restore(record).await
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        self.store.lineage().await
    }

    async fn adopt(&self) -> Result<(), StoreError> {
        self.store.adopt().await
    }
}

#[async_trait]
impl Inspect for Opened {
    async fn inspect(&self) -> Result<StoreHealth, StoreError> {
        self.store.inspect().await
    }
}
