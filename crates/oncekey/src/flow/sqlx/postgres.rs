//! PostgreSQL through sqlx.

use std::sync::Arc;

use sqlx::postgres::{PgConnection, PgPool, PgRow};
use sqlx::{AssertSqlSafe, Postgres, Row as _, ValueRef as _};

use super::line::{Lines, Tx};
use crate::flow::store::{Cell, Open, Row, TxError, TxStore, Value};
use crate::flow::tables::{BadName, Dialect, Layout};

/// Flows in PostgreSQL, on the application's own pool.
///
/// Prepared statements are kept by the driver, so behind a pooler that pools transactions it must be
/// one that knows them (pgbouncer 1.21 and newer).
#[derive(Clone, Debug)]
pub struct SqlxPostgres {
    lines: Lines<Postgres>,
    layout: Layout,
}

/// The schema of the tables: that of the key store.
const SCHEMA: &str = "oncekey";

/// The setting ends with the transaction: so a statement can tell whether it is still the one that
/// was begun, without another round trip.
const BEGIN: &str = "BEGIN; SET LOCAL oncekey.phase = 'on'";
/// The commit of one and the beginning of the next in one round trip. Not `COMMIT AND CHAIN`, under which the
/// next one would be read-only, or serializable, if the application has made this one so.
const COMMIT_AND_BEGIN: &str = "COMMIT; BEGIN; SET LOCAL oncekey.phase = 'on'";
const BEGIN_SERIALIZABLE: &str =
    "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL oncekey.phase = 'on'";

impl SqlxPostgres {
    /// On a pool of the application, with the tables in schema `oncekey`.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        let layout = Layout::new(Dialect::Postgres, SCHEMA).expect("the schema is a name");
        Self { lines: Lines::new(pool), layout }
    }

    /// The same, with tables in another schema.
    ///
    /// # Errors
    /// If its name could be taken for something else in a statement.
    pub fn with_schema(pool: PgPool, schema: &str) -> Result<Self, BadName> {
        Ok(Self { lines: Lines::new(pool), layout: Layout::new(Dialect::Postgres, schema)? })
    }

    /// Hands the connections of flows from step to step instead of giving them back to the pool in between:
    /// two round trips less for each step. One that nobody needs within 5 ms goes back, or at once if the
    /// pool has no other, and all of them every second.
    ///
    /// Not for a pool whose `before_acquire` or `after_release` must run between two steps, such as one that
    /// gives every tenant another role: they run only when a connection comes from the pool, or goes back.
    #[must_use]
    pub fn keep_connections(mut self) -> Self {
        self.lines.keep();
        self
    }

    /// The same, and whoever commits a step begins the transaction of the next one in the same round trip,
    /// of whichever flow: another round trip less for each step.
    ///
    /// What the database calls the time of a transaction (`now()`) may then be up to 5 ms before the step
    /// began, and so before that of the step before it: where steps compare times, use `clock_timestamp()`.
    /// A connection that dies while it waits fails the step that gets it, which is tried again later, where
    /// [`keep_connections`](Self::keep_connections) alone finds another one. Behind a pooler, a connection in
    /// use keeps its server connection for up to a second.
    #[must_use]
    pub fn begin_ahead(mut self) -> Self {
        self.lines.keep_begun(COMMIT_AND_BEGIN);
        self
    }

    /// The pool, for statements of the application.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        self.lines.pool()
    }
}

impl TxStore for SqlxPostgres {
    type Conn = PgConnection;
    type Tx = Tx<Postgres>;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    async fn begin(&self) -> Result<Self::Tx, TxError> {
        match self.lines.take_begun() {
            Some(tx) => Ok(tx),
            None => self.begun(BEGIN).await,
        }
    }

    async fn begin_serializable(&self) -> Result<Self::Tx, TxError> {
        self.begun(BEGIN_SERIALIZABLE).await
    }

    fn conn(tx: &mut Self::Tx) -> &mut Self::Conn {
        tx
    }

    fn conn_ref(tx: &Self::Tx) -> &Self::Conn {
        tx
    }

    async fn still_open(_conn: &mut Self::Conn) -> Result<Open, TxError> {
        Ok(Open::AskedLater)
    }

    async fn commit(mut tx: Self::Tx) -> Result<(), TxError> {
        let Some(next) = tx.next() else { return tx.commit().await.map_err(trouble) };
        // If the commit fails, what comes after it is not said.
        sqlx::raw_sql(next).execute(&mut *tx).await.map_err(trouble)?;
        tx.leave_begun();
        Ok(())
    }

    async fn rollback(tx: Self::Tx) -> Result<(), TxError> {
        tx.rollback().await.map_err(trouble)
    }

    async fn execute(
        conn: &mut Self::Conn,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<u64, TxError> {
        let done = bound(sql, values).execute(conn).await.map_err(trouble)?;
        Ok(done.rows_affected())
    }

    async fn query(
        conn: &mut Self::Conn,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, TxError> {
        let rows = bound(sql, values).fetch_all(conn).await.map_err(trouble)?;
        rows.iter().map(read).collect()
    }

    async fn execute_once(&self, sql: &Arc<str>, values: &[Value<'_>]) -> Result<u64, TxError> {
        let mut line = self.lines.take().await.map_err(trouble)?;
        let done = bound(sql, values).execute(&mut *line).await.map_err(trouble)?;
        line.leave();
        Ok(done.rows_affected())
    }

    async fn query_once(&self, sql: &Arc<str>, values: &[Value<'_>]) -> Result<Vec<Row>, TxError> {
        let mut line = self.lines.take().await.map_err(trouble)?;
        let rows = bound(sql, values).fetch_all(&mut *line).await.map_err(trouble)?;
        line.leave();
        rows.iter().map(read).collect()
    }

    async fn script(&self, text: &str) -> Result<(), TxError> {
        // Of processes that start together one makes the tables: `IF NOT EXISTS` alone lets two of
        // them meet in the catalogue. Statements that are sent together are one transaction; with a
        // BEGIN of our own, an error would leave it open on a connection of the pool.
        let locked = format!("SELECT pg_advisory_xact_lock({LOCK}); {text}");
        sqlx::raw_sql(AssertSqlSafe(locked)).execute(self.pool()).await.map_err(trouble)?;
        Ok(())
    }
}

impl SqlxPostgres {
    async fn begun(&self, begin: &'static str) -> Result<Tx<Postgres>, TxError> {
        let lines = self.lines.clone();
        super::begun(async move { lines.begin(|line| Tx::begin(line, Some(begin))).await })
            .await?
            .map_err(trouble)
    }
}

/// "oncekey" as a number: the lock under which the key store makes its tables.
const LOCK: i64 = 0x6f_6e63_656b_6579;

type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

fn bound<'q>(sql: &Arc<str>, values: &[Value<'_>]) -> Query<'q> {
    let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
    for value in values {
        query = match *value {
            Value::Int(number) => query.bind(number),
            Value::Bytes(bytes) => query.bind(bytes),
            Value::Text(text) => query.bind(text),
            Value::NoInt => query.bind(None::<i64>),
            Value::NoBytes => query.bind(None::<Vec<u8>>),
        };
    }
    query
}

fn read(row: &PgRow) -> Result<Row, TxError> {
    let cell = |column: usize| {
        let value = row.try_get_raw(column)?;
        if value.is_null() {
            return Ok(Cell::Null);
        }
        let name = sqlx::TypeInfo::name(&*value.type_info()).to_owned();
        match name.as_str() {
            "INT8" => row.try_get::<i64, _>(column).map(Cell::Int),
            "TEXT" => row.try_get::<String, _>(column).map(|text| Cell::Bytes(text.into_bytes())),
            _ => row.try_get::<Vec<u8>, _>(column).map(Cell::Bytes),
        }
    };
    let cells: Result<Vec<Cell>, sqlx::Error> = (0..row.len()).map(cell).collect();
    Ok(Row::from(cells.map_err(trouble)?))
}

/// What can be done about an error of the driver.
fn trouble(error: sqlx::Error) -> TxError {
    TxError::new(super::common_trouble(&error), error)
}
