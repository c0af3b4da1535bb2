//! A few connections that many callers share, several statements under way on each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncekey_core::{ErrorKind, StoreError};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_postgres::Row;

use super::connect::{Dialler, Line, Values};
use super::error::{Aftermath, aftermath, ambiguous, from_postgres, too_slow};
use super::life::{Grants, moved};
use super::sql::Statement;

/// Connections that are opened when they are needed and opened again when they are lost.
#[derive(Debug)]
pub(super) struct Pool {
    dialler: Arc<Dialler>,
    places: Vec<Mutex<Place>>,
    next: AtomicUsize,
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
    line: Option<Arc<Line>>,
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

impl Pool {
    pub(super) fn new(dialler: Arc<Dialler>, size: usize, call_timeout: Duration) -> Self {
        let places = (0..size.max(1)).map(|_| Mutex::default()).collect();
        Self { dialler, places, next: AtomicUsize::new(0), call_timeout }
    }

    /// Runs a statement within the time that a call may take.
    pub(super) async fn ask(
        &self,
        effect: Effect,
        statement: &Statement,
        values: &Values<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut tries = 0;
        // Whether a try may have taken effect of which nobody heard.
        let mut doubt = Doubt::None;
        loop {
            tries += 1;
            let (place, line) = self.line().await.map_err(|error| doubt.told(error))?;
            if effect == Effect::Grants {
                match self.dialler.guard.grants(&line.life) {
                    Grants::Allowed => {}
                    Grants::Outdated if tries == 1 => {
                        self.discard(place, &line).await;
                        continue;
                    }
                    Grants::Outdated | Grants::Stopped => return Err(doubt.told(moved())),
                }
            }
            let ended = timeout(self.call_timeout, line.query(statement, values)).await;
            let (known, error) = match ended {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) => {
                    self.dialler.learn_from(&error);
                    (aftermath(&error), from_postgres(error))
                }
                Err(_) => {
                    self.discard(place, &line).await;
                    return Err(match effect {
                        Effect::Harmless => too_slow(ErrorKind::Unavailable),
                        Effect::Repeatable | Effect::Writes | Effect::Grants => {
                            too_slow(ErrorKind::Ambiguous)
                        }
                    });
                }
            };
            if known == Aftermath::Unknown && effect == Effect::Repeatable {
                doubt = Doubt::Some;
            }
            match (known, effect) {
                (Aftermath::Refused, _) => return Err(doubt.told(error)),
                (Aftermath::Elsewhere, _)
                | (Aftermath::Unknown, Effect::Harmless | Effect::Repeatable) => {
                    self.discard(place, &line).await;
                    // Once more on a fresh connection: this one may have been closed long ago.
                    if tries > 1 {
                        return Err(doubt.told(error));
                    }
                }
                (Aftermath::Unknown, Effect::Writes | Effect::Grants) => {
                    self.discard(place, &line).await;
                    return Err(ambiguous(error));
                }
            }
        }
    }

    /// A connection that is open, as far as anybody knows, and its place.
    async fn line(&self) -> Result<(usize, Arc<Line>), StoreError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.places.len();
        let mut place = self.places[number].lock().await;
        if let Some(line) = &place.line
            && self.dialler.is_good(line)
        {
            return Ok((number, Arc::clone(line)));
        }
        if let Some((when, kind, text)) = &place.failed
            && when.elapsed() < FRESH_FAILURE
        {
            return Err(StoreError::new(*kind, text.clone()));
        }
        match self.dialler.line().await {
            Ok(line) => {
                let line = Arc::new(line);
                *place = Place { line: Some(Arc::clone(&line)), failed: None };
                Ok((number, line))
            }
            Err(error) => {
                place.line = None;
                place.failed = Some((Instant::now(), error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// Makes sure that nobody else gets `line`. Whoever is still waiting on it goes on waiting.
    async fn discard(&self, place: usize, line: &Arc<Line>) {
        let mut place = self.places[place].lock().await;
        if place.line.as_ref().is_some_and(|stands| Arc::ptr_eq(stands, line)) {
            place.line = None;
        }
    }
}
