//! Encryption at rest: what a store keeps is of no use to whoever copies the store.
//!
//! Encrypted are answers (header lines and bodies), keys and scopes. In clear stay what the store
//! and operators need: status, state, times, route, request id, and the digests.
//!
//! A message is bound to its place: an answer to key id, fence, owner and status, a key to key id
//! and owner. Moved to another place, or brought back from an earlier attempt, it does not open
//! (I53). A scope must be found by equality, so equal scopes are encrypted equally; who swaps two
//! of them is noticed because key and scope together must give the key id of their record. What
//! that shows to a thief: which records share a scope, and how long things are.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use oncekey_core::record::Text;
use oncekey_core::saved::Headers;
use oncekey_core::{Key, KeyId, Lease, Origin, Owner, Pepper, Record, Saved, Scope};

use self::cipher::{Bond, SALT, TAG};
use self::ring::{Plain, RingKey, is_id};
use crate::entropy::Entropy;

mod cipher;
mod ring;
#[cfg(test)]
mod tests;

pub use self::ring::{KeyRing, KeyRingError};

/// Encrypts what goes to a store and decrypts what comes back. Without a key ring everything
/// passes as it is.
#[derive(Debug)]
pub(super) struct Vault {
    ring: Option<KeyRing>,
    entropy: Arc<dyn Entropy>,
}

/// Why something that is stored cannot be read. The record is then neither replayed nor run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum VaultError {
    /// The key is not in the ring.
    #[error("a record is encrypted with the key {id}, which the key ring does not have: add it")]
    MissingKey {
        /// The id of the key.
        id: String,
    },
    /// It was damaged, or moved here from somewhere else.
    #[error("the encrypted {0} of a record was changed or moved: it cannot be trusted")]
    Changed(Field),
    /// It was written by a version that came later.
    #[error("the {0} of a record is encrypted in a way that this version does not know: upgrade")]
    NewerFormat(Field),
    /// It is not encrypted, and the key ring says that it must be.
    #[error("the {0} of a record is not encrypted, and the key ring refuses what is not")]
    Plain(Field),
}

/// What is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Answer,
    Key,
    Scope,
    /// Key and scope, which do not belong together.
    Origin,
}

/// The header line that marks an encrypted answer, with the id of its key. Reserved: what an
/// upstream sends under this name is dropped.
pub(super) const SEALED: &str = "oncekey-sealed";

/// The version of the layout of answers, their first byte.
const ANSWER_FORMAT: u8 = 1;

/// The first byte of an encrypted text: no key begins with it, because keys are ASCII, and no
/// scope, because their first byte is 1 or 2. Then comes the version of the layout.
const SEALED_TEXT: u8 = 0x80;
const TEXT_FORMAT: u8 = 1;

const ANSWER: &str = "oncekey/vault/1/answer";
const KEY_TEXT: &str = "oncekey/vault/1/key";
const SCOPE_TEXT: &str = "oncekey/vault/1/scope";

impl Vault {
    pub(super) fn new(ring: Option<KeyRing>, entropy: Arc<dyn Entropy>) -> Self {
        Self { ring, entropy }
    }

    /// Encrypts an answer for the record of `lease`.
    ///
    /// The encrypted body is larger than header lines and body together by less than a hundred
    /// bytes: check the size of a completion after this. Two calls give two different answers, so
    /// an attempt calls it once and repeats its completion with what it got.
    pub(super) fn seal_answer(&self, lease: &Lease, saved: &Saved) -> Saved {
        let headers = without_reserved(&saved.headers);
        let Some(ring) = &self.ring else {
            return Saved { status: saved.status, headers, body: saved.body.clone() };
        };
        let key = ring.first();
        let lines = headers.encode();
        let salt = self.salt();
        let mut body = Vec::with_capacity(1 + SALT + 4 + lines.len() + saved.body.len() + TAG);
        body.push(ANSWER_FORMAT);
        body.extend_from_slice(&salt);
        let start = body.len();
        // A header block of 4 GiB would have been refused long before.
        body.extend_from_slice(&u32::try_from(lines.len()).unwrap_or(u32::MAX).to_be_bytes());
        body.extend_from_slice(&lines);
        body.extend_from_slice(&saved.body);
        let fields = AnswerFields::of(lease, saved.status);
        cipher::seal(key, &salt, fields.bond(&fields.parts()), &mut body, start);

        let mut headers = Headers::new();
        let line = (SEALED.as_bytes(), key.id().as_bytes());
        headers.push(line.0, line.1).expect("the name and the ids of keys are tokens");
        Saved { status: saved.status, headers, body: Bytes::from(body) }
    }

    /// Decrypts the answer of a record. One that is not encrypted is returned as it is.
    ///
    /// # Errors
    /// If it cannot be decrypted: it is then never replayed.
    pub(super) fn open_answer(&self, record: &Record, saved: &Saved) -> Result<Saved, VaultError> {
        let mut lines = saved.headers.iter();
        let changed = VaultError::Changed(Field::Answer);
        let Some((_, id)) = lines.find(|(name, _)| is_reserved(name)) else {
            self.may_be_plain(Field::Answer)?;
            return Ok(saved.clone());
        };
        if saved.headers.len() != 1 {
            return Err(changed);
        }
        let key = self.key(id, Field::Answer)?;
        let (format, rest) = saved.body.split_first().ok_or(changed.clone())?;
        if *format != ANSWER_FORMAT {
            return Err(VaultError::NewerFormat(Field::Answer));
        }
        let (salt, sealed) = rest.split_first_chunk::<SALT>().ok_or(changed.clone())?;
        let fields = AnswerFields::of(&record.lease(), saved.status);
        let text = cipher::open(key, salt, fields.bond(&fields.parts()), sealed);
        let text = Bytes::from(text.ok_or(changed.clone())?);
        let (headers, body) = split_answer(&text).ok_or(changed)?;
        Ok(Saved { status: saved.status, headers, body })
    }

    /// Encrypts key and scope of a claim. Route and request id stay as they are.
    pub(super) fn seal_origin(&self, id: &KeyId, owner: &Owner, origin: Origin) -> Origin {
        let Some(ring) = &self.ring else { return origin };
        let fields: [&[u8]; 2] = [id.as_bytes(), owner.as_bytes()];
        let bond = Bond { purpose: KEY_TEXT, fields: &fields };
        Origin {
            key: seal_text(ring.first(), &self.salt(), bond, origin.key.as_bytes()),
            scope: seal_scope(ring.first(), origin.scope.as_bytes()),
            route: origin.route,
            request: origin.request,
        }
    }

    /// Decrypts key and scope of a record, and checks that they are the ones it is named after.
    ///
    /// # Errors
    /// If they cannot be decrypted, or belong to another record.
    pub(super) fn open_origin(
        &self,
        namespace: &str,
        pepper: Option<&Pepper>,
        record: &Record,
    ) -> Result<Origin, VaultError> {
        let Origin { key, scope, route, request } = &record.origin;
        let fields: [&[u8]; 2] = [record.id.as_bytes(), record.owner.as_bytes()];
        let key_bond = Bond { purpose: KEY_TEXT, fields: &fields };
        let opened_key = self.open_text(Field::Key, key_bond, key)?;
        let opened_scope = self.open_text(Field::Scope, SCOPE_BOND, scope)?;
        if is_sealed(key) || is_sealed(scope) {
            let both = Key::new(opened_key.as_bytes()).ok();
            let both = both.zip(Scope::from_encoded(opened_scope.as_bytes()));
            let (key, scope) = both.ok_or(VaultError::Changed(Field::Origin))?;
            if KeyId::derive(namespace, &scope, &key, pepper) != record.id {
                return Err(VaultError::Changed(Field::Origin));
            }
        }
        let (route, request) = (route.clone(), request.clone());
        Ok(Origin { key: opened_key, scope: opened_scope, route, request })
    }

    /// Every text under which the records of a scope may be found: under each key of the ring, and
    /// plain.
    pub(super) fn scope_forms(&self, scope: &Scope) -> Vec<Text> {
        let keys = self.ring.iter().flat_map(KeyRing::keys);
        let sealed = keys.map(|key| seal_scope(key, scope.as_bytes()));
        sealed.chain([Text::from(scope.as_bytes())]).collect()
    }

    fn open_text(&self, field: Field, bond: Bond<'_>, text: &Text) -> Result<Text, VaultError> {
        if !is_sealed(text) {
            self.may_be_plain(field)?;
            return Ok(text.clone());
        }
        let changed = VaultError::Changed(field);
        let (format, rest) = text.as_bytes()[1..].split_first().ok_or(changed.clone())?;
        if *format != TEXT_FORMAT {
            return Err(VaultError::NewerFormat(field));
        }
        let (length, rest) = rest.split_first().ok_or(changed.clone())?;
        let (id, rest) = rest.split_at_checked(usize::from(*length)).ok_or(changed.clone())?;
        let key = self.key(id, field)?;
        let (salt, sealed) = rest.split_first_chunk::<SALT>().ok_or(changed.clone())?;
        cipher::open(key, salt, bond, sealed).map(Text::from).ok_or(changed)
    }

    /// The key of this id. It is shown to people, so it must look like an id first.
    fn key(&self, id: &[u8], field: Field) -> Result<&RingKey, VaultError> {
        let id = std::str::from_utf8(id).ok().filter(|id| is_id(id.as_bytes()));
        let id = id.ok_or(VaultError::Changed(field))?;
        let key = self.ring.as_ref().and_then(|ring| ring.key(id));
        key.ok_or_else(|| VaultError::MissingKey { id: id.to_owned() })
    }

    fn may_be_plain(&self, field: Field) -> Result<(), VaultError> {
        match self.ring.as_ref().map(|ring| ring.plain) {
            None | Some(Plain::Accepted) => Ok(()),
            Some(Plain::Refused) => Err(VaultError::Plain(field)),
        }
    }

    fn salt(&self) -> [u8; SALT] {
        let mut salt = [0; SALT];
        self.entropy.fill(&mut salt);
        salt
    }
}

/// What an answer belongs to.
struct AnswerFields {
    id: KeyId,
    owner: Owner,
    fence: [u8; 8],
    status: [u8; 2],
}

impl AnswerFields {
    fn of(lease: &Lease, status: u16) -> Self {
        let fence = lease.fence.number().to_be_bytes();
        Self { id: lease.id, owner: lease.owner, fence, status: status.to_be_bytes() }
    }

    fn parts(&self) -> [&[u8]; 4] {
        [self.id.as_bytes(), self.owner.as_bytes(), &self.fence, &self.status]
    }

    fn bond<'a>(&self, fields: &'a [&'a [u8]; 4]) -> Bond<'a> {
        Bond { purpose: ANSWER, fields }
    }
}

/// A scope is bound to nothing, or the same scope would look different in every record.
const SCOPE_BOND: Bond<'static> = Bond { purpose: SCOPE_TEXT, fields: &[] };

fn seal_scope(key: &RingKey, scope: &[u8]) -> Text {
    // Two scopes share a salt only if HMAC-SHA-256 collides, so no nonce meets two texts.
    seal_text(key, &key.synthetic_salt(scope), SCOPE_BOND, scope)
}

/// Mark, format, id of the key with its length, salt, encrypted text with its tag.
fn seal_text(key: &RingKey, salt: &[u8; SALT], bond: Bond<'_>, text: &[u8]) -> Text {
    let id = key.id().as_bytes();
    let mut sealed = Vec::with_capacity(3 + id.len() + SALT + text.len() + TAG);
    let length = u8::try_from(id.len()).expect("ids have at most 64 bytes");
    sealed.extend_from_slice(&[SEALED_TEXT, TEXT_FORMAT, length]);
    sealed.extend_from_slice(id);
    sealed.extend_from_slice(salt);
    let start = sealed.len();
    sealed.extend_from_slice(text);
    cipher::seal(key, salt, bond, &mut sealed, start);
    Text::from(sealed)
}

fn is_sealed(text: &Text) -> bool {
    text.as_bytes().first() == Some(&SEALED_TEXT)
}

fn is_reserved(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(SEALED.as_bytes())
}

/// An upstream that sends our mark could make its own answer unreadable, or worse.
fn without_reserved(headers: &Headers) -> Headers {
    if !headers.iter().any(|(name, _)| is_reserved(name)) {
        return headers.clone();
    }
    let mut kept = Headers::new();
    for (name, value) in headers.iter().filter(|(name, _)| !is_reserved(name)) {
        kept.push(name, value).expect("the line was one before");
    }
    kept
}

/// The header lines and the body of a decrypted answer, without a copy of the body.
fn split_answer(text: &Bytes) -> Option<(Headers, Bytes)> {
    let (length, rest) = text.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (lines, body) = rest.split_at_checked(length)?;
    Some((Headers::decode(lines).ok()?, text.slice_ref(body)))
}

impl fmt::Display for Field {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Answer => "answer",
            Self::Key => "key",
            Self::Scope => "scope",
            Self::Origin => "key and scope",
        })
    }
}
