//! Digests of several fields that cannot be confused with one another.
//!
//! Every digest of this crate is made here, so that the rules hold everywhere: a domain with its
//! version comes first, every field carries its length, every list its count, and a pepper turns
//! SHA-256 into HMAC-SHA-256. Two different lists of fields therefore never give the same bytes.

use std::sync::OnceLock;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::key::Pepper;

/// What a digest is for. Digests of two domains never meet.
///
/// The tag, zeros and the version fill exactly one block of SHA-256, which is the same for all
/// digests of a domain and therefore computed once.
#[derive(Debug)]
pub(crate) struct Domain {
    tag: &'static str,
    version: u8,
    start: OnceLock<Sha256>,
}

impl Domain {
    pub(crate) const fn new(tag: &'static str, version: u8) -> Self {
        Self { tag, version, start: OnceLock::new() }
    }

    /// Starts a digest, under `pepper` if there is one.
    pub(crate) fn start(&self, pepper: Option<&Pepper>) -> Preimage {
        match pepper {
            None => {
                let start = || Sha256::new_with_prefix(self.block());
                Preimage::new(Hash::Plain(self.start.get_or_init(start).clone()))
            }
            Some(pepper) => {
                let mut preimage = Preimage::new(Hash::Keyed(pepper.state().clone()));
                preimage.raw(&self.block());
                preimage
            }
        }
    }

    fn block(&self) -> [u8; 64] {
        let mut block = [0; 64];
        block[..self.tag.len()].copy_from_slice(self.tag.as_bytes());
        block[63] = self.version;
        block
    }
}

/// The fields of one digest, fed in order.
///
/// Small fields are gathered first: a digest of ten of them spent a third of its time on being fed.
#[derive(Clone)]
pub(crate) struct Preimage {
    hash: Hash,
    gathered: [u8; GATHERED],
    used: usize,
}

#[derive(Clone)]
enum Hash {
    Plain(Sha256),
    Keyed(Hmac<Sha256>),
}

/// All fields of a key id, or of a fingerprint without headers.
const GATHERED: usize = 128;

impl Preimage {
    fn new(hash: Hash) -> Self {
        Self { hash, gathered: [0; GATHERED], used: 0 }
    }

    /// Adds one field with its length.
    pub(crate) fn field(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    /// Adds a field that may be absent, which differs from an empty one.
    pub(crate) fn optional(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            None => self.tag(0),
            Some(bytes) => {
                self.tag(1);
                self.field(bytes);
            }
        }
    }

    /// Adds a length or the number of entries that follow.
    pub(crate) fn count(&mut self, count: usize) {
        self.raw(&(count as u64).to_be_bytes());
    }

    /// Adds one byte that tells apart the kinds of what follows.
    pub(crate) fn tag(&mut self, tag: u8) {
        self.raw(&[tag]);
    }

    /// The digest of everything added so far.
    pub(crate) fn finish(mut self) -> [u8; 32] {
        self.hash.feed(&self.gathered[..self.used]);
        match self.hash {
            Hash::Plain(hash) => hash.finalize().into(),
            Hash::Keyed(mac) => mac.finalize().into_bytes().into(),
        }
    }

    /// Half of the digest: enough against accidents, and rows stay small.
    pub(crate) fn first_half(self) -> [u8; 16] {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = self.finish();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }

    fn raw(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        if let Some(room) = self.gathered.get_mut(self.used..end) {
            room.copy_from_slice(bytes);
            self.used = end;
            return;
        }
        self.hash.feed(&self.gathered[..self.used]);
        self.hash.feed(bytes);
        self.used = 0;
    }
}

impl Hash {
    fn feed(&mut self, bytes: &[u8]) {
        match self {
            Hash::Plain(hash) => Digest::update(hash, bytes),
            Hash::Keyed(mac) => Mac::update(mac, bytes),
        }
    }
}

/// The keyed state of a pepper, computed once because it costs two compressions.
pub(crate) fn keyed_state(secret: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("HMAC takes keys of every length")
}

/// Writes bytes as lower-case hex.
pub(crate) fn write_hex(out: &mut impl std::fmt::Write, bytes: &[u8]) -> std::fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    // A digest at a time: going through a formatter for every byte took a fiftieth of a replay.
    for chunk in bytes.chunks(32) {
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(chunk) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        out.write_str(std::str::from_utf8(&text[..2 * chunk.len()]).expect("digits"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    static TEST: Domain = Domain::new("test", 1);

    #[test]
    fn hex_of_any_length_is_what_a_formatter_writes() {
        for length in [0, 1, 31, 32, 33, 256] {
            let bytes: Vec<u8> = (0..=u8::MAX).take(length).collect();
            let mut text = String::new();
            write_hex(&mut text, &bytes).unwrap();
            let plain: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(text, plain);
        }
    }

    fn digest(fields: &[&[u8]]) -> [u8; 32] {
        let mut preimage = TEST.start(None);
        fields.iter().for_each(|field| preimage.field(field));
        preimage.finish()
    }

    /// I22: moving a byte across a border between fields changes the digest.
    #[test]
    fn borders_between_fields_count() {
        assert_ne!(digest(&[b"ab", b"c"]), digest(&[b"a", b"bc"]));
        assert_ne!(digest(&[b"ab"]), digest(&[b"ab", b""]));
        assert_ne!(digest(&[b""]), digest(&[]));
    }

    /// I22: the domain and its version are part of the digest.
    #[test]
    fn domains_and_versions_are_apart() {
        let of = |tag, version| Domain::new(tag, version).start(None).finish();
        assert_ne!(of("a", 1), of("b", 1));
        assert_ne!(of("a", 1), of("a", 2));
    }

    /// I24: an absent field is not an empty field.
    #[test]
    fn absent_is_not_empty() {
        let of = |field: Option<&[u8]>| {
            let mut preimage = TEST.start(None);
            preimage.optional(field);
            preimage.finish()
        };
        assert_ne!(of(None), of(Some(b"")));
    }
}
