//! SQLite through sqlx.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteRow, SqliteSynchronous,
};
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, Row as _, SqlSafeStr, Sqlite, Transaction,
    ValueRef as _,
};

use crate::flow::store::{Cell, Open, Row, TxError, TxStore, TxTrouble, Value};
use crate::flow::tables::{BadName, Dialect, Layout};

/// Flows in a SQLite file, on the application's own pool.
#[derive(Clone, Debug)]
pub struct SqlxSqlite {
    pool: SqlitePool,
    layout: Layout,
}

/// The names of the tables begin with this.
const PREFIX: &str = "oncekey_";

/// How long a transaction waits for another one before it is told that the file is busy.
const BUSY: Duration = Duration::from_secs(5);

/// Connections of a pool that [`SqlxSqlite::open`] makes. One writes at a time; the others read.
const CONNECTIONS: u32 = 4;

impl SqlxSqlite {
    /// On a pool of the application. What a commit survives is up to how the pool was made: WAL and
    /// `synchronous = FULL` survive the end of the machine.
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        let layout = Layout::new(Dialect::Sqlite, PREFIX).expect("the prefix is a name");
        Self { pool, layout }
    }

    /// The same, with tables whose names begin with `prefix`.
    ///
    /// # Errors
    /// If that could be taken for something else in a statement.
    pub fn with_prefix(pool: SqlitePool, prefix: &str) -> Result<Self, BadName> {
        Ok(Self { pool, layout: Layout::new(Dialect::Sqlite, prefix)? })
    }

    /// On a file, which is made if it does not exist, with a pool of its own that loses nothing.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, TxError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY);
        let pool =
            SqlitePoolOptions::new().max_connections(CONNECTIONS).connect_with(options).await;
        Ok(Self::new(pool.map_err(trouble)?))
    }

    /// The pool, for statements of the application.
    #[must_use]
    pub const fn pool(&self) -> &SqlitePool {
        &self.pool
    }
}

impl TxStore for SqlxSqlite {
    type Conn = SqliteConnection;
    type Tx = Transaction<'static, Sqlite>;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    async fn begin(&self) -> Result<Self::Tx, TxError> {
        let pool = self.pool.clone();
        // In a task of its own: see the module.
        super::begun(async move {
            let mut connection = pool.acquire().await?;
            // Somebody ended a transaction behind the driver's back, which still counts it.
            while connection.is_in_transaction() {
                let _ = connection.close().await;
                connection = pool.acquire().await?;
            }
            // A transaction that first reads and then writes would be told that it is too late.
            let immediate = SqlSafeStr::into_sql_str("BEGIN IMMEDIATE");
            let mut tx = Transaction::begin(connection, Some(immediate)).await?;
            tx.execute("SAVEPOINT oncekey_phase").await?;
            Ok(tx)
        })
        .await?
        .map_err(trouble)
    }

    /// There is one writer, and who only reads sees one state.
    async fn begin_serializable(&self) -> Result<Self::Tx, TxError> {
        self.begin().await
    }

    fn conn(tx: &mut Self::Tx) -> &mut Self::Conn {
        tx
    }

    fn conn_ref(tx: &Self::Tx) -> &Self::Conn {
        tx
    }

    async fn still_open(conn: &mut Self::Conn) -> Result<Open, TxError> {
        match conn.execute("RELEASE SAVEPOINT oncekey_phase").await {
            Ok(_) => Ok(Open::Yes),
            Err(sqlx::Error::Database(_)) => {
                // The driver still counts the transaction that somebody ended: what it rolls back
                // next must be there, or else the connection is of no use to anybody.
                let _ = conn.execute("BEGIN").await;
                Ok(Open::Ended)
            }
            Err(error) => Err(trouble(error)),
        }
    }

    async fn commit(tx: Self::Tx) -> Result<(), TxError> {
        tx.commit().await.map_err(trouble)
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
        let done = bound(sql, values).execute(&self.pool).await.map_err(trouble)?;
        Ok(done.rows_affected())
    }

    async fn query_once(&self, sql: &Arc<str>, values: &[Value<'_>]) -> Result<Vec<Row>, TxError> {
        let rows = bound(sql, values).fetch_all(&self.pool).await.map_err(trouble)?;
        rows.iter().map(read).collect()
    }

    async fn script(&self, text: &str) -> Result<(), TxError> {
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&self.pool).await.map_err(trouble)?;
        Ok(())
    }
}

type Query<'q> = sqlx::query::Query<'q, Sqlite, sqlx::sqlite::SqliteArguments>;

fn bound<'q>(sql: &Arc<str>, values: &[Value<'_>]) -> Query<'q> {
    let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
    for value in values {
        query = match *value {
            Value::Int(number) => query.bind(number),
            Value::Bytes(bytes) => query.bind(bytes.to_vec()),
            Value::Text(text) => query.bind(text.to_owned()),
            Value::NoInt => query.bind(None::<i64>),
            Value::NoBytes => query.bind(None::<Vec<u8>>),
        };
    }
    query
}

fn read(row: &SqliteRow) -> Result<Row, TxError> {
    let cell = |column: usize| {
        let value = row.try_get_raw(column)?;
        if value.is_null() {
            return Ok(Cell::Null);
        }
        let name = sqlx::TypeInfo::name(&*value.type_info()).to_owned();
        match name.as_str() {
            "INTEGER" => row.try_get::<i64, _>(column).map(Cell::Int),
            "TEXT" => row.try_get::<String, _>(column).map(|text| Cell::Bytes(text.into_bytes())),
            _ => row.try_get::<Vec<u8>, _>(column).map(Cell::Bytes),
        }
    };
    let cells: Result<Vec<Cell>, sqlx::Error> = (0..row.len()).map(cell).collect();
    Ok(Row::from(cells.map_err(trouble)?))
}

/// What can be done about an error of the driver.
pub(crate) fn trouble(error: sqlx::Error) -> TxError {
    // The code of SQLite, with its extension in the higher bits: busy and locked.
    let code = error.as_database_error().map(|found| number(found.code().as_deref()) & 255);
    let kind = match code {
        Some(5 | 6) => TxTrouble::Conflict,
        Some(_) | None => super::common_trouble(&error),
    };
    TxError::new(kind, error)
}

fn number(code: Option<&str>) -> i64 {
    code.and_then(|code| code.parse().ok()).unwrap_or(0)
}
