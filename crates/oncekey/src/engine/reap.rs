//! The loop that forgets what is over.
//!
//! It works in batches and removes nothing that anybody still needs. It has a `run` for a task of its own
//! and a `run_once` for tests and schedulers.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::store::Purged;
use oncekey_core::{Store as _, StoreError};

use super::{Engine, Shared};

/// Forgets finished records whose time is over.
#[derive(Clone, Debug)]
#[must_use]
pub struct Reaper {
    shared: Arc<Shared>,
    every: Duration,
    batch: usize,
}

/// How far a run of the reaper came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaped {
    /// Nothing else was due.
    All,
    /// As much as one run removes. There may be more.
    NotAll,
}

/// A minute of expired keys is little work, and nobody misses the space sooner.
const REAP_EVERY: Duration = Duration::from_secs(60);
/// A few milliseconds of any store's time.
const REAP_BATCH: usize = 1_000;
/// Batches of one run: a backlog is worked off over several runs instead of in one go.
const REAP_BATCHES: usize = 100;
/// The pause after a run that left something. A whole interval would let a busy store grow for ever; none
/// would let a backlog keep the store from everybody else.
const REAP_PAUSE: Duration = Duration::from_millis(100);

impl Engine {
    /// A loop that forgets what is over.
    pub fn reaper(&self) -> Reaper {
        Reaper { shared: Arc::clone(&self.0), every: REAP_EVERY, batch: REAP_BATCH }
    }
}

impl Reaper {
    /// How often it runs. After a run that could not remove all that was due it goes on at once.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// How many records one step of it removes.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// Runs for ever. Dropping the future stops it between two steps or in one, and nothing is
    /// lost either way.
    pub async fn run(self) {
        loop {
            let pause = match self.reap().await {
                Ok((purged, reaped)) => {
                    if purged.total() > 0 {
                        tracing::debug!(
                            forgotten = purged.forgotten,
                            stripped = purged.stripped,
                            "swept"
                        );
                    }
                    match reaped {
                        Reaped::All => self.every,
                        Reaped::NotAll => REAP_PAUSE.min(self.every),
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "expired records could not be removed");
                    self.every
                }
            };
            tokio::time::sleep(self.shared.jittered(pause)).await;
        }
    }

    /// Removes what is due now, but no more than a hundred steps' worth: whoever calls this again when it
    /// returned that much goes on where it stopped.
    ///
    /// # Errors
    /// If the store could not be asked. What was removed before stays removed.
    pub async fn run_once(&self) -> Result<Purged, StoreError> {
        self.reap().await.map(|(purged, _)| purged)
    }

    async fn reap(&self) -> Result<(Purged, Reaped), StoreError> {
        let mut total = Purged::default();
        for _ in 0..REAP_BATCHES {
            let purged = self.shared.store.purge(self.batch).await?;
            total.forgotten += purged.forgotten;
            total.stripped += purged.stripped;
            let removed = u64::try_from(purged.forgotten).unwrap_or(u64::MAX);
            metrics::counter!("oncekey_sweep_deleted_total").increment(removed);
            if purged.total() < self.batch {
                return Ok((total, Reaped::All));
            }
        }
        Ok((total, Reaped::NotAll))
    }
}
