//! What of a request counts when two requests are compared.

use http::header::{CONTENT_TYPE, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Uri};
use oncekey_core::fingerprint::Prepared;
use oncekey_core::{Fingerprint, Subject};

use super::rule::Rule;

/// The head of a request, as its client wrote it.
#[derive(Clone, Copy)]
pub(super) struct Head<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
}

impl Rule {
    /// The fingerprint of a request on this route, as the layer computes it.
    #[must_use]
    pub fn fingerprint_of(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        Head::of(parts, &parts.uri).with_subject(self, body, |subject| {
            Prepared::v1(subject, self.fingerprint_rules()).fingerprint()
        })
    }
}

impl<'r> Head<'r> {
    pub(super) fn of(parts: &'r Parts, uri: &'r Uri) -> Self {
        Self { method: &parts.method, uri, headers: &parts.headers }
    }

    /// Shows what counts to `look`. A subject borrows from a list that lives only here.
    pub(super) fn with_subject<T>(
        self,
        rule: &'r Rule,
        body: &[u8],
        look: impl FnOnce(&Subject<'_>) -> T,
    ) -> T {
        let mut lines = Vec::new();
        let content_type = self.counted(rule, &mut lines);
        look(&Subject {
            method: self.method.as_str(),
            path: self.uri.path().as_bytes(),
            query: self.uri.query().map(str::as_bytes),
            content_type,
            headers: &lines,
            body,
        })
    }

    /// Adds the header lines that count to `lines`, and returns the content type.
    fn counted(self, rule: &'r Rule, lines: &mut Vec<(&'r str, &'r [u8])>) -> Option<&'r [u8]> {
        for name in rule.counted_headers() {
            let before = lines.len();
            let values = self.headers.get_all(name).iter();
            lines.extend(values.map(|value| (name.as_str(), value.as_bytes())));
            if *name == HOST && lines.len() == before {
                // HTTP/2 says it in the target.
                let host = self.uri.authority().map(|host| host.as_str().as_bytes());
                lines.extend(host.map(|host| (name.as_str(), host)));
            }
        }
        let types = self.headers.get_all(CONTENT_TYPE);
        let mut first = types.iter().map(HeaderValue::as_bytes);
        match (first.next(), first.next()) {
            (only, None) => only,
            // Who knows which of them the service believes: all count, and none means JSON.
            (_, Some(_)) => {
                let values = types.iter().map(HeaderValue::as_bytes);
                lines.extend(values.map(|value| (CONTENT_TYPE.as_str(), value)));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I24: two hosts are two requests, where hosts count, whichever protocol names them.
    #[test]
    fn a_host_counts_over_either_protocol() {
        let counts = Rule::new("pay").count_headers([HOST]);
        let plain = Rule::new("pay");
        let print = |rule: &Rule, uri: &str, host: Option<&str>| {
            let mut request = http::Request::post(uri);
            if let Some(host) = host {
                request = request.header(HOST, host);
            }
            rule.fingerprint_of(&request.body(()).unwrap().into_parts().0, b"")
        };
        let a = print(&counts, "/pay", Some("a.example"));
        assert_eq!(a, print(&counts, "https://a.example/pay", None));
        assert_ne!(a, print(&counts, "https://b.example/pay", None));
        assert_ne!(a, print(&counts, "/pay", None));
        assert_eq!(
            print(&plain, "https://a.example/pay", None),
            print(&plain, "https://b.example/pay", None)
        );
    }
}
