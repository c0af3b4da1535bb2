//! The same request without any safety, and as rocket-rides does it.

use sqlx::postgres::PgPool;
use sqlx::{Executor as _, Row as _};

use crate::stub::Stub;

/// Tries again what another transaction was in the way of.
macro_rules! again {
    ($work:expr) => {{
        let mut left = 100;
        loop {
            match $work.await {
                Err(sqlx::Error::Database(error))
                    if error.code().as_deref() == Some("40001") && left > 0 =>
                {
                    left -= 1;
                }
                done => break done.map_err(|error| error.to_string()),
            }
        }
    }};
}

/// The tables of both.
pub(crate) const TABLES: &str = "
    CREATE SCHEMA bench;
    CREATE TABLE bench.rides (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key_id bigint,
        cents bigint NOT NULL, charge text);
    CREATE UNIQUE INDEX ON bench.rides (key_id) WHERE key_id IS NOT NULL;
    CREATE TABLE bench.audits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, ride bigint);
    CREATE TABLE bench.staged (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, ride bigint);
    CREATE TABLE bench.keys (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key text NOT NULL, user_id bigint NOT NULL, point text NOT NULL, params text NOT NULL,
        locked_at timestamptz, last_run_at timestamptz NOT NULL, status int, body text,
        UNIQUE (user_id, key));";

/// Two transactions and a call: what is lost when it crashes in between is lost, and what is asked
/// twice is done twice.
pub(crate) async fn unsafe_request(pool: &PgPool, stub: &Stub, key: &str) -> Result<(), String> {
    let text = |error: sqlx::Error| error.to_string();
    let mut tx = pool.begin().await.map_err(text)?;
    let row =
        sqlx::query("INSERT INTO bench.rides (cents) VALUES ($1) RETURNING id").bind(2_000_i64);
    let ride: i64 = row.fetch_one(&mut *tx).await.map_err(text)?.get(0);
    tx.commit().await.map_err(text)?;
    let charge = stub.charge(key).await.map_err(|error| error.to_string())?;
    let mut tx = pool.begin().await.map_err(text)?;
    let row = sqlx::query("UPDATE bench.rides SET charge = $1 WHERE id = $2");
    row.bind(charge).bind(ride).execute(&mut *tx).await.map_err(text)?;
    let row = sqlx::query("INSERT INTO bench.staged (ride) VALUES ($1)").bind(ride);
    row.execute(&mut *tx).await.map_err(text)?;
    tx.commit().await.map_err(text)
}

/// The statements of rocket-rides: four serializable transactions, one of them open during the call.
/// A serialization failure is tried again, which the original leaves to the client.
pub(crate) async fn rocket_rides(pool: &PgPool, stub: &Stub, key: &str) -> Result<(), String> {
    let id = again!(started(pool, key))?;
    let ride = again!(ride_created(pool, id))?;
    again!(charge_created(pool, stub, (id, ride, key)))?;
    again!(finished(pool, (id, ride)))
}

async fn started(pool: &PgPool, key: &str) -> Result<i64, sqlx::Error> {
    let mut tx = serializable(pool).await?;
    let found = sqlx::query("SELECT id FROM bench.keys WHERE user_id = $1 AND key = $2");
    if let Some(row) = found.bind(1_i64).bind(key).fetch_optional(&mut *tx).await? {
        return Ok(row.get(0));
    }
    let row = sqlx::query(
        "INSERT INTO bench.keys (key, user_id, point, params, locked_at, last_run_at)
         VALUES ($1, 1, 'started', '{}', now(), now()) RETURNING id",
    );
    let id = row.bind(key).fetch_one(&mut *tx).await?.get(0);
    tx.commit().await?;
    Ok(id)
}

async fn ride_created(pool: &PgPool, id: i64) -> Result<i64, sqlx::Error> {
    let mut tx = serializable(pool).await?;
    let row = sqlx::query("INSERT INTO bench.rides (cents, key_id) VALUES (2000, $1) RETURNING id");
    let ride: i64 = row.bind(id).fetch_one(&mut *tx).await?.get(0);
    let row = sqlx::query("INSERT INTO bench.audits (ride) VALUES ($1)").bind(ride);
    row.execute(&mut *tx).await?;
    point(&mut tx, id, "ride_created").await?;
    tx.commit().await?;
    Ok(ride)
}

async fn charge_created(
    pool: &PgPool,
    stub: &Stub,
    (id, ride, key): (i64, i64, &str),
) -> Result<(), sqlx::Error> {
    let mut tx = serializable(pool).await?;
    let row = sqlx::query("SELECT id FROM bench.rides WHERE key_id = $1").bind(id);
    row.fetch_one(&mut *tx).await?;
    let charge = stub.charge(key).await?;
    let row = sqlx::query("UPDATE bench.rides SET charge = $1 WHERE id = $2");
    row.bind(charge).bind(ride).execute(&mut *tx).await?;
    point(&mut tx, id, "charge_created").await?;
    tx.commit().await
}

async fn finished(pool: &PgPool, (id, ride): (i64, i64)) -> Result<(), sqlx::Error> {
    let mut tx = serializable(pool).await?;
    let row = sqlx::query("INSERT INTO bench.staged (ride) VALUES ($1)").bind(ride);
    row.execute(&mut *tx).await?;
    let row = sqlx::query(
        "UPDATE bench.keys SET point = 'finished', locked_at = NULL, status = 201, body = 'ok'
         WHERE id = $1",
    );
    row.bind(id).execute(&mut *tx).await?;
    tx.commit().await
}

async fn serializable(
    pool: &PgPool,
) -> Result<sqlx::Transaction<'static, sqlx::Postgres>, sqlx::Error> {
    pool.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await
}

async fn point(
    tx: &mut sqlx::Transaction<'static, sqlx::Postgres>,
    id: i64,
    point: &'static str,
) -> Result<(), sqlx::Error> {
    let row = sqlx::query("UPDATE bench.keys SET point = $1 WHERE id = $2").bind(point).bind(id);
    tx.execute(row).await.map(drop)
}
