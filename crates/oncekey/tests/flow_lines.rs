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
    Definition, Failed, Flow, FlowKey, Flows, Options, Outcome, Reply, Safety, Source,
    TxStore as _, migrate,
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
    // By time and not by count: a fast server is asked sixty thousand times in two seconds.
    let changed = tokio::time::timeout(Duration::from_secs(60), async {
        while seen.len() <= 2 {
            let rows = store.query_once(&sql, &[]).await.unwrap();
            seen.insert(rows[0].int(0).unwrap());
        }
    });
    changed.await.expect("another connection every second");
}

/// Flows whose end tells what `ask` finds in its transaction.
fn asking<F: Future<Output = ()> + Send + 'static>(
    first: &'static str,
    call: impl Fn() -> F + Clone + Send + Sync + 'static,
    ask: &'static str,
) -> Definition<SqlxPostgres> {
    Definition::new("three", move |flow: Flow<SqlxPostgres>, (): ()| {
        let call = call.clone();
        async move {
            flow.phase("written", async |tx| {
                sqlx::raw_sql(first).execute(&mut **tx).await?;
                // Otherwise its intent would need the connection.
                tx.intend("called", Safety::Natural, &1)
            })
            .await?;
            let natural = flow.effect::<()>("called", Safety::Natural).bind(&1);
            natural
                .call(async |_| {
                    call().await;
                    Ok::<_, Failed>(())
                })
                .await?;
            flow.finish(async |tx| {
                let found: String = sqlx::query_scalar(ask).fetch_one(&mut **tx).await?;
                Reply::json(201, &found)
            })
            .await
        }
    })
}

async fn told(flows: &Flows<SqlxPostgres>, number: usize) -> String {
    let key = FlowKey::new(Scope::shared(), Key::new(format!("{number}").as_bytes()).unwrap());
    for _ in 0..100 {
        match flows.run("three", &key, &()).await.unwrap() {
            Outcome::Replied { reply, .. } => return serde_json::from_slice(reply.body()).unwrap(),
            Outcome::Later { .. } => tokio::time::sleep(Duration::from_millis(20)).await,
            other => panic!("{other:?}"),
        }
    }
    panic!("it did not end");
}

/// How many connections of the name of this one have a transaction open and nothing to do.
async fn open_transactions(outside: &PgPool) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' \
               AND application_name = current_setting('application_name')";
    sqlx::query_scalar(sql).fetch_one(outside).await.unwrap()
}

/// A connection of the same name that does not belong to the pool.
async fn outside(counted: &Counted) -> PgPool {
    PgPool::connect_with((*counted.pool.connect_options()).clone()).await.unwrap()
}

/// A pool whose connections are known by a name.
async fn named(most: u32) -> Counted {
    let counted = Counted::new(most, LONG).await;
    let name = format!("lines-{}", rustix::process::getpid().as_raw_nonzero());
    let name = format!("{name}-{:p}", Arc::as_ptr(&counted.given));
    let options = (*counted.pool.connect_options()).clone().application_name(&name);
    let pool = PgPoolOptions::new().max_connections(most).connect_with(options).await.unwrap();
    Counted { pool, ..counted }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn the_next_transaction_is_begun_with_the_commit_and_ends_if_nobody_needs_it() {
    let counted = named(4).await;
    // No step lies between this and the end: so an end whose transaction is older was begun ahead.
    let call = async || tokio::time::sleep(Duration::from_millis(1)).await;
    let ask = "SELECT CASE WHEN clock_timestamp() - now() > '0.9 ms' THEN 'ahead' ELSE 'now' END";
    let of = |definition, store| Flows::builder(store, "ahead").flow(definition).build().unwrap();
    let definition = asking("SELECT 1", call, ask).start_with_first_step();
    let flows = of(definition, counted.store().await.begin_ahead());
    let mut ahead = 0;
    // A machine that is busy elsewhere for 5 ms lets some of them go back.
    for number in 0..1_000 {
        ahead += usize::from(told(&flows, number).await == "ahead");
        if ahead >= 10 {
            break;
        }
    }
    assert!(ahead >= 10, "{ahead} of 1000");
    let outside = outside(&counted).await;
    for _ in 0..500 {
        if open_transactions(&outside).await == 0 {
            counted.has_all().await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a transaction stays open");
}

/// The application may make its own transaction another one, and not that of the next flow.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn what_a_step_sets_for_its_transaction_does_not_reach_the_next() {
    let counted = Counted::new(2, LONG).await;
    let first = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SET LOCAL work_mem = '77MB'";
    let ask =
        "SELECT current_setting('transaction_isolation') || ' ' || current_setting('work_mem')";
    let plain = flows(counted.store().await, asking("SELECT 1", async || {}, ask));
    let usual = told(&plain, 0).await;
    let ahead = flows(counted.store().await.begin_ahead(), asking(first, async || {}, ask));
    for number in 0..20 {
        assert_eq!(told(&ahead, number).await, usual);
    }
}

/// I44: a commit that fails says nothing of what comes after it, and nothing of it is there.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_commit_that_is_refused_begins_nothing() {
    let counted = Counted::new(4, LONG).await;
    let store = counted.store().await;
    let table = store.layout().statement("{records}_unique").to_string();
    let make = format!("CREATE TABLE {table} (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)");
    sqlx::raw_sql(sqlx::AssertSqlSafe(make)).execute(&counted.pool).await.unwrap();
    let twice: &'static str = format!("INSERT INTO {table} VALUES (1), (1)").leak();
    let once: &'static str = format!("INSERT INTO {table} VALUES (2)").leak();
    let ask = "SELECT 'done'";
    let starts = [asking(twice, async || {}, ask), asking(twice, async || {}, ask)];
    let [eager, lazy] = starts;
    for definition in [eager, lazy.start_with_first_step()] {
        let refused = flows(store.clone().begin_ahead(), definition);
        for number in 0..3 {
            let key =
                FlowKey::new(Scope::shared(), Key::new(format!("r{number}").as_bytes()).unwrap());
            let outcome = refused.run("three", &key, &()).await.unwrap();
            assert!(!matches!(outcome, Outcome::Replied { .. }), "{outcome:?}");
        }
    }
    let count = format!("SELECT count(*) FROM {table}");
    let count: i64 =
        sqlx::query_scalar(sqlx::AssertSqlSafe(count)).fetch_one(&counted.pool).await.unwrap();
    assert_eq!(count, 0);
    let fine = flows(store.begin_ahead(), asking(once, async || {}, ask));
    assert_eq!(told(&fine, 0).await, "done");
    counted.has_all().await;
}

/// Here the step that gets it fails, and is taken again.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_transaction_that_died_before_it_was_needed_costs_a_try() {
    let counted = named(4).await;
    let end = outside(&counted).await;
    let once = Arc::new(AtomicUsize::new(0));
    let (ended, first) = (Arc::clone(&once), Arc::clone(&once));
    let call = move || {
        let (end, first) = (end.clone(), Arc::clone(&first));
        async move {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE state LIKE 'idle in transaction%' AND pid <> pg_backend_pid() \
                       AND application_name = current_setting('application_name')";
            let found: i64 = sqlx::query_scalar(sql).fetch_one(&end).await.unwrap();
            first.fetch_add(usize::try_from(found).unwrap(), Ordering::SeqCst);
        }
    };
    let definition = asking("SELECT 1", call, "SELECT 'done'").start_with_first_step();
    let store = counted.store().await.begin_ahead();
    let options = Options { pause: Duration::ZERO, ..Options::default() };
    let flows = Flows::builder(store, "ahead").options(options).flow(definition).build().unwrap();
    for number in 0..1_000 {
        assert_eq!(told(&flows, number).await, "done");
        if ended.load(Ordering::SeqCst) >= 5 {
            return;
        }
    }
    panic!("{} waited and died", ended.load(Ordering::SeqCst));
}
