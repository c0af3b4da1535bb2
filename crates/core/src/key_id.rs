//! The name of a record: a digest, so that no store ever sees a key or a principal.
//!
//! A key id has a fixed size whatever the client sent, sorts and shards evenly, and cannot carry
//! an injection, a wildcard or a Redis hash tag into a store. It says nothing about the request:
//! that is the fingerprint's work.

use std::fmt;

use crate::key::{Key, Pepper, Scope};
use crate::preimage::{Preimage, write_hex};

/// The layout of the digested fields. A new one makes every stored record unreachable.
const KEY_ID_VERSION: u8 = 1;
const DERIVED_KEY_VERSION: u8 = 1;

/// The digest of namespace, scope and key that names a record.
///
/// It is no secret: with a pepper nothing can be learned from it, and without one it shows only
/// whether a guess of scope *and* key was right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; 32]);

impl KeyId {
    /// Names the record of `key` in `scope`.
    ///
    /// The namespace keeps deployments that share a store apart. Different arguments give different
    /// ids; the same arguments give the same id for ever.
    #[must_use]
    pub fn derive(namespace: &str, scope: &Scope, key: &Key, pepper: Option<&Pepper>) -> KeyId {
        let mut preimage = Preimage::new("oncekey/key-id", KEY_ID_VERSION, pepper);
        preimage.field(namespace.as_bytes());
        preimage.field(scope.as_bytes());
        preimage.field(key.as_bytes());
        KeyId(preimage.finish())
    }

    /// Takes an id that was derived before, for example from a store.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> KeyId {
        KeyId(bytes)
    }

    /// The digest.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// The key to send with a foreign call that belongs to `key_id`.
///
/// It is the same for every attempt and different for every step and namespace, so the foreign
/// system can recognise a repetition and never mixes up two calls. It has 56 characters of
/// `[a-z0-9_]`: safe in URLs and header fields, and under 64, the tightest limit of a payment API
/// that we know.
#[must_use]
pub fn derived_key(namespace: &str, key_id: &KeyId, step: &str) -> String {
    let mut preimage = Preimage::new("oncekey/derived-key", DERIVED_KEY_VERSION, None);
    preimage.field(namespace.as_bytes());
    preimage.field(key_id.as_bytes());
    preimage.field(step.as_bytes());
    let mut text = String::with_capacity(56);
    text.push_str("ok1_");
    push_base32(&mut text, &preimage.finish());
    text
}

/// RFC 4648 base32 in lower case, without padding.
fn push_base32(text: &mut String, bytes: &[u8]) {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut pending: u32 = 0;
    let mut bits = 0;
    for byte in bytes {
        pending = (pending << 8) | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[((pending >> bits) & 31) as usize]));
        }
        pending &= (1 << bits) - 1;
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[((pending << (5 - bits)) & 31) as usize]));
    }
}
