//! MySQL and MariaDB through sqlx.

use std::sync::Arc;

use sqlx::mysql::{MySqlConnection, MySqlDatabaseError, MySqlPool, MySqlRow};
use sqlx::{AssertSqlSafe, Executor as _, MySql, Row as _, ValueRef as _};

use super::line::{Line, Lines, Tx};
use crate::flow::store::{Cell, Open, Row, TxError, TxStore, TxTrouble, Value};
use crate::flow::tables::{BadName, Dialect, Layout};

/// Flows in MySQL or MariaDB, on the application's own pool.
#[derive(Clone, Debug)]
pub struct SqlxMysql {
    lines: Lines<MySql>,
    layout: Layout,
}

/// The names of the tables begin with this.
const PREFIX: &str = "oncekey_";

impl SqlxMysql {
    /// On a pool of the application, with tables whose names begin with `oncekey_`.
    #[must_use]
    pub fn new(pool: MySqlPool) -> Self {
        let layout = Layout::new(Dialect::Mysql, PREFIX).expect("the prefix is a name");
        Self { lines: Lines::new(pool), layout }
    }

    /// The same, with another prefix.
    ///
    /// # Errors
    /// If that could be taken for something else in a statement.
    pub fn with_prefix(pool: MySqlPool, prefix: &str) -> Result<Self, BadName> {
        Ok(Self { lines: Lines::new(pool), layout: Layout::new(Dialect::Mysql, prefix)? })
    }

    /// Hands the connections of flows from step to step instead of giving them back to the pool in between:
    /// two round trips less for each step. One that nobody needs within 5 ms goes back, or at once if the
    /// pool has no other, and all of them every second.
    ///
    /// Not for a pool whose `before_acquire` or `after_release` must run between two steps, such as one that
    /// sets a variable for every tenant: they run only when a connection comes from the pool, or goes back.
    #[must_use]
    pub fn keep_connections(mut self) -> Self {
        self.lines.keep();
        self
    }

    /// The pool, for statements of the application.
    #[must_use]
    pub const fn pool(&self) -> &MySqlPool {
        self.lines.pool()
    }
}

impl TxStore for SqlxMysql {
    type Conn = MySqlConnection;
    type Tx = Tx<MySql>;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    async fn begin(&self) -> Result<Self::Tx, TxError> {
        // The default, REPEATABLE READ, locks gaps between rows, and then strangers wait for each
        // other. The flow's own row serialises it anyway.
        self.begun("SET TRANSACTION ISOLATION LEVEL READ COMMITTED").await
    }

    async fn begin_serializable(&self) -> Result<Self::Tx, TxError> {
        self.begun("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE").await
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
            Err(error) if code(&error) == Some(NO_SAVEPOINT) => Ok(Open::Ended),
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
        sqlx::raw_sql(AssertSqlSafe(text)).execute(self.pool()).await.map_err(trouble)?;
        Ok(())
    }
}

impl SqlxMysql {
    async fn begun(&self, isolation: &'static str) -> Result<Tx<MySql>, TxError> {
        let lines = self.lines.clone();
        super::begun(async move { lines.begin(|line| open(line, isolation)).await })
            .await?
            .map_err(trouble)
    }
}

/// Begins the next transaction of a connection, which is to be as `isolation` says.
async fn open(mut line: Line<MySql>, isolation: &'static str) -> Result<Tx<MySql>, sqlx::Error> {
    line.execute(isolation).await?;
    let mut tx = Tx::begin(line, None).await?;
    tx.execute("SAVEPOINT oncekey_phase").await?;
    Ok(tx)
}

/// Deadlock, and a lock that was waited for too long. The server has rolled back the first and only
/// the statement of the second: the whole transaction is given up in both cases.
const CONFLICTS: [u16; 2] = [1213, 1205];
/// A savepoint that is not there.
const NO_SAVEPOINT: u16 = 1305;

type Query<'q> = sqlx::query::Query<'q, MySql, sqlx::mysql::MySqlArguments>;

/// Text is bound as bytes, because the columns are bytes: no collation has a say.
fn bound<'q>(sql: &Arc<str>, values: &[Value<'_>]) -> Query<'q> {
    let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
    for value in values {
        query = match *value {
            Value::Int(number) => query.bind(number),
            Value::Bytes(bytes) => query.bind(bytes),
            Value::Text(text) => query.bind(text.as_bytes()),
            Value::NoInt => query.bind(None::<i64>),
            Value::NoBytes => query.bind(None::<Vec<u8>>),
        };
    }
    query
}

fn read(row: &MySqlRow) -> Result<Row, TxError> {
    let cell = |column: usize| {
        let value = row.try_get_raw(column)?;
        if value.is_null() {
            return Ok(Cell::Null);
        }
        let name = sqlx::TypeInfo::name(&*value.type_info()).to_owned();
        match name.as_str() {
            "BIGINT" | "INT" => row.try_get::<i64, _>(column).map(Cell::Int),
            _ => row.try_get_unchecked::<Vec<u8>, _>(column).map(Cell::Bytes),
        }
    };
    let cells: Result<Vec<Cell>, sqlx::Error> = (0..row.len()).map(cell).collect();
    Ok(Row::from(cells.map_err(trouble)?))
}

/// What can be done about an error of the driver.
fn trouble(error: sqlx::Error) -> TxError {
    let kind = match is_conflict(&error) {
        true => TxTrouble::Conflict,
        false => super::common_trouble(&error),
    };
    TxError::new(kind, error)
}

/// Whether another transaction was in the way.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| CONFLICTS.contains(&code))
}

fn code(error: &sqlx::Error) -> Option<u16> {
    let sqlx::Error::Database(found) = error else { return None };
    found.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}
