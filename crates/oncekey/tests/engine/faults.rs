//! A store that fails on command, around the reference store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncekey::core::store::Purged;
use oncekey::core::{
    Claim, Claimed, Completion, ErrorKind, KeyId, Lease, MemoryStore, Record, Renewal, Store,
    StoreError, Write,
};

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing: it goes through.
    None,
    /// It is refused, and nothing changed.
    Refused(ErrorKind),
    /// It takes effect, and its answer is lost.
    AnswerLost,
    /// Of a claim: everybody gives up on it, and so long afterwards it takes effect.
    Lands(Duration),
    /// It goes through, a second later.
    Late,
    /// It takes no effect, and no answer ever comes.
    Hangs,
    /// It takes no effect, and the store panics.
    Panics,
    /// Of a renewal: nothing is known about these leases, whatever became of others.
    Unreached,
}

/// Fails the next calls of each kind as it was told; once told "from now on", it fails all.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: Arc<MemoryStore>,
    plan: Mutex<VecDeque<(&'static str, Fault)>>,
    down: Mutex<Option<Fault>>,
    unwritable: Mutex<Vec<KeyId>>,
    pub(crate) calls: Mutex<Vec<&'static str>>,
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<MemoryStore>) -> Self {
        let (plan, down, calls) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { inner, plan, down, unwritable: Mutex::default(), calls }
    }

    /// The next call of this kind fails like this.
    pub(crate) fn fail_next(&self, operation: &'static str, fault: Fault) {
        self.plan.lock().unwrap().push_back((operation, fault));
    }

    /// Every call fails like this, or none any more.
    pub(crate) fn fail_all(&self, fault: Option<Fault>) {
        *self.down.lock().unwrap() = fault;
    }

    /// The ends of these keys are not written in time, from now on.
    pub(crate) fn never_complete(&self, ids: &[KeyId]) {
        *self.unwritable.lock().unwrap() = ids.to_vec();
    }

    pub(crate) fn count(&self, operation: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|called| **called == operation).count()
    }

    fn fault(&self, operation: &'static str) -> Fault {
        self.calls.lock().unwrap().push(operation);
        if let Some(fault) = *self.down.lock().unwrap() {
            return fault;
        }
        let mut plan = self.plan.lock().unwrap();
        match plan.front() {
            Some((planned, fault)) if *planned == operation => {
                let fault = *fault;
                plan.pop_front();
                fault
            }
            Some(_) | None => Fault::None,
        }
    }
}

async fn with<T>(
    fault: Fault,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match fault {
        Fault::None => call.await,
        Fault::Refused(kind) => Err(StoreError::new(kind, "on purpose")),
        Fault::AnswerLost => {
            drop(call.await);
            Err(StoreError::new(ErrorKind::Ambiguous, "on purpose"))
        }
        Fault::Late => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            call.await
        }
        Fault::Hangs => std::future::pending().await,
        Fault::Panics => panic!("on purpose"),
        Fault::Unreached => unreachable!("only renewals say so"),
        Fault::Lands(_) => unreachable!("only claims do so"),
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let fault = self.fault("claim");
        if let Fault::Lands(after) = fault {
            let (inner, claim) = (Arc::clone(&self.inner), claim.clone());
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                drop(inner.claim(&claim).await);
            });
            return Err(StoreError::new(ErrorKind::Ambiguous, "on purpose"));
        }
        with(fault, self.inner.claim(claim)).await
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        let fault = self.fault("renew");
        if fault == Fault::Unreached {
            return Ok(vec![Renewal::Failed; leases.len()]);
        }
        with(fault, self.inner.renew(leases, span)).await
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        with(self.fault("send"), self.inner.send(lease)).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        let fault = match self.unwritable.lock().unwrap().contains(&lease.id) {
            true => Fault::Refused(ErrorKind::Ambiguous),
            false => self.fault("complete"),
        };
        with(fault, self.inner.complete(lease, completion)).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        with(self.fault("release"), self.inner.release(lease)).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        with(self.fault("unknown"), self.inner.unknown(lease)).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        with(self.fault("get"), self.inner.get(id)).await
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        with(self.fault("purge"), self.inner.purge(limit)).await
    }
}
