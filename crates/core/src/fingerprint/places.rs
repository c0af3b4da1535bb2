//! Which parts of a request differ, without keeping the request.
//!
//! A mismatch helps nobody if it does not say what differs, and the first request is long gone when
//! the second one comes. So a record keeps a short digest of each part, its *place*: the method, each
//! header, each JSON member of the upper two levels. Four bytes are enough, because places only
//! explain a decision that the fingerprint has made, and every record carries them. Values are never kept nor named.

use std::fmt;
use std::hash::Hasher as _;
use std::sync::{Arc, LazyLock};

use siphasher::sip::SipHasher13;
use thiserror::Error;

use super::Subject;
use super::scan::plain_prefix;
use crate::key::Pepper;
use crate::preimage::{Domain, write_hex};

static PLACE: Domain = Domain::new("oncekey/place", 1);

/// The most places of one request. More would be longer than many a body, and nobody reads them.
pub const MAX_PLACES: usize = 64;

/// The longest name of a place. Longer ones are replaced by a digest.
pub const MAX_PLACE_NAME_LENGTH: usize = 64;

/// Each kind has its own bound, so that one header more does not push out a member: method, path,
/// query and content type, these, and one overflow for each kind.
const MAX_HEADER_PLACES: usize = 11;
const MAX_BODY_PLACES: usize = MAX_PLACES - 4 - MAX_HEADER_PLACES - 2;

/// Everything that had no place of its own. No header and no JSON pointer looks like this.
const MORE_HEADERS: &str = "header:(more)";
const MORE_BODY: &str = "body:(more)";

const ENCODING_VERSION: u8 = 1;
const NONE: [u8; 2] = [ENCODING_VERSION, 0];
/// Shared by all requests without places.
static NO_PLACES: LazyLock<Arc<[u8]>> = LazyLock::new(|| NONE.into());
const DIGEST_LENGTH: usize = 4;
/// Longer than the digest of a value: two names that look the same would be one place.
const NAME_DIGEST_LENGTH: usize = 8;

/// The digests of the parts of one request.
///
/// Names are `method`, `path`, `query`, `content-type`, `header:<name>`, and either `body` or, for
/// bodies in canonical form, JSON pointers such as `body:/customer/id`.
#[derive(Clone, PartialEq, Eq)]
pub struct Places {
    /// A version, the number of places, and for each a length, a name and a digest. They are kept
    /// as they are stored, because most are written once and never looked at.
    encoded: Arc<[u8]>,
}

impl Places {
    /// The places of a request whose body has `body_digest` and maybe a canonical form.
    pub(super) fn of(
        subject: &Subject<'_>,
        headers: &[(String, &[u8])],
        canonical: Option<&[u8]>,
        body_digest: &[u8; 32],
        pepper: Option<&Pepper>,
    ) -> Places {
        let mut builder = Builder::new(canonical.map_or(0, <[u8]>::len), pepper);
        builder.add("method", &[subject.method.as_bytes()]);
        builder.add("path", &[subject.path]);
        if let Some(query) = subject.query {
            builder.add("query", &[query]);
        }
        if let Some(content_type) = subject.content_type {
            builder.add("content-type", &[content_type]);
        }
        builder.add_headers(headers);
        match canonical {
            // A canonical container with anything in it has more than its brackets.
            Some(json @ [b'{' | b'[', _, _, ..]) => builder.add_members(json),
            Some(_) | None => builder.write(b"body", &body_digest[..]),
        }
        Places { encoded: builder.encoded.into() }
    }

    /// Names the places that differ, are added or are missing; in order, and never their values.
    ///
    /// What cannot be told is not guessed: if one side has no places at all, nothing differs, and if
    /// one side has more members than we keep places for, those are named together as `body:(more)`.
    /// Nothing named here is equal on both sides, except together with others.
    #[must_use]
    pub fn differing(&self, other: &Places) -> Vec<String> {
        if self.is_empty() || other.is_empty() {
            return Vec::new();
        }
        let whole_body = self.get("body").is_some() || other.get("body").is_some();
        let mut names: Vec<String> = Vec::new();
        let mine = self.iter().filter(|(name, digest)| match other.get(name) {
            Some(theirs) => theirs != *digest,
            None => !other.may_hide(name),
        });
        let theirs =
            other.iter().filter(|(name, _)| self.get(name).is_none() && !self.may_hide(name));
        for (name, _) in mine.chain(theirs) {
            // A body with members and a body without have nothing to compare but the whole.
            let name = if whole_body && name.starts_with("body") { "body" } else { name };
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// Whether no places were kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.encoded[1] == 0
    }

    /// The names of all places.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    /// The stored form: compact, versioned, at most 4 418 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encoded.to_vec()
    }

    /// The stored form, borrowed.
    #[must_use]
    pub fn as_encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Reads the stored form and believes nothing in it.
    ///
    /// # Errors
    ///
    /// If the bytes are of another version or were not written by [`Places::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Places, PlacesError> {
        let (version, count, mut rest) = match bytes {
            [version, count, rest @ ..] => (*version, usize::from(*count), rest),
            [] | [_] => return Err(PlacesError::Damaged),
        };
        if version != ENCODING_VERSION {
            return Err(PlacesError::UnknownVersion { version });
        }
        if count > MAX_PLACES {
            return Err(PlacesError::Damaged);
        }
        let mut names = Vec::with_capacity(count);
        for _ in 0..count {
            let (name, _, after) = split_entry(rest).ok_or(PlacesError::Damaged)?;
            if name.is_empty() || name.len() > MAX_PLACE_NAME_LENGTH || !is_printable(name) {
                return Err(PlacesError::Damaged);
            }
            names.push(name);
            rest = after;
        }
        names.sort_unstable();
        if !rest.is_empty() || names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(PlacesError::Damaged);
        }
        Ok(Places { encoded: bytes.into() })
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        entries(&self.encoded)
    }

    fn get(&self, wanted: &str) -> Option<&[u8]> {
        self.iter().find(|(name, _)| *name == wanted).map(|(_, digest)| digest)
    }

    /// Whether a place that is not here may be one of those that share a digest.
    fn may_hide(&self, name: &str) -> bool {
        (name.starts_with("body:") && self.get(MORE_BODY).is_some())
            || (name.starts_with("header:") && self.get(MORE_HEADERS).is_some())
    }
}

impl Default for Places {
    /// No places: nothing was kept.
    fn default() -> Places {
        Places { encoded: Arc::clone(&NO_PLACES) }
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Places")?;
        f.debug_list().entries(self.names()).finish()
    }
}

/// Why stored places cannot be used. The record itself is not affected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlacesError {
    /// A newer version wrote them.
    #[error("places of version {version} are unknown here")]
    UnknownVersion {
        /// That version.
        version: u8,
    },
    /// They are not what we wrote.
    #[error("the stored places are damaged")]
    Damaged,
}

/// Longer than nearly all members of nearly all requests.
const PIECE: usize = 192;

struct Builder<'p> {
    encoded: Vec<u8>,
    pepper: Option<&'p Pepper>,
    /// What every digest of a value begins with.
    start: SipHasher13,
    /// Where names and values are put together for it: once for all of them, because a request has a
    /// dozen, and each would clear it anew.
    piece: [u8; PIECE],
    body_places: usize,
}

impl<'p> Builder<'p> {
    /// Digests of values are SipHash, keyed by the pepper: a request has a dozen of them, SHA-256
    /// took a tenth of the time of a whole request for them, and of its digests four bytes are left.
    fn new(size: usize, pepper: Option<&'p Pepper>) -> Self {
        let key = match pepper {
            Some(pepper) => PLACE.start(Some(pepper)).first_half(),
            None => [0; 16],
        };
        let mut encoded = Vec::with_capacity(size.min(768) + 128);
        encoded.extend_from_slice(&NONE);
        let start = SipHasher13::new_with_key(&key);
        Self { encoded, pepper, start, piece: [0; PIECE], body_places: 0 }
    }

    fn add(&mut self, name: &str, values: &[&[u8]]) {
        let digest = self.digest(name.as_bytes(), values);
        self.write(name.as_bytes(), &digest);
    }

    fn add_headers(&mut self, headers: &[(String, &[u8])]) {
        let mut groups = headers.chunk_by(|a, b| a.0 == b.0);
        for group in groups.by_ref().take(MAX_HEADER_PLACES) {
            let values: Vec<&[u8]> = group.iter().map(|(_, value)| *value).collect();
            let mut name = b"header:".to_vec();
            name.extend_from_slice(group[0].0.as_bytes());
            let digest = self.digest(&name, &values);
            self.push(&name, "header:", &digest);
        }
        let rest: Vec<&[u8]> =
            groups.flatten().flat_map(|(name, value)| [name.as_bytes(), *value]).collect();
        if !rest.is_empty() {
            self.add(MORE_HEADERS, &rest);
        }
    }

    /// Adds the members or elements of a canonical body and of the containers in it.
    fn add_members(&mut self, json: &[u8]) {
        let mut pointer = Vec::with_capacity(MAX_PLACE_NAME_LENGTH);
        pointer.extend_from_slice(b"body:");
        let root = pointer.len();
        for (index, child) in children(json).enumerate() {
            pointer.truncate(root);
            push_step(&mut pointer, index, &child);
            let level = pointer.len();
            let mut inner = children(child.value).enumerate().peekable();
            if inner.peek().is_none() && !self.add_member(&pointer, child.value) {
                return self.add(MORE_BODY, &[&json[child.start..]]);
            }
            for (index, grandchild) in inner {
                pointer.truncate(level);
                push_step(&mut pointer, index, &grandchild);
                if !self.add_member(&pointer, grandchild.value) {
                    // The name of the container is digested too: none of its members may have
                    // had a place.
                    let rest = &json[child.value_start + grandchild.start..];
                    return self.add(MORE_BODY, &[&pointer[..level], rest]);
                }
            }
        }
    }

    /// Adds one place of the body, unless there are too many already.
    fn add_member(&mut self, pointer: &[u8], value: &[u8]) -> bool {
        if self.body_places == MAX_BODY_PLACES {
            return false;
        }
        self.body_places += 1;
        let digest = self.digest(pointer, &[value]);
        self.push(pointer, "body:", &digest);
        true
    }

    fn digest(&mut self, name: &[u8], values: &[&[u8]]) -> [u8; 8] {
        let piece = match values {
            [value] => in_one_piece(name, value, &mut self.piece),
            _ => None,
        };
        match piece {
            Some(piece) => self.start.hash(piece).to_be_bytes(),
            None => self.digest_of_many(name, values),
        }
    }

    fn digest_of_many(&self, name: &[u8], values: &[&[u8]]) -> [u8; 8] {
        let mut hasher = self.start;
        let mut field = |bytes: &[u8]| {
            hasher.write_u64(bytes.len() as u64);
            hasher.write(bytes);
        };
        field(name);
        values.iter().for_each(|value| field(value));
        hasher.finish().to_be_bytes()
    }

    fn write(&mut self, name: &[u8], digest: &[u8]) {
        let length = u8::try_from(name.len()).expect("names were shortened to one byte of length");
        self.encoded[1] += 1;
        self.encoded.push(length);
        self.encoded.extend_from_slice(name);
        self.encoded.extend_from_slice(&digest[..DIGEST_LENGTH]);
    }

    /// Adds a place under its name, or under a digest of a name that is too long, cannot be shown,
    /// or looks like one that we made.
    fn push(&mut self, name: &[u8], kind: &str, digest: &[u8]) {
        let looks_made = matches!(name.get(kind.len()), Some(b'#' | b'('));
        if is_plain(name) && !looks_made {
            return self.write(name, digest);
        }
        let mut short = format!("{kind}#");
        let mut name_digest = PLACE.start(self.pepper);
        name_digest.field(name);
        let name_digest = name_digest.finish();
        // Writing to a string cannot fail.
        let _ = write_hex(&mut short, &name_digest[..NAME_DIGEST_LENGTH]);
        // Two names collide only if somebody works hard for it; all it earns is one place less.
        if !entries(&self.encoded).any(|(known, _)| known == short) {
            self.write(short.as_bytes(), digest);
        }
    }
}

/// A name and a value as they are digested, if they are short: SipHash reads one piece twice as fast
/// as four.
fn in_one_piece<'p>(name: &[u8], value: &[u8], piece: &'p mut [u8; PIECE]) -> Option<&'p [u8]> {
    let mut end = 0;
    for part in [name, value] {
        for bytes in [&(part.len() as u64).to_le_bytes()[..], part] {
            piece.get_mut(end..end + bytes.len())?.copy_from_slice(bytes);
            end += bytes.len();
        }
    }
    Some(&piece[..end])
}

/// One member or element of a canonical container, with offsets into it.
struct Child<'j> {
    start: usize,
    value_start: usize,
    /// Spelled canonically, with quotes; elements have none.
    name: Option<&'j [u8]>,
    value: &'j [u8],
}

/// The members or elements of a canonical value; none if it is a scalar.
fn children(json: &[u8]) -> impl Iterator<Item = Child<'_>> {
    let is_object = json[0] == b'{';
    // The last byte closes the container.
    let end = if is_object || json[0] == b'[' { json.len() - 1 } else { 0 };
    let mut at = 1;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let start = at;
        let mut name = None;
        if is_object {
            let colon = end_of_value(json, at);
            name = Some(&json[at..colon]);
            at = colon + 1;
        }
        let value_start = at;
        let value_end = end_of_value(json, at);
        at = value_end + 1;
        Some(Child { start, value_start, name, value: &json[value_start..value_end] })
    })
}

/// The end of the canonical value that starts at `at`.
fn end_of_value(json: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    loop {
        match json[at] {
            b'"' => at = end_of_string(json, at),
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth -= 1;
                at += 1;
            }
            _ => at += 1,
        }
        if depth == 0 && matches!(json.get(at), None | Some(b',' | b':' | b'}' | b']')) {
            return at;
        }
    }
}

fn end_of_string(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    loop {
        at += plain_prefix(&json[at..]);
        match json[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Appends one step of a JSON pointer (RFC 6901).
fn push_step(pointer: &mut Vec<u8>, index: usize, child: &Child<'_>) {
    pointer.push(b'/');
    let Some(name) = child.name else {
        pointer.extend_from_slice(index.to_string().as_bytes());
        return;
    };
    let name = &name[1..name.len() - 1];
    if !name.iter().any(|byte| matches!(byte, b'~' | b'/')) {
        pointer.extend_from_slice(name);
        return;
    }
    for byte in name {
        match byte {
            b'~' => pointer.extend_from_slice(b"~0"),
            b'/' => pointer.extend_from_slice(b"~1"),
            _ => pointer.push(*byte),
        }
    }
}

/// Whether a name can be shown as it is. A backslash is a sign of an escape, which nobody wants to
/// read in a pointer.
fn is_plain(name: &[u8]) -> bool {
    let shows = || is_printable(name) && !name.contains(&b'\\');
    name.len() <= MAX_PLACE_NAME_LENGTH && (plain_prefix(name) == name.len() || shows())
}

fn is_printable(name: &[u8]) -> bool {
    name.iter().all(|byte| matches!(byte, 0x20..=0x7e))
}

/// The names and digests of an encoded form.
fn entries(encoded: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    let mut rest = &encoded[NONE.len()..];
    std::iter::from_fn(move || {
        let (name, digest, after) = split_entry(rest)?;
        rest = after;
        Some((std::str::from_utf8(name).unwrap_or_default(), digest))
    })
}

fn split_entry(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let (digest, rest) = rest.split_at_checked(DIGEST_LENGTH)?;
    Some((name, digest, rest))
}

#[cfg(test)]
mod tests;
