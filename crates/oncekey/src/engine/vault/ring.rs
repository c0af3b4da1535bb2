//! The keys of encryption at rest, and how people write them down.

use std::fmt;

use hkdf::Hkdf;
use hkdf::hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

/// The keys that encrypt what a store keeps.
///
/// The first key encrypts, all of them decrypt. To rotate, put a new key in front and keep the old
/// one for as long as a record may live that was written with it: the longest retention plus the
/// longest linger, and for ever if outcomes stay unknown. A record whose key is gone can neither be
/// replayed nor run again.
///
/// Keys are wiped from memory when the ring is dropped, and never shown.
///
/// ```
/// use oncekey::engine::KeyRing;
///
/// let ring = KeyRing::parse(
///     "2026-11:gKnPylEJq8nCX8OyM1shpvZdAFuC5Ly4tK1tyCkzyJg=
///      2025-11:b6ee13a78ef4b8bfc1ef0ad1f2f1dbe4e4e0e9a0d0b3e31ff2cbcd4f3a0a5b11",
/// )?;
/// assert_eq!(ring.primary(), "2026-11");
/// # Ok::<(), oncekey::engine::KeyRingError>(())
/// ```
#[derive(Clone)]
pub struct KeyRing {
    /// Never empty; the first encrypts.
    keys: Vec<RingKey>,
    pub(super) plain: Plain,
}

/// Why a key was refused. No message contains a byte of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRingError {
    /// The id cannot be written into a header line.
    #[error("the id of an encryption key must be 1 to {MAX_ID_LENGTH} of A-Z a-z 0-9 . _ -")]
    Id,
    /// The key has another length than 32 bytes.
    #[error(
        "an encryption key must have {KEY_LENGTH} bytes, this one has {length}: make one with \
         `openssl rand -base64 {KEY_LENGTH}`"
    )]
    Length {
        /// How many bytes it has.
        length: usize,
    },
    /// All bytes of the key are equal, so somebody filled in a form.
    #[error("an encryption key must be random: make one with `openssl rand -base64 {KEY_LENGTH}`")]
    NotRandom,
    /// Two keys have the same id.
    #[error("two encryption keys have the id {id}: every key needs an id of its own")]
    Duplicate {
        /// The id.
        id: String,
    },
    /// There is no key at all.
    #[error("there is no encryption key: write one per line, as `id:key`, the newest first")]
    Empty,
    /// A line without a colon.
    #[error("an encryption key is written as `id:key`")]
    NoColon,
    /// A key that is written in another way.
    #[error(
        "an encryption key is written as 64 hexadecimal digits, or in base64: make one with \
         `openssl rand -base64 {KEY_LENGTH}`"
    )]
    Encoding,
    /// One of the above, in a text of several lines.
    #[error("line {number}: {error}")]
    Line {
        /// Which line, counted from 1.
        number: usize,
        /// What is wrong with it.
        error: Box<KeyRingError>,
    },
}

/// AES-256.
const KEY_LENGTH: usize = 32;

/// Room for a date, a region and a host; a bound for what is written beside every record.
pub(super) const MAX_ID_LENGTH: usize = 64;

/// What is said about records that are not encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    /// They were written before encryption was switched on.
    Accepted,
    /// Somebody else wrote them.
    Refused,
}

/// A key and its name.
#[derive(Clone)]
pub(super) struct RingKey {
    id: Box<str>,
    master: Zeroizing<[u8; KEY_LENGTH]>,
    /// Draws the salts of texts that must be equal when their plain texts are.
    synthetic: Zeroizing<[u8; KEY_LENGTH]>,
}

impl KeyRing {
    /// A ring of one key of 32 random bytes, which encrypts and decrypts.
    ///
    /// # Errors
    /// If the id cannot be written into a header line, or the key is no key.
    pub fn new(id: &str, key: &[u8]) -> Result<Self, KeyRingError> {
        Ok(Self { keys: vec![RingKey::new(id, key)?], plain: Plain::Accepted })
    }

    /// Adds a key that decrypts what was encrypted with it.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if the ring has a key of this id.
    pub fn with_old(mut self, id: &str, key: &[u8]) -> Result<Self, KeyRingError> {
        let key = RingKey::new(id, key)?;
        if self.key(&key.id).is_some() {
            return Err(KeyRingError::Duplicate { id: id.to_owned() });
        }
        self.keys.push(key);
        Ok(self)
    }

    /// Reads keys from a text, such as a file: one line `id:key` each, the key in base64 or in
    /// hexadecimal digits. The first encrypts. Empty lines and lines that start with `#` do not
    /// count.
    ///
    /// # Errors
    /// The first line that is wrong, by its number and without its content.
    pub fn parse(text: &str) -> Result<Self, KeyRingError> {
        let mut ring: Option<Self> = None;
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let added = read_line(line).and_then(|(id, key)| match ring.take() {
                None => Self::new(id, &key),
                Some(ring) => ring.with_old(id, &key),
            });
            let in_line = |error| KeyRingError::Line { number: index + 1, error: Box::new(error) };
            ring = Some(added.map_err(in_line)?);
        }
        ring.ok_or(KeyRingError::Empty)
    }

    /// Refuses records that are not encrypted.
    ///
    /// Without this they are taken for records from before encryption was switched on, and
    /// whoever can write to the database can put an answer of their own in the place of an
    /// encrypted one. Call it once everything written before then is gone.
    #[must_use]
    pub fn refuse_plain(mut self) -> Self {
        self.plain = Plain::Refused;
        self
    }

    /// The id of the key that encrypts.
    #[must_use]
    pub fn primary(&self) -> &str {
        &self.first().id
    }

    /// The ids of all keys, the one that encrypts first.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = &str> {
        self.keys.iter().map(|key| &*key.id)
    }

    pub(super) fn first(&self) -> &RingKey {
        self.keys.first().expect("a ring is made with a key")
    }

    pub(super) fn key(&self, id: &str) -> Option<&RingKey> {
        self.keys.iter().find(|key| &*key.id == id)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &RingKey> {
        self.keys.iter()
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("KeyRing([REDACTED])")
    }
}

impl RingKey {
    fn new(id: &str, key: &[u8]) -> Result<Self, KeyRingError> {
        if !is_id(id.as_bytes()) {
            return Err(KeyRingError::Id);
        }
        let length = key.len();
        let key: &[u8; KEY_LENGTH] = key.try_into().map_err(|_| KeyRingError::Length { length })?;
        if key.iter().all(|byte| *byte == key[0]) {
            return Err(KeyRingError::NotRandom);
        }
        let mut synthetic = Zeroizing::new([0; KEY_LENGTH]);
        Hkdf::<Sha256>::new(None, key)
            .expand(b"oncekey/vault/1/synthetic", synthetic.as_mut())
            .expect("HKDF gives up to 8160 bytes");
        Ok(Self { id: id.into(), master: Zeroizing::new(*key), synthetic })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Bytes that nobody else can make from this salt, for this purpose and no other.
    pub(super) fn derive<const N: usize>(&self, salt: &[u8], purpose: &str) -> Zeroizing<[u8; N]> {
        let mut derived = Zeroizing::new([0; N]);
        Hkdf::<Sha256>::new(Some(salt), self.master.as_ref())
            .expand(purpose.as_bytes(), derived.as_mut())
            .expect("HKDF gives up to 8160 bytes");
        derived
    }

    /// A salt that is equal for equal texts and says nothing about them to anybody else.
    pub(super) fn synthetic_salt(&self, text: &[u8]) -> [u8; 32] {
        let mac = Hmac::<Sha256>::new_from_slice(self.synthetic.as_ref())
            .expect("HMAC takes keys of every length");
        mac.chain_update(text).finalize().into_bytes().into()
    }
}

/// Whether these bytes can be the id of a key. Also asked about ids from a store, before they are
/// shown to anybody.
pub(super) fn is_id(id: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (1..=MAX_ID_LENGTH).contains(&id.len()) && id.iter().all(allowed)
}

fn read_line(line: &str) -> Result<(&str, Zeroizing<Vec<u8>>), KeyRingError> {
    let (id, key) = line.split_once(':').ok_or(KeyRingError::NoColon)?;
    let (id, key) = (id.trim_end(), key.trim_start().as_bytes());
    // 32 bytes are 64 hexadecimal digits or 43 letters of base64, so nothing is both.
    let bytes = if key.len() == 2 * KEY_LENGTH { from_hex(key) } else { from_base64(key) };
    Ok((id, bytes.ok_or(KeyRingError::Encoding)?))
}

fn from_hex(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    for pair in text.chunks_exact(2) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        bytes.push(u8::try_from(digit(0)? * 16 + digit(1)?).ok()?);
    }
    Some(bytes)
}

/// RFC 4648, either alphabet, with or without padding. Bits that encode nothing must be zero.
fn from_base64(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let letters = &text[..text.len() - padding];
    if padding > 2 || (padding > 0 && !text.len().is_multiple_of(4)) || letters.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(letters.len()));
    let (mut pending, mut bits) = (0_u32, 0);
    for letter in letters {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        pending = (pending << 6) | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from((pending >> bits) & 0xff).ok()?);
            pending &= (1 << bits) - 1;
        }
    }
    (pending == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a key in base64, the other way round than the code under test.
    fn base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for three in bytes.chunks(3) {
            let whole = [three[0], *three.get(1).unwrap_or(&0), *three.get(2).unwrap_or(&0)];
            let bits = u32::from_be_bytes([0, whole[0], whole[1], whole[2]]);
            for place in 0..4 {
                let letter = LETTERS[usize::try_from((bits >> (18 - 6 * place)) & 63).unwrap()];
                text.push(if place <= three.len() { char::from(letter) } else { '=' });
            }
        }
        text
    }

    fn key(first: u8) -> [u8; 32] {
        let mut key = [0; 32];
        (first..).zip(&mut key).for_each(|(value, byte)| *byte = value.wrapping_mul(37));
        key
    }

    fn masters(ring: &KeyRing) -> Vec<[u8; 32]> {
        ring.keys.iter().map(|key| *key.master).collect()
    }

    #[test]
    fn a_file_of_keys_is_read_in_order() {
        let hex: String = key(2).iter().map(|byte| format!("{byte:02X}")).collect();
        let url = base64(&key(3)).replace('+', "-").replace('/', "_").replace('=', "");
        let text =
            format!("# newest first\n\n a.1: {}\r\nb_2 :{hex}\nc-3:{url}\n", base64(&key(1)));
        let ring = KeyRing::parse(&text).unwrap();
        assert_eq!(ring.ids().collect::<Vec<_>>(), ["a.1", "b_2", "c-3"]);
        assert_eq!(masters(&ring), [key(1), key(2), key(3)]);
        assert_eq!(ring.primary(), "a.1");
    }

    #[test]
    fn errors_name_the_line_and_never_the_key() {
        let good = format!("a:{}", base64(&key(1)));
        let short = base64(&key(1)[..31]);
        let loose = good.replacen("=", "", 1) + "=";
        let rows = [
            ("", "there is no encryption key"),
            ("# a comment\n\n", "there is no encryption key"),
            ("canary", "line 1: an encryption key is written as `id:key`"),
            ("a:canary!", "line 1: an encryption key is written as 64"),
            ("a:canaryAA", "line 1: an encryption key must have 32 bytes, this one has 6"),
            (&format!("{good}\n\nb:{short}"), "line 3: an encryption key must have 32 bytes"),
            (&format!("{good}\n{good}"), "line 2: two encryption keys have the id a"),
            (&format!(":{}", base64(&key(1))), "line 1: the id of"),
            (&format!("a b:{}", base64(&key(1))), "line 1: the id of"),
            (&format!("{}:{}", "x".repeat(65), base64(&key(1))), "line 1: the id of"),
            (&format!("a:{}", "00".repeat(32)), "line 1: an encryption key must be random"),
            (&format!("a:{}", "zz".repeat(32)), "line 1: an encryption key is written as 64"),
            ("a:", "line 1: an encryption key must have 32 bytes, this one has 0"),
        ];
        for (text, expected) in rows {
            let error = KeyRing::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
            assert!(!error.contains("canary") && !error.contains(&base64(&key(1))), "{error}");
        }
        assert!(KeyRing::parse(&loose).is_ok());
    }

    /// RFC 4648, section 10, and what is nearly base64.
    #[test]
    fn base64_is_read_strictly() {
        let read = |text: &str| from_base64(text.as_bytes()).map(|bytes| bytes.to_vec());
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
            ("Zg", "f"),
            ("Zm8", "fo"),
        ] {
            assert_eq!(read(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        for text in ["Z", "Zg=", "Zg===", "Zh==", "Zm9", "Zm9=", "=", "Z=g=", "Zm 9v", "Zm9v\n"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    /// I52.
    #[test]
    fn debug_output_hides_keys() {
        let ring = KeyRing::new("a", &key(1)).unwrap().with_old("b", &key(2)).unwrap();
        assert_eq!(format!("{ring:?}"), "KeyRing([REDACTED])");
    }
}
