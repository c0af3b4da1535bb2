//! The PostgreSQL store keeps every promise of the suite: directly, through two handles that take
//! turns as two processes would, and through pgbouncer in transaction mode.

#![cfg(feature = "postgres")]

#[path = "common/turns.rs"]
mod turns;

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::core::conformance::Rig;
use oncekey::core::conformance::model::{Op, agrees_while_erasing, agrees_with_the_model};
use oncekey::core::{Erase, Store};
use oncekey::store::postgres::{PostgresOptions, PostgresStore, Prepared};
use tokio_postgres::{Client, NoTls};

use self::turns::InTurns;

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

/// A feed comes from the first: it hears half of what happens from its own store, the other half by
/// notification.
impl Open for InTurns<PostgresStore> {
    async fn open(options: &PostgresOptions) -> Self {
        // At the same time: both find the tables, whoever makes them.
        let open = <PostgresStore as Open>::open;
        let (first, second) = tokio::join!(open(options), open(options));
        Self::new([first, second].map(Arc::new))
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
}

mod through_two_handles {
    use super::*;

    async fn rig() -> SchemaRig<InTurns<PostgresStore>> {
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
    oncekey::core::browse_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::erase_browse_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
    oncekey::core::restore_browse_conformance!(
        #[ignore = "needs PostgreSQL: run cargo xtask test"]
        async || rig().await
    );
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn agrees_with_the_model_in_many_histories() {
    agrees_on_random_histories::<PostgresStore>(Way::Direct, 12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn agrees_with_the_model_through_two_handles() {
    agrees_on_random_histories::<InTurns<PostgresStore>>(Way::Direct, 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs pgbouncer: run cargo xtask test"]
async fn agrees_with_the_model_through_pgbouncer() {
    agrees_on_random_histories::<PostgresStore>(Way::Pooler, 6).await;
}
