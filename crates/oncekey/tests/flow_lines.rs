//! Connections that go from step to step, and what the application's pool still gets of them.
#![cfg(all(
    feature = "flow-rusqlite",
    feature = "flow-tokio-postgres",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql"
))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncekey::core::{Key, Scope};
use oncekey::flow::sqlx::SqlxPostgres;
use oncekey::flow::{
    Definition, Failed, Flow, FlowKey, Flows, Outcome, Reply, Safety, Source, TxStore as _, migrate,
};
use sqlx::postgres::{PgPool, PgPoolOptions};

/// A pool that counts how often it gives a connection away, an old one or a new one.
struct Counted {
    pool: PgPool,
    given: Arc<AtomicUsize>,
}

impl Counted {
    async fn new(most: u32, lifetime: Duration) -> Self {
        let url = std::env::var("ONCEKEY_TEST_POSTGRES").unwrap();
        let given = Arc::new(AtomicUsize::new(0));
        let (old, new) = (Arc::clone(&given), Arc::clone(&given));
        let pool = PgPoolOptions::new()
            .max_connections(most)
            .max_lifetime(lifetime)
            .after_connect(move |_, _| {
                new.fetch_add(1, Ordering::SeqCst);
                Box::pin(async { Ok(()) })
            })
            .before_acquire(move |_, _| {
                old.fetch_add(1, Ordering::SeqCst);
                Box::pin(async { Ok(true) })
            })
            .connect(&url)
            .await
            .unwrap();
        Self { pool, given }
    }

    /// In a schema of its own.
    async fn store(&self) -> SqlxPostgres {
        let schema: String = sqlx::query_scalar(
            "SELECT 'n' || substr(replace(gen_random_uuid()::text, '-', ''), 1, 12)",
        )
        .fetch_one(&self.pool)
        .await
        .unwrap();
        let create = sqlx::AssertSqlSafe(format!("CREATE SCHEMA {schema}"));
        sqlx::raw_sql(create).execute(&self.pool).await.unwrap();
        let store = SqlxPostgres::with_schema(self.pool.clone(), &schema).unwrap();
        migrate(&store).await.unwrap();
        store
    }

    /// Waits until the pool has all of its connections.
    async fn has_all(&self) {
        for _ in 0..500 {
            if self.pool.num_idle() == usize::try_from(self.pool.size()).unwrap() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} of {} came back", self.pool.num_idle(), self.pool.size());
    }
}

const LONG: Duration = Duration::from_secs(600);

/// A phase, a call and an end: `call` is what happens meanwhile.
fn three_steps<F: Future<Output = ()> + Send + 'static>(
    call: impl Fn() -> F + Clone + Send + Sync + 'static,
) -> Definition<SqlxPostgres> {
    Definition::new("three", move |flow: Flow<SqlxPostgres>, (): ()| {
        let call = call.clone();
        async move {
            let pid: i32 = flow
                .phase("written", async |tx| {
                    Ok(sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut **tx).await?)
                })
                .await?;
            flow.effect("called", Safety::Natural)
                .call(async |_| {
                    call().await;
                    Ok::<_, Failed>(pid)
                })
                .await?;
            flow.finish(async |_| Reply::json(201, &pid)).await
        }
    })
}

fn flows(store: SqlxPostgres, definition: Definition<SqlxPostgres>) -> Flows<SqlxPostgres> {
    Flows::builder(store, "lines").flow(definition).build().unwrap()
}

async fn runs(flows: &Flows<SqlxPostgres>, number: usize) {
    let key = FlowKey::new(Scope::shared(), Key::new(format!("{number}").as_bytes()).unwrap());
    match flows.run("three", &key, &()).await.unwrap() {
        Outcome::Replied { reply, source: Source::Fresh } if reply.status() == 201 => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_connection_goes_from_step_to_step_and_then_back() {
    const FLOWS: usize = 40;
    let counted = Counted::new(8, LONG).await;
    let plain = flows(counted.store().await, three_steps(async || {}));
    counted.has_all().await;
    counted.given.store(0, Ordering::SeqCst);
    for number in 0..FLOWS {
        runs(&plain, number).await;
    }
    let without = counted.given.swap(0, Ordering::SeqCst);
    assert!(without >= FLOWS * 4, "start, phase, intent and end: {without}");
    let kept = flows(counted.store().await.keep_connections(), three_steps(async || {}));
    counted.given.store(0, Ordering::SeqCst);
    for number in 0..FLOWS {
        runs(&kept, number).await;
    }
    let with = counted.given.load(Ordering::SeqCst);
    // A machine that is busy elsewhere for 5 ms lets some of them go back.
    assert!(with < without / 2, "{with} instead of {without}");
    counted.has_all().await;
}

/// Whoever else needs the pool is not kept waiting.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn the_last_connection_of_a_pool_is_not_kept() {
    let counted = Counted::new(1, LONG).await;
    let kept = flows(counted.store().await.keep_connections(), three_steps(async || {}));
    counted.given.store(0, Ordering::SeqCst);
    for number in 0..10 {
        runs(&kept, number).await;
        // There is no other: it is in the pool, or on its way there.
        let one = tokio::time::timeout(Duration::from_secs(20), counted.pool.acquire());
        drop(one.await.unwrap().unwrap());
    }
    assert!(counted.given.load(Ordering::SeqCst) >= 40, "each step took it from the pool");
}

/// What waits may die. Nothing was said on it, so nobody hears of it.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_kept_connection_that_died_is_replaced() {
    let counted = Counted::new(8, LONG).await;
    let other = PgPool::connect(&std::env::var("ONCEKEY_TEST_POSTGRES").unwrap()).await.unwrap();
    let store = counted.store().await.keep_connections();
    let mine = store.layout().statement("{flows}").to_string();
    let end = move || {
        let (other, mine) = (other.clone(), mine.clone());
        async move {
            // Whoever last said something about these tables, and waits.
            let ended: Vec<bool> = sqlx::query_scalar(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE state = 'idle' AND pid <> pg_backend_pid() AND position($1 IN query) > 0",
            )
            .bind(mine)
            .fetch_all(&other)
            .await
            .unwrap();
            assert!(!ended.is_empty(), "somebody wrote the intent");
        }
    };
    let kept = flows(store, three_steps(end));
    for number in 0..5 {
        runs(&kept, number).await;
    }
}

/// What a pool does with connections that come back, it still does: here it ends old ones.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_connection_that_is_always_in_use_goes_back_every_second() {
    let counted = Counted::new(8, Duration::from_millis(10)).await;
    let store = counted.store().await.keep_connections();
    let sql = store.layout().statement("SELECT CAST(pg_backend_pid() AS bigint)");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..60_000 {
        let rows = store.query_once(&sql, &[]).await.unwrap();
        seen.insert(rows[0].int(0).unwrap());
        if seen.len() > 2 {
            return;
        }
    }
    panic!("the same connection all the time");
}
