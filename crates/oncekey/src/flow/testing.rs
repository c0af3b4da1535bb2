//! For tests of flows: a store on which everything can fail, stop or happen twice, at every point.
//!
//! [`Shaky`] wraps a store and counts the places at which a crash makes a difference: before and after
//! every transaction begins and commits, and before and after every statement outside of one, which is
//! before and after every intent and every outcome, and so before and after every foreign call. A
//! test runs a flow once to learn how many there are, then once for each of them:
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # tokio_test_block_on(async {
//! use oncekey::flow::testing::{Fault, Plan, Shaky};
//! use oncekey::flow::sqlx::SqlxSqlite;
//! # let folder = tempfile::tempdir().unwrap();
//! let store = SqlxSqlite::open(folder.path().join("app.db")).await.unwrap();
//! oncekey::flow::migrate(&store).await.unwrap();
//! let plan = Plan::new();
//! let store = Shaky::new(store, plan.clone());
//! // Run the flow on `store`: `plan.count()` is then how many points there are.
//! plan.arm(3, Fault::Fail);
//! // Run it again: the third of them fails.
//! # let _ = store;
//! # });
//! # #[cfg(feature = "sqlite")]
//! # fn tokio_test_block_on(test: impl Future<Output = ()>) {
//! #     tokio::runtime::Runtime::new().unwrap().block_on(test);
//! # }
//! ```

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::store::{Open, Row, TxError, TxStore, TxTrouble, Value};
use super::tables::Layout;

/// What happens at a point.
#[derive(Clone)]
pub enum Fault {
    /// The call fails as if the connection had broken. After a commit that means: it is committed, and
    /// the caller does not know.
    Fail,
    /// The process stops here: transactions that are open roll back, and nothing more is written. The
    /// caller never hears of it, so give it a time limit.
    Crash,
    /// Somebody does something, such as ending the process.
    Do(Arc<dyn Fn() + Send + Sync>),
}

impl fmt::Debug for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Fail => "Fail",
            Self::Crash => "Crash",
            Self::Do(_) => "Do",
        })
    }
}

/// Where something goes wrong. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Plan(Arc<Planned>);

#[derive(Debug, Default)]
struct Planned {
    passed: AtomicU64,
    /// Whether the process has stopped.
    stopped: AtomicBool,
    armed: Mutex<Option<(u64, Fault)>>,
}

impl Plan {
    /// Nothing goes wrong, and points are counted.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the point with this number go wrong, the first being 1, and counts from 0 again.
    pub fn arm(&self, point: u64, fault: Fault) {
        *self.0.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some((point, fault));
        self.0.passed.store(0, Ordering::SeqCst);
        self.0.stopped.store(false, Ordering::SeqCst);
    }

    /// Counts the statements inside of transactions as points, too. A connection does not know its
    /// plan, so this is for programs with one plan, such as a child process that is to be killed.
    pub fn watch_every_statement(&self) {
        // A second plan would be a mistake of the test: the first one stays.
        let _ = EVERY_STATEMENT.set(self.clone());
    }

    /// How many points were passed since the plan was made or armed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.passed.load(Ordering::SeqCst)
    }

    /// A point of the test's own, as inside of a foreign call. `Err` if it goes wrong.
    ///
    /// # Errors
    /// If it is the point that goes wrong.
    pub async fn point(&self) -> Result<(), TxError> {
        if self.0.stopped.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        let number = self.0.passed.fetch_add(1, Ordering::SeqCst) + 1;
        let fault = {
            let mut armed = self.0.armed.lock().unwrap_or_else(PoisonError::into_inner);
            match &*armed {
                Some((at, _)) if *at == number => armed.take().map(|(_, fault)| fault),
                Some(_) | None => None,
            }
        };
        match fault {
            None => Ok(()),
            Some(Fault::Fail) => Err(TxError::new(TxTrouble::Unavailable, "a test lets this fail")),
            Some(Fault::Crash) => {
                self.0.stopped.store(true, Ordering::SeqCst);
                // Drops what the attempt holds, without the words of a panic.
                std::panic::resume_unwind(Box::new("a test stops the process here"))
            }
            Some(Fault::Do(act)) => {
                act();
                Ok(())
            }
        }
    }
}

/// The plan of a program that has one.
static EVERY_STATEMENT: OnceLock<Plan> = OnceLock::new();

async fn statement() -> Result<(), TxError> {
    match EVERY_STATEMENT.get() {
        Some(plan) => plan.point().await,
        None => Ok(()),
    }
}

/// A store on which a [`Plan`] is carried out.
#[derive(Clone, Debug)]
pub struct Shaky<S> {
    store: S,
    plan: Plan,
}

/// A transaction of a [`Shaky`] store.
#[derive(Debug)]
pub struct ShakyTx<T> {
    tx: T,
    plan: Plan,
}

impl<T> ShakyTx<T> {
    /// A point with a transaction open. It does not outlive the process.
    async fn point(self) -> Result<Self, TxError> {
        let Self { tx, plan } = self;
        if plan.0.stopped.load(Ordering::SeqCst) {
            drop(tx);
            return std::future::pending().await;
        }
        plan.point().await?;
        Ok(Self { tx, plan })
    }
}

impl<S> Shaky<S> {
    /// A store that goes wrong as planned.
    #[must_use]
    pub const fn new(store: S, plan: Plan) -> Self {
        Self { store, plan }
    }

    /// The store behind it.
    #[must_use]
    pub const fn inner(&self) -> &S {
        &self.store
    }
}

impl<S: TxStore> TxStore for Shaky<S> {
    type Conn = S::Conn;
    type Tx = ShakyTx<S::Tx>;

    fn layout(&self) -> &Layout {
        self.store.layout()
    }

    async fn begin(&self) -> Result<Self::Tx, TxError> {
        self.plan.point().await?;
        let tx = ShakyTx { tx: self.store.begin().await?, plan: self.plan.clone() };
        tx.point().await
    }

    async fn begin_serializable(&self) -> Result<Self::Tx, TxError> {
        self.plan.point().await?;
        let tx = self.store.begin_serializable().await?;
        ShakyTx { tx, plan: self.plan.clone() }.point().await
    }

    fn conn(tx: &mut Self::Tx) -> &mut Self::Conn {
        S::conn(&mut tx.tx)
    }

    fn conn_ref(tx: &Self::Tx) -> &Self::Conn {
        S::conn_ref(&tx.tx)
    }

    async fn still_open(conn: &mut Self::Conn) -> Result<Open, TxError> {
        S::still_open(conn).await
    }

    async fn commit(tx: Self::Tx) -> Result<(), TxError> {
        let ShakyTx { tx, plan } = tx.point().await?;
        S::commit(tx).await?;
        plan.point().await
    }

    async fn rollback(tx: Self::Tx) -> Result<(), TxError> {
        S::rollback(tx.tx).await
    }

    async fn execute(
        conn: &mut Self::Conn,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<u64, TxError> {
        statement().await?;
        let met = S::execute(conn, sql, values).await?;
        statement().await?;
        Ok(met)
    }

    async fn query(
        conn: &mut Self::Conn,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, TxError> {
        statement().await?;
        let rows = S::query(conn, sql, values).await?;
        statement().await?;
        Ok(rows)
    }

    async fn execute_once(&self, sql: &Arc<str>, values: &[Value<'_>]) -> Result<u64, TxError> {
        self.plan.point().await?;
        let met = self.store.execute_once(sql, values).await?;
        self.plan.point().await?;
        Ok(met)
    }

    async fn query_once(&self, sql: &Arc<str>, values: &[Value<'_>]) -> Result<Vec<Row>, TxError> {
        self.plan.point().await?;
        let rows = self.store.query_once(sql, values).await?;
        self.plan.point().await?;
        Ok(rows)
    }

    async fn script(&self, text: &str) -> Result<(), TxError> {
        self.store.script(text).await
    }
}
