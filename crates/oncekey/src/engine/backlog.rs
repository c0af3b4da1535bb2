//! Ends that are in the journal and on their way to the store.
//!
//! What an earlier process left is drained at the start, what this one adds as soon as the store
//! answers again, the oldest first. Draining is as safe as the first try was: the store compares
//! fence and owner, so an end that is late changes nothing. An end that the store does not take lets those
//! of other keys pass; the ends of one key stay in their order.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncekey_core::{ErrorKind, KeyId, Store, Write};
use tokio::sync::Notify;

use super::Shared;
use super::end::Entry;
use super::journal::{Journal, JournalError, Mark};
use super::sentry::{Sentry, Word};

/// A journal and what is to be drained from it.
#[derive(Debug)]
pub(super) struct Backlog {
    journal: Journal,
    waiting: Mutex<VecDeque<(Mark, Entry)>>,
    bell: Notify,
    ended: AtomicBool,
}

/// How far a round of draining came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// Nothing is left, or nothing that another try would help.
    Over,
    /// Something is left, because the store does not answer, or not in time.
    Stuck,
}

/// A store that was just down gets a moment.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// An end that waits is an answer that cannot be replayed: ten seconds after the store is back at
/// the latest it can.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// So many ends in a row that the store does not take are an outage, and it is left alone for a moment. Fewer
/// may be ends that it will never take in time, because they are too large for it. They are not the first
/// to be tried again, so however many there are, every other end has its turn.
const OUTAGE: u32 = 3;

impl Backlog {
    /// Drains `left` first, which an earlier process left in `journal`.
    pub(super) fn new(journal: Journal, left: Vec<(Mark, Entry)>) -> Self {
        if !left.is_empty() {
            tracing::info!(ends = left.len(), "an earlier process left ends in the journal");
        }
        if journal.damaged() > 0 {
            tracing::error!(stretches = journal.damaged(), "parts of the journal are damaged");
        }
        let (waiting, bell) = (Mutex::new(left.into()), Notify::new());
        Self { journal, waiting, bell, ended: AtomicBool::new(false) }
    }

    /// Keeps an end. `Ok` means that it survives a crash, and reaches the store once that answers.
    pub(super) async fn keep(&self, entry: Entry) -> Result<(), JournalError> {
        let mark = self.journal.append(&entry).await?;
        self.waiting().push_back((mark, entry));
        metrics::counter!("oncekey_journalled_total").increment(1);
        self.bell.notify_one();
        Ok(())
    }

    /// How many ends wait.
    pub(super) fn len(&self) -> usize {
        self.waiting().len()
    }

    /// How many bytes of the journal wait.
    pub(super) fn bytes(&self) -> u64 {
        self.journal.waiting_bytes()
    }

    /// Ends the loop. What waits stays in the journal.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Drains until the engine ends.
    pub(super) async fn run(self: Arc<Self>, store: Arc<dyn Store>, sentry: Option<Arc<Sentry>>) {
        let mut pause = FIRST_PAUSE;
        while !self.ended.load(Ordering::Acquire) {
            match self.run_once(&*store, sentry.as_deref()).await {
                Round::Over => {
                    pause = FIRST_PAUSE;
                    self.bell.notified().await;
                }
                Round::Stuck => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Writes what waits, once each, until the store does not answer. Two that do so at once may write
    /// the same end twice, which is harmless.
    ///
    /// # Cancellation
    /// What was not written stays in the journal.
    pub(super) async fn run_once(&self, store: &dyn Store, sentry: Option<&Sentry>) -> Round {
        let (rounds, mut in_a_row) = (self.len(), 0);
        let mut stuck = BTreeSet::new();
        for _ in 0..rounds {
            if self.ended.load(Ordering::Acquire) || in_a_row == OUTAGE {
                break;
            }
            let Some((mark, entry)) = self.waiting().front().cloned() else { break };
            let id = entry.lease.id;
            // It was put behind all others in this round, so all others had their turn.
            if stuck.contains(&id) {
                break;
            }
            match self.write(mark, entry, store, sentry).await {
                Round::Over => in_a_row = 0,
                Round::Stuck => {
                    in_a_row += 1;
                    stuck.insert(id);
                    self.put_last(&id);
                }
            }
        }
        match stuck.is_empty() {
            true => Round::Over,
            false => Round::Stuck,
        }
    }

    /// Whether an end of this key waits.
    pub(super) fn holds(&self, id: &KeyId) -> bool {
        self.waiting().iter().any(|(_, entry)| entry.lease.id == *id)
    }

    /// Writes the ends of this key before its turn, because somebody asks for it: the store would
    /// call the work unknown, or have it done again, while its answer lies here.
    ///
    /// # Cancellation
    /// What was not written stays in the journal.
    pub(super) async fn bring_forward(&self, id: &KeyId, shared: &Shared) {
        let of_key = |(_, entry): &&(Mark, Entry)| entry.lease.id == *id;
        let ends: Vec<(Mark, Entry)> = self.waiting().iter().filter(of_key).cloned().collect();
        for (mark, entry) in ends {
            let sentry = shared.sentry.as_deref();
            if self.write(mark, entry, &*shared.store, sentry).await == Round::Stuck {
                return;
            }
        }
    }

    /// Writes one end. It waits no longer unless the store does not answer.
    async fn write(
        &self,
        mark: Mark,
        mut entry: Entry,
        store: &dyn Store,
        sentry: Option<&Sentry>,
    ) -> Round {
        let written = match entry.write(store).await {
            Err(error) if error.kind() == ErrorKind::Rejected => {
                let Some(smaller) = entry.end.without_answer() else {
                    self.set_aside(mark);
                    return Round::Over;
                };
                entry.end = smaller;
                entry.write(store).await
            }
            written => written,
        };
        // Forgotten by the store, and not taken over: it is written once the record is put back.
        if let (Ok(Write::Fenced), Some(sentry)) = (&written, sentry)
            && sentry.word().await == Word::Doubtful
        {
            return Round::Stuck;
        }
        if let (Ok(write), Some(sentry)) = (&written, sentry) {
            // When it ended is not known here; its lease was over a little later.
            sentry.wrote(&entry, *write, entry.lease.until);
        }
        match written {
            Ok(Write::Applied | Write::Fenced) => {
                // By its mark: somebody else may have taken the first one away meanwhile.
                self.set_aside(mark);
                // A journal that is closed gives the entry once more, which is harmless.
                drop(self.journal.drained(mark).await);
            }
            Err(error) => match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::Unsuitable => {
                    return Round::Stuck;
                }
                ErrorKind::Corrupt | ErrorKind::Rejected | _ => {
                    tracing::error!(%error, "an end in the journal cannot be recorded");
                    self.set_aside(mark);
                }
            },
        }
        Round::Over
    }

    /// Lets the ends of other keys go first. Those of this key stay in their order.
    fn put_last(&self, id: &KeyId) {
        let mut waiting = self.waiting();
        let (last, first) = waiting.drain(..).partition(|(_, entry)| entry.lease.id == *id);
        *waiting = first;
        waiting.extend::<VecDeque<_>>(last);
    }

    /// Lets the others go on. The journal gives the entry at the next start, unless it is drained.
    fn set_aside(&self, mark: Mark) {
        self.waiting().retain(|(other, _)| *other != mark);
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<(Mark, Entry)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use oncekey_core::{Fence, Lease, Owner, Timestamp};

    use super::*;
    use crate::engine::end::End;
    use crate::entropy::SystemEntropy;

    /// Two ends of one key: the older one would be refused after the newer one, and lost.
    #[tokio::test]
    async fn ends_that_let_others_pass_stay_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let entropy = Arc::new(SystemEntropy::default());
        let (journal, left) = Journal::open(folder.path(), entropy).unwrap();
        let backlog = Backlog::new(journal, left);
        let [first, second] = [1, 2].map(|key| KeyId::from_bytes([key; 32]));
        for (id, fence) in [(first, 1), (second, 2), (first, 3), (second, 4)] {
            let (owner, until) = (Owner::from_bytes([0; 16]), Timestamp::from_micros(0));
            let lease = Lease { id, fence: Fence::from_number(fence).unwrap(), owner, until };
            backlog.keep(Entry { lease, end: End::Release }).await.unwrap();
        }
        let order = || -> Vec<i64> {
            backlog.waiting().iter().map(|(_, entry)| entry.lease.fence.number()).collect()
        };
        backlog.put_last(&first);
        assert_eq!(order(), [2, 4, 1, 3]);
        backlog.put_last(&second);
        assert_eq!(order(), [1, 3, 2, 4]);
    }
}
