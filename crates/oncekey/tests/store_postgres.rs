//! The PostgreSQL store keeps every promise of the suite: directly, through two handles that take
//! turns as two processes would, and through pgbouncer in transaction mode.

#![cfg(feature = "postgres")]

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncekey::core::conformance::Rig;
use oncekey::core::conformance::model::{Op, agrees_while_erasing, agrees_with_the_model};
use oncekey::core::store::Purged;
use oncekey::core::wake::{Feed, Wake};
use oncekey::core::{
    Claim, Claimed, Completion, Erase, Erased, KeyId, Lease, Lineage, Record, Renewal, Restore,
    Restored, Store, StoreError, Write,
};
use oncekey::store::postgres::{PostgresOptions, PostgresStore, Prepared};
use tokio_postgres::{Client, NoTls};

/// Where a server is, or a panic that says how to get one.
fn url_of(variable: &str) -> String {
    env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports")
    })
}

/// A way to a server. A pooler may stand before another one than the direct way leads to.
#[derive(Clone, Copy)]
enum Way {
    Direct,
    Pooler,
}

impl Way {
    fn url(self) -> String {
        url_of(match self {
            Self::Direct => "ONCEKEY_TEST_POSTGRES",
            Self::Pooler => "ONCEKEY_TEST_PGBOUNCER",
        })
    }

    fn options(self) -> PostgresOptions {
        PostgresOptions::new(self.url()).prepared(match self {
            Self::Direct => Prepared::Auto,
            Self::Pooler => Prepared::Off,
        })
    }
}

/// A schema of its own, which goes with the rig. Its clock is the server's: instead of moving that,
/// the rig moves all stored times.
struct SchemaRig<S> {
    way: Way,
    schema: String,
    options: PostgresOptions,
    admin: Client,
    open: Mutex<Option<Arc<S>>>,
}

/// How a rig opens what it tests.
trait Open: Store + Sized {
    fn open(options: &PostgresOptions) -> impl Future<Output = Self> + Send;
}

impl Open for PostgresStore {
    async fn open(options: &PostgresOptions) -> Self {
        options.clone().open().await.expect("the store opens")
    }
}

impl<S: Open> SchemaRig<S> {
    async fn new(way: Way) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let schema = format!("oncekey_test_{}_{number}", std::process::id());
        let (admin, connection) =
            tokio_postgres::connect(&way.url(), NoTls).await.expect("PostgreSQL");
        tokio::spawn(connection);
        // Whatever a process of the same number has left behind.
        let drop = format!("DROP SCHEMA IF EXISTS {schema} CASCADE");
        admin.batch_execute(&drop).await.expect("an old schema goes");
        let options = way.options().schema(&schema);
        let store = Arc::new(S::open(&options).await);
        Self { way, schema, options, admin, open: Mutex::new(Some(store)) }
    }

    /// Moves every stored time, and no fence.
    async fn shift(&self, by: i64) {
        let text = format!(
            "UPDATE {}.oncekey_records SET at = at + {by}, created = created + {by},
                expires = expires + {by}, forget = forget + {by}, due = due + {by}",
            self.schema
        );
        self.admin.batch_execute(&text).await.expect("times can be moved");
    }
}

impl<S> Drop for SchemaRig<S> {
    fn drop(&mut self) {
        let (drop, url) =
            (format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema), self.way.url());
        // On a thread with a runtime of its own: the test's is busy ending.
        let ended = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let (client, connection) =
                    tokio_postgres::connect(&url, NoTls).await.expect("PostgreSQL");
                tokio::spawn(connection);
                client.batch_execute(&drop).await.expect("the schema goes");
            });
        });
        if ended.join().is_err() && !std::thread::panicking() {
            panic!("the schema of a rig was left behind");
        }
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).expect("a test moves the clock by less than an age")
}

impl<S: Open> Rig for SchemaRig<S> {
    type Store = S;

    fn store(&self) -> Arc<S> {
        let open = self.open.lock().expect("no test panics while it holds this");
        Arc::clone(open.as_ref().expect("the rig always has a store open"))
    }

    async fn reopen(&self) -> Arc<S> {
        drop(self.open.lock().expect("no test panics while it holds this").take());
        let store = Arc::new(S::open(&self.options).await);
        *self.open.lock().expect("no test panics while it holds this") = Some(Arc::clone(&store));
        store
    }

    async fn advance(&self, by: Duration) {
        self.shift(-micros(by)).await;
    }

    async fn step_back(&self, by: Duration) {
        self.shift(micros(by)).await;
    }
}

/// Two stores on one schema; every call goes to the other one. A feed comes from the first: it hears
/// half of what happens from its own store, the other half by notification.
#[derive(Debug)]
struct InTurns {
    handles: [PostgresStore; 2],
    turn: AtomicUsize,
}

impl Open for InTurns {
    async fn open(options: &PostgresOptions) -> Self {
        let (first, second) = (options.clone().open(), options.clone().open());
        // At the same time: both find the tables, whoever makes them.
        let (first, second) = tokio::join!(first, second);
        let handles = [first.expect("the store opens"), second.expect("the store opens")];
        Self { handles, turn: AtomicUsize::new(0) }
    }
}

impl InTurns {
    fn next(&self) -> &PostgresStore {
        &self.handles[self.turn.fetch_add(1, Ordering::Relaxed) % 2]
    }
}

#[async_trait]
impl Store for InTurns {
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
impl Erase for InTurns {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        self.next().erase(id).await
    }
}

#[async_trait]
impl Restore for InTurns {
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

#[async_trait]
impl Wake for InTurns {
    async fn watch(&self) -> Result<Box<dyn Feed>, StoreError> {
        self.handles[0].watch().await
    }
}

/// Random histories, compared with the decision tables step by step. Fewer than for an embedded
/// store: every step is a round trip, and every rig a schema.
async fn agrees_on_random_histories<S: Open + Erase>(way: Way, seeds: u64) {
    for seed in 0..seeds {
        let rig = SchemaRig::<S>::new(way).await;
        agrees_with_the_model(&rig, &Op::history(seed, 60)).await;
        let rig = SchemaRig::<S>::new(way).await;
        agrees_while_erasing(&rig, &Op::history(seed + 1_000, 60)).await;
    }
}

mod through_one_handle {
    use super::*;

    async fn rig() -> SchemaRig<PostgresStore> {
        SchemaRig::new(Way::Direct).await
    }

    oncekey::core::conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::browse_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::erase_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::erase_browse_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::wake_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::restore_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::restore_browse_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    #[ignore = "needs PostgreSQL: run cargo xtask test"]
    async fn agrees_with_the_decision_tables() {
        agrees_on_random_histories::<PostgresStore>(Way::Direct, 12).await;
    }
}

mod through_two_handles {
    use super::*;

    async fn rig() -> SchemaRig<InTurns> {
        SchemaRig::new(Way::Direct).await
    }

    oncekey::core::conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::erase_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::wake_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::restore_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    #[ignore = "needs PostgreSQL: run cargo xtask test"]
    async fn agrees_with_the_decision_tables() {
        agrees_on_random_histories::<InTurns>(Way::Direct, 6).await;
    }
}

mod through_pgbouncer {
    use super::*;

    async fn rig() -> SchemaRig<PostgresStore> {
        SchemaRig::new(Way::Pooler).await
    }

    oncekey::core::conformance!(
        #[ignore = "needs pgbouncer: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::browse_conformance!(
        #[ignore = "needs pgbouncer: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::erase_conformance!(
        #[ignore = "needs pgbouncer: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::erase_browse_conformance!(
        #[ignore = "needs pgbouncer: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::wake_conformance!(
        #[ignore = "needs pgbouncer: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::restore_conformance!(
        #[ignore = "needs pgbouncer: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::restore_browse_conformance!(
        #[ignore = "needs pgbouncer: run cargo xtask test"]
        async || rig().await
    );

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    #[ignore = "needs pgbouncer: run cargo xtask test"]
    async fn agrees_with_the_decision_tables() {
        agrees_on_random_histories::<PostgresStore>(Way::Pooler, 6).await;
    }
}
