//! Connections of the application's pool, and how they go from one step to the next.
//!
//! A pool asks the server whether a connection is alive before it gives it away, and again when it gets it
//! back: two round trips around every step, beside the three or four of a short transaction. A store that
//! [keeps connections](super::SqlxPostgres::keep_connections) hands one that has just ended well to the next
//! step, of whichever flow, and gives it back to the pool when nobody came for it.
//!
//! One that [begins ahead](super::SqlxPostgres::begin_ahead) hands it on with the next transaction open, which was
//! begun in the round trip of the commit. What needs no transaction takes another connection, or ends that one.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool, SqlStr};
use sqlx_core::transaction::TransactionManager as _;

use crate::clock::{Stopwatch, SystemUptime, Uptime as _};

/// The way to the application's pool.
pub(super) struct Lines<DB: Database> {
    pool: Pool<DB>,
    kept: Option<Arc<Kept<DB>>>,
}

/// A connection that is in use.
pub(super) struct Line<DB: Database> {
    connection: PoolConnection<DB>,
    /// Since when the pool has not seen it.
    away: Stopwatch,
    /// Where it may wait for the next step.
    kept: Option<Arc<Kept<DB>>>,
}

/// A transaction. It rolls back when it is dropped.
pub struct Tx<DB: Database> {
    /// Until it is over.
    line: Option<Line<DB>>,
}

/// Connections that wait for the next step, those that came last at the end.
struct Kept<DB: Database> {
    pool: Pool<DB>,
    /// What commits a transaction and begins the next one, if one is begun ahead.
    next: Option<&'static str>,
    waiting: Mutex<Waiting<DB>>,
}

struct Waiting<DB: Database> {
    connections: Vec<Resting<DB>>,
    watched: Watched,
}

struct Resting<DB: Database> {
    /// Until somebody takes it.
    connection: Option<PoolConnection<DB>>,
    ahead: Ahead,
    /// Since when the pool has not seen it.
    away: Stopwatch,
    /// Since when nobody has needed it, by a clock that counts the machine's sleep.
    since: Duration,
}

/// Whether a connection that waits has its next transaction open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    Begun,
    No,
}

/// Whether a task gives back what waits too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watched {
    Yes,
    No,
}

/// How long a connection waits for the next step. Some round trips: where steps follow each other, the next
/// one comes sooner, and where they do not, the pool's question costs nobody anything.
const REST: Duration = Duration::from_millis(5);
/// How long the pool may be without a connection that is always in use. What the pool does with those that
/// come back, such as ending old ones, it does every second, and not after every step.
const AWAY: Duration = Duration::from_secs(1);

impl<DB: Database> Lines<DB> {
    /// All connections go back to the pool after each step.
    pub(super) const fn new(pool: Pool<DB>) -> Self {
        Self { pool, kept: None }
    }

    /// From now on they wait for the next one.
    pub(super) fn keep(&mut self) {
        self.kept = Some(Arc::new(Kept::new(self.pool.clone(), None)));
    }

    /// From now on they wait with a transaction open: `next` commits the one before it and begins it.
    #[allow(dead_code, reason = "only PostgreSQL takes several statements at once")]
    pub(super) fn keep_begun(&mut self, next: &'static str) {
        self.kept = Some(Arc::new(Kept::new(self.pool.clone(), Some(next))));
    }

    pub(super) const fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    /// One that waits, or one from the pool, without a transaction.
    pub(super) async fn take(&self) -> Result<Line<DB>, sqlx::Error> {
        if let Some(line) = self.take_kept(Ahead::No) {
            return Ok(line);
        }
        match self.take_begun() {
            // Cheaper than the questions of the pool.
            Some(tx) => tx.give_up().await,
            None => self.take_from_pool().await,
        }
    }

    /// A transaction that was begun with the commit of the one before it.
    pub(super) fn take_begun(&self) -> Option<Tx<DB>> {
        self.take_kept(Ahead::Begun).map(|line| Tx { line: Some(line) })
    }

    /// Has `open` begin a transaction. What waited may have died meanwhile, which the pool would have found
    /// out: nothing was said on it, so another one does as well.
    pub(super) async fn begin<F>(&self, open: impl Fn(Line<DB>) -> F) -> Result<Tx<DB>, sqlx::Error>
    where
        F: Future<Output = Result<Tx<DB>, sqlx::Error>>,
    {
        if let Some(line) = self.take_kept(Ahead::No)
            && let Ok(tx) = open(line).await
        {
            return Ok(tx);
        }
        open(self.take_from_pool().await?).await
    }

    fn take_kept(&self, ahead: Ahead) -> Option<Line<DB>> {
        let kept = self.kept.as_ref()?;
        let mut waiting = kept.waiting();
        // What has waited for too long was begun too long ago: for the application, that is what time it is.
        let is_fit = |resting: &Resting<DB>| {
            resting.ahead == ahead && (ahead == Ahead::No || resting.rested() < REST)
        };
        let found = waiting.connections.iter().rposition(is_fit)?;
        let mut resting = waiting.connections.remove(found);
        drop(waiting);
        let (connection, away) = (resting.connection.take()?, resting.away);
        Some(Line { connection, away, kept: Some(Arc::clone(kept)) })
    }

    async fn take_from_pool(&self) -> Result<Line<DB>, sqlx::Error> {
        let connection = self.pool.acquire().await?;
        Ok(Line { connection, away: Stopwatch::start(), kept: self.kept.clone() })
    }
}

impl<DB: Database> Line<DB> {
    /// Leaves it for the next step, if it may wait. Only for a connection that is as the pool gave it: no
    /// transaction is open, and every answer was read. Any other is dropped, and the pool looks after it.
    pub(super) fn leave(self) {
        let Self { connection, away, kept } = self;
        if let Some(kept) = kept
            && away.elapsed() < AWAY
            && DB::TransactionManager::get_transaction_depth(&connection) == 0
        {
            kept.keep(connection, away, Ahead::No);
        }
    }
}

impl<DB: Database> Tx<DB> {
    /// Begins one, with a statement or with that of the database.
    ///
    /// # Cancellation
    /// Not to be dropped half-way: see the module above.
    pub(super) async fn begin(
        line: Line<DB>,
        statement: Option<&'static str>,
    ) -> Result<Self, sqlx::Error> {
        let mut tx = Self { line: Some(line) };
        let statement = statement.map(SqlStr::from_static);
        DB::TransactionManager::begin(&mut tx, statement).await?;
        Ok(tx)
    }

    pub(super) async fn commit(mut self) -> Result<(), sqlx::Error> {
        DB::TransactionManager::commit(&mut self).await?;
        self.leave();
        Ok(())
    }

    /// What commits it and begins the next one, if that may wait for the next step.
    #[allow(dead_code, reason = "only PostgreSQL takes several statements at once")]
    pub(super) fn next(&self) -> Option<&'static str> {
        let line = self.line.as_ref()?;
        let kept = line.kept.as_ref()?;
        let may_wait = line.away.elapsed() < AWAY
            && !kept.is_wanted()
            && DB::TransactionManager::get_transaction_depth(line) == 1;
        kept.next.filter(|_| may_wait)
    }

    /// Leaves it for the next step: it is as a transaction that was just begun.
    #[allow(dead_code, reason = "only PostgreSQL takes several statements at once")]
    pub(super) fn leave_begun(mut self) {
        if let Some(Line { connection, away, kept: Some(kept) }) = self.line.take() {
            kept.keep(connection, away, Ahead::Begun);
        }
    }

    /// Ends it, for somebody who needs none.
    async fn give_up(mut self) -> Result<Line<DB>, sqlx::Error> {
        DB::TransactionManager::rollback(&mut self).await?;
        Ok(self.line.take().expect("it is over when nobody can look any more"))
    }

    pub(super) async fn rollback(mut self) -> Result<(), sqlx::Error> {
        DB::TransactionManager::rollback(&mut self).await?;
        // Something was in the way: whether the connection is well, the pool finds out.
        drop(self.line.take());
        Ok(())
    }

    fn leave(&mut self) {
        if let Some(line) = self.line.take() {
            line.leave();
        }
    }
}

impl<DB: Database> Kept<DB> {
    fn new(pool: Pool<DB>, next: Option<&'static str>) -> Self {
        let waiting = Waiting { connections: Vec::new(), watched: Watched::No };
        Self { pool, next, waiting: Mutex::new(waiting) }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting<DB>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Others who need the pool's last connection do not wait for ours.
    fn is_wanted(&self) -> bool {
        let pool = &self.pool;
        pool.is_closed()
            || (pool.num_idle() == 0 && pool.size() >= pool.options().get_max_connections())
    }

    fn keep(self: Arc<Self>, connection: PoolConnection<DB>, away: Stopwatch, ahead: Ahead) {
        let (connection, since) = (Some(connection), SystemUptime.elapsed());
        let resting = Resting { connection, ahead, away, since };
        if self.is_wanted() {
            return;
        }
        let mut waiting = self.waiting();
        waiting.connections.push(resting);
        let watched = mem::replace(&mut waiting.watched, Watched::Yes);
        drop(waiting);
        if watched == Watched::No {
            tokio::spawn(self.watch());
        }
    }

    /// Gives back what nobody has come for, until nothing waits.
    async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(REST).await;
            let mut waiting = self.waiting();
            let wanted = self.is_wanted();
            let old =
                waiting.connections.partition_point(|resting| wanted || resting.rested() >= REST);
            let old: Vec<_> = waiting.connections.drain(..old).collect();
            let empty = waiting.connections.is_empty();
            if empty {
                waiting.watched = Watched::No;
            }
            drop(waiting);
            drop(old);
            if empty {
                return;
            }
        }
    }
}

impl<DB: Database> Resting<DB> {
    fn rested(&self) -> Duration {
        SystemUptime.elapsed().saturating_sub(self.since)
    }
}

impl<DB: Database> Drop for Resting<DB> {
    fn drop(&mut self) {
        if let (Some(connection), Ahead::Begun) = (&mut self.connection, self.ahead) {
            // Said to the server before anything else is, by the pool that gets the connection back.
            DB::TransactionManager::start_rollback(connection);
        }
    }
}

impl<DB: Database> Deref for Line<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.connection
    }
}

impl<DB: Database> DerefMut for Line<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.connection
    }
}

impl<DB: Database> Deref for Tx<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.line.as_ref().expect("it is over when nobody can look any more")
    }
}

impl<DB: Database> DerefMut for Tx<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.line.as_mut().expect("it is over when nobody can look any more")
    }
}

impl<DB: Database> Drop for Tx<DB> {
    fn drop(&mut self) {
        if let Some(line) = &mut self.line {
            // Said to the server before anything else is, by the pool that gets the connection back.
            DB::TransactionManager::start_rollback(line);
        }
    }
}

impl<DB: Database> Clone for Lines<DB> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), kept: self.kept.clone() }
    }
}

impl<DB: Database> fmt::Debug for Lines<DB> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept.as_ref().map(|kept| kept.waiting().connections.len());
        write!(out, "Lines({:?}, {kept:?} kept)", self.pool)
    }
}

impl<DB: Database> fmt::Debug for Tx<DB> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Tx")
    }
}
