//! The name of a record: a digest, so that no store ever sees a key or a principal.
//!
//! A key id has a fixed size whatever the client sent, sorts and shards evenly, and cannot carry
//! an injection, a wildcard or a Redis hash tag into a store. It says nothing about the request:
//! that is the fingerprint's work.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use crate::key::{Key, Pepper, Scope};
use crate::preimage::{Domain, write_hex};

/// The layout of the digested fields. A new one makes every stored record unreachable.
static KEY_ID: Domain = Domain::new("oncekey/key-id", 1);
static DERIVED_KEY: Domain = Domain::new("oncekey/derived-key", 1);
static CHAINED_KEY: Domain = Domain::new("oncekey/chained-key", 1);

/// The digest of namespace, scope and key that names a record.
///
/// It is no secret: with a pepper nothing can be learned from it, and without one it shows only
/// whether a guess of scope *and* key was right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId([u8; 32]);

/// Finds ids in a map: `HashMap<KeyId, T, KeyIdHash>`. Takes a fifth of the time of the standard one,
/// which a new key needs six times.
///
/// A digest is spread evenly already, so two multiplications will do. Without the secrets they would not:
/// whoever makes keys can try until a thousand ids begin alike, and all of them would stand in one place
/// of the map. With them, where an id stands depends on 128 bits that this process drew and shows nobody.
/// One multiplication leaves ids that are equally far apart in one place under three secrets in a thousand.
#[derive(Clone)]
pub struct KeyIdHash([u64; 2]);

/// What [`KeyIdHash`] builds.
#[derive(Debug)]
pub struct KeyIdHasher {
    secret: u64,
    hash: u64,
}

/// Any eight bytes of a digest tell ids apart as well as all of it.
impl Hash for KeyId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
    }
}

impl KeyId {
    /// Names the record of `key` in `scope`.
    ///
    /// The namespace keeps deployments that share a store apart. Different arguments give different
    /// ids; the same arguments give the same id for ever.
    #[must_use]
    pub fn derive(namespace: &str, scope: &Scope, key: &Key, pepper: Option<&Pepper>) -> KeyId {
        let mut preimage = KEY_ID.start(pepper);
        preimage.field(namespace.as_bytes());
        preimage.field(scope.as_bytes());
        preimage.field(key.as_bytes());
        KeyId(preimage.finish())
    }

    /// Takes an id that was derived before, for example from a store.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> KeyId {
        KeyId(bytes)
    }

    /// The first eight digits, as log lines show them.
    #[must_use]
    pub fn short(&self) -> String {
        let mut text = String::with_capacity(8);
        // A text takes everything.
        let _ = write_hex(&mut text, &self.0[..4]);
        text
    }

    /// The digest.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Default for KeyIdHash {
    fn default() -> Self {
        // The standard library is where maps of this crate get their random bits from.
        let drawn = RandomState::new();
        Self([drawn.hash_one(0_u8), drawn.hash_one(1_u8)])
    }
}

impl BuildHasher for KeyIdHash {
    type Hasher = KeyIdHasher;

    fn build_hasher(&self) -> KeyIdHasher {
        let [hash, secret] = self.0;
        KeyIdHasher { secret, hash }
    }
}

impl Hasher for KeyIdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.hash = self.mixed(self.hash ^ number);
    }

    fn finish(&self) -> u64 {
        self.mixed(self.hash)
    }
}

impl KeyIdHasher {
    fn mixed(&self, number: u64) -> u64 {
        // Odd, because a secret of zero would make all ids one.
        let product = u128::from(number) * u128::from(self.secret | 1);
        let [low, high] = [product & u128::from(u64::MAX), product >> 64];
        u64::try_from(low ^ high).unwrap_or(0)
    }
}

/// Secrets are not shown.
impl fmt::Debug for KeyIdHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyIdHash")
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
    let mut preimage = DERIVED_KEY.start(None);
    preimage.field(namespace.as_bytes());
    preimage.field(key_id.as_bytes());
    preimage.field(step.as_bytes());
    let mut text = String::with_capacity(56);
    text.push_str("ok1_");
    push_base32(&mut text, &preimage.finish());
    text
}

/// The key that a service which was sent `key` passes on to another one: `key:service:step`.
///
/// It is a key again, so the next service can pass it on in the same way, and whoever reads a log sees
/// where a request came through. It is the same for every attempt, and different for every key, service
/// and step: what is not a letter, a digit or one of `-._~/` in a name is written as `%` and two digits,
/// so the last two colons are always ours. What would be longer than a key may be becomes `okc1_` and a
/// digest of the three, which has no colon and therefore meets no other.
///
/// Two clients may have sent the same key. A service that calls for many of them, under one name, begins
/// the chain with a [`derived_key`], in which the client's scope is.
///
/// ```
/// use oncekey_core::{Key, chained_key};
///
/// let key = Key::new(b"8e03978e")?;
/// let paid = chained_key(&key, "payments", "charge");
/// assert_eq!(paid.as_bytes(), b"8e03978e:payments:charge");
/// let booked = chained_key(&paid, "ledger", "book");
/// assert_eq!(booked.as_bytes(), b"8e03978e:payments:charge:ledger:book");
/// # Ok::<(), oncekey_core::KeyError>(())
/// ```
#[must_use]
pub fn chained_key(key: &Key, service: &str, step: &str) -> Key {
    let mut text = key.as_bytes().to_vec();
    for name in [service, step] {
        text.push(b':');
        push_escaped(&mut text, name);
    }
    if let Ok(chained) = Key::new(&text) {
        return chained;
    }
    let mut preimage = CHAINED_KEY.start(None);
    preimage.field(key.as_bytes());
    preimage.field(service.as_bytes());
    preimage.field(step.as_bytes());
    let mut text = String::with_capacity(57);
    text.push_str("okc1_");
    push_base32(&mut text, &preimage.finish());
    Key::new(text.as_bytes()).expect("57 letters and digits are a key")
}

/// Writes a name without colons. Spaces and quotes are escaped too: at the end of a header field they
/// would not arrive as they were sent.
fn push_escaped(text: &mut Vec<u8>, name: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(byte);
            }
            other => {
                let [high, low] = [other >> 4, other & 15].map(usize::from);
                text.extend([b'%', DIGITS[high], DIGITS[low]]);
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: &[u8] = b"8e03978e-40d5-43e8-bc93-6894a57f9324";

    fn key(bytes: &[u8]) -> Key {
        Key::new(bytes).unwrap()
    }

    fn pepper() -> Pepper {
        Pepper::new(b"0123456789abcdef0123456789abcdef").unwrap()
    }

    /// I22: the layout never changes silently. The expected digests were computed with Python's
    /// hashlib and hmac from the written layout, not with this code.
    #[test]
    fn key_ids_stay_what_they_are() {
        let tenant = Scope::new("tenant-7").unwrap();
        let parts = Scope::of_parts(&[b"iss", b"sub"]).unwrap();
        let rows = [
            (
                KeyId::derive("", &Scope::shared(), &key(b"k"), None),
                "91a4c4e1dd48ef5a73b15d7ce980d2ef4e2b5d41920d9a4d3f4e21454b751a28",
            ),
            (
                KeyId::derive("payments", &tenant, &key(UUID), None),
                "6b9681f782ec6e767f00b07722bd70f015c4424fbb50b9889aaa3b2996c3795c",
            ),
            (
                KeyId::derive("payments", &parts, &key(UUID), None),
                "99d6086f9a90a2b18908a5a405f4375b216311fe24ab13adaec7911db8b2eca6",
            ),
            (
                KeyId::derive("payments", &tenant, &key(UUID), Some(&pepper())),
                "8e7e10be5e618b981cf5b0c697f16e89d1247de9f21bfba2a45233a2853fae38",
            ),
        ];
        for (key_id, expected) in rows {
            assert_eq!(key_id.to_string(), expected);
            assert_eq!(KeyId::from_bytes(*key_id.as_bytes()), key_id);
        }
    }

    /// I22: the same for derived keys, which foreign systems remember.
    #[test]
    fn derived_keys_stay_what_they_are() {
        let mut bytes = [0; 32];
        (0_u8..).zip(&mut bytes).for_each(|(value, byte)| *byte = value);
        let key_id = KeyId::from_bytes(bytes);
        assert_eq!(
            derived_key("payments", &key_id, "charge"),
            "ok1_gsqnor6fgwvwksjefpbsuoo4u5ok2eod4awkhm5nclfdt4as6lra"
        );
        assert_eq!(
            derived_key("", &key_id, ""),
            "ok1_qxiofjtjcygbyhmhraynzwjgpy6djnu27ypur5h5v7sdqt2ifg6q"
        );
        assert_eq!(derived_key("payments", &key_id, "charge").len(), 56);
    }

    /// I22: the same for chained keys. The digest was computed with Python's hashlib.
    #[test]
    fn chained_keys_stay_what_they_are() {
        let of = |key: &[u8], service, step| chained_key(&self::key(key), service, step);
        assert_eq!(of(b"K", "pay", "charge").as_bytes(), b"K:pay:charge");
        assert_eq!(of(b"K", "a:b", "100% \"\u{e9}\"").as_bytes(), b"K:a%3Ab:100%25%20%22%C3%A9%22");
        assert_eq!(of(b"K", "", "").as_bytes(), b"K::");
        let long = [b'k'; 250];
        // Two hundred and fifty-five bytes are still a key.
        assert_eq!(of(&long, "a", "bc").as_bytes(), [&long[..], b":a:bc"].concat());
        assert_eq!(
            of(&long, "pay", "charge").as_bytes(),
            b"okc1_uvgkr5s35gvvdr7jefpbdtxs4ebyqu5tdbksg5lipuduewn7nnya"
        );
    }

    /// I45: every key, service and step is told apart from every other, wherever the colons and escapes
    /// are, and also where it is too long to be written out. It is always a key.
    #[test]
    fn chained_keys_differ_by_key_service_and_step() {
        let clients = ["a", ":", "a:", ":a", "a:a", "a:a:a", "%", "%3A", "a%3Aa"];
        let names = ["", "a", "aa", ":", "a:a", "::", "%", "%3A", "%25", "a%3Aa", "\u{e9}", " "];
        // Written out, mostly digests, and some of each.
        for before in [0, 250, 240] {
            let mut seen = std::collections::HashSet::new();
            for client in clients {
                let client = key(&[vec![b'k'; before], client.as_bytes().to_vec()].concat());
                for service in names {
                    for step in names {
                        let chained = chained_key(&client, service, step);
                        assert_eq!(Key::new(chained.as_bytes()), Ok(chained.clone()));
                        assert!(seen.insert(chained), "{before} {service:?} {step:?}");
                    }
                }
            }
        }
    }

    /// RFC 4648, section 10, in lower case and without padding.
    #[test]
    fn base32_follows_the_rfc() {
        for (bytes, expected) in [
            ("", ""),
            ("f", "my"),
            ("fo", "mzxq"),
            ("foo", "mzxw6"),
            ("foob", "mzxw6yq"),
            ("fooba", "mzxw6ytb"),
            ("foobar", "mzxw6ytboi"),
        ] {
            let mut text = String::new();
            push_base32(&mut text, bytes.as_bytes());
            assert_eq!(text, expected);
        }
    }

    /// I21: a key that is equal to another tenant's names another record.
    #[test]
    fn scopes_keep_equal_keys_apart() {
        let scopes = [
            Scope::shared(),
            Scope::new("a").unwrap(),
            Scope::new("b").unwrap(),
            Scope::of_parts(&[b"a"]).unwrap(),
            Scope::of_parts(&[b"a", b""]).unwrap(),
            Scope::of_parts(&[b"", b"a"]).unwrap(),
        ];
        for (i, a) in scopes.iter().enumerate() {
            for b in &scopes[i + 1..] {
                assert_ne!(
                    KeyId::derive("", a, &key(b"k"), None),
                    KeyId::derive("", b, &key(b"k"), None)
                );
            }
        }
    }

    /// I21: whoever has another pepper, or none, cannot name a record.
    #[test]
    fn peppers_keep_key_ids_apart() {
        let other = Pepper::new(b"0123456789abcdef0123456789abcdeX").unwrap();
        let of = |pepper: Option<&Pepper>| KeyId::derive("n", &Scope::shared(), &key(b"k"), pepper);
        assert_ne!(of(None), of(Some(&pepper())));
        assert_ne!(of(Some(&other)), of(Some(&pepper())));
    }

    proptest! {
        /// I22: two lists of fields never share an id, least of all if they only draw the borders
        /// between the same letters differently.
        #[test]
        fn borders_between_namespace_scope_and_key_count(
            text in "[a:/ ]{3,9}", first in (1_usize..8, 1_usize..8), second in (1_usize..8, 1_usize..8),
        ) {
            let split = |(one, two): (usize, usize)| {
                let one = one.min(text.len() - 2);
                let two = (one + two).min(text.len() - 1);
                (&text[..one], &text[one..two], &text[two..])
            };
            let id = |(namespace, scope, client): (&str, &str, &str)| {
                KeyId::derive(namespace, &Scope::new(scope).unwrap(), &key(client.as_bytes()), None)
            };
            let (a, b) = (split(first), split(second));
            prop_assert_eq!(a == b, id(a) == id(b));
        }

        /// I22: namespace, key id and step are all part of a derived key.
        #[test]
        fn derived_keys_differ_by_namespace_and_step(
            a in ("[a:]{0,3}", any::<[u8; 32]>(), "[a:]{0,3}"),
            b in ("[a:]{0,3}", any::<[u8; 32]>(), "[a:]{0,3}"),
            same_id in any::<bool>(),
        ) {
            let b = if same_id { (b.0, a.1, b.2) } else { b };
            let of = |x: &(String, [u8; 32], String)| {
                derived_key(&x.0, &KeyId::from_bytes(x.1), &x.2)
            };
            prop_assert_eq!(a == b, of(&a) == of(&b));
            prop_assert!(of(&a).bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
        }

        /// I45: the same words, with the borders between them elsewhere.
        #[test]
        fn borders_between_key_service_and_step_count(
            text in "[a:%]{3,9}", first in (1_usize..8, 1_usize..8), second in (1_usize..8, 1_usize..8),
        ) {
            let split = |(one, two): (usize, usize)| {
                let one = one.min(text.len() - 2);
                let two = (one + two).min(text.len() - 1);
                (&text[..one], &text[one..two], &text[two..])
            };
            let of = |(client, service, step): (&str, &str, &str)| {
                chained_key(&key(client.as_bytes()), service, step)
            };
            let (a, b) = (split(first), split(second));
            prop_assert_eq!(a == b, of(a) == of(b));
        }
    }

    /// Whoever makes keys can make ids that begin and end alike where a map looks. The map must not care.
    #[test]
    fn ids_that_were_chosen_to_meet_in_a_map_do_not() {
        // Many maps, because a mistake may show under few secrets only.
        for _ in 0..1_000 {
            let hash = KeyIdHash::default();
            let mut places = [0_u32; 1_024];
            for number in 0..4_096_u64 {
                // The same upper seven bits and the same lower twenty.
                let mut bytes = [0; 32];
                bytes[..8].copy_from_slice(&(number << 30).to_be_bytes());
                let place = hash.hash_one(KeyId::from_bytes(bytes)) % 1_024;
                places[usize::try_from(place).unwrap()] += 1;
            }
            // Four each by chance; that the fullest of a million places has more than forty happens less
            // than once in a billion runs.
            assert!(places.iter().all(|met| *met <= 40), "{:?}", places.iter().max());
        }
    }

    /// Where an id stands in one map says nothing about another one.
    #[test]
    fn every_map_has_secrets_of_its_own() {
        let id = KeyId::from_bytes([7; 32]);
        let places: std::collections::HashSet<u64> =
            (0..8).map(|_| KeyIdHash::default().hash_one(id)).collect();
        assert_eq!(places.len(), 8);
        assert_eq!(format!("{:?}", KeyIdHash::default()), "KeyIdHash");
    }
}
