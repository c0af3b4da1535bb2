//! SQLite through rusqlite.
//!
//! rusqlite blocks, and a phase is asynchronous. So each connection lives on a thread of its own, which does
//! what it is sent, one thing after the other: `tx.run(|connection| …)` sends a closure there and waits
//! for what it returns. The closure gets the application's own [`Connection`], inside of the
//! transaction, with everything that rusqlite has. It must own what it uses, because a request that is
//! dropped leaves it running: to lend it something for that time would need unsafe code, or a
//! runtime that is blocked as long.
//!
//! The order of that queue is also what keeps a connection clean. Whoever drops a transaction, its
//! `begin` or its `commit` sends a `ROLLBACK` behind it, and the connection is lent to others when that
//! is done.
//!
//! ```
//! # tokio_test_block_on(async {
//! use oncekey::core::{Key, Scope};
//! use oncekey::flow::rusqlite::Rusqlite;
//! use oncekey::flow::{Definition, Flow, FlowKey, Flows, Outcome, Reply, migrate};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("app.db");
//! let store = Rusqlite::open(path)?; // or Rusqlite::new(connections)
//! migrate(&store).await?;
//! let orders = "CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER)";
//! store.run(move |connection| connection.execute(orders, [])).await?;
//!
//! let create = |flow: Flow<Rusqlite>, amount: i64| async move {
//!     let order = flow
//!         .phase("order_created", async |tx| {
//!             let insert = move |connection: &mut rusqlite::Connection| {
//!                 connection.execute("INSERT INTO orders (amount) VALUES (?)", [amount])?;
//!                 Ok(connection.last_insert_rowid())
//!             };
//!             Ok(tx.run(insert).await?)
//!         })
//!         .await?;
//!     flow.finish(async |_| Reply::json(201, &order)).await
//! };
//! let flows = Flows::builder(store, "shop")
//!     .flow(Definition::new("orders.create", create))
//!     .build()?;
//! let key = FlowKey::new(Scope::shared(), Key::new(b"8e03978e")?);
//! let outcome = flows.run("orders.create", &key, &1_200_i64).await?;
//! assert!(matches!(outcome, Outcome::Replied { reply, .. } if reply.status() == 201));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # });
//! # fn tokio_test_block_on<E: std::fmt::Debug>(test: impl Future<Output = Result<(), E>>) {
//! #     tokio::runtime::Runtime::new().unwrap().block_on(test).unwrap();
//! # }
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use rusqlite::types::{Value as Bound, ValueRef};
use rusqlite::{Connection, Error, ErrorCode, ffi, params_from_iter};
use tokio::sync::oneshot;

use super::halt::Halt;
use super::lend::{Lender, Lent};
use super::store::{Cell, Open, Row, TxError, TxStore, TxTrouble, Value};
use super::tables::{BadName, Dialect, Layout};

/// Flows in a SQLite file, on the application's own connections.
#[derive(Clone, Debug)]
pub struct Rusqlite {
    lender: Lender<Thread>,
    layout: Layout,
}

/// A connection of the application, while it is lent.
#[derive(Debug)]
pub struct RusqliteConnection(Lent<Thread>);

/// A transaction. It rolls back when it is dropped.
#[derive(Debug)]
pub struct RusqliteTx {
    /// Until the transaction is over.
    connection: Option<RusqliteConnection>,
}

/// The thread of a connection. It ends, and closes the connection, when nobody can send to it any more.
#[derive(Debug)]
struct Thread(mpsc::Sender<Job>);

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// The names of the tables begin with this.
const PREFIX: &str = "oncekey_";

/// Connections that [`Rusqlite::open`] makes. One writes at a time; the others read.
const CONNECTIONS: usize = 4;

/// A transaction that first reads and then writes would be told that it is too late. The savepoint tells
/// whether it is still this transaction.
const BEGIN: &str = "BEGIN IMMEDIATE; SAVEPOINT oncekey_phase";

const UNTIL_THE_END: &str = "a transaction has its connection until it ends";

impl Rusqlite {
    /// On connections of the application, all to the same file: each gets a thread. What a commit survives is
    /// up to how they were opened: WAL and `synchronous = FULL` survive the end of the machine. How long a
    /// transaction waits for another one is up to their `busy_timeout`.
    ///
    /// # Errors
    /// If a thread cannot be started, or without a connection.
    pub fn new(connections: impl IntoIterator<Item = Connection>) -> Result<Self, TxError> {
        let threads: Result<Vec<_>, _> = connections.into_iter().map(Thread::start).collect();
        let threads = threads.map_err(|error| TxError::new(TxTrouble::Unavailable, error))?;
        if threads.is_empty() {
            return Err(TxError::new(TxTrouble::Refused, "flows need a connection"));
        }
        let most = threads.len();
        let layout = Layout::new(Dialect::Sqlite, PREFIX).expect("the prefix is a name");
        Ok(Self { lender: Lender::new(threads, most), layout })
    }

    /// On a file, which is made if it does not exist, with connections that lose nothing.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TxError> {
        let open = |_| {
            let connection = Connection::open(&path)?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "full")?;
            Ok(connection)
        };
        let opened: rusqlite::Result<Vec<_>> = (0..CONNECTIONS).map(open).collect();
        Self::new(opened.map_err(trouble)?)
    }

    /// The same, with tables whose names begin with `prefix`.
    ///
    /// # Errors
    /// If that could be taken for something else in a statement.
    pub fn prefix(self, prefix: &str) -> Result<Self, BadName> {
        Ok(Self { layout: Layout::new(Dialect::Sqlite, prefix)?, ..self })
    }

    /// Does something of the application's on one of the connections. A transaction that is still open
    /// afterwards is rolled back.
    ///
    /// # Errors
    /// What `work` returns, and if there is no connection.
    ///
    /// # Panics
    /// If `work` does.
    ///
    /// # Cancellation
    /// Dropping it does not stop `work`.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, TxError> {
        let mut tx = self.lent().await?;
        let done = Self::conn(&mut tx).run(|connection| {
            clean(connection)?;
            work(connection)
        });
        done.await.map_err(trouble)
    }

    /// A connection. Whoever drops it leaves no transaction open.
    async fn lent(&self) -> Result<RusqliteTx, TxError> {
        let place = self.lender.place().await?;
        let thread = place.idle().ok_or_else(TxError::damaged)?;
        Ok(RusqliteTx { connection: Some(RusqliteConnection(place.hold(thread))) })
    }
}

impl RusqliteConnection {
    /// Does something on the connection, inside of the transaction, and waits for what it returns.
    ///
    /// # Errors
    /// What `work` returns.
    ///
    /// # Panics
    /// If `work` does.
    ///
    /// # Cancellation
    /// Dropping it does not stop `work`. What comes later on the connection comes after it, a rollback
    /// too.
    pub async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        let (tell, told) = oneshot::channel();
        self.0.send(Box::new(move |connection| {
            let done = catch_unwind(AssertUnwindSafe(|| work(connection)));
            // Nobody waits for it any more: what it did is rolled back, or was a transaction by itself.
            let _ = tell.send(done);
        }));
        match told.await.expect("a thread answers every job") {
            Ok(done) => done,
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl TxStore for Rusqlite {
    type Conn = RusqliteConnection;
    type Tx = RusqliteTx;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    async fn begin(&self) -> Result<Self::Tx, TxError> {
        // From here on, whoever drops this rolls back.
        let mut tx = self.lent().await?;
        let begun = Self::conn(&mut tx).run(|connection| {
            clean(connection)?;
            connection.execute_batch(BEGIN)
        });
        begun.await.map_err(trouble)?;
        Ok(tx)
    }

    /// There is one writer, and who only reads sees one state.
    async fn begin_serializable(&self) -> Result<Self::Tx, TxError> {
        self.begin().await
    }

    fn conn(tx: &mut Self::Tx) -> &mut Self::Conn {
        tx.connection.as_mut().expect(UNTIL_THE_END)
    }

    fn conn_ref(tx: &Self::Tx) -> &Self::Conn {
        tx.connection.as_ref().expect(UNTIL_THE_END)
    }

    async fn still_open(conn: &mut Self::Conn) -> Result<Open, TxError> {
        let released = conn.run(|connection| {
            let released = connection.execute_batch("RELEASE SAVEPOINT oncekey_phase");
            Ok(if released.is_ok() { Open::Yes } else { Open::Ended })
        });
        released.await.map_err(trouble)
    }

    async fn commit(tx: Self::Tx) -> Result<(), TxError> {
        tx.end("COMMIT").await
    }

    async fn rollback(tx: Self::Tx) -> Result<(), TxError> {
        tx.end("ROLLBACK").await
    }

    async fn execute(
        conn: &mut Self::Conn,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<u64, TxError> {
        conn.run(executed(sql, values)).await.map_err(trouble)
    }

    async fn query(
        conn: &mut Self::Conn,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, TxError> {
        conn.run(queried(sql, values)).await.map_err(trouble)
    }

    async fn execute_once(&self, sql: &Arc<str>, values: &[Value<'_>]) -> Result<u64, TxError> {
        self.run(executed(sql, values)).await
    }

    async fn query_once(&self, sql: &Arc<str>, values: &[Value<'_>]) -> Result<Vec<Row>, TxError> {
        self.run(queried(sql, values)).await
    }

    async fn script(&self, text: &str) -> Result<(), TxError> {
        let text = text.to_owned();
        self.run(move |connection| connection.execute_batch(&text)).await
    }
}

impl RusqliteTx {
    async fn end(mut self, how: &'static str) -> Result<(), TxError> {
        let ended = Rusqlite::conn(&mut self).run(move |connection| connection.execute_batch(how));
        ended.await.map_err(trouble)?;
        self.connection = None;
        Ok(())
    }
}

impl Drop for RusqliteTx {
    fn drop(&mut self) {
        let Some(RusqliteConnection(lent)) = self.connection.take() else { return };
        let thread = Thread(lent.0.clone());
        thread.send(Box::new(move |connection| {
            // If it fails, whoever comes next tries it again before anything else.
            let _ = clean(connection);
            drop(lent);
        }));
    }
}

impl Thread {
    fn start(mut connection: Connection) -> std::io::Result<Self> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let work = move || jobs.into_iter().for_each(|job| job(&mut connection));
        thread::Builder::new().name("oncekey-rusqlite".to_owned()).spawn(work)?;
        Ok(Self(sender))
    }

    fn send(&self, job: Job) {
        // It listens as long as there is somebody who could send.
        let _ = self.0.send(job);
    }
}

/// Ends what somebody left open.
fn clean(connection: &Connection) -> rusqlite::Result<()> {
    match connection.is_autocommit() {
        true => Ok(()),
        false => connection.execute_batch("ROLLBACK"),
    }
}

fn executed(
    sql: &Arc<str>,
    values: &[Value<'_>],
) -> impl FnOnce(&mut Connection) -> rusqlite::Result<u64> + Send + 'static {
    let (sql, values) = (Arc::clone(sql), bound(values));
    move |connection| {
        let met = connection.prepare_cached(&sql)?.execute(params_from_iter(values))?;
        Ok(u64::try_from(met).unwrap_or(u64::MAX))
    }
}

fn queried(
    sql: &Arc<str>,
    values: &[Value<'_>],
) -> impl FnOnce(&mut Connection) -> rusqlite::Result<Vec<Row>> + Send + 'static {
    let (sql, values) = (Arc::clone(sql), bound(values));
    move |connection| {
        let mut statement = connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params_from_iter(values), read)?;
        rows.collect()
    }
}

fn bound(values: &[Value<'_>]) -> Vec<Bound> {
    let owned = |value: &Value<'_>| match *value {
        Value::Int(number) => Bound::Integer(number),
        Value::Bytes(bytes) => Bound::Blob(bytes.to_vec()),
        Value::Text(text) => Bound::Text(text.to_owned()),
        Value::NoInt | Value::NoBytes => Bound::Null,
    };
    values.iter().map(owned).collect()
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    let cell = |column: usize| {
        Ok(match row.get_ref(column)? {
            ValueRef::Null => Cell::Null,
            ValueRef::Integer(number) => Cell::Int(number),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Cell::Bytes(bytes.to_vec()),
            ValueRef::Real(_) => {
                let name = format!("column {column}");
                return Err(Error::InvalidColumnType(column, name, rusqlite::types::Type::Real));
            }
        })
    };
    let cells: rusqlite::Result<Vec<Cell>> = (0..row.as_ref().column_count()).map(cell).collect();
    Ok(Row::from(cells?))
}

/// The application's own statements: see [`Halt`].
impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::from(trouble(error))
    }
}

/// What can be done about an error of the driver.
#[allow(clippy::wildcard_enum_match_arm, reason = "the driver adds kinds of errors as it likes")]
fn trouble(error: Error) -> TxError {
    const UNIQUE: [i32; 2] = [ffi::SQLITE_CONSTRAINT_UNIQUE, ffi::SQLITE_CONSTRAINT_PRIMARYKEY];
    let kind = match &error {
        Error::SqliteFailure(found, _) => match found.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => TxTrouble::Conflict,
            ErrorCode::ConstraintViolation if UNIQUE.contains(&found.extended_code) => {
                TxTrouble::Duplicate
            }
            // The disk is full or away: what was not committed did not happen.
            ErrorCode::CannotOpen | ErrorCode::DiskFull | ErrorCode::SystemIoFailure => {
                TxTrouble::Unavailable
            }
            _ => TxTrouble::Refused,
        },
        _ => TxTrouble::Refused,
    };
    TxError::new(kind, error)
}
