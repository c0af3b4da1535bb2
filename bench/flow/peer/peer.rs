//! The same request as a workflow of `durare`: `peer URL STUB CALLERS MILLISECONDS CONNECTIONS`.

mod drive;
mod stub;

use std::sync::Arc;
use std::time::Duration;

use durare::{DurableContext, DurableEngine, PostgresProvider, Result, Tx, WorkflowOptions, params};
use stub::Stub;

static STUB: std::sync::OnceLock<Stub> = std::sync::OnceLock::new();

#[durare::transaction]
async fn ride_created(ctx: &DurableContext, tx: &mut Tx<'_>, cents: i64) -> Result<i64> {
    let sql = "INSERT INTO bench.rides (cents) VALUES (?) RETURNING id";
    Ok(tx.query_one(sql, &params![cents]).await?.get::<i64>("id"))
}

#[durare::step]
async fn charge_created(ctx: &DurableContext, key: String) -> Result<String> {
    let stub = STUB.get().expect("there is a foreign system");
    Ok(stub.charge(&key).await.expect("it answers"))
}

#[durare::transaction]
async fn finished(ctx: &DurableContext, tx: &mut Tx<'_>, ride: i64, charge: String) -> Result<()> {
    let sql = "UPDATE bench.rides SET charge = ? WHERE id = ?";
    tx.execute(sql, &params![charge, ride]).await?;
    tx.execute("INSERT INTO bench.staged (ride) VALUES (?)", &params![ride]).await?;
    Ok(())
}

#[durare::workflow]
async fn create_ride(ctx: DurableContext, key: String) -> Result<i64> {
    let ride = ride_created(&ctx, 2_000).await?;
    let charge = charge_created(&ctx, key).await?;
    finished(&ctx, ride, charge).await?;
    Ok(ride)
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url, stub, callers, span, connections] = &words[..] else {
        return Err("peer URL STUB CALLERS MILLISECONDS CONNECTIONS".into());
    };
    let _ = STUB.set(Stub::new(stub.parse()?));
    // One for its listener.
    let connections = connections.parse::<u32>()? + 1;
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(connections).connect(url).await?;
    let provider = PostgresProvider::from_pool_with_schema(pool, "dbos")?;
    let engine = DurableEngine::new(Arc::new(provider)).await?;
    engine.launch().await?;
    let engine = Arc::new(engine);
    let space = std::process::id();
    let (count, elapsed, mut each) =
        drive::drive(callers.parse()?, Duration::from_millis(span.parse()?), move |number| {
            let engine = Arc::clone(&engine);
            async move {
                let key = format!("durare-{space}-{number}");
                let options = WorkflowOptions::with_id(key.clone());
                let started = engine.start_with(CreateRide, key, options).await;
                let handle = started.map_err(|error| error.to_string())?;
                handle.await.map(drop).map_err(|error| error.to_string())
            }
        })
        .await?;
    each.sort_unstable();
    let at = |percent: usize| each[(each.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    println!("{} {} {}", count as f64 / elapsed.as_secs_f64(), at(50), at(99));
    Ok(())
}
