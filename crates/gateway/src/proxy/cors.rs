//! What browsers may send and see.
//!
//! Who may call is up to the upstream, and what it answers is amended at most: an answer that names
//! no origin is left as it is. But a replay and a refusal are not its answers to this request. The
//! lines that it sent with the first answer were for the page that asked then, and are not saved
//! (T10). So the configuration says whose pages may read what the gateway itself says.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method};
use oncekey::layer::{EXPOSED_HEADERS, Mode, Outcome};
use oncekey::problem::Problem;

use crate::config::CorsSection;
use crate::route::RouteTable;

/// What is done for browsers.
#[derive(Clone, Debug)]
pub(crate) struct Cors {
    amend: Amend,
    /// Who may read what we say.
    readers: Option<Readers>,
}

/// Whether answers of the upstream are amended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amend {
    Yes,
    No,
}

/// Pages that may read what we say.
#[derive(Clone, Debug)]
struct Readers {
    origins: Origins,
    credentials: Credentials,
    /// What of it, as a list of header names.
    expose: HeaderValue,
}

#[derive(Clone, Debug)]
enum Origins {
    Any,
    These(Vec<HeaderValue>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Credentials {
    Sent,
    Not,
}

/// Who made an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Author {
    /// The upstream, just now: its lines are right.
    Upstream,
    /// We did, or it did for another request.
    Gateway,
}

impl Author {
    /// Finds out from what the layer left behind.
    pub(super) fn of(extensions: &Extensions) -> Self {
        if extensions.get::<Problem>().is_some() {
            return Self::Gateway;
        }
        match extensions.get::<Outcome>() {
            None | Some(Outcome::Executed | Outcome::Bypassed | Outcome::Unprotected) => {
                Self::Upstream
            }
            Some(_) => Self::Gateway,
        }
    }
}

impl Cors {
    pub(crate) fn new(section: &CorsSection) -> Self {
        let amend = if section.amend { Amend::Yes } else { Amend::No };
        let origins = match &section.origins[..] {
            [] => return Self { amend, readers: None },
            several if several.iter().any(|origin| origin == "*") => Origins::Any,
            several => Origins::These(several.iter().flat_map(HeaderValue::try_from).collect()),
        };
        let names = section.expose.iter().map(String::as_str).chain([EXPOSED_HEADERS]);
        let names = names.collect::<Vec<_>>().join(", ");
        let ours = || HeaderValue::from_static(EXPOSED_HEADERS);
        let expose = HeaderValue::try_from(names).unwrap_or_else(|_| ours());
        let credentials = if section.credentials { Credentials::Sent } else { Credentials::Not };
        Self { amend, readers: Some(Readers { origins, credentials, expose }) }
    }

    /// The headers that a browser has to be allowed, if this is a preflight of a protected route.
    pub(super) fn preflight(&self, routes: &RouteTable, head: &Parts) -> Vec<HeaderName> {
        if self.amend == Amend::No || head.method != Method::OPTIONS {
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
    pub(super) fn expose(&self, headers: &mut HeaderMap) {
        let allowed = headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
        // Where there is such a line already, the layer has added ours.
        let said = headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS);
        if self.amend == Amend::Yes && allowed && !said {
            let ours = HeaderValue::from_static(EXPOSED_HEADERS);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, ours);
        }
    }

    /// Whose page asks, if that matters here.
    pub(super) fn origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        self.readers.as_ref()?;
        let mut lines = headers.get_all(ORIGIN).iter();
        match (lines.next(), lines.next()) {
            (Some(only), None) => Some(only.clone()),
            (_, _) => None,
        }
    }

    /// Lets a page read what we say, if it is one of those that may.
    pub(super) fn open(&self, headers: &mut HeaderMap, origin: Option<&HeaderValue>) {
        let Some(Readers { origins, credentials, expose }) = &self.readers else { return };
        let allowed = match (origins, origin) {
            (Origins::Any, _) => Some(HeaderValue::from_static("*")),
            (Origins::These(known), Some(origin)) if known.contains(origin) => Some(origin.clone()),
            (Origins::These(_), _) => None,
        };
        // Also where the page may not read it: whoever keeps this answer must not show it to one
        // that may, without the lines that say so.
        if matches!(origins, Origins::These(_)) {
            vary_by_origin(headers);
        }
        let Some(allowed) = allowed else { return };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, expose.clone());
        if *credentials == Credentials::Sent {
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
    }
}

fn vary_by_origin(headers: &mut HeaderMap) {
    let is_said = headers.get_all(VARY).iter().any(|line| {
        let words = line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        words.into_iter().any(|word| word == b"*" || word.eq_ignore_ascii_case(b"origin"))
    });
    if !is_said {
        headers.append(VARY, HeaderValue::from_static("Origin"));
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
        let (leave, amend) =
            (CorsSection::default(), CorsSection { amend: true, ..Default::default() });
        Cors::new(&leave).expose(&mut map);
        assert!(!map.contains_key(EXPOSE));
        Cors::new(&amend).expose(&mut map);
        assert_eq!(map[EXPOSE], EXPOSED_HEADERS);
        let mut closed = HeaderMap::new();
        Cors::new(&amend).expose(&mut closed);
        assert!(closed.is_empty());
    }

    #[test]
    fn a_page_reads_what_we_say_if_it_is_one_of_those_that_may() {
        const SHOP: HeaderValue = HeaderValue::from_static("https://shop");
        const OTHER: HeaderValue = HeaderValue::from_static("https://other");
        let section = |origins: &[&str]| CorsSection {
            origins: origins.iter().map(|origin| (*origin).to_owned()).collect(),
            credentials: true,
            expose: vec!["X-Total".to_owned()],
            ..Default::default()
        };
        let opened = |cors: &Cors, origin: Option<&HeaderValue>| {
            let mut map = headers(&[("vary", "accept")]);
            cors.open(&mut map, origin);
            map
        };
        let cors = Cors::new(&section(&["https://shop", "https://app"]));
        let map = opened(&cors, Some(&SHOP));
        assert_eq!(map[ACCESS_CONTROL_ALLOW_ORIGIN], SHOP);
        assert_eq!(map[ACCESS_CONTROL_ALLOW_CREDENTIALS], "true");
        let exposed = map[ACCESS_CONTROL_EXPOSE_HEADERS].to_str().unwrap();
        assert!(exposed.starts_with("X-Total, Idempotency-Key"), "{exposed}");
        assert_eq!(map.get_all(VARY).iter().collect::<Vec<_>>(), ["accept", "Origin"]);
        for stranger in [Some(&OTHER), None] {
            let map = opened(&cors, stranger);
            assert!(!map.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
            assert!(!map.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS));
            assert_eq!(map.get_all(VARY).iter().count(), 2);
        }
        let map = opened(&Cors::new(&section(&["*"])), Some(&OTHER));
        assert_eq!(map[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
        assert_eq!(map.get_all(VARY).iter().count(), 1, "everybody gets the same");
        let closed = opened(&Cors::new(&section(&[])), Some(&SHOP));
        assert_eq!(closed.len(), 1, "{closed:?}");
    }
}
