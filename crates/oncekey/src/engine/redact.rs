//! What is kept of an answer that holds things which must not be kept.
//!
//! For [`Retain::Redacted`](oncekey_core::policy::Retain): the selected members of a JSON body
//! become `null`, and a header line says which, so that nobody takes a replay for the whole
//! answer. Header lines that told something about the bytes of the body go: they would be wrong,
//! and a digest of the whole body lets somebody guess what was removed.
//!
//! In doubt nothing is kept at all. That costs a replay; the other mistake keeps a card number.

use oncekey_core::Saved;
use oncekey_core::fingerprint::{JsonPath, is_identity, is_utf8_json, redact_json};
use oncekey_core::saved::Headers;

/// What is left of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redacted {
    /// It can be kept like this.
    Fit(Saved),
    /// Nobody can say for sure what is in it: keep the status alone.
    Unfit,
}

/// The line that tells a replay which paths were redacted: a list of strings (RFC 9651). Reserved:
/// what an upstream sends under this name is dropped.
pub(super) const REDACTED: &str = "idempotency-redacted";

/// Lines about the bytes of the body. `Signature` (RFC 9421) usually covers one of them.
const ABOUT_THE_BODY: [&str; 9] = [
    "content-digest",
    "content-length",
    "content-md5",
    "content-range",
    "digest",
    "etag",
    "repr-digest",
    "signature",
    "signature-input",
];

/// Removes what `paths` select from an answer.
///
/// An answer without a body has nothing to remove. One in which nothing is selected is kept as it
/// is, down to its entity tag.
pub(super) fn redact(saved: &Saved, paths: &[JsonPath]) -> Redacted {
    if saved.body.is_empty() {
        return rebuilt(saved, saved.body.clone(), &[]);
    }
    if !is_whole_json(saved) {
        return Redacted::Unfit;
    }
    match redact_json(&saved.body, paths) {
        Some(redaction) if redaction.paths.is_empty() => rebuilt(saved, saved.body.clone(), &[]),
        Some(redaction) => rebuilt(saved, redaction.body.into(), &redaction.paths),
        None => Redacted::Unfit,
    }
}

/// The answer with this body, and with the header lines that fit it.
fn rebuilt(saved: &Saved, body: bytes::Bytes, found: &[&JsonPath]) -> Redacted {
    let is_dropped = |name: &[u8]| {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        is(REDACTED) || (!found.is_empty() && ABOUT_THE_BODY.into_iter().any(is))
    };
    let list = found.iter().map(|path| item(path.as_str())).collect::<Vec<_>>().join(", ");
    let mut headers = Headers::new();
    let kept = saved.headers.iter().filter(|(name, _)| !is_dropped(name));
    let told = (!found.is_empty()).then_some((REDACTED.as_bytes(), list.as_bytes()));
    for (name, value) in kept.chain(told) {
        if headers.push(name, value).is_err() {
            // Every line came out of header lines, and the list is printable ASCII.
            return Redacted::Unfit;
        }
    }
    Redacted::Fit(Saved { status: saved.status, headers, body })
}

/// Whether the body is meant to be one whole JSON text, and nothing is wrapped around it.
fn is_whole_json(saved: &Saved) -> bool {
    /// `Partial Content`: whatever a part of JSON looks like, it is not the whole.
    const PARTIAL: u16 = 206;
    let values = |wanted: &'static str| {
        let lines = saved.headers.iter();
        lines.filter(move |(name, _)| name.eq_ignore_ascii_case(wanted.as_bytes()))
    };
    // Two content types are none: proxies and clients choose differently between them.
    let mut types = values("content-type");
    let is_json =
        matches!((types.next(), types.next()), (Some((_, one)), None) if is_utf8_json(one));
    let is_encoded = values("content-encoding").any(|(_, value)| !is_identity(value));
    is_json && !is_encoded && saved.status != PARTIAL
}

/// A path as an item of an RFC 9651 list: a String, or a Display String if it is not ASCII.
fn item(path: &str) -> String {
    use std::fmt::Write as _;
    let is_ascii = path.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let mut item = String::with_capacity(path.len() + 3);
    item.push_str(if is_ascii { "\"" } else { "%\"" });
    for byte in path.bytes() {
        match byte {
            b'"' | b'\\' if is_ascii => item.extend(['\\', char::from(byte)]),
            b'"' | b'%' | ..b' ' | 0x7f.. if !is_ascii => {
                write!(item, "%{byte:02x}").expect("a string takes everything");
            }
            _ => item.push(char::from(byte)),
        }
    }
    item.push('"');
    item
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn paths(texts: &[&str]) -> Vec<JsonPath> {
        texts.iter().map(|text| JsonPath::parse(text).unwrap()).collect()
    }

    fn saved(lines: &[(&str, &str)], body: &'static str) -> Saved {
        let mut headers = Headers::new();
        for (name, value) in lines {
            headers.push(name.as_bytes(), value.as_bytes()).unwrap();
        }
        Saved { status: 201, headers, body: Bytes::from_static(body.as_bytes()) }
    }

    fn lines(saved: &Saved) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        saved.headers.iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    const BODY: &str = r#"{"card":{"number":"4111","cvc":"123"},"id":7}"#;

    #[test]
    fn a_redacted_answer_says_so_and_loses_what_no_longer_fits() {
        let answer = saved(
            &[
                ("Content-Type", "application/json; charset=utf-8"),
                ("Content-Length", "45"),
                ("ETag", "\"abc\""),
                ("Content-Digest", "sha-256=:x:"),
                ("Repr-Digest", "sha-256=:x:"),
                ("Digest", "x"),
                ("Content-MD5", "x"),
                ("Signature", "x"),
                ("Signature-Input", "x"),
                ("Idempotency-Redacted", "\"forged\""),
                ("Location", "/charges/7"),
            ],
            BODY,
        );
        let paths = paths(&["$.card.cvc", "$.nothing", "$.card['number']"]);
        let Redacted::Fit(kept) = redact(&answer, &paths) else { panic!("it is JSON") };
        assert_eq!(kept.body, r#"{"card":{"number":null,"cvc":null},"id":7}"#);
        assert_eq!(kept.status, 201);
        let expected = [
            ("Content-Type", "application/json; charset=utf-8"),
            ("Location", "/charges/7"),
            ("idempotency-redacted", "\"$.card.cvc\", \"$.card['number']\""),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(lines(&kept), expected);
    }

    #[test]
    fn an_answer_without_anything_to_redact_stays_as_it_is() {
        let error = [("content-type", "application/problem+json"), ("etag", "\"x\"")];
        let answer = saved(&error, r#"{"title":"declined"}"#);
        assert_eq!(redact(&answer, &paths(&["$.card.number"])), Redacted::Fit(answer));
        let empty = saved(&[("location", "/x")], "");
        assert_eq!(redact(&empty, &paths(&["$.a"])), Redacted::Fit(empty));
        let forged = saved(&[("idempotency-redacted", "\"$.a\"")], "");
        assert_eq!(redact(&forged, &paths(&["$.a"])), Redacted::Fit(saved(&[], "")));
    }

    #[test]
    fn what_is_not_surely_json_is_not_kept() {
        let json = ("content-type", "application/json");
        let rows: &[(&[(&str, &str)], &str)] = &[
            (&[], BODY),
            (&[("content-type", "text/plain")], BODY),
            (&[("content-type", "text/html"), json], BODY),
            (&[json, json], BODY),
            (&[("content-type", "application/json; charset=utf-16")], BODY),
            (&[json, ("content-encoding", "gzip")], BODY),
            (&[json, ("Content-Encoding", "identity"), ("content-encoding", "br")], BODY),
            (&[json], "{\"card\":"),
            (&[json], r#"{"card":1,"card":2}"#),
            (&[json], "data: {}\n\n"),
        ];
        for (lines, body) in rows {
            assert_eq!(
                redact(&saved(lines, body), &paths(&["$.card"])),
                Redacted::Unfit,
                "{lines:?}"
            );
        }
        let partial = Saved { status: 206, ..saved(&[json], BODY) };
        assert_eq!(redact(&partial, &paths(&["$.card"])), Redacted::Unfit);
        let identity = saved(&[json, ("content-encoding", "identity")], BODY);
        assert!(matches!(redact(&identity, &paths(&["$.card"])), Redacted::Fit(_)));
    }

    /// RFC 9651, sections 4.1.6 and 4.1.11.
    #[test]
    fn paths_are_items_of_a_list_of_strings() {
        assert_eq!(item("$.a"), "\"$.a\"");
        assert_eq!(item("$['it\\'s \"x\"']"), "\"$['it\\\\'s \\\"x\\\"']\"");
        assert_eq!(item("$['50% \"caf\u{e9}\"']"), "%\"$['50%25 %22caf%c3%a9%22']\"");
    }
}
