//! A request byte for byte, as a digest: what most retries are recognised by.

use std::fmt;
use std::hash::Hasher as _;

use oncekey_core::Subject;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::rule::Rule;
use crate::engine::Exact;

/// Longer requests are recognised by their fingerprint alone. Most calls of an API are shorter, and
/// for the first attempt this digest comes on top.
const LONGEST: usize = 4 * 1024;

/// Makes exact forms. Its key is drawn at random and never leaves the process, so nobody can make
/// two requests on purpose that look the same.
pub(super) struct Exactly(SipHasher13);

impl Exactly {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(&key))
    }

    /// A digest of everything that the fingerprint of a request is computed from: the rule, because
    /// it says how, and the subject. Every part carries its length, every list its count. `None` for a
    /// long body.
    pub(super) fn of(&self, rule: &Rule, subject: &Subject<'_>) -> Option<Exact> {
        let Subject { method, path, query, content_type, headers, body } = *subject;
        if body.len() > LONGEST {
            return None;
        }
        // Nothing is as long as what stands for nothing.
        let length = |part: Option<&[u8]>| part.map_or(u64::MAX, |part| part.len() as u64);
        let mut hasher = self.0;
        hasher.write_u64(rule.number());
        // All lengths first: whole words, and the body right behind them, are what SipHash reads
        // fastest.
        for part in [Some(method.as_bytes()), Some(path), Some(body), query, content_type] {
            hasher.write_u64(length(part));
        }
        hasher.write_u64(headers.len() as u64);
        for (name, value) in headers {
            hasher.write_u64(length(Some(name.as_bytes())));
            hasher.write_u64(length(Some(value)));
        }
        for part in [body, method.as_bytes(), path] {
            hasher.write(part);
        }
        for part in [query, content_type] {
            hasher.write(part.unwrap_or_default());
        }
        for (name, value) in headers {
            hasher.write(name.as_bytes());
            hasher.write(value);
        }
        Some(Exact(hasher.finish128().as_bytes()))
    }
}

impl fmt::Debug for Exactly {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Exactly")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Subject<'_> = Subject {
        method: "POST",
        path: b"/pay",
        query: None,
        content_type: Some(b"application/json"),
        headers: &[("x-a", b"1")],
        body: b"{}",
    };

    /// I23, I24: what could make another fingerprint makes another exact form, and so does another
    /// rule.
    #[test]
    fn two_requests_never_look_the_same() {
        let rule = Rule::new("r");
        let others = [
            Subject { method: "PATCH", ..PLAIN },
            Subject { path: b"/pay/", ..PLAIN },
            Subject { query: Some(b""), ..PLAIN },
            Subject { query: Some(b"a"), ..PLAIN },
            Subject { content_type: None, ..PLAIN },
            Subject { content_type: Some(b"text/plain"), ..PLAIN },
            Subject { headers: &[], ..PLAIN },
            Subject { headers: &[("x-a", b""), ("1", b"")], ..PLAIN },
            Subject { headers: &[("x-", b"a1")], ..PLAIN },
            Subject { body: b"{} ", ..PLAIN },
            Subject { path: b"/pay{}", body: b"", ..PLAIN },
        ];
        let exactly = Exactly::new([7; 16]);
        let exact = |rule: &Rule, subject: &Subject<'_>| exactly.of(rule, subject);
        let plain = exact(&rule, &PLAIN).unwrap();
        assert_eq!(exact(&rule, &PLAIN), Some(plain));
        for other in others {
            assert_ne!(exact(&rule, &other).unwrap(), plain, "{other:?}");
        }
        assert_ne!(exact(&Rule::new("r"), &PLAIN).unwrap(), plain, "another rule");
        assert_ne!(Exactly::new([8; 16]).of(&rule, &PLAIN).unwrap(), plain, "another process");
    }

    #[test]
    fn a_long_request_has_no_exact_form() {
        let body = vec![b' '; LONGEST + 1];
        let subject = Subject { body: &body, ..PLAIN };
        assert_eq!(Exactly::new([7; 16]).of(&Rule::new("r"), &subject), None);
    }
}
