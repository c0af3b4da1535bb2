//! Observe mode: what would have happened, without changing a byte.
//!
//! Requests and answers pass; their bodies are overheard up to a limit. When a request has ended,
//! it is compared with what was seen lately, and the result goes to metrics, log lines and events.
//! What is remembered is bounded, per node, and gone with the process. What was counted goes to the
//! store now and then, where all nodes find it.

mod ledger;
mod recent;
mod tally;
mod verdict;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncekey::clock::{SystemClock, SystemUptime, Uptime as _};
use oncekey::core::{Clock as _, Fingerprint, KeyId, Timestamp};

use self::recent::Recent;
use self::tally::Slate;
use self::verdict::{Content, Presented, SUSPICIOUS, Sighting, Used};

pub(crate) use self::ledger::{Ledger, Terms};
pub(crate) use self::tally::{Caller, Counts, Row, Tally};
pub(crate) use self::verdict::{Suspicion, Would};

/// Remembers requests, compares and counts them.
#[derive(Debug)]
pub(crate) struct Observer {
    seen: Mutex<Seen>,
    slate: Mutex<Slate>,
}

#[derive(Debug)]
struct Seen {
    keys: Recent<KeyId, Used>,
    contents: Recent<Fingerprint, Content>,
}

/// What was found out about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) would: Would,
    pub(crate) suspicion: Option<Suspicion>,
}

/// Whom an answer reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// All of it went to the client, as far as we can tell.
    Client,
    /// The client had left before.
    Nobody,
}

/// Most retries come within the hour; a day of keys would not fit.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// Some 15 megabytes when it is full: an hour at 27 requests a second, and the last hour's end at
/// any other rate.
const ROOM: usize = 100_000;

impl Observer {
    pub(crate) fn new() -> Self {
        let (keys, contents) = (Recent::new(REMEMBERED, ROOM), Recent::new(SUSPICIOUS, ROOM));
        let seen = Mutex::new(Seen { keys, contents });
        Self { seen, slate: Mutex::default() }
    }

    /// Compares a request that has ended with those before, and remembers it.
    pub(crate) fn look(
        &self,
        key: Result<Option<KeyId>, ()>,
        fingerprint: Option<Fingerprint>,
    ) -> Finding {
        let key = match key {
            Ok(Some(id)) => Presented::Key(id),
            Ok(None) => Presented::None,
            Err(()) => Presented::Invalid,
        };
        let sighting = Sighting { key, fingerprint };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that nobody is seen before somebody who was noted earlier.
        seen.judge(sighting, SystemUptime.elapsed())
    }

    /// Counts a request that has ended.
    pub(crate) fn count(&self, route: Arc<str>, caller: Caller, found: Finding, reached: Reached) {
        let counts = Counts::one(found, reached);
        self.slate().count(route, caller, counts, SystemClock.now());
    }

    /// What was counted since somebody took it.
    fn so_far(&self, instance: &str, now: Timestamp) -> Option<Tally> {
        self.slate().so_far(instance, now)
    }

    /// Takes what was counted: it is counted no more.
    fn take(&self, instance: &str, now: Timestamp) -> Option<Tally> {
        let slate = std::mem::take(&mut *self.slate());
        slate.so_far(instance, now)
    }

    fn put_back(&self, tally: Tally) {
        self.slate().put_back(tally);
    }

    /// Nothing in there panics half-way through a change.
    fn slate(&self) -> MutexGuard<'_, Slate> {
        self.slate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn judge(&mut self, sighting: Sighting, now: Duration) -> Finding {
        let id = match sighting.key {
            Presented::Key(id) => Some(id),
            Presented::None | Presented::Invalid => None,
        };
        let used = id.and_then(|id| self.keys.get(&id, now)).map(|(age, used)| (age, *used));
        let content = sighting.fingerprint.and_then(|content| self.contents.get(&content, now));
        let finding = Finding {
            would: Would::of(sighting, used),
            suspicion: Suspicion::of(sighting, content.map(|(age, content)| (age, *content))),
        };
        let fingerprint = sighting.fingerprint;
        // The first use of a key is what later ones are compared with.
        if let (Some(id), None) = (id, used) {
            self.keys.note(id, Used { fingerprint }, now);
        }
        if let Some(fingerprint) = fingerprint {
            self.contents.note(fingerprint, Content { key: id }, now);
        }
        finding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn sighting(key: Presented) -> Sighting {
        let subject = oncekey::core::Subject {
            method: "POST",
            path: b"/pay",
            query: None,
            content_type: None,
            headers: &[],
            body: b"1",
        };
        let rules = oncekey::core::FingerprintRules::default();
        Sighting { key, fingerprint: Some(Fingerprint::v1(&subject, &rules).0) }
    }

    #[test]
    fn a_client_with_a_new_key_per_attempt_is_found() {
        let mut seen = Observer::new().seen.into_inner().unwrap();
        let key = |number| Presented::Key(KeyId::from_bytes([number; 32]));
        let first = seen.judge(sighting(key(1)), at(0));
        assert_eq!(first, Finding { would: Would::Run, suspicion: None });
        let second = seen.judge(sighting(key(2)), at(4));
        assert_eq!(second.would, Would::Run, "its key protects nothing");
        assert_eq!(second.suspicion, Some(Suspicion::Hollow { after: at(4) }));
    }

    #[test]
    fn a_duplicate_is_found_for_as_long_as_its_key_is_remembered() {
        let mut seen = Observer::new().seen.into_inner().unwrap();
        let key = Presented::Key(KeyId::from_bytes([1; 32]));
        assert_eq!(seen.judge(sighting(key), at(0)).would, Would::Run);
        assert_eq!(seen.judge(sighting(key), at(9)).would, Would::Replay { after: at(9) });
        let age = at(3_600);
        assert_eq!(seen.judge(sighting(key), age).would, Would::Replay { after: age });
        assert_eq!(seen.judge(sighting(key), at(3_601)).would, Would::Run);
    }
}
