//! A request byte for byte: what most retries are recognised by.

use bytes::Bytes;
use oncekey_core::Subject;

use super::rule::Rule;

/// Longer requests are recognised by their fingerprint alone. Most calls of an API are shorter, and
/// whatever is remembered takes room from answers.
const LONGEST: usize = 4 * 1024;

/// Everything that the fingerprint of a request is computed from: the rule, because it says how,
/// and the subject. Every part carries its length, so that two requests never look the same.
/// `None` if that would be long.
pub(super) fn exact(rule: &Rule, subject: &Subject<'_>) -> Option<Bytes> {
    let Subject { method, path, query, content_type, headers, body } = *subject;
    let lines: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    let options = [query, content_type];
    let optional: usize = options.iter().map(|part| part.map_or(0, <[u8]>::len) + 5).sum();
    let length = 8 + method.len() + path.len() + body.len() + 12 + lines + optional;
    if length > LONGEST {
        return None;
    }
    let mut exact = Vec::with_capacity(length);
    exact.extend_from_slice(&rule.number().to_le_bytes());
    for part in [method.as_bytes(), path, body] {
        push(&mut exact, part);
    }
    for option in options {
        exact.push(u8::from(option.is_some()));
        push(&mut exact, option.unwrap_or_default());
    }
    for (name, value) in headers {
        push(&mut exact, name.as_bytes());
        push(&mut exact, value);
    }
    debug_assert_eq!(exact.len(), length, "the length was reckoned right");
    Some(Bytes::from(exact))
}

fn push(exact: &mut Vec<u8>, part: &[u8]) {
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
    exact.extend_from_slice(&length.to_le_bytes());
    exact.extend_from_slice(part);
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
        let plain = exact(&rule, &PLAIN).unwrap();
        assert_eq!(exact(&rule, &PLAIN), Some(plain.clone()));
        for other in others {
            assert_ne!(exact(&rule, &other).unwrap(), plain, "{other:?}");
        }
        assert_ne!(exact(&Rule::new("r"), &PLAIN).unwrap(), plain, "another rule");
    }

    /// I43: a long request takes no room.
    #[test]
    fn a_long_request_has_no_exact_form() {
        let body = vec![b' '; LONGEST];
        assert_eq!(exact(&Rule::new("r"), &Subject { body: &body, ..PLAIN }), None);
    }
}
