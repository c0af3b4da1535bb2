//! Digests of several fields that cannot be confused with one another.
//!
//! Every digest of this crate is made here, so that the rules hold everywhere: a domain with its
//! version comes first, every field carries its length, every list its count, and a pepper turns
//! SHA-256 into HMAC-SHA-256. Two different lists of fields therefore never give the same bytes.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::key::Pepper;

/// The fields of one digest, fed in order.
#[derive(Clone)]
pub(crate) enum Preimage {
    Plain(Sha256),
    Keyed(Hmac<Sha256>),
}

impl Preimage {
    /// Starts a digest in the domain `tag`, under `pepper` if there is one.
    ///
    /// The tag, zeros and the version fill exactly one block of SHA-256. So a preimage that is
    /// started once and cloned for many short digests costs one block for each of them.
    pub(crate) fn new(tag: &str, version: u8, pepper: Option<&Pepper>) -> Preimage {
        let mut preimage = match pepper {
            Some(pepper) => Preimage::Keyed(pepper.state().clone()),
            None => Preimage::Plain(Sha256::new()),
        };
        let mut domain = [0; 64];
        domain[..tag.len()].copy_from_slice(tag.as_bytes());
        domain[63] = version;
        preimage.raw(&domain);
        preimage
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
    pub(crate) fn finish(self) -> [u8; 32] {
        match self {
            Preimage::Plain(hash) => hash.finalize().into(),
            Preimage::Keyed(mac) => mac.finalize().into_bytes().into(),
        }
    }

    /// Half of the digest: enough against accidents, and rows stay small.
    pub(crate) fn first_half(self) -> [u8; 16] {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = self.finish();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }

    fn raw(&mut self, bytes: &[u8]) {
        match self {
            Preimage::Plain(hash) => Digest::update(hash, bytes),
            Preimage::Keyed(mac) => Mac::update(mac, bytes),
        }
    }
}

/// The keyed state of a pepper, computed once because it costs two compressions.
pub(crate) fn keyed_state(secret: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("HMAC takes keys of every length")
}

/// Writes bytes as lower-case hex.
pub(crate) fn write_hex(out: &mut impl std::fmt::Write, bytes: &[u8]) -> std::fmt::Result {
    bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(fields: &[&[u8]]) -> [u8; 32] {
        let mut preimage = Preimage::new("test", 1, None);
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
        let of = |tag, version| Preimage::new(tag, version, None).finish();
        assert_ne!(of("a", 1), of("b", 1));
        assert_ne!(of("a", 1), of("a", 2));
    }

    /// I24: an absent field is not an empty field.
    #[test]
    fn absent_is_not_empty() {
        let of = |field: Option<&[u8]>| {
            let mut preimage = Preimage::new("test", 1, None);
            preimage.optional(field);
            preimage.finish()
        };
        assert_ne!(of(None), of(Some(b"")));
    }
}
