//! The numbers of observe mode, in the store.
//!
//! Time is cut into cells of equal length. In each, every node writes one record: the first writes to
//! the first place of the cell, the next one finds that taken and writes to the second. So whoever
//! reads asks for records by their keys and searches nothing, on whatever store; and there are never
//! more records than cells within the retention times places, however many nodes come and go.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use oncekey::clock::SystemClock;
use oncekey::core::{Clock as _, Key, StoreError, Timestamp};
use oncekey::engine::{Engine, Looked, Ran, Recorded, Refused, Reply};

use super::{Observer, Tally};
use crate::shelf::Shelf;

/// Writes what an observer counts, and reads what all have written. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ledger {
    shelf: Shelf,
    engine: Engine,
    observer: Arc<Observer>,
    /// What this node is called.
    instance: String,
    terms: Terms,
}

/// How often is written, and how long it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) every: Duration,
    pub(crate) ttl: Duration,
}

/// What came of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// There was nothing to write.
    Nothing,
    /// It is in the store, or in the journal.
    Kept,
    /// It is not. The numbers are counted with the next ones.
    NotYet,
    /// Nobody knows. So that nothing is counted twice, they are not written again.
    Perhaps,
}

/// How many nodes may write in a cell, restarts included. One that finds no place writes in the next
/// cell what it counted in both.
const PLACES: u32 = 64;
/// How many cells are asked for at the same time.
const AT_ONCE: usize = 8;
/// How many cells one question goes back at most: five weeks of the usual ones.
const MOST_CELLS: u32 = 10_000;

impl Ledger {
    pub(crate) fn new(
        engine: Engine,
        observer: Arc<Observer>,
        instance: impl Into<String>,
        terms: Terms,
    ) -> Self {
        let shelf = Shelf::of_observed(engine.clone());
        Self { shelf, engine, observer, instance: instance.into(), terms }
    }

    /// One whose node observes nothing.
    pub(crate) fn unused(engine: Engine) -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self::new(engine, Arc::new(Observer::new()), "", Terms { every: day, ttl: day })
    }

    /// How long a cell is.
    pub(crate) const fn every(&self) -> Duration {
        self.terms.every
    }

    /// Writes now and then, for as long as the program runs.
    ///
    /// # Cancellation
    /// What is being written is the engine's, which finishes it. What was counted and not written is
    /// lost, so whoever ends this writes once more.
    pub(crate) async fn run(self) {
        loop {
            tokio::time::sleep(self.terms.every).await;
            let _: Wrote = self.write().await;
        }
    }

    /// Writes what was counted since the last time. A crash before that loses it.
    pub(crate) async fn write(&self) -> Wrote {
        let now = SystemClock.now();
        let Some(tally) = self.observer.take(&self.instance, now) else { return Wrote::Nothing };
        let wrote = self.put(&tally, now).await;
        if wrote == Wrote::NotYet {
            self.observer.put_back(tally);
        }
        if matches!(wrote, Wrote::NotYet | Wrote::Perhaps) {
            metrics::counter!("oncekey_observed_not_kept_total").increment(1);
            tracing::warn!("what was observed could not be written to the store");
        }
        wrote
    }

    async fn put(&self, tally: &Tally, now: Timestamp) -> Wrote {
        let (cell, saved) = (self.cell(now), tally.to_saved());
        for place in 0..PLACES {
            match self.shelf.put(self.key(cell, place), saved.clone(), self.terms.ttl).await {
                Reply::Ran(Ran { recorded, .. }) => match recorded {
                    Recorded::Kept | Recorded::Journalled => return Wrote::Kept,
                    // Somebody took the place over while this node stood still.
                    Recorded::Fenced => {}
                    Recorded::Unrecorded
                    | Recorded::Tombstone(_)
                    | Recorded::Released
                    | Recorded::Unknown
                    | Recorded::Unprotected => return Wrote::Perhaps,
                },
                Reply::Refused(Refused::Unavailable { .. }) => return Wrote::NotYet,
                // Taken.
                Reply::Replayed(_) | Reply::Refused(_) => {}
            }
        }
        Wrote::NotYet
    }

    /// Everything that all nodes wrote since so long ago, the oldest first, and what this one has
    /// counted and not written yet. While this node is writing, that is in neither for a moment.
    pub(crate) async fn read(&self, last: Duration) -> Result<Vec<Tally>, StoreError> {
        let now = SystemClock.now();
        let last = last.min(self.terms.ttl).min(self.terms.every.saturating_mul(MOST_CELLS));
        // One more, for a node whose clock is ahead.
        let cells = self.cell(now.before(last))..=self.cell(now) + 1;
        let read: Vec<Vec<Tally>> = futures_util::stream::iter(cells)
            .map(|cell| self.read_cell(cell))
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        let mut tallies: Vec<Tally> = read.into_iter().flatten().collect();
        tallies.extend(self.observer.so_far(&self.instance, now));
        Ok(tallies)
    }

    async fn read_cell(&self, cell: i64) -> Result<Vec<Tally>, StoreError> {
        let mut tallies = Vec::new();
        for place in 0..PLACES {
            match self.engine.look(&self.shelf.id(&self.key(cell, place))).await? {
                Some(Looked::Done(known)) => tallies.extend(Tally::from_saved(&known.saved)),
                // It is being written, or was erased. Others may stand behind it.
                Some(Looked::Running(_) | Looked::Without(_)) => {}
                None => break,
            }
        }
        Ok(tallies)
    }

    fn cell(&self, now: Timestamp) -> i64 {
        let length = i64::try_from(self.terms.every.as_micros()).unwrap_or(i64::MAX);
        now.micros().div_euclid(length.max(1))
    }

    /// The length is in it: cells of other lengths are others.
    fn key(&self, cell: i64, place: u32) -> Key {
        let length = self.terms.every.as_millis();
        Key::new(format!("{length}/{cell}/{place}").as_bytes()).expect("a short text")
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Ledger").field("terms", &self.terms).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Caller, Finding, Reached, Would};
    use super::*;

    const TERMS: Terms =
        Terms { every: Duration::from_secs(3_600), ttl: Duration::from_secs(7 * 86_400) };

    async fn engine() -> Engine {
        let store = oncekey::store::open("memory:").await.unwrap();
        Engine::new(Arc::new(store)).unwrap()
    }

    fn node(engine: &Engine, name: &str) -> Ledger {
        Ledger::new(engine.clone(), Arc::new(Observer::new()), name, TERMS)
    }

    fn see(ledger: &Ledger, requests: u64) {
        let finding = Finding { would: Would::Run, suspicion: None };
        for _ in 0..requests {
            ledger.observer.count("pay".into(), Caller::Nobody, finding, Reached::Client);
        }
    }

    async fn seen(ledger: &Ledger) -> u64 {
        let tallies = ledger.read(Duration::from_secs(7_200)).await.unwrap();
        tallies.iter().flat_map(|tally| &tally.rows).map(|row| row.counts.requests).sum()
    }

    #[tokio::test]
    async fn every_node_and_every_life_of_it_has_a_place_of_its_own() {
        let engine = engine().await;
        let (a, b) = (node(&engine, "a"), node(&engine, "b"));
        assert_eq!(a.write().await, Wrote::Nothing);
        see(&a, 3);
        assert_eq!((seen(&a).await, seen(&b).await), (3, 0), "not written yet");
        see(&b, 4);
        assert_eq!((a.write().await, b.write().await), (Wrote::Kept, Wrote::Kept));
        see(&a, 5);
        assert_eq!(a.write().await, Wrote::Kept);
        let again = node(&engine, "a");
        for ledger in [&a, &b, &again] {
            assert_eq!(seen(ledger).await, 12);
        }
        assert_eq!(a.write().await, Wrote::Nothing);
    }

    #[tokio::test]
    async fn a_node_that_finds_no_place_keeps_its_numbers() {
        let engine = engine().await;
        let a = node(&engine, "a");
        // All of this takes a moment, and the hour may end in it: then there is room again.
        for _ in 0..=PLACES {
            see(&a, 1);
            let _: Wrote = a.write().await;
        }
        assert_eq!(seen(&a).await, u64::from(PLACES) + 1);
    }

    #[tokio::test]
    async fn a_store_that_does_not_answer_loses_nothing() {
        let engine = engine().await;
        let a = node(&engine, "a");
        see(&a, 2);
        let _ = engine.shutdown(Duration::from_secs(1)).await;
        assert_eq!(a.write().await, Wrote::NotYet);
        assert_eq!(a.observer.so_far("a", SystemClock.now()).unwrap().rows[0].counts.requests, 2);
    }
}
