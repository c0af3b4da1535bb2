//! Stores that do not answer. I33, T32.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use oncekey::clock::SystemClock;
use oncekey::core::policy::{Mark, StoreDown};
use oncekey::core::store::Purged;
use oncekey::core::{
    Claim, Claimed, Class, Completion, ErrorKind, KeyId, Lease, MemoryStore, Policy, Record,
    Renewal, Sent, Store, StoreError, Write,
};
use oncekey::layer::{IdempotencyLayer, ScopeFrom};

use crate::rig::{KEY, Rig, engine_on, post, required};

/// A store whose server can be pulled out, call by call.
#[derive(Debug)]
struct Pluggable {
    store: MemoryStore,
    claims: AtomicBool,
    sends: AtomicBool,
    asked: AtomicUsize,
    /// Claims that announced their send.
    announced: AtomicUsize,
}

impl Pluggable {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::new(Arc::new(SystemClock)),
            claims: AtomicBool::new(true),
            sends: AtomicBool::new(true),
            asked: AtomicUsize::new(0),
            announced: AtomicUsize::new(0),
        })
    }

    fn reached(&self, plug: &AtomicBool) -> Result<(), StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if plug.load(Ordering::SeqCst) {
            Ok(())
        } else {
            Err(StoreError::new(ErrorKind::Unavailable, "secret-driver-message"))
        }
    }
}

#[async_trait]
impl Store for Pluggable {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.reached(&self.claims)?;
        self.announced.fetch_add(usize::from(claim.sent == Sent::Yes), Ordering::SeqCst);
        self.store.claim(claim).await
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        self.store.renew(leases, span).await
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.reached(&self.sends)?;
        self.store.send(lease).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        self.store.complete(lease, completion).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.store.unknown(lease).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.store.release(lease).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        self.reached(&self.claims)?;
        self.store.get(id).await
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        self.store.purge(limit).await
    }
}

fn rig(store: &Arc<Pluggable>, policy: Policy) -> Rig {
    let engine = engine_on(Arc::clone(store) as Arc<dyn Store>);
    let layer = IdempotencyLayer::builder(engine).scope(ScopeFrom::shared());
    let rule = required().policy(policy).unwrap();
    Rig::counting(layer.rule(rule).status_path("/status/").unwrap())
}

/// I33 and T31: no store, no run; and the client learns nothing about our driver.
#[tokio::test]
async fn without_a_store_nothing_runs() {
    let store = Pluggable::new();
    let rig = rig(&store, Policy::default());
    store.claims.store(false, Ordering::SeqCst);
    let seen = rig.send(post(KEY, "{}")).await;
    seen.assert_refused(503, "idempotency_store_unavailable", "no");
    assert_eq!(seen.problem()["retryable"], true);
    assert!(seen.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert!(!seen.text().contains("secret"));
    assert_eq!(rig.runs(), 0);

    let ask = http::Request::get("/status/k").body(axum::body::Body::empty()).unwrap();
    rig.send(ask).await.assert_refused(503, "idempotency_store_unavailable", "no");
}

/// I33: a send that could not be announced does not happen.
#[tokio::test]
async fn without_a_mark_nothing_runs() {
    let store = Pluggable::new();
    let rig = rig(&store, Policy { mark: Mark::Apart, ..Policy::default() });
    store.sends.store(false, Ordering::SeqCst);
    let seen = rig.send(post(KEY, "{}")).await;
    seen.assert_refused(503, "idempotency_store_unavailable", "no");
    assert_eq!(rig.runs(), 0);
    store.sends.store(true, Ordering::SeqCst);
    assert_eq!(rig.send(post(KEY, "{}")).await.status, 201, "the key was given back");
}

/// I8: nothing happens between claim and send, so the claim announces both: the store is not told a
/// second time, and a crash at any later moment leaves a key that may have been used.
#[tokio::test]
async fn the_mark_goes_with_the_claim() {
    for class in [Class::Once, Class::Keyed, Class::Retry] {
        let store = Pluggable::new();
        let rig = rig(&store, Policy { class, ..Policy::default() });
        store.sends.store(false, Ordering::SeqCst);
        assert_eq!(rig.send(post(KEY, "{}")).await.status, 201, "{class:?}");
        assert_eq!(store.announced.load(Ordering::SeqCst), 1, "{class:?}");
    }
}

/// T32: a route may prefer to run unprotected, and then says so.
#[tokio::test]
async fn a_route_may_run_without_protection_and_says_so() {
    let store = Pluggable::new();
    let policy = Policy { store_down: StoreDown::PassUnprotected, ..Policy::default() };
    let rig = rig(&store, policy);
    store.claims.store(false, Ordering::SeqCst);
    let seen = rig.send(post(KEY, "{}")).await;
    assert_eq!(seen.status, 201);
    let status = "oncekey; unprotected; recorded=unprotected";
    assert_eq!(seen.header("idempotency-status"), status);
    assert!(!rig.send(post(KEY, "{}")).await.is_replay());
    assert_eq!(rig.runs(), 2);
}

/// A request that is refused by its own fault never reaches the store.
#[tokio::test]
async fn a_malformed_request_does_not_reach_the_store() {
    let store = Pluggable::new();
    let rig = rig(&store, Policy::default());
    rig.send(post("a,b", "{}")).await.assert_refused(400, "idempotency_key_invalid", "no");
    let large = "x".repeat(2 * 1024 * 1024);
    rig.send(post(KEY, large)).await.assert_refused(413, "idempotency_body_too_large", "no");
    assert_eq!(store.asked.load(Ordering::SeqCst), 0);
}
