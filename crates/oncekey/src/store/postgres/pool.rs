//! A few connections that many callers share, one after the other.
//!
//! One statement at a time on each: pgbouncer 1.18 in transaction mode mixes up what two callers send
//! over one connection. It lets go of the server when the first answer ends, even if half of the next
//! statement has been sent there, and sends the other half to another server. Nothing is lost by
//! waiting: what is asked often goes in batches.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncekey_core::{ErrorKind, StoreError};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use super::connect::Dialler;
use super::error::{Aftermath, aftermath, ambiguous, from_postgres, too_slow};
use super::life::{Grants, moved};
use super::line::{Line, Values};
use super::sql::Statement;

/// Connections that are opened when they are needed and opened again when they are lost.
#[derive(Debug)]
pub(super) struct Pool {
    dialler: Arc<Dialler>,
    /// One turn for each place: whoever has a turn finds a place.
    turns: Semaphore,
    free: Mutex<Vec<Place>>,
    call_timeout: Duration,
}

/// Whether a statement may be repeated without a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It reads: if it failed, it is tried again.
    Harmless,
    /// It writes what may be written twice: if it failed, it is tried again. If that fails too,
    /// nobody knows.
    Repeatable,
    /// It writes: if it failed on the way, nobody knows.
    Writes,
    /// It writes, and may give a key to somebody: not on a server that may have lost its owner.
    Grants,
}

/// Whether an earlier try of the same call may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    Some,
}

#[derive(Debug, Default)]
struct Place {
    line: Option<Line>,
    /// When the last attempt to connect failed, and why.
    failed: Option<(Instant, ErrorKind, String)>,
}

/// After a failed attempt to connect, whoever comes within this time hears the same. Else a hundred
/// callers that wait for one place would each wait for an attempt of their own, one after the other.
const FRESH_FAILURE: Duration = Duration::from_millis(250);

impl Doubt {
    /// The error as the caller must hear it.
    fn told(self, error: StoreError) -> StoreError {
        match self {
            Self::None => error,
            Self::Some => ambiguous(error),
        }
    }
}

/// A place that nobody else uses meanwhile. It goes back when it is dropped.
#[derive(Debug)]
struct Turn<'p> {
    pool: &'p Pool,
    place: Place,
    _permit: SemaphorePermit<'p>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pool.free().push(mem::take(&mut self.place));
    }
}

impl Pool {
    pub(super) fn new(dialler: Arc<Dialler>, size: usize, call_timeout: Duration) -> Self {
        let size = size.max(1);
        let free = Mutex::new((0..size).map(|_| Place::default()).collect());
        Self { dialler, turns: Semaphore::new(size), free, call_timeout }
    }

    /// Runs a statement within the time that a call may take, and that of a connection if it needs one.
    ///
    /// Dropped while the statement is under way, it closes the connection: nobody else sends
    /// anything after a statement whose answer has not come.
    pub(super) async fn ask(
        &self,
        effect: Effect,
        statement: &Statement,
        values: &Values<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let deadline = Instant::now() + self.call_timeout;
        let mut turn = self.turn(deadline).await?;
        let mut tries = 0;
        // Whether a try may have taken effect of which nobody heard.
        let mut doubt = Doubt::None;
        loop {
            tries += 1;
            let line = self.line(&mut turn.place).await.map_err(|error| doubt.told(error))?;
            if effect == Effect::Grants {
                match self.dialler.guard.lives.grants(&line.life) {
                    Grants::Allowed => {}
                    Grants::Outdated if tries == 1 => continue,
                    Grants::Outdated | Grants::Stopped => return Err(doubt.told(moved())),
                }
            }
            let ended = timeout_at(deadline, line.query(statement, values)).await;
            let Ok(ended) = ended else {
                return Err(match effect {
                    Effect::Harmless => too_slow(ErrorKind::Unavailable),
                    Effect::Repeatable | Effect::Writes | Effect::Grants => {
                        too_slow(ErrorKind::Ambiguous)
                    }
                });
            };
            let error = match ended {
                Ok(rows) => {
                    turn.place.line = Some(line);
                    return Ok(rows);
                }
                Err(error) => error,
            };
            self.dialler.learn_from(&error);
            match (aftermath(&error), effect) {
                (Aftermath::Refused, _) => {
                    turn.place.line = Some(line);
                    return Err(doubt.told(from_postgres(error)));
                }
                (Aftermath::Unknown, Effect::Writes | Effect::Grants) => {
                    return Err(ambiguous(from_postgres(error)));
                }
                (Aftermath::Unknown, Effect::Repeatable) => doubt = Doubt::Some,
                (Aftermath::Unknown, Effect::Harmless) | (Aftermath::Elsewhere, _) => {}
            }
            // Once more on a fresh connection: this one may have been closed long ago.
            if tries > 1 {
                return Err(doubt.told(from_postgres(error)));
            }
        }
    }

    /// Waits for a place; nothing was sent if there was none in time.
    async fn turn(&self, deadline: Instant) -> Result<Turn<'_>, StoreError> {
        let permit = match timeout_at(deadline, self.turns.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) | Err(_) => return Err(too_slow(ErrorKind::Unavailable)),
        };
        let place = self.free().pop().unwrap_or_default();
        Ok(Turn { pool: self, place, _permit: permit })
    }

    /// The last one that was put back is the first to be used: it is the one that is likely open.
    fn free(&self) -> MutexGuard<'_, Vec<Place>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the connection of a place, one that is open, as far as anybody knows. Whoever got an
    /// answer over it puts it back.
    async fn line(&self, place: &mut Place) -> Result<Line, StoreError> {
        if let Some(line) = place.line.take()
            && self.dialler.is_good(&line)
        {
            return Ok(line);
        }
        if let Some((when, kind, text)) = &place.failed
            && when.elapsed() < FRESH_FAILURE
        {
            return Err(StoreError::new(*kind, text.clone()));
        }
        let opened = self.dialler.line().await;
        place.failed =
            opened.as_ref().err().map(|error| (Instant::now(), error.kind(), error.to_string()));
        opened
    }
}
