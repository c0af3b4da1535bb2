//! A request as it is kept for the completer.

use std::fmt;
use std::str::FromStr as _;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use oncekey::core::saved::HeaderError;
use oncekey::core::{Headers, Saved, Scope};

use crate::route::KeptScope;

/// What is needed to send a request again: all of it, as it was behind the front, and whom its key
/// belonged to. The scope is kept and not found again, because a token that was good then may have
/// expired, and a certificate belongs to a connection that is gone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) scope: Scope,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The first lines are ours, by their place and not by their name: a client can send lines of any
/// name.
const OURS: [&[u8]; 4] = [b"format", b"method", b"uri", b"scope"];
/// How it is written down. A later version that writes another format leaves this one alone.
const FORMAT: &[u8] = b"1";
/// What a record needs where an answer has its status.
const STATUS: u16 = 200;

impl Kept {
    /// In the form of an answer, which every store can keep and encrypt.
    ///
    /// # Errors
    /// If a header line is none, which those of a request that was read are.
    pub(super) fn to_saved(&self) -> Result<Saved, HeaderError> {
        let scope: String = self.scope.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
        let uri = self.uri.to_string();
        let [format, method, uri_line, scope_line] = OURS;
        let mut headers = Headers::new();
        headers.push(format, FORMAT)?;
        headers.push(method, self.method.as_str().as_bytes())?;
        headers.push(uri_line, uri.as_bytes())?;
        headers.push(scope_line, scope.as_bytes())?;
        for (name, value) in &self.headers {
            headers.push(name.as_str().as_bytes(), value.as_bytes())?;
        }
        Ok(Saved { status: STATUS, headers, body: self.body.clone() })
    }

    /// Reads it back; `None` if it is not what this version writes.
    pub(super) fn from_saved(saved: &Saved) -> Option<Self> {
        let mut lines = saved.headers.iter();
        let mut ours = OURS.iter().map(|name| {
            let (found, value) = lines.next()?;
            (found == *name).then_some(value)
        });
        if ours.next()?? != FORMAT {
            return None;
        }
        let method = Method::from_bytes(ours.next()??).ok()?;
        let uri = Uri::from_str(std::str::from_utf8(ours.next()??).ok()?).ok()?;
        let scope = Scope::from_encoded(&from_hex(ours.next()??)?)?;
        let mut headers = HeaderMap::with_capacity(saved.headers.len());
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name).ok()?;
            headers.append(name, HeaderValue::from_bytes(value).ok()?);
        }
        Some(Self { method, uri, scope, headers, body: saved.body.clone() })
    }

    /// Its head, with the scope where the completer's rule finds it.
    pub(super) fn head(&self) -> Parts {
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = self.method.clone();
        head.uri = self.uri.clone();
        head.headers = self.headers.clone();
        head.extensions.insert(KeptScope(self.scope.clone()));
        head
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Kept({} lines, {} bytes)", self.headers.len(), self.body.len())
    }
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer t"),
            ("accept", "a"),
            ("accept", "b"),
            // Nobody is fooled by lines that are called like ours.
            ("method", "DELETE"),
            ("scope", "00"),
            ("x-odd", "caf\u{e9}"),
        ] {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        Kept {
            method: Method::POST,
            uri: Uri::from_static("/v1/charges?a=%20b&a"),
            scope: Scope::of_parts(&[b"acme", b"ann"]).unwrap(),
            headers,
            body: Bytes::from_static(b"{\"amount\":\x00\xff}"),
        }
    }

    #[test]
    fn what_is_kept_comes_back_as_it_was() {
        let authority = Uri::from_static("https://api.example/v1?x");
        for kept in [
            kept(),
            Kept { uri: authority, ..kept() },
            Kept { scope: Scope::shared(), body: Bytes::new(), ..kept() },
            Kept { headers: HeaderMap::new(), ..kept() },
        ] {
            let back = Kept::from_saved(&kept.to_saved().unwrap());
            assert!(back.as_ref() == Some(&kept), "{kept:?}");
        }
    }

    #[test]
    fn what_this_version_did_not_write_is_not_read() {
        let saved = kept().to_saved().unwrap();
        let lines: Vec<(Vec<u8>, Vec<u8>)> =
            saved.headers.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let read = |lines: &[(Vec<u8>, Vec<u8>)]| {
            let mut headers = Headers::new();
            for (name, value) in lines {
                headers.push(name, value).unwrap();
            }
            Kept::from_saved(&Saved { headers, ..saved.clone() })
        };
        assert!(read(&lines).is_some());
        for end in 0..OURS.len() {
            assert!(read(&lines[..end]).is_none(), "{end} lines");
        }
        for (at, wrong) in [(0, "2"), (1, "P ST"), (2, "http://"), (3, "0"), (3, "zz"), (3, "09")] {
            let mut lines = lines.clone();
            lines[at].1 = wrong.as_bytes().to_vec();
            assert!(read(&lines).is_none(), "{wrong} in line {at}");
        }
    }

    #[test]
    fn nothing_of_it_is_shown() {
        let shown = format!("{:?}", kept());
        assert_eq!(shown, "Kept(6 lines, 13 bytes)");
    }
}
