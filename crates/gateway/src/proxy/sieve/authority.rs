//! A host with an optional port, as `Host` and some request targets name it.

use std::net::Ipv6Addr;

/// Whether a port follows the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Missing,
    Given,
}

/// Reads an authority. Nothing if it is not strictly one.
///
/// Narrower than RFC 3986 on purpose: no user, no percent-encoding, no `sub-delims`, no zone, no
/// empty host and no empty port. Nobody names a host so, and servers disagree about what it means.
/// An underscore is allowed: networks of containers have such names.
pub(super) fn read(authority: &[u8]) -> Option<Port> {
    let rest = match authority.strip_prefix(b"[") {
        Some(literal) => {
            let end = literal.iter().position(|byte| *byte == b']')?;
            str::from_utf8(&literal[..end]).ok()?.parse::<Ipv6Addr>().ok()?;
            &literal[end + 1..]
        }
        None => {
            let end = authority.iter().position(|byte| !is_name(*byte));
            let (name, rest) = authority.split_at(end.unwrap_or(authority.len()));
            if name.is_empty() {
                return None;
            }
            rest
        }
    };
    match rest.split_first() {
        None => Some(Port::Missing),
        Some((b':', digits)) => is_port(digits).then_some(Port::Given),
        Some(_) => None,
    }
}

/// Whether it is an authority, with or without a port.
pub(in crate::proxy) fn is_authority(authority: &[u8]) -> bool {
    read(authority).is_some()
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// A number from 1 to 65535, with at most five digits. Nobody listens on port 0.
fn is_port(digits: &[u8]) -> bool {
    // The standard parser also takes a sign.
    digits.len() <= 5
        && digits.iter().all(u8::is_ascii_digit)
        && str::from_utf8(digits).is_ok_and(|text| text.parse::<u16>().is_ok_and(|port| port != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_names_or_addresses_and_maybe_a_port() {
        for bare in ["a", "api.example.com", "my_service", "10.0.0.1", "[::1]", "example.com."] {
            assert_eq!(read(bare.as_bytes()), Some(Port::Missing), "{bare}");
            let with_port = format!("{bare}:65535");
            assert_eq!(read(with_port.as_bytes()), Some(Port::Given), "{with_port}");
        }
    }

    #[test]
    fn nothing_else_is_a_host() {
        let odd = ":80 a: a:0 a:65536 a:000080 a:+80 a:80:80 u@a u:p@a a/b a,b a%2eb [::1 ::1 \
                   [::1%25eth0] [fe80::1%eth0] [v1.x] [::1]x [127.0.0.1] ä a\\b a?b a#b";
        for authority in odd.split(' ').chain(["", "a b", "a:8 0"]) {
            assert_eq!(read(authority.as_bytes()), None, "{authority}");
        }
    }
}
