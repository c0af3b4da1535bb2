//! Answers that were replayed a moment ago, kept in memory in front of the store.
//!
//! A finished record never changes, so whoever has it may answer from it. Only answers that were
//! asked for twice get in: most keys are used once, and the first retry pays for the second.
//! What is erased through this engine is dropped at once; what another process erases is forgotten
//! here within [`LONGEST`].

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::record::State;
use oncekey_core::{Answer, Fence, Fingerprint, KeyId, Places, Record, Saved, Timestamp};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::reply::{Replayed, Source};

/// Finished records, by weight.
#[derive(Debug)]
pub(super) struct Finished(Option<Cache<KeyId, Arc<Entry>, Weight>>);

/// A finished record as far as a replay needs it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) fingerprint: Fingerprint,
    pub(super) places: Places,
    pub(super) created: Timestamp,
    pub(super) original: String,
    fence: Fence,
    saved: Saved,
    at: Timestamp,
    expires: Timestamp,
    /// The store's clock when this was read, and the uptime at that moment.
    read: (Timestamp, Duration),
}

#[derive(Clone, Debug)]
struct Weight;

/// How long an answer may live here at most: as long as an erasure in another process may take to
/// be felt everywhere.
const LONGEST: Duration = Duration::from_secs(60);
/// What an entry weighs beside its answer: digests, times, and a share of the map.
const OVERHEAD: usize = 512;
/// A cache holds at least this many entries, because a single one never weighs more than this
/// share of it.
const SHARE: u64 = 32;

impl Finished {
    /// A cache of so many bytes; none at all for zero.
    pub(super) fn new(bytes: u64) -> Self {
        let entries = usize::try_from(bytes / 2_048).unwrap_or(usize::MAX).max(64);
        Self((bytes > 0).then(|| Cache::with_weighter(entries, bytes, Weight)))
    }

    /// What is known about a key at `now`, by uptime.
    pub(super) fn find(&self, id: &KeyId, now: Duration) -> Option<Arc<Entry>> {
        let cache = self.0.as_ref()?;
        let entry = cache.get(id)?;
        if entry.is_good(now) {
            return Some(entry);
        }
        cache.remove(id);
        None
    }

    /// Keeps the answer `saved` of `record`, which was read when the store's clock showed `read.0`
    /// and the uptime was `read.1`.
    pub(super) fn keep(&self, record: &Record, saved: &Saved, read: (Timestamp, Duration)) {
        let Some(cache) = &self.0 else { return };
        let State::Done { at, expires, answer: Answer::Kept(_), .. } = &record.state else {
            return;
        };
        let entry = Entry {
            fingerprint: record.fingerprint,
            places: record.places.clone(),
            created: record.created,
            original: original(record),
            fence: record.fence,
            saved: saved.clone(),
            at: *at,
            expires: *expires,
            read,
        };
        if entry.weight() <= cache.capacity() / SHARE {
            cache.insert(record.id, Arc::new(entry));
        }
    }

    /// Forgets a key.
    pub(super) fn forget(&self, id: &KeyId) {
        if let Some(cache) = &self.0 {
            cache.remove(id);
        }
    }
}

/// The id of the request that made a record.
pub(super) fn original(record: &Record) -> String {
    String::from_utf8_lossy(record.origin.request.as_bytes()).into_owned()
}

impl Entry {
    /// The answer, at `now` by uptime.
    pub(super) fn replay(&self, now: Duration) -> Replayed {
        let store_now = self.store_time(now);
        Replayed {
            saved: self.saved.clone(),
            source: Source::Record,
            age: store_now.since(self.at),
            ttl: self.expires.since(store_now),
            original: self.original.clone(),
            fence: Some(self.fence),
        }
    }

    fn is_good(&self, now: Duration) -> bool {
        now.saturating_sub(self.read.1) < LONGEST && self.store_time(now) < self.expires
    }

    /// What the store's clock shows, as far as it kept step.
    fn store_time(&self, now: Duration) -> Timestamp {
        self.read.0.after(now.saturating_sub(self.read.1))
    }

    fn weight(&self) -> u64 {
        let bytes = OVERHEAD
            + self.saved.body.len()
            + self.saved.headers.encoded_len()
            + self.places.as_encoded().len();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl Weighter<KeyId, Arc<Entry>> for Weight {
    fn weight(&self, _: &KeyId, entry: &Arc<Entry>) -> u64 {
        entry.weight()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use oncekey_core::record::{Origin, Owner};
    use oncekey_core::{Class, Headers};

    use super::*;

    const READ: (Timestamp, Duration) = (Timestamp::from_micros(1_000_000_000), Duration::ZERO);

    fn record(number: u8, body: usize, lives: Duration) -> (Record, Saved) {
        let saved =
            Saved { status: 201, headers: Headers::new(), body: Bytes::from(vec![0; body]) };
        let answer = Answer::Kept(saved.clone());
        let expires = READ.0.after(lives);
        let record = Record {
            id: KeyId::from_bytes([number; 32]),
            fence: Fence::next(None, READ.0),
            owner: Owner::from_bytes([1; 16]),
            fingerprint: Fingerprint::from_parts(1, [number; 32]),
            class: Class::Once,
            created: READ.0,
            origin: Origin { request: "req_1".into(), ..Origin::default() },
            places: Places::default(),
            state: State::Done {
                at: READ.0,
                expires,
                forget: expires,
                outcome: answer.outcome(),
                answer,
            },
        };
        (record, saved)
    }

    /// I27: what has expired by the store's clock is not replayed from memory.
    #[test]
    fn an_answer_is_replayed_until_it_expires_and_no_longer() {
        let cache = Finished::new(1 << 20);
        let (record, saved) = record(1, 10, Duration::from_secs(5));
        cache.keep(&record, &saved, READ);
        let replay = cache.find(&record.id, Duration::from_secs(4)).unwrap();
        let replay = replay.replay(Duration::from_secs(4));
        assert_eq!((replay.age, replay.ttl), (Duration::from_secs(4), Duration::from_secs(1)));
        assert_eq!(replay.saved, saved);
        assert!(cache.find(&record.id, Duration::from_secs(5)).is_none());
    }

    #[test]
    fn an_answer_is_asked_for_anew_after_a_while() {
        let cache = Finished::new(1 << 20);
        let (record, saved) = record(1, 10, Duration::from_secs(86_400));
        cache.keep(&record, &saved, READ);
        assert!(cache.find(&record.id, LONGEST).is_none());
    }

    /// I43: what is kept is bounded, and no single answer pushes out everything else.
    #[test]
    fn the_cache_is_bounded_by_weight() {
        let cache = Finished::new(1 << 20);
        for number in 0..200 {
            let (record, saved) = record(number, 20_000, Duration::from_secs(60));
            cache.keep(&record, &saved, READ);
        }
        let held = cache.0.as_ref().unwrap().weight();
        assert!(held <= 1 << 20, "{held}");
        let (large, saved) = record(255, 100_000, Duration::from_secs(60));
        cache.keep(&large, &saved, READ);
        assert!(cache.find(&large.id, Duration::ZERO).is_none());
    }

    #[test]
    fn what_is_erased_is_forgotten_at_once() {
        let cache = Finished::new(1 << 20);
        let (record, saved) = record(1, 10, Duration::from_secs(60));
        cache.keep(&record, &saved, READ);
        cache.forget(&record.id);
        assert!(cache.find(&record.id, Duration::ZERO).is_none());
        assert!(Finished::new(0).find(&record.id, Duration::ZERO).is_none());
    }
}
