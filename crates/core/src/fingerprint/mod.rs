//! What must not change between two attempts that carry the same key.
//!
//! A fingerprint is a digest of everything in a request that the upstream could act on. Equal
//! fingerprints promise equal requests, so every doubt is decided against equality: a retry that is
//! refused is a nuisance, somebody else's answer is a disaster. Only JSON bodies get some slack,
//! because clients serialise the same value anew for each attempt: member order, white space and the
//! spelling of strings do not count there, and *everything* else does, down to the digits of numbers.
//!
//! Credentials, trace headers and the key itself never belong into a [`Subject`]: they change
//! between honest attempts.

use std::fmt;

use thiserror::Error;

use crate::key::Pepper;
use crate::preimage::{Domain, write_hex};

static FINGERPRINT: Domain = Domain::new("oncekey/fingerprint", 1);
static BODY: Domain = Domain::new("oncekey/body", 1);

mod canonical;
mod json_path;
mod places;
mod redact;
mod scan;

pub use self::json_path::{JsonPath, JsonPathError};
pub use self::places::{MAX_PLACE_NAME_LENGTH, MAX_PLACES, Places, PlacesError};
pub use self::redact::{Found, Redaction, find_json, redact_json};

/// The version that new records get.
pub const FINGERPRINT_VERSION: u8 = 1;

/// A versioned digest of a request.
///
/// Two fingerprints of different versions are never equal, and mean nothing to each other: compare a
/// record with [`Fingerprint::under`] the version that it was written with.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    version: u8,
    digest: [u8; 32],
}

/// The parts of a request that count, as raw as they came.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The method, case and all.
    pub method: &'a str,
    /// The path without the query, still percent-encoded.
    pub path: &'a [u8],
    /// The query without its question mark. `/pay?` has an empty one and `/pay` has none.
    pub query: Option<&'a [u8]>,
    /// The value of `Content-Type`.
    pub content_type: Option<&'a [u8]>,
    /// The other headers that count: always `content-encoding`, `host` if one upstream serves
    /// several, and what the route configures. Case and order of names do not matter; lines of one
    /// name keep their order.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The whole body, as it came over the wire.
    pub body: &'a [u8],
}

/// A request that was read once, for its fingerprint and its places.
///
/// Places cost several times as much as the fingerprint, and only a request that is claimed or
/// refused needs them: a replay does not.
#[derive(Debug)]
pub struct Prepared<'a> {
    subject: &'a Subject<'a>,
    rules: &'a FingerprintRules,
    canonical: Option<Vec<u8>>,
    headers: Vec<(String, &'a [u8])>,
    body: [u8; 32],
}

/// How a route compares requests. The default is canonical JSON, nothing ignored, places kept.
#[derive(Clone, Debug, Default)]
pub struct FingerprintRules {
    /// How JSON bodies are compared.
    pub json: JsonBodies,
    /// Members of JSON bodies that may change between attempts, for example a client's time stamp.
    ///
    /// They can be left out only of a body that has a canonical form: a body that does not, and
    /// every body under [`JsonBodies::Raw`], counts as a whole.
    pub ignore_json: Vec<JsonPath>,
    /// Whether to keep what it takes to name the differing places later.
    pub places: KeepPlaces,
    /// The secret that keys the digests. Bodies are easy to guess: set it wherever a copy of the
    /// store could fall into wrong hands.
    pub pepper: Option<Pepper>,
}

/// How JSON bodies are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JsonBodies {
    /// By their canonical form if they have one, and byte by byte otherwise.
    ///
    /// A body without one is refused nothing: its retry merely has to be byte for byte the same.
    #[default]
    Canonical,
    /// Byte by byte, for upstreams that check a signature over the body or care about its order.
    Raw,
}

/// Whether to keep what it takes to name the differing places later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepPlaces {
    /// Keep [`Places`].
    #[default]
    Yes,
    /// Keep none: nothing but the fingerprint is ever computed or stored.
    No,
}

/// A record was written by a newer or a damaged version of us, so nothing can be compared with it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("fingerprint version {version} is unknown here: upgrade before you answer for this record")]
pub struct UnknownVersion {
    /// The version of the record.
    pub version: u8,
}

impl<'a> Prepared<'a> {
    /// Reads a request for version 1.
    #[must_use]
    pub fn v1(subject: &'a Subject<'a>, rules: &'a FingerprintRules) -> Self {
        let canonical = if may_be_canonical(subject, rules.json) {
            canonical::canonical(subject.body, &rules.ignore_json)
        } else {
            None
        };
        let headers = sorted_headers(subject.headers);
        let body = body_digest(subject.body, canonical.as_deref(), rules.pepper.as_ref());
        Self { subject, rules, canonical, headers, body }
    }

    /// The fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut preimage = FINGERPRINT.start(self.rules.pepper.as_ref());
        preimage.field(self.subject.method.as_bytes());
        preimage.field(self.subject.path);
        preimage.optional(self.subject.query);
        preimage.optional(self.subject.content_type);
        preimage.count(self.headers.len());
        for (name, value) in &self.headers {
            preimage.field(name.as_bytes());
            preimage.field(value);
        }
        preimage.field(&self.body);
        Fingerprint { version: 1, digest: preimage.finish() }
    }

    /// The places to go with it.
    #[must_use]
    pub fn places(&self) -> Places {
        let Self { subject, rules, canonical, headers, body } = self;
        match rules.places {
            KeepPlaces::Yes => {
                Places::of(subject, headers, canonical.as_deref(), body, rules.pepper.as_ref())
            }
            KeepPlaces::No => Places::default(),
        }
    }
}

impl Fingerprint {
    /// Computes version 1 and the places to go with it.
    #[must_use]
    pub fn v1(subject: &Subject<'_>, rules: &FingerprintRules) -> (Fingerprint, Places) {
        let prepared = Prepared::v1(subject, rules);
        (prepared.fingerprint(), prepared.places())
    }

    /// Computes the version that a record was written with, to compare a request with that record.
    ///
    /// # Errors
    ///
    /// If this program does not know the version. The request must then neither run nor replay.
    pub fn under(
        version: u8,
        subject: &Subject<'_>,
        rules: &FingerprintRules,
    ) -> Result<(Fingerprint, Places), UnknownVersion> {
        match version {
            1 => Ok(Fingerprint::v1(subject, rules)),
            version => Err(UnknownVersion { version }),
        }
    }

    /// Takes a fingerprint that was computed before, for example from a store. Any version may be
    /// read; only known ones can be computed.
    #[must_use]
    pub fn from_parts(version: u8, digest: [u8; 32]) -> Fingerprint {
        Fingerprint { version, digest }
    }

    /// How the digest was made.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.version
    }

    /// The digest.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}:", self.version)?;
        write_hex(f, &self.digest)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// Digests the body on its own, so that a large one is read once for fingerprint and place.
fn body_digest(raw: &[u8], canonical: Option<&[u8]>, pepper: Option<&Pepper>) -> [u8; 32] {
    let mut preimage = BODY.start(pepper);
    // Without the tag, raw bytes that happen to be in canonical form would equal a reordered body.
    match canonical {
        None => {
            preimage.tag(0);
            preimage.field(raw);
        }
        Some(canonical) => {
            preimage.tag(1);
            preimage.field(canonical);
        }
    }
    preimage.finish()
}

fn sorted_headers<'a>(headers: &[(&str, &'a [u8])]) -> Vec<(String, &'a [u8])> {
    let mut sorted: Vec<_> =
        headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), *value)).collect();
    // A stable sort, because the order of the lines of one name has a meaning.
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    sorted
}

fn may_be_canonical(subject: &Subject<'_>, json: JsonBodies) -> bool {
    // An encoded body is not JSON yet.
    let encoded = subject
        .headers
        .iter()
        .any(|(name, value)| name.eq_ignore_ascii_case("content-encoding") && !is_identity(value));
    json == JsonBodies::Canonical && !encoded && subject.content_type.is_some_and(is_utf8_json)
}

/// Whether a value of `Content-Encoding` leaves the body as it is. An empty one says nothing, and
/// neither does `identity`.
#[must_use]
pub fn is_identity(content_encoding: &[u8]) -> bool {
    let encoding = content_encoding.trim_ascii();
    encoding.is_empty() || encoding.eq_ignore_ascii_case(b"identity")
}

/// Whether a content type means JSON in UTF-8.
///
/// In another charset the raw bytes and the escape of a character differ in meaning, and we would
/// take them for the same. So anything about a charset that is not plainly UTF-8 means no.
#[must_use]
pub fn is_utf8_json(content_type: &[u8]) -> bool {
    // What nearly everybody sends.
    if content_type == b"application/json" {
        return true;
    }
    let content_type = content_type.to_ascii_lowercase();
    let mut pieces = content_type.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let essence = pieces.next().unwrap_or_default();
    let one_type = essence.iter().filter(|byte| **byte == b'/').count() == 1
        && essence.iter().all(|byte| byte.is_ascii_alphanumeric() || b"/+-._".contains(byte));
    let json = one_type && (essence == b"application/json" || essence.ends_with(b"+json"));
    json && pieces.all(|parameter| {
        matches!(parameter, b"charset=utf-8" | b"charset=\"utf-8\"")
            || !parameter.windows(7).any(|window| window == b"charset")
    })
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
