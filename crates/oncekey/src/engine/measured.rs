//! A store whose every call is measured, and ends.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use metrics::{Histogram, SharedString, counter, histogram};
use oncekey_core::store::Purged;
use oncekey_core::{
    Claim, Claimed, Completion, ErrorKind, KeyId, Lease, Record, Renewal, Store, StoreError, Write,
};

use super::within::within;
use crate::clock::Uptime;

/// Measures the calls to a store, counts its errors, and gives up a call that never ends.
///
/// A connection that fell silent would otherwise keep everything that waits for it: the caller,
/// every duplicate behind it, a claim's place at the gate, or all renewals of the node.
///
/// The handles are made once: with a recorder that was installed before the engine was built, a
/// call costs two looks at the clock and an atomic or two.
///
/// What every new key needs, [`claimed`](Self::claimed), [`sent`](Self::sent) and
/// [`completed`](Self::completed), is there twice: these take and give the times that their callers
/// need anyway, and are no larger than the store's own future. The rest is good enough as a [`Store`].
#[derive(Debug)]
pub(super) struct MeasuredStore {
    inner: Arc<dyn Store>,
    uptime: Arc<dyn Uptime>,
    label: SharedString,
    claim: Took,
    renew: Took,
    send: Took,
    complete: Took,
    release: Took,
    unknown: Took,
    get: Took,
    purge: Took,
}

/// What a store said, and by when.
#[derive(Debug)]
pub(super) struct Timed<T> {
    pub(super) result: Result<T, StoreError>,
    /// When the answer was there, by uptime.
    pub(super) answered: Duration,
}

/// How long one kind of call took, by how it went.
struct Took {
    operation: &'static str,
    ok: Histogram,
    error: Histogram,
}

/// What takes longer is given up. Twice as long as SQLite waits for another process, a third of a
/// default lease, and longer than a client waits for a claim.
const LONGEST_CALL: Duration = Duration::from_secs(10);

impl MeasuredStore {
    pub(super) fn new(inner: Arc<dyn Store>, uptime: Arc<dyn Uptime>, label: SharedString) -> Self {
        let took = |operation| Took::new(&label, operation);
        Self {
            claim: took("claim"),
            renew: took("renew"),
            send: took("send"),
            complete: took("complete"),
            release: took("release"),
            unknown: took("unknown"),
            get: took("get"),
            purge: took("purge"),
            inner,
            uptime,
            label,
        }
    }

    /// Claims a key, for somebody who looked at the clock at `asked`.
    pub(super) fn claimed<'a>(
        &'a self,
        claim: &'a Claim,
        asked: Duration,
    ) -> impl Future<Output = Timed<Claimed>> + Send + 'a {
        self.time(&self.claim, self.inner.claim(claim), asked)
    }

    /// Marks a send, for somebody who looked at the clock at `asked`.
    pub(super) fn sent<'a>(
        &'a self,
        lease: &'a Lease,
        asked: Duration,
    ) -> impl Future<Output = Timed<Write>> + Send + 'a {
        self.time(&self.send, self.inner.send(lease), asked)
    }

    /// Completes, for somebody who looked at the clock at `asked`.
    pub(super) fn completed<'a>(
        &'a self,
        lease: &'a Lease,
        completion: &'a Completion,
        asked: Duration,
    ) -> impl Future<Output = Timed<Write>> + Send + 'a {
        self.time(&self.complete, self.inner.complete(lease, completion), asked)
    }

    async fn measure<T>(
        &self,
        took: &Took,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.time(took, call, self.uptime.elapsed()).await.result
    }

    async fn time<T>(
        &self,
        took: &Took,
        call: impl Future<Output = Result<T, StoreError>>,
        asked: Duration,
    ) -> Timed<T> {
        let result = within(LONGEST_CALL, pin!(call)).await.unwrap_or_else(|| Err(too_slow()));
        let answered = self.uptime.elapsed();
        let time = answered.saturating_sub(asked);
        match &result {
            Ok(_) => took.ok.record(time),
            Err(error) => {
                took.error.record(time);
                let error_type = kind_label(error.kind());
                counter!(
                    "oncekey_store_errors_total",
                    "store" => self.label.clone(),
                    "operation" => took.operation,
                    "error_type" => error_type
                )
                .increment(1);
            }
        }
        Timed { result, answered }
    }
}

#[async_trait]
impl Store for MeasuredStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.measure(&self.claim, self.inner.claim(claim)).await
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        self.measure(&self.renew, self.inner.renew(leases, span)).await
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.measure(&self.send, self.inner.send(lease)).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        self.measure(&self.complete, self.inner.complete(lease, completion)).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.measure(&self.release, self.inner.release(lease)).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.measure(&self.unknown, self.inner.unknown(lease)).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        self.measure(&self.get, self.inner.get(id)).await
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        self.measure(&self.purge, self.inner.purge(limit)).await
    }
}

impl Took {
    fn new(store: &SharedString, operation: &'static str) -> Self {
        let of = |result: &'static str| {
            histogram!(
                "oncekey_store_operation_duration_seconds",
                "store" => store.clone(),
                "operation" => operation,
                "result" => result
            )
        };
        Self { operation, ok: of("ok"), error: of("error") }
    }
}

impl std::fmt::Debug for Took {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.operation)
    }
}

/// A call was given up. To drop it is like a crash at that moment: it may still take effect.
pub(super) fn too_slow() -> StoreError {
    StoreError::new(ErrorKind::Ambiguous, "the store does not answer in time")
}

fn kind_label(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Ambiguous => "ambiguous",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Rejected => "rejected",
        ErrorKind::Unsuitable => "unsuitable",
        _ => "other",
    }
}
