//! Header fields that never come from a client.

use http::HeaderName;

use super::route::Seen;
use crate::config::problem::ConfigProblem;
use crate::route::{Exempt, ScopePart};

/// What the gateway writes itself before it looks at a request: the address of its neighbour, which behind
/// a balancer is the same for everybody.
const WRITTEN: [&str; 4] =
    ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

/// What it takes out before it looks, because it belongs to one connection (RFC 9110, section 7.6.1).
const REMOVED: [&str; 10] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What says how a request is read, who asks and what for: the derived key in its place would be read so.
const SPOKEN_FOR: [&str; 7] = [
    "authorization",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
];

/// A derived key that would stand in the place of something else, or never arrive.
pub(super) fn forwarded_over_another(route: &Seen<'_>) -> Option<ConfigProblem> {
    let name = route.spec.forward_key.as_ref()?;
    let taken = [&WRITTEN[..], &REMOVED, &SPOKEN_FOR].concat().contains(&name.as_str());
    taken.then(|| {
        let message = format!("`{name}` means something else to the upstream, or never reaches it");
        let problem = route.contradiction(&["forward_key"], message);
        problem.note("take a field that only says the key, such as \"Idempotency-Key\"")
    })
}

/// A setting that goes by a field of which nothing is left of what the client sent.
pub(super) fn never_the_clients(route: &Seen<'_>) -> Option<ConfigProblem> {
    let spec = &route.spec;
    let exempt = |exempt: &Exempt| match exempt {
        Exempt::Header(name, _) => Some(name.clone()),
        Exempt::Scope(_) => None,
    };
    let scope: Vec<HeaderName> = spec.scope.iter().filter_map(ScopePart::header).cloned().collect();
    let exempt: Vec<HeaderName> = spec.rollout.exempt.iter().filter_map(exempt).collect();
    let used = [
        ("scope", scope),
        ("key.sources", spec.key_headers()),
        ("fingerprint.count_headers", spec.counted.clone()),
        ("rollout.exempt", exempt),
    ];
    used.iter().find_map(|(setting, names)| {
        let (name, why) = names.iter().find_map(|name| Some((name, why(name)?)))?;
        let problem = route.contradiction(&[*setting], format!("`{name}` {why}"));
        Some(
            problem.note("take a field that clients, or something trusted before the gateway, set"),
        )
    })
}

fn why(name: &HeaderName) -> Option<&'static str> {
    if WRITTEN.contains(&name.as_str()) {
        Some(
            "is written by the gateway for every request and tells who is next to it: behind a \
             balancer that is the same for everybody",
        )
    } else if REMOVED.contains(&name.as_str()) {
        Some("belongs to one connection and is taken out before it could count")
    } else {
        None
    }
}
