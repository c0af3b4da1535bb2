//! PostgreSQL through tokio-postgres.
//!
//! A phase hands out the application's own [`Client`], inside of the transaction, and not a
//! `Transaction` of the driver: that one borrows its client, so a task could not keep the two together
//! without unsafe code. [`PgClient`] gives the client by shared reference only. All statements work on
//! it, and `transaction()`, whose commit would end the phase, does not compile.
//!
//! Nothing here needs a task of its own, as `begin` does with sqlx. Requests of one client are executed in
//! the order in which they were first polled, and dropping one does not take it back. So whoever drops a
//! transaction, its `begin` or its `commit` sends a `ROLLBACK` behind it on the spot, and whatever comes
//! later on the same client comes after that. The client is given back when the server has answered.
//!
//! Our statements travel with the types of their values, in one round trip, and are not prepared: that
//! works behind every pooler.
//!
//! ```no_run
//! use oncekey::flow::tokio_postgres::TokioPostgres;
//! use oncekey::flow::{Definition, Flow, Reply, migrate};
//! use tokio_postgres::NoTls;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // Up to eight clients, made when they are needed. A pool is taken by `TokioPostgres::new`.
//! let store = TokioPostgres::dial(8, || async {
//!     let (client, connection) = tokio_postgres::connect("host=localhost", NoTls).await?;
//!     tokio::spawn(connection);
//!     Ok::<_, tokio_postgres::Error>(client)
//! });
//! migrate(&store).await?;
//!
//! let create = |flow: Flow<TokioPostgres>, amount: i64| async move {
//!     let order: i64 = flow
//!         .phase("order_created", async |tx| {
//!             let insert = "INSERT INTO orders (amount) VALUES ($1) RETURNING id";
//!             Ok(tx.query_one(insert, &[&amount]).await?.get(0))
//!         })
//!         .await?;
//!     flow.finish(async |_| Reply::json(201, &order)).await
//! };
//! let definition = Definition::new("orders.create", create);
//! # let _: Definition<TokioPostgres> = definition;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};

use super::halt::Halt;
use super::lend::{Lender, Lent};
use super::store::{Cell, Open, Row, TxError, TxStore, TxTrouble, Value};
use super::tables::{BadName, Dialect, Layout};

/// Flows in PostgreSQL, on clients of the application.
#[derive(Clone)]
pub struct TokioPostgres {
    lend: Arc<Lend>,
    layout: Layout,
}

/// A client of the application, while it is lent.
pub struct PgClient(Box<dyn Holds>);

/// A transaction. It rolls back when it is dropped.
#[derive(Debug)]
pub struct PgTx {
    /// Until the server has said that the transaction is over.
    client: Option<PgClient>,
}

/// The schema of the tables: that of the key store.
const SCHEMA: &str = "oncekey";

/// The setting ends with the transaction: so a statement can tell whether it is still the one that
/// was begun, without another round trip.
const BEGIN: &str = "BEGIN; SET LOCAL oncekey.phase = 'on'";
const BEGIN_SERIALIZABLE: &str =
    "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL oncekey.phase = 'on'";

/// In a transaction that an error has aborted, `COMMIT` rolls back, and the driver takes that for
/// success. There the empty `SELECT` fails in its place.
const COMMIT: &str = "SELECT; COMMIT";
const ROLLBACK: &str = "ROLLBACK";

/// "oncekey" as a number: the lock under which the key store makes its tables.
const LOCK: i64 = 0x6f_6e63_656b_6579;

const UNTIL_THE_END: &str = "a transaction has its client until it ends";

type Lend = dyn Fn() -> Lending + Send + Sync;
type Lending = Pin<Box<dyn Future<Output = Result<PgClient, TxError>> + Send>>;

/// What a pool gives out, with the client in it.
trait Holds: Send + Sync {
    fn client(&self) -> &Client;
}

struct Held<L> {
    lent: L,
    client: fn(&L) -> &Client,
}

impl TokioPostgres {
    /// On a pool of the application, with the tables in schema `oncekey`.
    ///
    /// `lend` gets a client from the pool, which takes it back when it is dropped, and `client` finds the
    /// client in it. With deadpool:
    ///
    /// ```ignore
    /// let store = TokioPostgres::new(
    ///     move || { let pool = pool.clone(); async move { pool.get().await } },
    ///     |lent: &deadpool_postgres::Object| lent,
    /// );
    /// ```
    pub fn new<L, E, F>(
        lend: impl Fn() -> F + Send + Sync + 'static,
        client: fn(&L) -> &Client,
    ) -> Self
    where
        L: Send + Sync + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
        F: Future<Output = Result<L, E>> + Send + 'static,
    {
        let lend = move || {
            let lending = lend();
            let lent = async move {
                let lent = lending.await.map_err(|e| TxError::new(TxTrouble::Unavailable, e))?;
                Ok(PgClient(Box::new(Held { lent, client })))
            };
            let lending: Lending = Box::pin(lent);
            lending
        };
        let layout = Layout::new(Dialect::Postgres, SCHEMA).expect("the schema is a name");
        Self { lend: Arc::new(lend), layout }
    }

    /// For programs without a pool: keeps up to `most` clients, which `dial` makes, and makes another one
    /// in the place of one that is closed.
    pub fn dial<E, F>(most: usize, dial: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
        F: Future<Output = Result<Client, E>> + Send + 'static,
    {
        let (lender, dial) = (Lender::<Client>::new(Vec::new(), most), Arc::new(dial));
        let lend = move || {
            let (lender, dial) = (lender.clone(), Arc::clone(&dial));
            async move {
                let place = lender.place().await?;
                while let Some(client) = place.idle() {
                    if !client.is_closed() {
                        return Ok(place.hold(client));
                    }
                }
                let client = dial().await.map_err(|e| TxError::new(TxTrouble::Unavailable, e))?;
                Ok::<_, TxError>(place.hold(client))
            }
        };
        Self::new(lend, |lent: &Lent<Client>| lent)
    }

    /// The same, with tables in another schema.
    ///
    /// # Errors
    /// If its name could be taken for something else in a statement.
    pub fn schema(self, schema: &str) -> Result<Self, BadName> {
        Ok(Self { layout: Layout::new(Dialect::Postgres, schema)?, ..self })
    }

    /// A client for statements of the application.
    ///
    /// # Errors
    /// If there is none.
    pub async fn client(&self) -> Result<PgClient, TxError> {
        (self.lend)().await
    }
}

impl TxStore for TokioPostgres {
    type Conn = PgClient;
    type Tx = PgTx;

    fn layout(&self) -> &Layout {
        &self.layout
    }

    async fn begin(&self) -> Result<Self::Tx, TxError> {
        self.begun(BEGIN).await
    }

    async fn begin_serializable(&self) -> Result<Self::Tx, TxError> {
        self.begun(BEGIN_SERIALIZABLE).await
    }

    fn conn(tx: &mut Self::Tx) -> &mut Self::Conn {
        tx.client.as_mut().expect(UNTIL_THE_END)
    }

    fn conn_ref(tx: &Self::Tx) -> &Self::Conn {
        tx.client.as_ref().expect(UNTIL_THE_END)
    }

    async fn still_open(_conn: &mut Self::Conn) -> Result<Open, TxError> {
        Ok(Open::AskedLater)
    }

    async fn commit(tx: Self::Tx) -> Result<(), TxError> {
        tx.end(COMMIT).await
    }

    async fn rollback(tx: Self::Tx) -> Result<(), TxError> {
        tx.end(ROLLBACK).await
    }

    async fn execute(
        conn: &mut Self::Conn,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<u64, TxError> {
        let values: Vec<Bound<'_>> = values.iter().map(bound).collect();
        conn.execute_typed(sql, &typed(&values)).await.map_err(trouble)
    }

    async fn query(
        conn: &mut Self::Conn,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, TxError> {
        let values: Vec<Bound<'_>> = values.iter().map(bound).collect();
        let rows = conn.query_typed(sql, &typed(&values)).await.map_err(trouble)?;
        rows.iter().map(read).collect()
    }

    async fn execute_once(&self, sql: &Arc<str>, values: &[Value<'_>]) -> Result<u64, TxError> {
        Self::execute(&mut self.client().await?, sql, values).await
    }

    async fn query_once(&self, sql: &Arc<str>, values: &[Value<'_>]) -> Result<Vec<Row>, TxError> {
        Self::query(&mut self.client().await?, sql, values).await
    }

    async fn script(&self, text: &str) -> Result<(), TxError> {
        // Of processes that start together one makes the tables: `IF NOT EXISTS` alone lets two of
        // them meet in the catalogue. Statements that are sent together are one transaction.
        let locked = format!("SELECT pg_advisory_xact_lock({LOCK}); {text}");
        self.client().await?.batch_execute(&locked).await.map_err(trouble)
    }
}

impl TokioPostgres {
    async fn begun(&self, begin: &str) -> Result<PgTx, TxError> {
        // From here on, whoever drops this rolls back.
        let tx = PgTx { client: Some(self.client().await?) };
        Self::conn_ref(&tx).batch_execute(begin).await.map_err(trouble)?;
        Ok(tx)
    }
}

impl PgTx {
    async fn end(mut self, how: &str) -> Result<(), TxError> {
        TokioPostgres::conn_ref(&self).batch_execute(how).await.map_err(trouble)?;
        self.client = None;
        Ok(())
    }
}

impl Drop for PgTx {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        let mut ending = Box::pin(async move {
            let _ = client.batch_execute(ROLLBACK).await;
        });
        // The first poll sends it, whatever becomes of the rest.
        let first = ending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // The rest keeps the client until the server has answered: a statement that was dropped may wait
        // for a lock, and nobody else should have to wait behind it.
        if first.is_pending()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(ending);
        }
    }
}

impl<L: Send + Sync> Holds for Held<L> {
    fn client(&self) -> &Client {
        (self.client)(&self.lent)
    }
}

impl Deref for PgClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.0.client()
    }
}

/// The application's own statements: see [`Halt`].
impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::from(trouble(error))
    }
}

type Bound<'v> = (Box<dyn ToSql + Sync + Send + 'v>, Type);

fn bound<'v>(value: &Value<'v>) -> Bound<'v> {
    match *value {
        Value::Int(number) => (Box::new(number), Type::INT8),
        Value::Bytes(bytes) => (Box::new(bytes), Type::BYTEA),
        Value::Text(text) => (Box::new(text), Type::TEXT),
        Value::NoInt => (Box::new(None::<i64>), Type::INT8),
        Value::NoBytes => (Box::new(None::<&[u8]>), Type::BYTEA),
    }
}

fn typed<'b>(values: &'b [Bound<'_>]) -> Vec<(&'b (dyn ToSql + Sync), Type)> {
    values.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect()
}

fn read(row: &tokio_postgres::Row) -> Result<Row, TxError> {
    let cell = |(column, kind): (usize, &Type)| {
        Ok(match *kind {
            Type::INT8 => row.try_get::<_, Option<i64>>(column)?.map(Cell::Int),
            Type::TEXT => {
                let text = row.try_get::<_, Option<String>>(column)?;
                text.map(|text| Cell::Bytes(text.into_bytes()))
            }
            _ => row.try_get::<_, Option<Vec<u8>>>(column)?.map(Cell::Bytes),
        }
        .unwrap_or(Cell::Null))
    };
    let columns = row.columns().iter().map(tokio_postgres::Column::type_).enumerate();
    let cells: Result<Vec<Cell>, Error> = columns.map(cell).collect();
    Ok(Row::from(cells.map_err(trouble)?))
}

/// What can be done about an error of the driver.
fn trouble(error: Error) -> TxError {
    let kind = match error.code() {
        Some(state) => TxTrouble::of_state(state.code()),
        // A connection that broke, or was closed, or could not be made. A value that cannot be written
        // or read is the only other trouble that is not the server's.
        None if std::error::Error::source(&error)
            .is_some_and(|cause| cause.is::<std::io::Error>())
            || error.is_closed() =>
        {
            TxTrouble::Unavailable
        }
        None => TxTrouble::Refused,
    };
    TxError::new(kind, error)
}

impl fmt::Debug for TokioPostgres {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TokioPostgres").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl fmt::Debug for PgClient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("PgClient")
    }
}
