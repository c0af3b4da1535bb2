//! A connection that is set up as the store needs it, and a few of them to share.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, Row};
use oncekey_core::{ErrorKind, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::error::{Trouble, from_connect};
use super::inspect::{self, Galera};
use super::life::{self, Grants, Guard, Life};
use crate::clock::Stopwatch;

/// What every connection is told, whatever the server's defaults are.
///
/// - READ COMMITTED: a read after a refused insert must see the row that was in the way, and no
///   statement may lock a gap.
/// - Strict mode: a value that does not fit is an error, not another value.
/// - A lock is waited for two seconds: a batch takes milliseconds, so whoever holds one for longer
///   is stuck, and the caller is told.
/// - The variable `@n` is a whole number from the start: a statement that sets it and computes with it
///   would take it for text.
/// - A connection that says nothing for a minute is closed by the server, and with it whatever
///   transaction it may have left open when the network broke. The default is eight hours.
const SET_UP: &str = "\
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SET SESSION autocommit = 1, time_zone = '+00:00', innodb_lock_wait_timeout = 2, \
        sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
        wait_timeout = 60; \
    SET @n = 0";

/// What ends a transaction. An error in answer to it says little about what became of that.
pub(super) const COMMIT: &str = "COMMIT";

/// A connection that was idle for longer is asked whether it is still there, before anything is
/// sent that changes something: what is sent into a dead connection may or may not have arrived.
const IDLE: Duration = Duration::from_secs(2);

/// Where the server is and how long it may take.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) options: Opts,
    pub(super) galera: Galera,
    pub(super) connect: Duration,
    pub(super) patience: Duration,
    /// Asks every new connection which life it leads to; nobody does before the tables are there.
    pub(super) guard: Option<Arc<Guard>>,
}

/// A connection of the store.
pub(super) struct Session {
    connection: Conn,
    life: Life,
    patience: Duration,
    used: Stopwatch,
    condition: Condition,
}

/// Whether a connection may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// Nothing is under way.
    Clean,
    /// A statement or a transaction is under way, or was when the call ended.
    Midway,
}

/// What one statement of a text gave.
#[derive(Debug)]
pub(super) struct Set {
    /// How many rows it matched, if it was a write.
    pub(super) matched: u64,
    /// The rows that it returned.
    pub(super) rows: Vec<Row>,
}

/// Connections for reads and for what is not batched.
pub(super) struct Pool {
    server: Server,
    turns: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
}

/// A connection on loan. It goes back if it is clean; whoever is cancelled midway leaves it dirty,
/// and it is closed.
pub(super) struct Held<'p> {
    pool: &'p Pool,
    session: Option<Session>,
    _turn: OwnedSemaphorePermit,
}

impl Server {
    /// Where it is, without user and password.
    pub(super) fn address(&self) -> String {
        format!("{}:{}", self.options.ip_or_hostname(), self.options.tcp_port())
    }

    /// Opens a connection, sets it up, and looks whether that was followed.
    pub(super) async fn connect(&self) -> Result<Session, StoreError> {
        let session = self.connect_unchecked().await?;
        let mut session = inspect::check_session(session, self.galera).await?;
        if let Some(guard) = &self.guard {
            session.life = guard.meet(&mut session).await.map_err(Trouble::of_read)?;
        }
        Ok(session)
    }

    /// Whether a connection may grant keys.
    pub(super) fn grants(&self, session: &Session) -> Grants {
        self.guard.as_ref().map_or(Grants::Allowed, |guard| guard.lives.grants(&session.life))
    }

    /// Whether a connection leads to where the store is not any more.
    pub(super) fn is_outdated(&self, session: &Session) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.lives.is_outdated(&session.life))
    }

    /// The same, for whoever looks in order to tell what is wrong.
    pub(super) async fn connect_unchecked(&self) -> Result<Session, StoreError> {
        let opening = Conn::new(self.options.clone());
        let connection = timeout(self.connect, opening)
            .await
            .map_err(|_| {
                let (address, span) = (self.address(), self.connect);
                let message = format!("no connection to {address} within {span:?}");
                StoreError::new(ErrorKind::Unavailable, message)
            })?
            .map_err(|error| from_connect(error, &self.address()))?;
        let mut session = Session {
            connection,
            life: life::UNKNOWN.into(),
            patience: self.patience,
            used: Stopwatch::start(),
            condition: Condition::Clean,
        };
        session.apply(SET_UP).await.map_err(Trouble::of_read)?;
        Ok(session)
    }
}

impl Session {
    /// Runs statements in one round trip and says what each of them gave.
    ///
    /// They must end every transaction that they begin. If the server refuses one, those after it
    /// were not run, and the transaction that it was in is rolled back before this returns.
    pub(super) async fn run<S: AsRef<str>>(&mut self, all: &[S]) -> Result<Vec<Set>, Trouble> {
        let sets = self.begin(all).await?;
        self.condition = Condition::Clean;
        Ok(sets)
    }

    /// Runs statements that leave a transaction open. Until [`commit`](Self::commit) or
    /// [`roll_back`](Self::roll_back), the connection goes back to nobody.
    pub(super) async fn begin<S: AsRef<str>>(&mut self, all: &[S]) -> Result<Vec<Set>, Trouble> {
        let text = all.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("; ");
        self.condition = Condition::Midway;
        let ended = timeout(self.patience, read(&mut self.connection, &text, all.len())).await;
        let ended = ended.map(|read| {
            read.map_err(|(place, error)| match all.get(place).map(AsRef::as_ref) {
                Some(COMMIT) => Trouble::of_commit(error),
                Some(_) | None => Trouble::from(error),
            })
        });
        self.settle(ended).await
    }

    /// Runs a text of any number of statements, one of which may change a table.
    pub(super) async fn apply(&mut self, text: &str) -> Result<(), Trouble> {
        self.condition = Condition::Midway;
        let ended = timeout(self.patience, self.connection.query_drop(text)).await;
        self.settle(ended.map(|dropped| dropped.map_err(Trouble::from))).await?;
        self.condition = Condition::Clean;
        Ok(())
    }

    /// Ends a transaction. Whatever goes wrong here leaves open what became of it.
    pub(super) async fn commit(&mut self) -> Result<(), Trouble> {
        self.run(&[COMMIT]).await.map(drop)
    }

    /// Takes a transaction back.
    pub(super) async fn roll_back(&mut self) -> Result<(), Trouble> {
        self.run(&["ROLLBACK"]).await.map(drop)
    }

    /// Makes sure that the connection is there, if it was idle for a while. One that was left midway,
    /// by whoever had answers nevertheless, is never used again.
    pub(super) async fn wake(&mut self) -> Result<(), Trouble> {
        if !self.is_clean() {
            let left = "the last call on this connection did not end";
            return Err(Trouble::NotSent(StoreError::new(ErrorKind::Unavailable, left)));
        }
        if self.used.elapsed() < IDLE {
            return Ok(());
        }
        match self.run(&["DO 0"]).await {
            Ok(_) => Ok(()),
            Err(trouble) => Err(Trouble::NotSent(trouble.of_read())),
        }
    }

    fn is_clean(&self) -> bool {
        self.condition == Condition::Clean
    }

    async fn settle<T>(
        &mut self,
        ended: Result<Result<T, Trouble>, Elapsed>,
    ) -> Result<T, Trouble> {
        self.used = Stopwatch::start();
        let trouble = match ended {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(trouble)) => trouble,
            Err(_) => Trouble::Silent(self.patience),
        };
        // One to a server that takes no writes is left midway, so that nobody uses it again: the same
        // address may lead to the primary by now.
        if trouble.code().is_some() && !trouble.is_read_only() {
            // If this fails, the connection is closed, and the server rolls back by itself.
            let undone = self.connection.query_drop("ROLLBACK");
            if let Ok(Ok(())) = timeout(self.patience, undone).await {
                self.condition = Condition::Clean;
            }
        }
        Err(trouble)
    }
}

/// The statements are counted, because the driver does not tell a last one without rows from the end.
///
/// An error comes with the place of the statement that it is about: the driver keeps that of a later
/// statement until its turn comes to be read.
async fn read(
    connection: &mut Conn,
    text: &str,
    count: usize,
) -> Result<Vec<Set>, (usize, mysql_async::Error)> {
    let mut sets = Vec::with_capacity(count);
    let mut result = connection.query_iter(text).await.map_err(|error| (0, error))?;
    for place in 0..count {
        // Before the rows: reading the last of them goes on to the next statement.
        let matched = result.affected_rows();
        let rows = result.collect().await.map_err(|error| (place, error))?;
        sets.push(Set { matched, rows });
    }
    result.drop_result().await.map_err(|error| (count, error))?;
    Ok(sets)
}

impl Pool {
    pub(super) fn new(server: Server, size: usize) -> Self {
        let turns = Arc::new(Semaphore::new(size.max(1)));
        Self { server, turns, idle: Mutex::default() }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// A connection, which is opened if none is idle.
    pub(super) async fn hold(&self) -> Result<Held<'_>, Trouble> {
        let turn = timeout(self.server.patience, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            let span = self.server.patience;
            return Err(Trouble::NotSent(StoreError::new(
                ErrorKind::Unavailable,
                format!("no connection of this store became free within {span:?}"),
            )));
        };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut session = match idle.filter(|session| !self.server.is_outdated(session)) {
            Some(session) => session,
            None => self.server.connect().await.map_err(Trouble::NotSent)?,
        };
        // One that has died while it was idle is no reason to fail anybody.
        if session.wake().await.is_err() {
            session = self.server.connect().await.map_err(Trouble::NotSent)?;
        }
        Ok(Held { pool: self, session: Some(session), _turn: turn })
    }
}

impl std::ops::Deref for Held<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.session.as_ref().expect("taken only when it is dropped")
    }
}

impl std::ops::DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        self.session.as_mut().expect("taken only when it is dropped")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take().filter(Session::is_clean) {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        }
    }
}

/// Without user and password.
impl fmt::Debug for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Server").field(&self.address()).finish()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Pool").field("server", &self.server).finish_non_exhaustive()
    }
}
