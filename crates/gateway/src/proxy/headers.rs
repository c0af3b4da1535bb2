//! Header fields that belong to one connection, and those that are ours to write.

use std::net::IpAddr;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    COOKIE, EXPECT, FORWARDED, HOST, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Fields that a client cannot have removed by naming them in `Connection` (I39): somebody behind
/// us decides by them.
const PROTECTED: [HeaderName; 13] = [
    AUTHORIZATION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    EXPECT,
    FORWARDED,
    HOST,
    TRANSFER_ENCODING,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
];

/// Whether a message asks for another protocol on its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    No,
    /// To what its `Upgrade` field says.
    To(HeaderValue),
}

impl Switch {
    /// What the head of a message asks for.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match headers.get(UPGRADE) {
            Some(protocol) if nominates(headers, &UPGRADE) => Self::To(protocol.clone()),
            Some(_) | None => Self::No,
        }
    }

    /// Asks the next neighbour for the same.
    pub(super) fn ask(self, headers: &mut HeaderMap) {
        if let Self::To(protocol) = self {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, protocol);
        }
    }
}

/// Removes what belongs to the connection that a message came over. `own` are further fields that no
/// client can have removed, such as those that hold keys and scopes.
pub(super) fn strip_hops(headers: &mut HeaderMap, own: &[HeaderName]) {
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let nominated: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| !PROTECTED.contains(name) && !own.contains(name))
        .collect();
    let is_hop = |name: &HeaderName| is_hop_by_hop(name) || nominated.contains(name);
    // Built anew, because taking single fields out of a map changes the order of the others.
    let mut kept = HeaderMap::with_capacity(headers.len());
    let mut last = None;
    for (name, value) in std::mem::take(headers) {
        if name.is_some() {
            last = name;
        }
        if let Some(name) = last.as_ref().filter(|name| !is_hop(name)) {
            kept.append(name, value);
        }
    }
    *headers = kept;
}

/// Whether a field means something between two neighbours only (RFC 9110, section 7.6.1). Asked of
/// each field that is there: to look each of these up in a map takes four times as long.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "http2-settings"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// An address as `X-Forwarded-For` says it. Made once for a connection.
pub(super) fn forwarded_for(address: IpAddr) -> Option<HeaderValue> {
    HeaderValue::try_from(address.to_canonical().to_string()).ok()
}

/// Says who the client is, and forgets what the client said about that.
pub(super) fn say_forwarded(
    headers: &mut HeaderMap,
    address: Option<HeaderValue>,
    proto: &'static str,
) {
    headers.remove(FORWARDED);
    headers.remove(X_FORWARDED_HOST);
    match address {
        Some(address) => headers.insert(X_FORWARDED_FOR, address),
        None => headers.remove(X_FORWARDED_FOR),
    };
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(proto));
}

fn nominates(headers: &HeaderMap, name: &HeaderName) -> bool {
    let lines = headers.get_all(CONNECTION).iter();
    lines
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .any(|token| token.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        headers.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// I39: what belongs to a connection is removed, what is nominated too, and the rest stays in its
    /// order.
    #[test]
    fn hop_by_hop_fields_are_removed_and_the_rest_keeps_its_order() {
        let mut map = headers(&[
            ("host", "api"),
            ("connection", "keep-alive, x-secret"),
            ("accept", "a"),
            ("x-secret", "1"),
            ("accept", "b"),
            ("te", "trailers"),
            ("keep-alive", "5"),
            ("x-last", "z"),
        ]);
        strip_hops(&mut map, &[]);
        assert_eq!(names(&map), ["host", "accept", "accept", "x-last"]);
    }

    /// I39: a client cannot make us remove what others decide by.
    #[test]
    fn protected_fields_cannot_be_nominated() {
        let key = HeaderName::from_static("idempotency-key");
        let mut map = headers(&[
            ("connection", "close, Idempotency-Key, authorization, host, content-length, x-tenant"),
            ("idempotency-key", "k"),
            ("authorization", "a"),
            ("host", "h"),
            ("content-length", "3"),
            ("x-tenant", "t"),
            ("x-forwarded-for", "1.2.3.4"),
        ]);
        strip_hops(&mut map, &[key, HeaderName::from_static("x-tenant")]);
        let kept = [
            "idempotency-key",
            "authorization",
            "host",
            "content-length",
            "x-tenant",
            "x-forwarded-for",
        ];
        assert_eq!(names(&map), kept);
    }

    #[test]
    fn a_client_cannot_say_who_it_is() {
        let mut map = headers(&[
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-host", "evil"),
            ("x-forwarded-proto", "https"),
        ]);
        say_forwarded(&mut map, forwarded_for("::ffff:10.0.0.7".parse().unwrap()), "http");
        assert_eq!(map, headers(&[("x-forwarded-for", "10.0.0.7"), ("x-forwarded-proto", "http")]));
    }

    #[test]
    fn an_upgrade_counts_only_if_the_connection_says_so() {
        let asked = headers(&[("connection", "Keep-Alive, Upgrade"), ("upgrade", "websocket")]);
        assert_eq!(Switch::of(&asked), Switch::To(HeaderValue::from_static("websocket")));
        assert_eq!(Switch::of(&headers(&[("upgrade", "websocket")])), Switch::No);
        assert_eq!(Switch::of(&headers(&[("connection", "upgrade")])), Switch::No);
    }
}
