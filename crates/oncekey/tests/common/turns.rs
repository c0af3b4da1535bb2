//! Several handles on one store that take turns, as several processes or machines would.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use oncekey::core::browse::{Count, Filter, Listing, Page, Summary};
use oncekey::core::record::Text;
use oncekey::core::store::Purged;
use oncekey::core::wake::Feed;
use oncekey::core::{
    Browse, Claim, Claimed, Completion, Erase, Erased, KeyId, Lease, Lineage, Record, Renewal,
    Restore, Restored, Store, StoreError, Wake, Write,
};

/// Every call goes to the next handle.
#[derive(Debug)]
pub(crate) struct InTurns<S: ?Sized> {
    handles: Vec<Arc<S>>,
    turn: AtomicUsize,
}

impl<S: ?Sized> InTurns<S> {
    pub(crate) fn new(handles: impl IntoIterator<Item = Arc<S>>) -> Self {
        Self { handles: handles.into_iter().collect(), turn: AtomicUsize::new(0) }
    }

    fn next(&self) -> &S {
        &self.handles[self.turn.fetch_add(1, Ordering::Relaxed) % self.handles.len()]
    }
}

#[async_trait]
impl<S: Store + ?Sized> Store for InTurns<S> {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.next().claim(claim).await
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        self.next().renew(leases, span).await
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.next().send(lease).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        self.next().complete(lease, completion).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.next().release(lease).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.next().unknown(lease).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        self.next().get(id).await
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        self.next().purge(limit).await
    }
}

#[async_trait]
impl<S: Browse + ?Sized> Browse for InTurns<S> {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        self.next().list(filter, page).await
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        self.next().count(filter, cap).await
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        self.next().find(key, limit).await
    }
}

#[async_trait]
impl<S: Erase + ?Sized> Erase for InTurns<S> {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        self.next().erase(id).await
    }
}

#[async_trait]
impl<S: Restore + ?Sized> Restore for InTurns<S> {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        self.next().restore(record).await
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        self.next().lineage().await
    }

    async fn adopt(&self) -> Result<(), StoreError> {
        for handle in &self.handles {
            handle.adopt().await?;
        }
        Ok(())
    }
}

/// The first handle watches, and hears what all of them finish.
#[async_trait]
impl<S: Wake + ?Sized> Wake for InTurns<S> {
    async fn watch(&self) -> Result<Box<dyn Feed>, StoreError> {
        self.handles[0].watch().await
    }
}
