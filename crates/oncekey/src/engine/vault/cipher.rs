//! One message, encrypted: AES-256-GCM under a key of its own.
//!
//! Every message has a salt, and salt and master key give the message its key and nonce (HKDF).
//! So a nonce is never used twice under one key, however many records there are: with one key for
//! all of them, 96 random bits would be used up after some billions.

use aes_gcm::aead::{Aead as _, Payload};
use aes_gcm::{AeadInOut as _, Aes256Gcm, KeyInit as _};

use super::ring::RingKey;

pub(super) const SALT: usize = 32;
pub(super) const TAG: usize = 16;

/// AES-256 and the nonce that GCM wants.
const KEY: usize = 32;
const NONCE: usize = 12;

/// What a message is, and what it belongs to. It cannot be opened as anything else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bond<'a> {
    /// Which kind of message, with the version of its layout.
    pub(super) purpose: &'static str,
    /// Everything that must not change around the message.
    pub(super) fields: &'a [&'a [u8]],
}

/// Encrypts what stands in `message` from `start` on, and appends the tag.
pub(super) fn seal(
    key: &RingKey,
    salt: &[u8; SALT],
    bond: Bond<'_>,
    message: &mut Vec<u8>,
    start: usize,
) {
    let (cipher, nonce) = cipher(key, salt, bond);
    let text = &mut message[start..];
    let tag = cipher
        .encrypt_inout_detached(&nonce.into(), &bond.associated(key), text.into())
        .expect("no message of ours comes near 64 GiB");
    message.extend_from_slice(&tag);
}

/// Decrypts a message, or returns `None` if it is not exactly what was encrypted, here and under
/// this bond. Nothing of it is seen before the tag was checked.
pub(super) fn open(
    key: &RingKey,
    salt: &[u8; SALT],
    bond: Bond<'_>,
    message: &[u8],
) -> Option<Vec<u8>> {
    let (cipher, nonce) = cipher(key, salt, bond);
    let aad = bond.associated(key);
    cipher.decrypt(&nonce.into(), Payload { msg: message, aad: &aad }).ok()
}

fn cipher(key: &RingKey, salt: &[u8; SALT], bond: Bond<'_>) -> (Aes256Gcm, [u8; NONCE]) {
    let derived = key.derive::<{ KEY + NONCE }>(salt, bond.purpose);
    let (own, nonce) = derived.split_first_chunk::<KEY>().expect("44 bytes are more than 32");
    let mut copied = [0; NONCE];
    copied.copy_from_slice(nonce);
    (Aes256Gcm::new(own.into()), copied)
}

impl Bond<'_> {
    /// The associated data: purpose, key and fields, each with its length.
    fn associated(&self, key: &RingKey) -> Vec<u8> {
        let mut data = Vec::with_capacity(128);
        let named = [self.purpose.as_bytes(), key.id().as_bytes()];
        for field in named.iter().chain(self.fields) {
            let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
            data.extend_from_slice(&length.to_be_bytes());
            data.extend_from_slice(field);
        }
        data
    }
}
