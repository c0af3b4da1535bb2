//! What the client sent to name its request, and whom that name belongs to.
//!
//! A [`Key`] is 1 to 255 printable ASCII bytes, compared exactly: nothing is trimmed, folded,
//! normalised or cut, because every such kindness makes two requests share one answer. A [`Scope`]
//! keeps the keys of one tenant or principal apart from everybody else's. Neither ever shows its
//! content in `Debug` output or in an error, because keys and principals end up in logs otherwise.
//!
//! ```
//! use oncekey_core::key::Key;
//!
//! let quoted = Key::parse_field(br#""8e03978e-40d5""#)?;
//! let bare = Key::parse_field(b"8e03978e-40d5")?;
//! assert_eq!(quoted, bare);
//! # Ok::<(), oncekey_core::key::KeyError>(())
//! ```

use std::fmt;
use std::sync::Arc;

use hmac::Hmac;
use sha2::Sha256;
use thiserror::Error;

use crate::preimage;
use crate::record::Text;

mod field;

/// The longest key. Stripe's limit, and the width of the key columns that people already have.
pub const MAX_KEY_LENGTH: usize = 255;

/// The longest scope. Room for an issuer URL and a subject, and a bound for hostile tokens.
pub const MAX_SCOPE_LENGTH: usize = 1024;

/// The shortest pepper. Below 128 bits somebody with a copy of the store could guess it.
pub const MIN_PEPPER_LENGTH: usize = 16;

/// What the client sent, after unquoting. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Takes exactly these bytes, for example from a JSON member or a query parameter.
    ///
    /// # Errors
    ///
    /// If there are no bytes, too many, or one outside of 0x20–0x7E.
    pub fn new(bytes: &[u8]) -> Result<Key, KeyError> {
        if bytes.is_empty() {
            return Err(KeyError::Empty);
        }
        if bytes.len() > MAX_KEY_LENGTH {
            return Err(KeyError::TooLong { length: bytes.len() });
        }
        if !all(bytes, is_printable) {
            let position = bytes.iter().position(|byte| !is_printable(*byte)).unwrap_or_default();
            return Err(KeyError::NotPrintable { position });
        }
        let text = std::str::from_utf8(bytes).expect("printable ASCII is UTF-8");
        Ok(Key(text.into()))
    }

    /// Reads the key from all lines of its header field, in order.
    ///
    /// A request without the field has no key. A request with two lines has no *one* key, even if
    /// both are equal: a proxy between us and the client may look at only one of them.
    ///
    /// # Errors
    ///
    /// If there is more than one line, or the line is not a key.
    pub fn from_field_lines<'a>(
        lines: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Option<Key>, KeyError> {
        let mut lines = lines.into_iter();
        let Some(line) = lines.next() else {
            return Ok(None);
        };
        if lines.next().is_some() {
            return Err(KeyError::Repeated);
        }
        Key::parse_field(line).map(Some)
    }

    /// Reads the key from the value of one header line.
    ///
    /// A value that starts with a quote is an RFC 9651 String; its parameters are checked and
    /// ignored. Everything else is the bare form that most clients send, taken as it is. Spaces and
    /// tabs around the value belong to the line and not to the value (RFC 9110, section 5.5).
    ///
    /// # Errors
    ///
    /// If the value is a list, half quoted, malformed, or not 1 to 255 printable bytes.
    pub fn parse_field(value: &[u8]) -> Result<Key, KeyError> {
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let start = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
        let end = value.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
        let value = &value[start..end];

        // What nearly everybody sends needs one look.
        let is_bare = |byte| is_printable(byte) & !matches!(byte, b'"' | b',');
        if all(value, is_bare) {
            return Key::new(value);
        }
        if value.first() == Some(&b'"') {
            return Key::new(&field::quoted(value)?);
        }
        // A comma joins repeated lines into one, and a quote starts the other form too late. Both
        // are refused before the length, because they say better what is wrong.
        if value.contains(&b',') {
            return Err(KeyError::List);
        }
        if let Some(position) = value.iter().position(|byte| *byte == b'"') {
            return Err(KeyError::Malformed { position });
        }
        Key::new(value)
    }

    /// The exact bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The exact bytes as text, which they always are.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key as a record keeps it, without a copy.
    #[must_use]
    pub fn to_text(&self) -> Text {
        Text::shared(Arc::clone(&self.0))
    }

    /// The key as an RFC 9651 String, quotes included: the form to send in a header.
    #[must_use]
    pub fn to_field_value(&self) -> String {
        let mut value = String::with_capacity(self.0.len() + 2);
        value.push('"');
        if self.0.bytes().any(|byte| matches!(byte, b'"' | b'\\')) {
            for character in self.0.chars() {
                if matches!(character, '"' | '\\') {
                    value.push('\\');
                }
                value.push(character);
            }
        } else {
            value.push_str(&self.0);
        }
        value.push('"');
        value
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// Why a key was refused. No variant and no message contains a byte of the key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key is there, but nothing is in it.
    #[error("the idempotency key is empty: send 1 to {MAX_KEY_LENGTH} printable ASCII characters")]
    Empty,
    /// The key is longer than [`MAX_KEY_LENGTH`].
    #[error(
        "the idempotency key has {length} bytes: send at most {MAX_KEY_LENGTH}, for example a UUID"
    )]
    TooLong {
        /// Its length in bytes, unquoted.
        length: usize,
    },
    /// A byte is a control character or not ASCII.
    #[error(
        "the idempotency key has a byte that is not printable ASCII at offset {position}: \
         send only characters from space to tilde, for example a UUID"
    )]
    NotPrintable {
        /// Where, counted from 0, after unquoting if the key is quoted.
        position: usize,
    },
    /// The header came more than once.
    #[error("the idempotency key header came more than once: send it exactly once")]
    Repeated,
    /// The header holds a list, or a proxy joined several lines into one.
    #[error(
        "the idempotency key header holds a list: send one key, and quote it if it has a comma"
    )]
    List,
    /// The quoted form breaks RFC 9651, or a quote is inside of the bare form.
    #[error(
        "the idempotency key header is malformed at offset {position}: \
         send a quoted string (RFC 9651), or the bare key without quotes"
    )]
    Malformed {
        /// Where in the header value, counted from 0, without surrounding white space.
        position: usize,
    },
}

/// Whom a key belongs to: equal keys in two scopes have nothing to do with each other.
///
/// Make it from a *verified* principal or tenant, never from something that a client can choose.
/// The constructors are apart: `Scope::new(x)` never equals `Scope::of_parts(y)`, so everyone who
/// shares a store has to use the same one. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(Arc<[u8]>);

/// The first byte of a scope says how it was made, which keeps the constructors apart.
const WHOLE: u8 = 1;
const PARTS: u8 = 2;

impl Scope {
    /// A scope of one opaque value, for example a tenant id.
    ///
    /// # Errors
    ///
    /// If the value is longer than [`MAX_SCOPE_LENGTH`], or empty: a principal that could not be
    /// found must not silently become [`Scope::shared`].
    pub fn new(value: impl AsRef<[u8]>) -> Result<Scope, ScopeError> {
        let value = value.as_ref();
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.push(WHOLE);
        bytes.extend_from_slice(value);
        if value.is_empty() { Err(ScopeError::Empty) } else { Scope::checked(bytes) }
    }

    /// A scope of several values, for example issuer and subject. `["ab", "c"]` is not `["a", "bc"]`.
    ///
    /// # Errors
    ///
    /// If the parts are too long together, or if all of them are empty.
    pub fn of_parts(parts: &[&[u8]]) -> Result<Scope, ScopeError> {
        if parts.iter().all(|part| part.is_empty()) {
            return Err(ScopeError::Empty);
        }
        // As long as it gets, because every request with a credential makes one.
        let length: usize = parts.iter().map(|part| size_of::<u64>() + part.len()).sum();
        let mut bytes = Vec::with_capacity(1 + length);
        bytes.push(PARTS);
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        Scope::checked(bytes)
    }

    /// The one scope that everybody shares. Whoever knows a key then gets its answer.
    #[must_use]
    pub fn shared() -> Scope {
        Scope(Arc::default())
    }

    /// The encoded scope: how it was made, then its values. Empty only for [`Scope::shared`].
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The encoded scope as a record keeps it, without a copy.
    #[must_use]
    pub fn to_text(&self) -> Text {
        Text::shared(Arc::clone(&self.0))
    }

    /// Reads an encoded scope back, for example from a store; `None` if no constructor makes it.
    #[must_use]
    pub fn from_encoded(bytes: &[u8]) -> Option<Scope> {
        let Some((made, values)) = bytes.split_first() else {
            return Some(Scope::shared());
        };
        match *made {
            WHOLE => Scope::new(values).ok(),
            PARTS => {
                let mut parts = Vec::new();
                let mut rest = values;
                while !rest.is_empty() {
                    let (length, after) = rest.split_first_chunk::<8>()?;
                    let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
                    let (part, after) = after.split_at_checked(length)?;
                    parts.push(part);
                    rest = after;
                }
                Scope::of_parts(&parts).ok()
            }
            _ => None,
        }
    }

    fn checked(bytes: Vec<u8>) -> Result<Scope, ScopeError> {
        let length = bytes.len() - 1;
        if length > MAX_SCOPE_LENGTH {
            return Err(ScopeError::TooLong { length });
        }
        Ok(Scope(bytes.into()))
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({} bytes)", self.0.len())
    }
}

/// Why a scope was refused. The messages never contain the scope.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// There is nothing in it.
    #[error("the scope is empty: find the principal, or share one scope with everybody on purpose")]
    Empty,
    /// It is longer than [`MAX_SCOPE_LENGTH`], lengths of parts included.
    #[error("the scope has {length} bytes: use at most {MAX_SCOPE_LENGTH}, or a digest of it")]
    TooLong {
        /// Its length in bytes, with 8 for each part.
        length: usize,
    },
}

/// A secret that keys our digests.
///
/// Keys, principals and bodies can often be guessed; with a pepper, somebody who copied the store
/// cannot check a guess. Losing or changing it makes every stored record unreachable.
#[derive(Clone)]
pub struct Pepper(Hmac<Sha256>);

impl Pepper {
    /// Takes at least [`MIN_PEPPER_LENGTH`] random bytes; 32 are a good number.
    ///
    /// # Errors
    ///
    /// If the secret is too short, which is also what an unset variable looks like.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Pepper, PepperError> {
        let secret = secret.as_ref();
        if secret.len() < MIN_PEPPER_LENGTH {
            return Err(PepperError::TooShort { length: secret.len() });
        }
        Ok(Pepper(preimage::keyed_state(secret)))
    }

    pub(crate) fn state(&self) -> &Hmac<Sha256> {
        &self.0
    }
}

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pepper([REDACTED])")
    }
}

/// Why a pepper was refused. The messages never contain it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PepperError {
    /// It is shorter than [`MIN_PEPPER_LENGTH`].
    #[error("the pepper has {length} bytes: use at least {MIN_PEPPER_LENGTH} random ones")]
    TooShort {
        /// Its length in bytes.
        length: usize,
    },
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e)
}

/// Whether all bytes are so. Looks at every one, even behind one that is not: without an early end the
/// compiler looks at sixteen at a time.
pub(crate) fn all(bytes: &[u8], is_so: impl Fn(u8) -> bool) -> bool {
    bytes.iter().fold(true, |all, byte| all & is_so(*byte))
}

#[cfg(test)]
mod tests;
