//! What browsers may send and see: adds our headers where the upstream allows other origins.
//!
//! Who may call is up to the upstream. An answer that names no origin is left as it is.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use oncekey::layer::{EXPOSED_HEADERS, Mode};

use crate::route::RouteTable;

/// Whether answers are amended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cors {
    Amend,
    Leave,
}

impl Cors {
    /// The headers that a browser has to be allowed, if this is a preflight of a protected route.
    pub(super) fn preflight(self, routes: &RouteTable, head: &Parts) -> Vec<HeaderName> {
        if self == Self::Leave || head.method != Method::OPTIONS {
            return Vec::new();
        }
        let wanted = head.headers.get(ACCESS_CONTROL_REQUEST_METHOD);
        let method = wanted.and_then(|method| Method::from_bytes(method.as_bytes()).ok());
        let route = method.and_then(|method| routes.find(&method, head.uri.path()).cloned());
        match route {
            Some(route) if route.mode().of_rule() != Mode::Off => route.spec.key_headers(),
            Some(_) | None => Vec::new(),
        }
    }

    /// Lets scripts see our headers, if they may see the answer.
    pub(super) fn expose(self, headers: &mut HeaderMap) {
        let allowed = headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
        // Where there is such a line already, the layer has added ours.
        let said = headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS);
        if self == Self::Amend && allowed && !said {
            let ours = HeaderValue::from_static(EXPOSED_HEADERS);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, ours);
        }
    }
}

/// Allows browsers to send these headers.
pub(super) fn allow(headers: &mut HeaderMap, names: &[HeaderName]) {
    if !headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        return;
    }
    // With credentials a star is a name like any other.
    let starred = !headers.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS);
    for name in names {
        let is_said = |line: &HeaderValue| {
            line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii).any(|word| {
                word.eq_ignore_ascii_case(name.as_str().as_bytes()) || (starred && word == b"*")
            })
        };
        if !headers.get_all(ACCESS_CONTROL_ALLOW_HEADERS).iter().any(is_said) {
            headers.append(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from(name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let lines = lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        lines.collect()
    }

    #[test]
    fn a_key_is_allowed_once_and_only_where_an_origin_is() {
        const ORIGIN: (&str, &str) = ("access-control-allow-origin", "https://shop");
        const HEADERS: &str = "access-control-allow-headers";
        const WITH: (&str, &str) = ("access-control-allow-credentials", "true");
        let key = [HeaderName::from_static("idempotency-key")];
        for (before, expected) in [
            (&[][..], &[][..]),
            (&[(HEADERS, "x")], &["x"]),
            (&[ORIGIN], &["idempotency-key"]),
            (&[ORIGIN, (HEADERS, "x, Y")], &["x, Y", "idempotency-key"]),
            (&[ORIGIN, (HEADERS, "x, Idempotency-Key")], &["x, Idempotency-Key"]),
            (&[ORIGIN, (HEADERS, "*")], &["*"]),
            (&[ORIGIN, WITH, (HEADERS, "*")], &["*", "idempotency-key"]),
        ] {
            let mut map = headers(before);
            allow(&mut map, &key);
            let lines: Vec<&str> =
                map.get_all(HEADERS).iter().map(|line| line.to_str().unwrap()).collect();
            assert_eq!(lines, expected, "{before:?}");
        }
    }

    #[test]
    fn our_headers_are_shown_where_the_answer_is() {
        const EXPOSE: &str = "access-control-expose-headers";
        let mut map = headers(&[("access-control-allow-origin", "*")]);
        Cors::Leave.expose(&mut map);
        assert!(!map.contains_key(EXPOSE));
        Cors::Amend.expose(&mut map);
        assert_eq!(map[EXPOSE], EXPOSED_HEADERS);
        let mut closed = HeaderMap::new();
        Cors::Amend.expose(&mut closed);
        assert!(closed.is_empty());
    }
}
