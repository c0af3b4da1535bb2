//! Where the key of a request may stand.

use std::fmt;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use oncekey_core::fingerprint::{Found, JsonPath, find_json, is_identity, is_utf8_json};
use oncekey_core::{Key, KeyError};

use super::status::decoded;

/// A place for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A header, such as `Idempotency-Key`: the key quoted or bare.
    Header(HeaderName),
    /// A parameter of the query, decoded as forms are.
    Query(String),
    /// A string in a JSON body. `null` is no key.
    Json(JsonPath),
}

/// Why a request has no one key. No variant and no message contains a byte of the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// What stands there is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Two places say different things. Whoever stands between us and the client may look at the
    /// other one.
    #[error("two places of the request hold different idempotency keys: send the same in both")]
    Disagree,
    /// The member is a number, a list or something else.
    #[error("the member of the body that holds the idempotency key is not a string")]
    NotText,
    /// The query cannot be decoded.
    #[error("the query parameter that holds the idempotency key is not percent-encoded")]
    Encoding,
    /// A parser could find another key than we do.
    #[error(
        "the body cannot be searched for an idempotency key: it is not JSON, nested too deeply, or \
         has two members of one name"
    )]
    Doubt,
}

/// Headers that are looked through one by one: as many as browsers send.
const FEW: usize = 24;

/// What kind of place it is; the word in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Header,
    Query,
    Json,
}

impl KeySource {
    pub(super) const fn place(&self) -> Place {
        match self {
            Self::Header(_) => Place::Header,
            Self::Query(_) => Place::Query,
            Self::Json(_) => Place::Json,
        }
    }

    /// Whether something is there, whatever it is. A body has not been read yet.
    pub(super) fn is_in_head(&self, parts: &Parts) -> bool {
        match self {
            Self::Header(name) => has(&parts.headers, name),
            Self::Query(name) => values(parts, name).next().is_some(),
            Self::Json(_) => false,
        }
    }

    /// The key that stands there.
    pub(super) fn find(&self, parts: &Parts, body: &[u8]) -> Result<Option<Key>, SourceError> {
        match self {
            Self::Header(name) => {
                let lines = parts.headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
                Ok(Key::from_field_lines(lines)?)
            }
            Self::Query(name) => {
                let mut values = values(parts, name);
                match (values.next(), values.next()) {
                    (None, _) => Ok(None),
                    (Some(only), None) => {
                        let bytes = as_form(only).ok_or(SourceError::Encoding)?;
                        Ok(Some(Key::new(&bytes)?))
                    }
                    (Some(_), Some(_)) => Err(KeyError::Repeated.into()),
                }
            }
            Self::Json(_) if !is_json(parts) => Ok(None),
            Self::Json(path) => match find_json(body, path) {
                Found::Nothing | Found::Value(b"null") => Ok(None),
                Found::Doubt => Err(SourceError::Doubt),
                Found::Value(text) => {
                    let text: String =
                        serde_json::from_slice(text).map_err(|_| SourceError::NotText)?;
                    Ok(Some(Key::new(text.as_bytes())?))
                }
            },
        }
    }
}

/// Where it is, for people.
impl fmt::Display for KeySource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(out, "the header {name}"),
            Self::Query(name) => write!(out, "the query parameter {name}"),
            Self::Json(path) => write!(out, "the member {path} of a JSON body"),
        }
    }
}

impl Place {
    pub(super) const ALL: [Self; 3] = [Self::Header, Self::Query, Self::Json];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Query => "query",
            Self::Json => "json",
        }
    }
}

/// Whether a header is there. A request has about ten, and a look at each name, most of which have another
/// length, takes less than the digest of one. A client that sends hundreds is not waited for.
pub(super) fn has(headers: &HeaderMap, wanted: &HeaderName) -> bool {
    match headers.keys_len() {
        ..=FEW => headers.keys().any(|name| name == wanted),
        _ => headers.contains_key(wanted),
    }
}

/// Whether the body of a request can hold a key: one type that is JSON, and no encoding.
pub(super) fn is_json(parts: &Parts) -> bool {
    let mut types = parts.headers.get_all(CONTENT_TYPE).iter();
    let mut encodings = parts.headers.get_all(CONTENT_ENCODING).iter();
    let json = types.next().is_some_and(|value| is_utf8_json(value.as_bytes()));
    json && types.next().is_none() && encodings.all(|value| is_identity(value.as_bytes()))
}

/// The values of all parameters of a name, as they were written.
fn values<'p>(parts: &'p Parts, name: &'p str) -> impl Iterator<Item = &'p str> {
    let pairs = parts.uri.query().unwrap_or_default().split('&');
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let named = move |(written, _): &(&str, &str)| {
        *written == name || as_form(written).is_some_and(|bytes| bytes == name.as_bytes())
    };
    pairs.filter(named).map(|(_, value)| value)
}

/// Decodes what forms and browsers put into a query.
fn as_form(text: &str) -> Option<Vec<u8>> {
    decoded(text.replace('+', " ").as_bytes())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(uri: &str, content_type: &str) -> Parts {
        let request = Request::post(uri).header("content-type", content_type);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_key_is_found_in_a_query() {
        let source = KeySource::Query("the key".to_owned());
        for (query, expected) in [
            ("the+key=a", Ok(Some("a"))),
            ("x=1&the%20key=a%2Bb+c&y", Ok(Some("a+b c"))),
            ("", Ok(None)),
            ("thekey=a", Ok(None)),
            ("the+key=a&the%20key=a", Err(SourceError::Key(KeyError::Repeated))),
            ("the+key", Err(SourceError::Key(KeyError::Empty))),
            ("the+key=%zz", Err(SourceError::Encoding)),
            ("the+key=%0a", Err(SourceError::Key(KeyError::NotPrintable { position: 0 }))),
        ] {
            let parts = parts(&format!("/pay?{query}"), "text/plain");
            let found = source.find(&parts, b"").map(|key| key.map(|key| key.as_str().to_owned()));
            assert_eq!(source.is_in_head(&parts), found != Ok(None), "{query}");
            assert_eq!(found, expected.map(|key| key.map(str::to_owned)), "{query}");
        }
    }

    #[test]
    fn a_key_is_found_in_a_json_body_and_in_no_other() {
        let source = KeySource::Json("$.meta.key".parse().unwrap());
        let json = "application/json; charset=utf-8";
        for (kind, body, expected) in [
            (json, r#"{"meta":{"key":"a \u0062"}}"#, Ok(Some("a b"))),
            (json, r#"{"meta":{"key":null}}"#, Ok(None)),
            (json, r#"{"meta":{}}"#, Ok(None)),
            (json, r#"{"meta":{"key":42}}"#, Err(SourceError::NotText)),
            (json, r#"{"meta":{"key":""}}"#, Err(SourceError::Key(KeyError::Empty))),
            (json, r#"{"meta":{"key":"a","Key":"b"}}"#, Err(SourceError::Doubt)),
            (json, "meta.key=a", Err(SourceError::Doubt)),
            ("application/x-www-form-urlencoded", r#"{"meta":{"key":"a"}}"#, Ok(None)),
            ("text/plain", r#"{"meta":{"key":"a"}}"#, Ok(None)),
        ] {
            let found = source.find(&parts("/pay", kind), body.as_bytes());
            let found = found.map(|key| key.map(|key| key.as_str().to_owned()));
            assert_eq!(found, expected.map(|key| key.map(str::to_owned)), "{kind}: {body}");
        }
        let mut packed = parts("/pay", json);
        packed.headers.insert(CONTENT_ENCODING, http::HeaderValue::from_static("gzip"));
        assert_eq!(source.find(&packed, b"\x1f\x8b"), Ok(None));
    }

    #[test]
    fn a_header_is_found_among_few_and_among_many() {
        let wanted = HeaderName::from_static("idempotency-key");
        for others in [0, 1, FEW - 1, FEW, 4 * FEW] {
            let mut headers = HeaderMap::new();
            for number in 0..others {
                // As long as the wanted one, so that its letters are looked at.
                let name = HeaderName::try_from(format!("x-other-{number:07}")).unwrap();
                headers.insert(name, http::HeaderValue::from_static("1"));
            }
            assert!(!has(&headers, &wanted), "{others}");
            headers.append(&wanted, http::HeaderValue::from_static("a"));
            headers.append(&wanted, http::HeaderValue::from_static("b"));
            assert!(has(&headers, &wanted), "{others}");
        }
    }
}
