//! Remembers which keys may have a record, so that a new key is not looked for in vain.
//!
//! A claim reads before it asks the writer, because a refusal needs no writer. For a new key that
//! read is wasted, and it is the larger part of what a caller spends on a claim. This is a Bloom
//! filter of the keys in the file: "no" means that nobody here has heard of the key, "yes" means
//! that reading may pay. Neither is a decision. If another process has claimed the key, the answer
//! here is a wrong "no", the claim goes straight to the writer, and the writer finds the record.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use oncekey_core::{KeyId, StoreError};
use rusqlite::Connection;

use super::error::Failure;
use super::reader::Readers;
use super::row;

/// The filter and the thread that fills it.
#[derive(Debug)]
pub(super) struct Known {
    filter: Arc<Filter>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Filter {
    words: Vec<AtomicU64>,
    /// Before the file has been gone through, every key may have a record.
    is_filled: AtomicBool,
    is_closing: AtomicBool,
}

/// Sixteen bits for each key and two of them set: one key in sixty-four is looked for in vain.
const BITS_PER_KEY: u64 = 16;
/// Room for keys to come: half a million a day for two days. Beyond it the filter says "yes" more
/// often, and claims cost what they would cost without it.
const KEYS_TO_COME: u64 = 1_000_000;
/// 32 MiB of memory at the most.
const MOST_BITS: u64 = 1 << 28;

/// An upper bound of the number of records: rows are numbered as they come.
const HOW_MANY: &str = "SELECT coalesce(max(id), 0) FROM oncekey_records";
/// Both maps, in one statement and so in one snapshot: no key is missed because it moved.
const ALL: &str = "SELECT hash FROM oncekey_fresh UNION ALL SELECT hash FROM oncekey_settled";

impl Known {
    /// Makes a filter and begins to fill it.
    pub(super) fn start(readers: &Readers) -> Result<Self, StoreError> {
        let rows: i64 =
            readers.read(|connection| Ok(connection.query_row(HOW_MANY, [], |row| row.get(0))?))?;
        let keys = u64::try_from(rows).unwrap_or(0).saturating_add(KEYS_TO_COME);
        let bits = keys.saturating_mul(BITS_PER_KEY).next_power_of_two().min(MOST_BITS);
        let words = usize::try_from(bits / 64).unwrap_or(1);
        let filter = Arc::new(Filter {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            is_filled: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
        });
        let (filling, readers) = (Arc::clone(&filter), readers.clone());
        // Without the thread, or if the file cannot be read, every claim reads first: as safe, and
        // slower.
        let thread = std::thread::Builder::new()
            .name("oncekey-sqlite-known".to_owned())
            .spawn(move || drop(readers.read_apart(|connection| filling.fill(connection))));
        Ok(Self { filter, thread: thread.ok() })
    }

    /// Whether the key may have a record.
    pub(super) fn may_have(&self, id: &KeyId) -> bool {
        !self.filter.is_filled.load(Ordering::Acquire) || self.filter.has(row::hash_of(id))
    }

    /// The key is about to have a record.
    pub(super) fn note(&self, id: &KeyId) {
        self.filter.add(row::hash_of(id));
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.filter.is_closing.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Filter {
    fn fill(&self, connection: &Connection) -> Result<(), Failure> {
        let mut statement = connection.prepare(ALL)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if self.is_closing.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.add(row.get(0)?);
        }
        self.is_filled.store(true, Ordering::Release);
        Ok(())
    }

    fn add(&self, hash: i64) {
        for (word, bit) in self.places(hash) {
            self.words[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn has(&self, hash: i64) -> bool {
        self.places(hash)
            .iter()
            .all(|(word, bit)| self.words[*word].load(Ordering::Relaxed) & bit != 0)
    }

    /// Two places from one hash: it is a digest, so its halves are independent. Both in one cache
    /// line would be faster and fuller; two misses cost less than the read that they save.
    fn places(&self, hash: i64) -> [(usize, u64); 2] {
        let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
        [[a, b, c, d], [e, f, g, h]].map(|half| {
            let number = usize::try_from(u32::from_be_bytes(half)).unwrap_or(0);
            // The number of words is a power of two, and of bits at most 2^28.
            ((number >> 6) & (self.words.len() - 1), 1 << (number & 63))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(words: usize) -> Filter {
        Filter {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            is_filled: AtomicBool::new(true),
            is_closing: AtomicBool::new(false),
        }
    }

    #[test]
    fn a_key_that_was_noted_is_never_denied() {
        let filter = filter(1 << 10);
        let hashes = (0..2_000_i64)
            .map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed()));
        for hash in hashes.clone() {
            filter.add(hash);
        }
        assert!(hashes.clone().all(|hash| filter.has(hash)));
    }

    #[test]
    fn most_keys_that_were_not_noted_are_denied() {
        let filter = filter(1 << 10);
        let mix = |number: i64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed());
        for number in 0..4_096 {
            filter.add(mix(number));
        }
        let wrong = (4_096..14_096).filter(|number| filter.has(mix(*number))).count();
        assert!(wrong < 1_000, "{wrong} of 10 000 at sixteen bits a key");
    }
}
