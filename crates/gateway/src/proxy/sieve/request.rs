//! The request line: `method SP target SP HTTP/1.x`.

use std::ops::Range;

use memchr::{memchr, memchr2};

use super::Violation;
use super::authority::{self, Port};
use super::bytes::{is_target, token_length};

/// A request line that is right by itself.
#[derive(Debug)]
pub(super) struct RequestLine {
    pub(super) method: Method,
    pub(super) version: Version,
    /// Where in the line the target names an authority, which `Host` has to repeat.
    pub(super) authority: Option<Range<usize>>,
}

/// The methods that have rules of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Connect,
    Options,
    Trace,
    Other,
}

/// The versions that share one syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http10,
    Http11,
}

impl RequestLine {
    /// Reads a line that was cut off at its CRLF.
    pub(super) fn read(line: &[u8]) -> Result<Self, Violation> {
        let method_end = token_length(line);
        match line.get(method_end) {
            Some(b' ') if method_end > 0 => {}
            Some(b'\r') => return Err(Violation::BareCr),
            None => return Err(Violation::RequestLine),
            Some(_) => return Err(Violation::Method),
        }
        check_method(&line[..method_end])?;
        let target_start = method_end + 1;
        let target_end = match memchr(b' ', &line[target_start..]) {
            None | Some(0) => return Err(misshapen(line)),
            Some(length) => target_start + length,
        };
        let version = Version::read(&line[target_end + 1..])?;
        let method = Method::read(&line[..method_end]);
        let authority = target_authority(method, &line[target_start..target_end])?;
        let in_line = |range: Range<usize>| range.start + target_start..range.end + target_start;
        Ok(Self { method, version, authority: authority.map(in_line) })
    }
}

impl Method {
    fn read(method: &[u8]) -> Self {
        // Methods are case-sensitive (RFC 9110, section 9.1).
        match method {
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            _ => Self::Other,
        }
    }
}

impl Version {
    fn read(version: &[u8]) -> Result<Self, Violation> {
        match version {
            b"HTTP/1.1" => Ok(Self::Http11),
            b"HTTP/1.0" => Ok(Self::Http10),
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
                if major.is_ascii_digit() && minor.is_ascii_digit() =>
            {
                Err(Violation::Version)
            }
            _ => Err(misshapen(version)),
        }
    }
}

/// Checks the case of a method. `post` is another method than `POST` (RFC 9110, section 9.1), and many
/// frameworks take it for the same: it would find no route here, and do its work there.
pub(in crate::proxy) fn check_method(method: &[u8]) -> Result<(), Violation> {
    match method.iter().any(u8::is_ascii_lowercase) {
        true => Err(Violation::MethodCase),
        false => Ok(()),
    }
}

/// Checks the target and finds the authority in it.
///
/// Paths are not interpreted: `//`, `/../` and `%00` are the business of routes and upstreams, and
/// nobody ends a message there.
fn target_authority(method: Method, target: &[u8]) -> Result<Option<Range<usize>>, Violation> {
    if !is_target(target) {
        let lone = target.contains(&b'\r');
        return Err(if lone { Violation::BareCr } else { Violation::TargetByte });
    }
    if memchr2(b'#', b'`', target).is_some() {
        check_marks(target)?;
    }
    match (method, target) {
        (Method::Connect, _) => match authority::read(target) {
            Some(Port::Given) => Ok(Some(0..target.len())),
            Some(Port::Missing) | None => Err(Violation::TargetForm),
        },
        (_, [b'/', ..]) | (Method::Options, b"*") => Ok(None),
        (Method::Options | Method::Trace | Method::Other, _) => {
            let start = scheme_length(target).ok_or(Violation::TargetForm)?;
            let rest = &target[start..];
            let length = rest.iter().position(|byte| matches!(byte, b'/' | b'?'));
            Ok(Some(start..start + length.unwrap_or(rest.len())))
        }
    }
}

/// Checks a path and a query that stand alone.
pub(in crate::proxy) fn check_path(path: &[u8]) -> Result<(), Violation> {
    match target_authority(Method::Other, path)? {
        None => Ok(()),
        Some(_) => Err(Violation::TargetForm),
    }
}

/// A fragment never leaves the client. A backtick comes unencoded from browsers, but only in a
/// query, and the next reader takes it nowhere else.
#[cold]
fn check_marks(target: &[u8]) -> Result<(), Violation> {
    let mut parts = target.splitn(2, |byte| *byte == b'?');
    let in_path = parts.next().is_some_and(|path| path.contains(&b'`'));
    if target.contains(&b'#') {
        return Err(Violation::Fragment);
    }
    if in_path { Err(Violation::TargetByte) } else { Ok(()) }
}

fn scheme_length(target: &[u8]) -> Option<usize> {
    [&b"http://"[..], b"https://"]
        .iter()
        .find(|scheme| {
            target.get(..scheme.len()).is_some_and(|front| front.eq_ignore_ascii_case(scheme))
        })
        .map(|scheme| scheme.len())
}

/// What to call a line whose parts do not fit.
#[cold]
fn misshapen(line: &[u8]) -> Violation {
    if line.contains(&b'\r') { Violation::BareCr } else { Violation::RequestLine }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Option<&str>, Violation> {
        let request = RequestLine::read(line.as_bytes())?;
        Ok(request.authority.map(|range| &line[range]))
    }

    #[test]
    fn each_form_has_its_methods() {
        assert_eq!(read("GET / HTTP/1.1"), Ok(None));
        assert_eq!(read("OPTIONS * HTTP/1.1"), Ok(None));
        assert_eq!(read("GET http://a:1/b HTTP/1.1"), Ok(Some("a:1")));
        assert_eq!(read("GET HTTPS://a?b HTTP/1.0"), Ok(Some("a")));
        assert_eq!(read("CONNECT a:443 HTTP/1.1"), Ok(Some("a:443")));
        for line in ["GET * HTTP/1.1", "GET a:443 HTTP/1.1", "CONNECT / HTTP/1.1"] {
            assert_eq!(read(line), Err(Violation::TargetForm), "{line}");
        }
    }

    /// What passes here must not be refused by the library that reads it next.
    #[test]
    fn every_target_is_understood_by_the_next_reader() {
        for byte in 0..=0x7f_u8 {
            for place in ["/a", "/?a", "http://a/", "http://a?"] {
                let target = format!("{place}{}", char::from(byte));
                if read(&format!("GET {target} HTTP/1.1")).is_ok() {
                    target.parse::<http::Uri>().unwrap_or_else(|_| panic!("{target:?}"));
                }
            }
        }
        assert_eq!(read("GET /?` HTTP/1.1"), Ok(None));
        assert_eq!(read("GET /`?` HTTP/1.1"), Err(Violation::TargetByte));
    }

    #[test]
    fn each_malformed_line_has_its_reason() {
        for line in ["GET", "GET /", "GET  / HTTP/1.1", "GET / HTTP/1.1 ", "GET / http/1.1"] {
            assert_eq!(read(line), Err(Violation::RequestLine), "{line}");
        }
        assert_eq!(read("G\tT / HTTP/1.1"), Err(Violation::Method));
        for line in ["get / HTTP/1.1", "Post / HTTP/1.1", "PROPFINd / HTTP/1.1"] {
            assert_eq!(read(line), Err(Violation::MethodCase), "{line}");
        }
        assert_eq!(read("GET / HTTP/2.0"), Err(Violation::Version));
        assert_eq!(read("GET /ä HTTP/1.1"), Err(Violation::TargetByte));
        assert_eq!(read("GET /#a HTTP/1.1"), Err(Violation::Fragment));
        for line in ["G\rT / HTTP/1.1", "GET /\r HTTP/1.1", "GET / HTTP/1.1\r", "GET\r/"] {
            assert_eq!(read(line), Err(Violation::BareCr), "{line:?}");
        }
    }
}
