//! Where things are: the names of keys, shards and slots.
//!
//! A script may touch the keys of one slot only. So the keys of a store are spread over 256 shards
//! by the first byte of their key id, which is a digest, and everything that belongs to a shard has
//! the same hash tag: its records, its indexes, its high-water mark. One script changes a record
//! together with its indexes, in one step, on one server and on a cluster alike.

use oncekey_core::{ErrorKind, KeyId, StoreError};

/// How many shards there are. A cluster spreads them over its masters, so it may have some dozens
/// of those before the load gets uneven; and 256 questions are still a quick look at everything.
pub(super) const SHARDS: usize = 256;

/// Slots of a cluster.
const SLOTS: u16 = 16_384;

/// The longest prefix: it is part of every key.
const MAX_PREFIX: usize = 64;

/// The names of a store's keys, made once: every call needs five of them.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
    channel: String,
    shards: Vec<Shard>,
}

#[derive(Clone, Debug)]
struct Shard {
    slot: u16,
    record: String,
    mark: String,
    open: String,
    done: String,
    due: String,
}

impl Names {
    /// Names that begin with `prefix`.
    pub(super) fn new(prefix: &str) -> Result<Self, StoreError> {
        let is_good = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        if prefix.is_empty() || prefix.len() > MAX_PREFIX || !prefix.bytes().all(is_good) {
            return Err(StoreError::new(
                ErrorKind::Unsuitable,
                format!(
                    "the key prefix must be 1 to {MAX_PREFIX} printable bytes without {{ or }}"
                ),
            ));
        }
        let shards = shards().map(|shard| Shard::new(prefix, shard)).collect();
        Ok(Self { prefix: prefix.to_owned(), channel: format!("{prefix}:ended"), shards })
    }

    /// What says which life of the store this is.
    pub(super) fn root(&self) -> String {
        format!("{{{}}}root", self.prefix)
    }

    /// Where the end of attempts is announced.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// The record of a key.
    pub(super) fn record(&self, id: &KeyId) -> Vec<u8> {
        let mut name = Vec::with_capacity(MAX_PREFIX + 40);
        name.extend_from_slice(self.shard(shard_of(id)).record.as_bytes());
        name.extend_from_slice(id.as_bytes());
        name
    }

    /// The record of a key, and the mark of its shard.
    pub(super) fn record_and_mark(&self, id: &KeyId) -> [Vec<u8>; 2] {
        [self.record(id), self.mark(shard_of(id)).as_bytes().to_vec()]
    }

    /// The record of a key, the mark of its shard, and its indexes: open, done and due.
    pub(super) fn all(&self, id: &KeyId) -> [Vec<u8>; 5] {
        let Shard { mark, open, done, due, .. } = self.shard(shard_of(id));
        let name = |name: &String| name.as_bytes().to_vec();
        [self.record(id), name(mark), name(open), name(done), name(due)]
    }

    /// The epoch and the high-water mark of a shard.
    pub(super) fn mark(&self, shard: u8) -> &str {
        &self.shard(shard).mark
    }

    /// The index of records that have not ended, by the first fence of their generation.
    pub(super) fn open(&self, shard: u8) -> &str {
        &self.shard(shard).open
    }

    /// The index of finished records, by the first fence of their generation.
    pub(super) fn done(&self, shard: u8) -> &str {
        &self.shard(shard).done
    }

    /// The index of finished records, by the time when a purge has something to do.
    pub(super) fn due(&self, shard: u8) -> &str {
        &self.shard(shard).due
    }

    /// What a connection writes before it waits for replicas.
    pub(super) fn tick(&self, shard: u8) -> String {
        format!("{{{}:{shard:02x}}}t", self.prefix)
    }

    /// The slot of a shard.
    pub(super) fn slot(&self, shard: u8) -> u16 {
        self.shard(shard).slot
    }

    /// The slot of the root.
    pub(super) fn root_slot(&self) -> u16 {
        crc16(self.prefix.as_bytes()) % SLOTS
    }

    fn shard(&self, shard: u8) -> &Shard {
        &self.shards[usize::from(shard)]
    }
}

impl Shard {
    fn new(prefix: &str, shard: u8) -> Self {
        let tag = format!("{prefix}:{shard:02x}");
        let name = |kind: char| format!("{{{tag}}}{kind}");
        Self {
            slot: crc16(tag.as_bytes()) % SLOTS,
            record: name('r'),
            mark: name('m'),
            open: name('o'),
            done: name('d'),
            due: name('x'),
        }
    }
}

/// All shards.
pub(super) fn shards() -> impl Iterator<Item = u8> {
    0..=u8::MAX
}

/// The shard of a key.
pub(super) fn shard_of(id: &KeyId) -> u8 {
    let [first, ..] = *id.as_bytes();
    first
}

/// The checksum by which a cluster spreads hash tags (XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    #[test]
    fn everything_of_a_shard_has_one_hash_tag() {
        let names = Names::new("app").unwrap();
        let id = KeyId::from_bytes([0xab; 32]);
        let shard = shard_of(&id);
        assert!(names.record(&id).starts_with(b"{app:ab}r\xab\xab"));
        for name in [names.mark(shard), names.open(shard), names.done(shard), names.due(shard)] {
            assert!(name.starts_with("{app:ab}"), "{name}");
        }
        assert_eq!(shards().count(), SHARDS);
    }

    #[test]
    fn shards_spread_over_the_masters_of_a_cluster() {
        let names = Names::new("oncekey").unwrap();
        let mut thirds = [0; 3];
        for shard in shards() {
            thirds[usize::from(names.slot(shard)) * 3 / usize::from(SLOTS)] += 1;
        }
        assert!(thirds.iter().all(|third| *third > 60), "{thirds:?}");
    }

    #[test]
    fn a_prefix_that_would_break_the_hash_tag_is_refused() {
        for prefix in ["", "a{b", "a}b", "a b", "\u{e4}", &"x".repeat(65)] {
            assert_eq!(Names::new(prefix).unwrap_err().kind(), ErrorKind::Unsuitable, "{prefix}");
        }
    }
}
