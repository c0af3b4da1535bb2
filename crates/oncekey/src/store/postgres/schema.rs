//! The tables, and the ledger of what was done to them.

use oncekey_core::StoreError;
use tokio_postgres::{Client, GenericClient};

use super::error::{from_postgres, unsuitable};
use super::options::Migrations;
use super::sql::NOW;

/// What was done to the tables, in order. `oldest` is the first migration whose programs can go on
/// working with the tables after this one: so a fleet can be upgraded one node at a time.
struct Migration {
    version: i32,
    oldest: i32,
    name: &'static str,
    statements: &'static str,
}

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    oldest: 1,
    name: "records",
    statements: include_str!("../../../migrations/postgres/0001_records.sql"),
}];

/// The oldest server that is looked after, and tested with.
pub(super) const OLDEST_SERVER: i32 = 140_000;

/// Names the lock under which tables are made: "oncekey", as a number.
const LOCK: i64 = 0x6f_6e63_656b_6579;

/// How long a program waits for others that make tables, in this schema or another: as long as on
/// MySQL. It has nothing to do with the time that a row may be locked, which is shorter than some
/// migrations take: a fleet that starts on an empty database would lose most of its nodes.
const LOCK_SECONDS: u32 = 30;

/// Brings the tables up to date, or checks that they are.
///
/// In one transaction, under a lock that ends with it: of processes that start together one works
/// and the others find the work done. A lock of the session would be left behind on the connection of
/// a pooler.
pub(super) async fn migrate(
    client: &mut Client,
    schema: &str,
    who: Migrations,
) -> Result<(), StoreError> {
    let newest = MIGRATIONS.last().map_or(0, |migration| migration.version);
    // Without a lock, and without rights to make tables: the usual case.
    if applied(client, schema).await? >= newest {
        return Ok(());
    }
    if who == Migrations::Check {
        return Err(unsuitable(format!(
            "the tables of oncekey in schema {schema} are missing or too old: run \
             `oncekey store migrate`, or apply `migration_sql()` by hand"
        )));
    }
    let transaction = client.transaction().await.map_err(from_postgres)?;
    // The tables themselves are waited for no longer than any row: whoever waits to change one holds
    // up everybody who comes after.
    let lock = format!(
        "SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; SELECT pg_advisory_xact_lock({LOCK}); \
         SET LOCAL lock_timeout TO DEFAULT"
    );
    transaction.batch_execute(&lock).await.map_err(from_postgres)?;
    let applied = applied(&transaction, schema).await?;
    let due = MIGRATIONS.iter().filter(|migration| migration.version > applied);
    let mut text = if applied == 0 { ledger(schema) } else { String::new() };
    for migration in due {
        text.push_str(&migration.sql(schema));
    }
    if applied == 0 && !schema_exists(&transaction, schema).await? {
        text.insert_str(0, &format!("CREATE SCHEMA {schema};\n"));
    }
    transaction.batch_execute(&text).await.map_err(from_postgres)?;
    transaction.commit().await.map_err(from_postgres)
}

/// The statements that make the tables, for people who apply them by hand.
pub(super) fn migration_sql(schema: &str) -> String {
    let mut text = format!("CREATE SCHEMA IF NOT EXISTS {schema};\n\n{}", ledger(schema));
    for migration in MIGRATIONS {
        text.push_str(&format!("\n-- {}: {}\n", migration.version, migration.name));
        text.push_str(&migration.sql(schema));
    }
    text
}

impl Migration {
    fn sql(&self, schema: &str) -> String {
        let Self { version, oldest, name, statements } = self;
        format!(
            "{}INSERT INTO {schema}.oncekey_migrations (version, oldest, name, applied) \
             VALUES ({version}, {oldest}, '{name}', {NOW});\n",
            statements.replace("{schema}", schema)
        )
    }
}

fn ledger(schema: &str) -> String {
    format!(
        "CREATE TABLE {schema}.oncekey_migrations (
    version integer PRIMARY KEY,
    -- Programs that know this version and no later one can work with the tables, too.
    oldest  integer NOT NULL,
    name    text    NOT NULL,
    applied bigint  NOT NULL
);\n"
    )
}

async fn schema_exists(client: &impl GenericClient, schema: &str) -> Result<bool, StoreError> {
    let text = format!("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{schema}')");
    let row = client.query_typed_one(&text, &[]).await.map_err(from_postgres)?;
    Ok(row.get(0))
}

/// The newest migration that the tables have, if this version can work with them. Zero if there are
/// none.
async fn applied(client: &impl GenericClient, schema: &str) -> Result<i32, StoreError> {
    // From the catalogue itself: `to_regclass` goes by a cache that still holds what was so before
    // the wait for the lock.
    let text = format!(
        "SELECT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE n.nspname = '{schema}' AND c.relname = 'oncekey_migrations')"
    );
    let row = client.query_typed_one(&text, &[]).await.map_err(from_postgres)?;
    if !row.get::<_, bool>(0) {
        return Ok(0);
    }
    let newest = MIGRATIONS.last().map_or(0, |migration| migration.version);
    let text = format!(
        "SELECT coalesce(max(version), 0), coalesce(max(oldest) FILTER (WHERE version > {newest}), 0)
         FROM {schema}.oncekey_migrations"
    );
    let row = client.query_typed_one(&text, &[]).await.map_err(from_postgres)?;
    let (applied, oldest): (i32, i32) = (row.get(0), row.get(1));
    if oldest > newest {
        return Err(unsuitable(format!(
            "the tables of oncekey in schema {schema} have version {applied}, which programs of \
             version {newest} cannot work with: upgrade oncekey"
        )));
    }
    if applied > newest {
        tracing::warn!(applied, newest, "the tables are newer than this program, but compatible");
    }
    Ok(applied)
}
