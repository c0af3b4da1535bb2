//! Answers that were given a moment ago, kept in memory in front of the store.
//!
//! A finished record never changes, so whoever has it may answer from it. An answer gets in when it
//! is recorded, because most retries come within seconds, and when it is read from the store. The
//! cache itself forgets first what is never asked for again.
//! What is erased through this engine is dropped at once; what another process erases is forgotten
//! here within [`LONGEST`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncekey_core::{Fence, Fingerprint, KeyId, Places, Record, Saved, Timestamp};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::call::Exact;
use super::reply::{Replayed, Source};

/// Finished records, by weight.
#[derive(Debug)]
pub(super) struct Finished {
    cache: Option<Cache<KeyId, Arc<Entry>, Weight>>,
    /// How often a key was forgotten on purpose.
    erasures: AtomicU64,
}

/// A finished record as far as a replay needs it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) fingerprint: Fingerprint,
    /// A request with this fingerprint, byte for byte.
    pub(super) exact: Option<Exact>,
    pub(super) places: Places,
    pub(super) created: Timestamp,
    pub(super) original: Arc<str>,
    pub(super) fence: Fence,
    pub(super) saved: Saved,
    /// When it was completed, or a little earlier.
    pub(super) at: Timestamp,
    /// Until when it answers, or a little less.
    pub(super) expires: Timestamp,
    pub(super) read: Read,
}

/// When something was read from the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// The store's clock at that moment.
    pub(super) store: Timestamp,
    /// The uptime, no later than that moment.
    pub(super) uptime: Duration,
    /// How often the store's clock had been seen to step.
    pub(super) steps: u64,
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
        let cache = (bytes > 0).then(|| Cache::with_weighter(entries, bytes, Weight));
        Self { cache, erasures: AtomicU64::new(0) }
    }

    /// What is known about a key at `now`, by uptime, when the store's clock has been seen to step
    /// `steps` times.
    pub(super) fn find(&self, id: &KeyId, now: Duration, steps: u64) -> Option<Arc<Entry>> {
        let cache = self.cache.as_ref()?;
        let entry = cache.get(id)?;
        if entry.is_good(now, steps) {
            return Some(entry);
        }
        cache.remove(id);
        None
    }

    /// How often a key was forgotten on purpose.
    pub(super) fn erasures(&self) -> u64 {
        self.erasures.load(Ordering::SeqCst)
    }

    /// Keeps what is known about a key, unless it is too large, or something was erased since
    /// `erasures` was looked at, before the store was asked: it may have been this.
    pub(super) fn keep(&self, id: KeyId, entry: Entry, erasures: u64) {
        let Some(cache) = &self.cache else { return };
        if entry.weight() <= cache.capacity() / SHARE {
            cache.insert(id, Arc::new(entry));
            // Looked at after the insertion, as an erasure counts before it removes: one of the two
            // sees the other.
            if self.erasures() != erasures {
                cache.remove(&id);
            }
        }
    }

    /// Forgets a key.
    pub(super) fn forget(&self, id: &KeyId) {
        self.erasures.fetch_add(1, Ordering::SeqCst);
        if let Some(cache) = &self.cache {
            cache.remove(id);
        }
    }
}

/// The id of the request that made a record.
pub(super) fn original(record: &Record) -> Arc<str> {
    String::from_utf8_lossy(record.origin.request.as_bytes()).into()
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
            original: Arc::clone(&self.original),
            fence: Some(self.fence),
        }
    }

    fn is_good(&self, now: Duration, steps: u64) -> bool {
        let is_recent = now.saturating_sub(self.read.uptime) < LONGEST;
        // After a step the times of the record mean something else: the store has to be asked.
        is_recent && steps == self.read.steps && self.store_time(now) < self.expires
    }

    /// What the store's clock shows, as far as it kept step.
    fn store_time(&self, now: Duration) -> Timestamp {
        self.read.store.after(now.saturating_sub(self.read.uptime))
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
    use oncekey_core::Headers;

    use super::*;

    const READ: Read =
        Read { store: Timestamp::from_micros(1_000_000_000), uptime: Duration::ZERO, steps: 0 };

    const KEY: KeyId = KeyId::from_bytes([1; 32]);

    fn entry(body: usize, lives: Duration) -> Entry {
        Entry {
            fingerprint: Fingerprint::from_parts(1, [1; 32]),
            exact: None,
            places: Places::default(),
            created: READ.store,
            original: "req_1".into(),
            fence: Fence::next(None, READ.store),
            saved: Saved { status: 201, headers: Headers::new(), body: vec![0; body].into() },
            at: READ.store,
            expires: READ.store.after(lives),
            read: READ,
        }
    }

    /// I27: what has expired by the store's clock is not replayed from memory.
    #[test]
    fn an_answer_is_replayed_until_it_expires_and_no_longer() {
        let cache = Finished::new(1 << 20);
        cache.keep(KEY, entry(10, Duration::from_secs(5)), 0);
        let replay = cache.find(&KEY, Duration::from_secs(4), 0).unwrap();
        let replay = replay.replay(Duration::from_secs(4));
        assert_eq!((replay.age, replay.ttl), (Duration::from_secs(4), Duration::from_secs(1)));
        assert_eq!(replay.saved.status, 201);
        assert!(cache.find(&KEY, Duration::from_secs(5), 0).is_none());
    }

    /// I27: after a step of the store's clock nobody knows here what has expired.
    #[test]
    fn an_answer_is_asked_for_anew_after_a_step_of_the_clock() {
        let cache = Finished::new(1 << 20);
        cache.keep(KEY, entry(10, Duration::from_secs(86_400)), 0);
        assert!(cache.find(&KEY, Duration::ZERO, 0).is_some());
        assert!(cache.find(&KEY, Duration::ZERO, 1).is_none());
    }

    #[test]
    fn an_answer_is_asked_for_anew_after_a_while() {
        let cache = Finished::new(1 << 20);
        cache.keep(KEY, entry(10, Duration::from_secs(86_400)), 0);
        assert!(cache.find(&KEY, LONGEST, 0).is_none());
    }

    /// I43: what is kept is bounded, and no single answer pushes out everything else.
    #[test]
    fn the_cache_is_bounded_by_weight() {
        let cache = Finished::new(1 << 20);
        for number in 0..200 {
            let id = KeyId::from_bytes([number; 32]);
            cache.keep(id, entry(20_000, Duration::from_secs(60)), 0);
        }
        let held = cache.cache.as_ref().unwrap().weight();
        assert!(held <= 1 << 20, "{held}");
        let large = KeyId::from_bytes([255; 32]);
        cache.keep(large, entry(100_000, Duration::from_secs(60)), 0);
        assert!(cache.find(&large, Duration::ZERO, 0).is_none());
    }

    #[test]
    fn what_is_erased_is_forgotten_at_once() {
        let cache = Finished::new(1 << 20);
        cache.keep(KEY, entry(10, Duration::from_secs(60)), 0);
        cache.forget(&KEY);
        assert!(cache.find(&KEY, Duration::ZERO, 0).is_none());
        assert!(Finished::new(0).find(&KEY, Duration::ZERO, 0).is_none());
    }

    /// What was read before an erasure is not kept after it.
    #[test]
    fn an_answer_that_was_read_before_an_erasure_does_not_come_back() {
        let cache = Finished::new(1 << 20);
        let seen = cache.erasures();
        cache.forget(&KEY);
        cache.keep(KEY, entry(10, Duration::from_secs(60)), seen);
        assert!(cache.find(&KEY, Duration::ZERO, 0).is_none());
        cache.keep(KEY, entry(10, Duration::from_secs(60)), cache.erasures());
        assert!(cache.find(&KEY, Duration::ZERO, 0).is_some());
    }
}
