//! The same request as a flow, and the relay.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncekey::core::{Key, Scope};
use oncekey::flow::sqlx::SqlxPostgres;
use oncekey::flow::{Definition, Failed, Flow, FlowKey, Flows, Outcome, Reply, Safety, migrate};
use oncekey::outbox::{Delivery, Handler, Outbox, Relay, Staged};
use oncekey_bench::Result;
use oncekey_bench::clock::Stopwatch;
use sqlx::Row as _;
use sqlx::postgres::PgPool;

use crate::stub::Stub;

/// The other side knows a key again for a day.
const KEYED: Safety = Safety::Keyed { window: Duration::from_secs(86_400) };

/// Insert, keyed call, receipt staged, reply. The flow is written with the insert, which announces the call,
/// and the receipt is staged with the reply.
pub(crate) async fn flows(pool: &PgPool, stub: &Stub) -> Result<Flows<SqlxPostgres>> {
    let store = SqlxPostgres::new(pool.clone()).begin_ahead();
    migrate(&store).await?;
    let stub = stub.clone();
    let body = move |flow: Flow<SqlxPostgres>, cents: i64| {
        let stub = stub.clone();
        async move {
            let ride: i64 = flow
                .phase("ride_created", async |tx| {
                    let row =
                        sqlx::query("INSERT INTO bench.rides (cents) VALUES ($1) RETURNING id");
                    let ride = row.bind(cents).fetch_one(&mut **tx).await?.get(0);
                    tx.intend("charge_created", KEYED, &(ride, cents))?;
                    Ok(ride)
                })
                .await?;
            let charge: String = flow
                .effect("charge_created", KEYED)
                .bind(&(ride, cents))
                .call(async |key| {
                    stub.charge(key).await.map_err(|error| Failed::Unknown(error.to_string()))
                })
                .await?;
            flow.finish(async |tx| {
                let row = sqlx::query("UPDATE bench.rides SET charge = $1 WHERE id = $2");
                row.bind(&charge).bind(ride).execute(&mut **tx).await?;
                tx.stage_at_end("receipt", &ride)?;
                Reply::json(201, &ride)
            })
            .await
        }
    };
    let rides = Definition::new("rides", body).start_with_first_step();
    Ok(Flows::builder(store, "bench").flow(rides).build()?)
}

/// One request.
pub(crate) async fn request(
    flows: &Flows<SqlxPostgres>,
    key: &str,
) -> std::result::Result<(), String> {
    let key = Key::new(key.as_bytes()).map_err(|error| error.to_string())?;
    let key = FlowKey::new(Scope::shared(), key);
    let outcome = flows.run("rides", &key, &2_000_i64).await.map_err(|error| error.to_string())?;
    match matches!(outcome, Outcome::Replied { .. }) {
        true => Ok(()),
        false => Err(format!("a request came to {outcome:?}")),
    }
}

/// Stages so many rows and says how many a second the relay hands to a function.
pub(crate) async fn drain(pool: &PgPool, rows: usize) -> Result<f64> {
    /// As many as fit into a transaction of a fraction of a second.
    const AT_ONCE: usize = 1_000;
    let store = SqlxPostgres::new(pool.clone());
    migrate(&store).await?;
    let outbox = Outbox::new(store.clone());
    let mut left = rows;
    while left > 0 {
        let part = left.min(AT_ONCE);
        let messages = (0..part).map(|number| Staged::new("drained", &number));
        let mut tx = pool.begin().await?;
        outbox.stage_all(&mut tx, messages.collect::<std::result::Result<_, _>>()?).await?;
        tx.commit().await?;
        left -= part;
    }
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let sink = Handler::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Delivery::Sent }
    });
    let relay = Relay::new(store).route("drained", sink);
    let watch = Stopwatch::start();
    relay
        .run(async {
            while seen.load(Ordering::Relaxed) < rows {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    Ok(rows as f64 / watch.elapsed().as_secs_f64())
}
