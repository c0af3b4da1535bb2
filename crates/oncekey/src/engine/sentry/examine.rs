//! One look at the store: is it still what it was?

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use oncekey_core::decide::Standing;
use oncekey_core::restore::supersedes;
use oncekey_core::{ErrorKind, KeyId, Lineage, Record, State, StoreError, Timestamp};

use super::super::Shared;
use super::super::ring::{Note, What};
use super::super::together::together;
use super::Sentry;

/// What a look came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing has changed.
    Same,
    /// The first look of a ring in which nothing is noted.
    First(Lineage),
    /// Another life of the store, which has everything.
    Moved(Lineage),
    /// The store has forgotten something.
    Regressed(Evidence),
}

/// What speaks for a regression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) before: Option<Lineage>,
    pub(super) now: Lineage,
    /// Canaries that the store does not have.
    pub(super) missing: usize,
    /// Canaries that the store has as they were at an earlier time.
    pub(super) older: usize,
    /// Canaries that were looked at.
    pub(super) of: usize,
}

/// Canaries as long as the lineage is the same. What is lost is lost from the end, so the newest
/// tell; more than one, because the newest may have been on its way to be replicated.
const FEW: usize = 4;
/// Canaries after a failover. One part of a cluster may have lost its end while the others have
/// theirs: so there should be several for each part, and Redis has 256 of them.
const MANY: usize = 1_024;
/// Reads at the same time.
const AT_ONCE: usize = 32;
/// What is so close to its end that clocks decide whether it is still there is no canary.
const MARGIN: Duration = Duration::from_secs(300);

/// Whether the store is in the life that the notes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Same,
    Other,
}

impl Sentry {
    /// Looks at the store once.
    pub(super) async fn examine(&self, shared: &Shared) -> Result<Seen, StoreError> {
        self.ring.settle().await;
        let now = self.call(self.store.lineage()).await?;
        let before = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if before.is_none() && self.ring.newest(1, |_| true).is_empty() {
            return Ok(Seen::First(now));
        }
        let life = if before.as_ref() == Some(&now) { Life::Same } else { Life::Other };
        let canaries = self.canaries(shared, life);
        let of = canaries.len();
        let (missing, older) = self.look_at(shared, canaries, life).await?;
        Ok(judge((before, now), (missing, older), of))
    }

    /// What the store must still have.
    fn canaries(&self, shared: &Shared, life: Life) -> Vec<Record> {
        let uptime = shared.uptime.elapsed();
        let store = shared.suspicion.store_time(uptime).unwrap_or_else(|| shared.clock.now());
        let most = match life {
            Life::Same => FEW,
            Life::Other => MANY,
        };
        let notes = self.ring.newest(most, |note| is_canary(note, life, store));
        let mut records: HashMap<KeyId, Record> =
            notes.iter().filter_map(Note::record).map(|record| (record.id, record)).collect();
        // What runs on this node is known better here than in the ring.
        if life == Life::Other {
            let held = shared.heart.everything();
            let held = held.iter().filter_map(|held| shared.record_of(held));
            records.extend(held.map(|record| (record.id, record)));
        }
        records.into_values().collect()
    }

    /// How many canaries are missing, and how many older than they were.
    async fn look_at(
        &self,
        shared: &Shared,
        canaries: Vec<Record>,
        life: Life,
    ) -> Result<(usize, usize), StoreError> {
        let (mut missing, mut older) = (0, 0);
        for some in canaries.chunks(AT_ONCE) {
            let reads = some.iter().map(|canary| self.call(self.store.get(&canary.id)));
            for (canary, found) in some.iter().zip(together(reads).await) {
                let found = match found {
                    Ok(found) => found,
                    // A store that knows that it has lost something says so about what it lacks.
                    Err(error) if error.kind() == ErrorKind::Unsuitable => None,
                    // That a record is damaged is another matter, and says nothing about its age.
                    Err(error) if error.kind() == ErrorKind::Corrupt => continue,
                    Err(error) => return Err(error),
                };
                // It may have ended, or been given back, while the store was asked.
                let is_behind = supersedes(canary, found.as_ref().map(Standing::from))
                    || life == Life::Other && is_granted_anew(canary, found.as_ref());
                if !is_behind || !self.still_says(shared, canary) {
                    continue;
                }
                match found {
                    None => missing += 1,
                    Some(_) => older += 1,
                }
            }
        }
        Ok((missing, older))
    }

    /// Whether a canary is still what this node knows of its key.
    fn still_says(&self, shared: &Shared, canary: &Record) -> bool {
        if shared.heart.everything().iter().any(|held| shared.is_holding(held, canary)) {
            return true;
        }
        let noted = self.ring.find(&canary.id);
        noted.is_some_and(|note| note.lease.fence == canary.fence && note.what != What::Gone)
    }
}

/// Whether finished work was granted once more before its record was to be forgotten. A store that was
/// older for a moment does that, before anybody notices; and then what stands there is newer than what
/// was lost. (So does an operator who ends a retention. If that meets a failover, it costs a lease.)
fn is_granted_anew(canary: &Record, found: Option<&Record>) -> bool {
    let is_done = matches!(canary.state, State::Done { .. });
    is_done && found.is_some_and(|found| found.fence > canary.fence)
}

/// Whether the store must still have what a note says. What has gone in a good way is no canary:
/// what was forgotten on time; and in the same life of the store also what others may have given
/// back on behalf of an owner that was gone.
fn is_canary(note: &Note, life: Life, store: Timestamp) -> bool {
    match (note.what, life) {
        (What::Done { forget, .. }, _) => forget > store.after(MARGIN),
        (What::Running, Life::Other) => note.lease.until.after(MARGIN) > store,
        (What::Unknown { .. }, Life::Other) => true,
        (What::Running | What::Unknown { .. }, Life::Same) | (What::Gone, _) => false,
    }
}

/// The decision: a changed lineage alone is a failover, a lost canary is a regression.
fn judge(
    (before, now): (Option<Lineage>, Lineage),
    (missing, older): (usize, usize),
    of: usize,
) -> Seen {
    match (missing + older, before.as_ref() == Some(&now)) {
        (0, true) => Seen::Same,
        (0, false) => Seen::Moved(now),
        (_, _) => Seen::Regressed(Evidence { before, now, missing, older, of }),
    }
}

#[cfg(test)]
mod tests {
    use oncekey_core::saved::{NotKept, Tombstone};
    use oncekey_core::{Answer, Class, Fence, Fingerprint, Lease, Owner};

    use super::super::super::ring::Ended;
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_763_000_000_000_000);

    fn note(what: What) -> Note {
        let lease = Lease {
            id: KeyId::from_bytes([1; 32]),
            fence: Fence::from_number(5).unwrap(),
            owner: Owner::from_bytes([1; 16]),
            until: NOW,
        };
        let (request, route) = ("".into(), "".into());
        let fingerprint = Fingerprint::from_parts(1, [1; 32]);
        Note { lease, fingerprint, class: Class::Once, created: NOW, request, route, what }
    }

    fn done(forget: Timestamp) -> What {
        let answer = Answer::Tombstone(Tombstone { status: None, reason: NotKept::TooLarge });
        What::Done { at: NOW, expires: NOW, forget, end: Ended::of(&answer) }
    }

    #[test]
    fn another_lineage_is_a_failover_and_a_lost_canary_is_a_regression() {
        let life = |name: &str| Lineage::new(name);
        let same = |lost| judge((Some(life("a")), life("a")), lost, 4);
        let other = |lost| judge((Some(life("a")), life("b")), lost, 4);
        let unknown = |lost| judge((None, life("b")), lost, 4);
        assert_eq!(same((0, 0)), Seen::Same);
        assert_eq!(other((0, 0)), Seen::Moved(life("b")));
        assert_eq!(unknown((0, 0)), Seen::Moved(life("b")));
        for lost in [(1, 0), (0, 1), (3, 1)] {
            for seen in [same(lost), other(lost), unknown(lost)] {
                assert!(matches!(seen, Seen::Regressed(_)), "{seen:?}");
            }
        }
    }

    /// What is gone in a good way must not raise an alarm.
    #[test]
    fn only_what_must_still_be_there_is_a_canary() {
        let later = NOW.after(Duration::from_secs(3_600));
        let rows = [
            (done(later), NOW, true, true),
            // It may be purged by now.
            (done(NOW), NOW, false, false),
            (done(later), later, false, false),
            // Others may have freed it.
            (What::Running, NOW, false, true),
            (What::Running, later, false, false),
            (What::Unknown { since: NOW }, NOW, false, true),
            (What::Gone, NOW, false, false),
        ];
        for (what, store, same, other) in rows {
            let note = note(what);
            assert_eq!(is_canary(&note, Life::Same, store), same, "{what:?}");
            assert_eq!(is_canary(&note, Life::Other, store), other, "{what:?}");
        }
    }
}
