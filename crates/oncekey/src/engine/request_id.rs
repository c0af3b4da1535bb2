//! Names of requests, for logs, answers and support.

use std::fmt;
use std::sync::Arc;

use oncekey_core::Timestamp;
use oncekey_core::record::Text;

use crate::entropy::Entropy;

/// The id of one request, such as `req_01k3c9w2m4xj0v5t8r7qz6hbny`.
///
/// 48 bits of time and 80 of chance, so that ids sort by time and never meet. An id that came from
/// outside (a proxy's, the framework's) is taken as it is. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Arc<str>);

/// What a foreign id may be long: room for a UUID with a prefix, and a bound for what ends up in
/// every record.
const MAX_LENGTH: usize = 128;

impl RequestId {
    /// A new id.
    #[must_use]
    pub fn new(now: Timestamp, entropy: &dyn Entropy) -> Self {
        const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        let mut chance = [0; 16];
        entropy.fill(&mut chance);
        let millis = u128::try_from(now.micros().max(0) / 1_000).unwrap_or(0);
        let bits = (millis << 80) | (u128::from_be_bytes(chance) & ((1 << 80) - 1));
        let mut text = *b"req_00000000000000000000000000";
        // Twelve digits at a time, because 60 bits are quick to shift and 128 are not.
        for (digits, part) in text[4..].rchunks_mut(12).zip([bits, bits >> 60, bits >> 120]) {
            let mut part = u64::try_from(part & ((1 << 60) - 1)).unwrap_or(0);
            for digit in digits.iter_mut().rev() {
                let [low, ..] = part.to_le_bytes();
                *digit = ALPHABET[usize::from(low & 31)];
                part >>= 5;
            }
        }
        Self(std::str::from_utf8(&text).expect("letters and digits").into())
    }

    /// Takes an id that somebody else made; `None` if it is empty, too long or not printable
    /// ASCII without spaces.
    #[must_use]
    pub fn from_outside(id: &[u8]) -> Option<Self> {
        let plain = id.iter().all(u8::is_ascii_graphic);
        let text = std::str::from_utf8(id).ok()?;
        (plain && !id.is_empty() && id.len() <= MAX_LENGTH).then(|| Self(text.into()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    pub(super) fn text(&self) -> Text {
        Text::shared(self.shared())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SystemEntropy;

    #[test]
    fn ids_sort_by_time_and_never_meet() {
        let entropy = SystemEntropy::default();
        let at = |millis: i64| Timestamp::from_micros(1_763_000_000_000_000 + millis * 1_000);
        let ids: Vec<_> = (0..100).map(|millis| RequestId::new(at(millis), &entropy)).collect();
        assert!(ids.windows(2).all(|pair| pair[0].as_str() < pair[1].as_str()));
        let same = RequestId::new(at(0), &entropy);
        assert_ne!(same, ids[0]);
        assert_eq!(same.as_str().len(), 30);
    }

    #[test]
    fn a_foreign_id_is_taken_only_if_it_is_harmless() {
        assert!(RequestId::from_outside(b"0b1d-77").is_some());
        for bad in [&b""[..], b"two words", b"line\nbreak", "\u{e9}".as_bytes(), &[b'a'; 129]] {
            assert_eq!(RequestId::from_outside(bad), None);
        }
    }
}
