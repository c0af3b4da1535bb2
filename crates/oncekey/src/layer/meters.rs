//! The layer's metrics.
//!
//! Handles are made once per rule and series and then kept, because a lookup builds and hashes
//! label strings. So a recorder has to be installed before the first request. Labels are the
//! rule's name and words of ours: never a key, never a path.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use http::Method;
use metrics::{Counter, Histogram, counter, histogram};
use oncekey_core::Key;

use super::outcome::Outcome;
use super::rule::Mode;
use super::source::Place;

/// The series of one rule.
pub(super) struct Meters {
    route: Box<str>,
    mode: Mode,
    keyless: OnceLock<Counter>,
    keys: [[OnceLock<Counter>; Quality::ALL.len()]; Place::ALL.len()],
    requests: [[OnceLock<Counter>; Outcome::ALL.len()]; METHODS.len() + 1],
    durations: [OnceLock<Histogram>; Outcome::ALL.len()],
}

/// What a presented key is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quality {
    /// Long enough that nobody guesses it.
    Good,
    /// Short or an e-mail address: another client may come to the same key by chance.
    Weak,
    /// No key at all.
    Invalid,
}

/// A UUID has 36 characters, a random 64-bit number in hexadecimal 16: below that, keys of
/// different operations begin to meet.
const SHORTEST_GOOD_KEY: usize = 16;

/// The methods with a label of their own. Others share one, because a client can invent any.
static METHODS: [Method; 4] = [Method::POST, Method::PATCH, Method::PUT, Method::DELETE];

impl Meters {
    pub(super) fn new(route: &str, mode: Mode) -> Self {
        Self {
            route: route.into(),
            mode,
            keyless: OnceLock::new(),
            keys: Default::default(),
            requests: Default::default(),
            durations: Default::default(),
        }
    }

    /// A request without a key.
    pub(super) fn keyless(&self) {
        let make = || {
            let (route, mode) = (self.route.to_string(), self.mode.label());
            counter!("oncekey_keyless_requests_total", "route" => route, "mode" => mode)
        };
        self.keyless.get_or_init(make).increment(1);
    }

    /// A request with a key.
    pub(super) fn key(&self, place: Place, quality: Quality) {
        let make = || {
            counter!(
                "oncekey_keys_presented_total",
                "route" => self.route.to_string(),
                "source" => place.label(),
                "quality" => quality.label(),
            )
        };
        self.keys[place as usize][quality as usize].get_or_init(make).increment(1);
    }

    /// A request that has come to an end, or passes through.
    pub(super) fn request(&self, method: &Method, outcome: Outcome) {
        let place = METHODS.iter().position(|known| known == method);
        let make = || {
            counter!(
                "oncekey_requests_total",
                "route" => self.route.to_string(),
                "method" => label(method),
                "mode" => self.mode.label(),
                "outcome" => outcome.label(),
            )
        };
        let of_method = &self.requests[place.unwrap_or(METHODS.len())];
        of_method[outcome as usize].get_or_init(make).increment(1);
    }

    /// How long a keyed request took.
    pub(super) fn took(&self, outcome: Outcome, time: Duration) {
        let make = || {
            histogram!(
                "oncekey_request_duration_seconds",
                "route" => self.route.to_string(),
                "outcome" => outcome.label(),
            )
        };
        self.durations[outcome as usize].get_or_init(make).record(time.as_secs_f64());
    }
}

impl Quality {
    const ALL: [Self; 3] = [Self::Good, Self::Weak, Self::Invalid];

    pub(super) fn of(key: &Key) -> Self {
        let bytes = key.as_bytes();
        if bytes.len() < SHORTEST_GOOD_KEY || bytes.contains(&b'@') {
            Self::Weak
        } else {
            Self::Good
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Weak => "weak",
            Self::Invalid => "invalid",
        }
    }
}

impl fmt::Debug for Meters {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Meters({})", self.route)
    }
}

/// A method as a label: clients can make up any number of them.
pub(super) fn label(method: &Method) -> &'static str {
    METHODS.iter().find(|known| *known == method).map_or("other", Method::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keys_and_addresses_are_weak() {
        for (key, quality) in [
            ("1", Quality::Weak),
            ("test", Quality::Weak),
            ("somebody@example.com", Quality::Weak),
            ("8e03978e-40d5-43e8-bc93-6894a57f9324", Quality::Good),
            ("0123456789abcdef", Quality::Good),
        ] {
            assert_eq!(Quality::of(&Key::new(key.as_bytes()).unwrap()), quality, "{key}");
        }
        for (place, quality) in Quality::ALL.into_iter().enumerate() {
            assert_eq!(quality as usize, place);
        }
        for (number, place) in Place::ALL.into_iter().enumerate() {
            assert_eq!(place as usize, number);
        }
    }
}
