//! Probes while the store or the upstream is in trouble.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use oncekey::core::browse::{Browse, Count, Filter, Listing, Page, Summary};
use oncekey::core::record::Text;
use oncekey::core::store::Purged;
use oncekey::core::{
    Claim, Claimed, Completion, Erase, Erased, Inspect, KeyId, Lease, Lineage, Record, Renewal,
    Restore, Restored, Store, StoreError, StoreHealth, Write,
};
use oncekey::engine::{Finish, Reply};
use oncekey::store::Opened;

use super::rig::{Plan, Rig, TOKEN, saved};

/// A store whose disk hangs: it never answers.
#[derive(Debug)]
struct Hung;

#[async_trait]
impl Store for Hung {
    async fn claim(&self, _: &Claim) -> Result<Claimed, StoreError> {
        pending().await
    }

    async fn renew(&self, _: &[Lease], _: Duration) -> Result<Vec<Renewal>, StoreError> {
        pending().await
    }

    async fn send(&self, _: &Lease) -> Result<Write, StoreError> {
        pending().await
    }

    async fn complete(&self, _: &Lease, _: &Completion) -> Result<Write, StoreError> {
        pending().await
    }

    async fn release(&self, _: &Lease) -> Result<Write, StoreError> {
        pending().await
    }

    async fn unknown(&self, _: &Lease) -> Result<Write, StoreError> {
        pending().await
    }

    async fn get(&self, _: &KeyId) -> Result<Option<Record>, StoreError> {
        pending().await
    }

    async fn purge(&self, _: usize) -> Result<Purged, StoreError> {
        pending().await
    }
}

#[async_trait]
impl Browse for Hung {
    async fn list(&self, _: &Filter, _: &Page) -> Result<Listing, StoreError> {
        pending().await
    }

    async fn count(&self, _: &Filter, _: usize) -> Result<Count, StoreError> {
        pending().await
    }

    async fn find(&self, _: &Text, _: usize) -> Result<Vec<Summary>, StoreError> {
        pending().await
    }
}

#[async_trait]
impl Erase for Hung {
    async fn erase(&self, _: &KeyId) -> Result<Erased, StoreError> {
        pending().await
    }
}

#[async_trait]
impl Inspect for Hung {
    async fn inspect(&self) -> Result<StoreHealth, StoreError> {
        pending().await
    }
}

#[async_trait]
impl Restore for Hung {
    async fn restore(&self, _: &Record) -> Result<Restored, StoreError> {
        pending().await
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        pending().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_makes_it_not_ready_but_not_dead() {
    let plan = Plan { store: Some(Opened::silent("hung", Hung)), ..Plan::default() };
    let rig = Rig::with(plan).await;
    assert_eq!(rig.get("/healthz").await.status, 200);
    let ready = rig.get("/readyz").await;
    assert_eq!(ready.status, 503);
    let ready = ready.json();
    assert_eq!(ready["ready"], false);
    assert_eq!(
        (&ready["checks"][0]["name"], &ready["checks"][0]["ok"]),
        (&"store".into(), &false.into())
    );
    assert_eq!(ready["checks"][0]["why"], "the store did not answer within 800 ms");
    assert_eq!(ready["checks"][1]["ok"], true);
    let status = rig.get("/api/v1/status").await;
    assert_eq!(status.status, 200, "people look when the store is down");
    assert_eq!(status.json()["store"]["reachable"], false);
    assert_eq!(rig.get("/api/v1/keys").await.code(), "admin_store_unavailable");
    assert_eq!(rig.get("/metrics").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_down_makes_it_not_ready() {
    let mut rig = Rig::with(Plan { token: Some(TOKEN), ..Plan::default() }).await;
    rig.gateway.upstream_down.store(true, Ordering::SeqCst);
    let ready = rig.get("/readyz").await;
    assert_eq!(
        (ready.status, ready.json()["checks"][1]["why"].as_str()),
        (503, Some("connection refused"))
    );
    rig.token = None;
    let ready = rig.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json()["checks"][1]["ok"], false);
    assert!(!ready.body.contains("refused"), "strangers are not told why: {ready:?}");
}

/// A hundred probes a second are one look a second.
#[tokio::test(flavor = "multi_thread")]
async fn probes_do_not_add_up() {
    let rig = Rig::new().await;
    for _ in 0..30 {
        assert_eq!(rig.get("/readyz").await.status, 200);
    }
    let looks = rig.gateway.looks.load(Ordering::SeqCst);
    assert!((1..6).contains(&looks), "{looks}");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    rig.gateway.upstream_down.store(true, Ordering::SeqCst);
    assert_eq!(rig.get("/readyz").await.status, 503, "and what was found is not kept for long");
}

/// Somebody else holds the write lock of the file: claims fail, reads do not, the process lives. Once
/// the lock is gone it is ready again, though no request has come to show that claims go through.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_file_makes_it_not_ready_until_the_lock_is_gone() {
    let rig = Rig::new().await;
    rig.done("order-0").await;
    let other = rusqlite::Connection::open(rig.folder.path().join("keys.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let claims = (1..=6).map(|number| {
        let call = rig.call(&format!("order-{number}"));
        rig.engine.answer(call, async |_| Finish::answered(saved("again"), ()))
    });
    for reply in futures_util::future::join_all(claims).await {
        assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
    }
    assert_eq!(rig.get("/healthz").await.status, 200);
    assert_eq!(rig.get("/readyz").await.status, 503);
    assert_eq!(rig.get("/api/v1/status").await.json()["store"]["claims"], "resting");
    assert_eq!(rig.get("/api/v1/keys").await.json()["records"].as_array().unwrap().len(), 1);
    other.execute_batch("ROLLBACK").unwrap();
    for _ in 0..50 {
        if rig.get("/readyz").await.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("not ready: {:?}", rig.get("/readyz").await);
}
