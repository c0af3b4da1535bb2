//! What was observed, counted by route and caller, in bounded memory.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;

use bytes::Bytes;
use oncekey::core::{Headers, KeyId, Saved, Timestamp};
use serde::{Deserialize, Serialize};

use super::verdict::{Suspicion, Would};
use super::{Finding, Reached};

/// Numbers of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Counts {
    /// All of them.
    pub(crate) requests: u64,
    /// Those with a key.
    pub(crate) keyed: u64,
    /// Those with something that is no key.
    pub(crate) invalid_keys: u64,
    /// Those that ran again although they had the key and the content of an earlier one.
    pub(crate) duplicates: u64,
    /// Those whose key was used for something else before.
    pub(crate) mismatches: u64,
    /// Those that had the content of an earlier one and another key.
    pub(crate) hollow_keys: u64,
    /// Those that had the content of an earlier one, both without a key.
    pub(crate) keyless_repeats: u64,
    /// Those whose client was gone before it had the answer.
    pub(crate) client_aborts: u64,
}

/// Who sent a request, as far as may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum Caller {
    /// Some digits of a digest of its scope: enough to tell callers apart, too few to find them.
    Known(u64),
    /// It has no scope.
    Nobody,
    /// One of those for whom there was no room.
    Others,
}

/// What was counted on one node between two moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// How it is written down. A later version that writes another format leaves this one alone.
    format: u32,
    /// The node.
    pub(crate) instance: String,
    /// Both in microseconds since 1970, by the clock of the node.
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) rows: Vec<Row>,
}

/// A line of a tally.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) route: String,
    pub(crate) caller: Caller,
    #[serde(flatten)]
    pub(crate) counts: Counts,
}

/// A tally that is being counted.
#[derive(Debug, Default)]
pub(super) struct Slate {
    since: Option<Timestamp>,
    rows: BTreeMap<(Arc<str>, Caller), Counts>,
}

/// So many pairs of route and caller have a row of their own, between two writes. As JSON they are
/// 50 kilobytes, which every store keeps in one piece. Whoever comes later is counted with the others
/// of the route, and there are no more routes than the configuration has.
const ROWS: usize = 300;
const FORMAT: u32 = 1;
/// What a record needs where an answer has its status.
const STATUS: u16 = 200;

impl Counts {
    /// One request.
    pub(super) fn one(finding: Finding, reached: Reached) -> Self {
        let number = u64::from;
        let Finding { would, suspicion } = finding;
        Self {
            requests: 1,
            keyed: number(!matches!(would, Would::MissingKey | Would::InvalidKey)),
            invalid_keys: number(would == Would::InvalidKey),
            duplicates: number(matches!(would, Would::Replay { .. })),
            mismatches: number(matches!(would, Would::Mismatch { .. })),
            hollow_keys: number(matches!(suspicion, Some(Suspicion::Hollow { .. }))),
            keyless_repeats: number(matches!(suspicion, Some(Suspicion::Keyless { .. }))),
            client_aborts: number(reached == Reached::Nobody),
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        let Self {
            requests,
            keyed,
            invalid_keys,
            duplicates,
            mismatches,
            hollow_keys,
            keyless_repeats,
            client_aborts,
        } = self;
        for (sum, more) in [
            (requests, more.requests),
            (keyed, more.keyed),
            (invalid_keys, more.invalid_keys),
            (duplicates, more.duplicates),
            (mismatches, more.mismatches),
            (hollow_keys, more.hollow_keys),
            (keyless_repeats, more.keyless_repeats),
            (client_aborts, more.client_aborts),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

impl Caller {
    /// Whoever has this digest.
    pub(crate) fn of(digest: &KeyId) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
        Self::Known(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(digits) => write!(out, "{digits:016x}"),
            Self::Nobody => out.write_str("-"),
            Self::Others => out.write_str("others"),
        }
    }
}

impl From<Caller> for String {
    fn from(caller: Caller) -> Self {
        caller.to_string()
    }
}

impl TryFrom<String> for Caller {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match &*text {
            "-" => Ok(Self::Nobody),
            "others" => Ok(Self::Others),
            digits => u64::from_str_radix(digits, 16).map(Self::Known).map_err(|_| "no caller"),
        }
    }
}

impl Slate {
    pub(super) fn count(
        &mut self,
        route: Arc<str>,
        caller: Caller,
        counts: Counts,
        now: Timestamp,
    ) {
        self.since.get_or_insert(now);
        self.add(route, caller, counts);
    }

    /// What was counted so far; `None` if nothing was.
    pub(super) fn so_far(&self, instance: &str, now: Timestamp) -> Option<Tally> {
        let since = self.since?;
        let row = |((route, caller), counts): (&(Arc<str>, Caller), &Counts)| Row {
            route: route.as_ref().to_owned(),
            caller: *caller,
            counts: *counts,
        };
        Some(Tally {
            format: FORMAT,
            instance: instance.to_owned(),
            from: since.micros(),
            to: now.micros(),
            rows: self.rows.iter().map(row).collect(),
        })
    }

    /// Counts a tally once more that could not be written.
    pub(super) fn put_back(&mut self, tally: Tally) {
        let from = Timestamp::from_micros(tally.from);
        self.since = Some(self.since.map_or(from, |since| since.min(from)));
        for Row { route, caller, counts } in tally.rows {
            self.add(route.into(), caller, counts);
        }
    }

    fn add(&mut self, route: Arc<str>, caller: Caller, counts: Counts) {
        let mut place = (route, caller);
        if self.rows.len() >= ROWS && !self.rows.contains_key(&place) {
            place.1 = Caller::Others;
        }
        *self.rows.entry(place).or_default() += counts;
    }
}

impl Tally {
    /// In the form of an answer, which every store can keep and encrypt.
    pub(super) fn to_saved(&self) -> Saved {
        let body = serde_json::to_vec(self).expect("numbers and texts are JSON");
        Saved { status: STATUS, headers: Headers::new(), body: Bytes::from(body) }
    }

    /// Reads it back; `None` if it is not what this version writes.
    pub(super) fn from_saved(saved: &Saved) -> Option<Self> {
        let read: Option<Self> = serde_json::from_slice(&saved.body).ok();
        read.filter(|tally| tally.format == FORMAT)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(1);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    fn one() -> Counts {
        Counts::one(Finding { would: Would::Run, suspicion: None }, Reached::Client)
    }

    #[test]
    fn every_finding_is_counted_as_what_it_is() {
        let counts = |would, suspicion, reached| Counts::one(Finding { would, suspicion }, reached);
        let keyed = Counts { requests: 1, keyed: 1, ..Counts::default() };
        let keyless = Counts { requests: 1, ..Counts::default() };
        let hollow = Some(Suspicion::Hollow { after: SOON });
        let repeat = Some(Suspicion::Keyless { after: SOON });
        for (would, suspicion, reached, expected) in [
            (Would::Run, None, Reached::Client, keyed),
            (Would::Unprotected, None, Reached::Client, keyed),
            (Would::Run, hollow, Reached::Client, Counts { hollow_keys: 1, ..keyed }),
            (Would::Run, None, Reached::Nobody, Counts { client_aborts: 1, ..keyed }),
            (
                Would::Replay { after: SOON },
                None,
                Reached::Client,
                Counts { duplicates: 1, ..keyed },
            ),
            (
                Would::Mismatch { after: SOON },
                None,
                Reached::Client,
                Counts { mismatches: 1, ..keyed },
            ),
            (Would::MissingKey, None, Reached::Client, keyless),
            (Would::MissingKey, repeat, Reached::Client, Counts { keyless_repeats: 1, ..keyless }),
            (Would::InvalidKey, None, Reached::Client, Counts { invalid_keys: 1, ..keyless }),
        ] {
            assert_eq!(counts(would, suspicion, reached), expected, "{would:?} {suspicion:?}");
        }
    }

    /// I43: however many callers there are, memory and records stay bounded, and nobody is lost.
    #[test]
    fn there_is_room_for_so_many_callers_and_the_others_are_counted_together() {
        let mut slate = Slate::default();
        for route in ["a", "b"] {
            for caller in 0..10_000 {
                slate.count(route.into(), Caller::Known(caller), one(), at(1));
            }
        }
        let tally = slate.so_far("n", at(2)).unwrap();
        assert!(tally.rows.len() <= ROWS + 2, "{}", tally.rows.len());
        let requests: u64 = tally.rows.iter().map(|row| row.counts.requests).sum();
        assert_eq!(requests, 20_000);
        assert!(tally.to_saved().body.len() < 64 * 1024, "{}", tally.to_saved().body.len());
    }

    #[test]
    fn what_is_written_comes_back_and_what_is_put_back_is_not_lost() {
        let mut slate = Slate::default();
        assert_eq!(slate.so_far("n", at(1)), None);
        for caller in [Caller::Known(7), Caller::Nobody, Caller::Others, Caller::Known(7)] {
            slate.count("a".into(), caller, one(), at(1));
        }
        let tally = slate.so_far("n", at(2)).unwrap();
        assert_eq!(Tally::from_saved(&tally.to_saved()), Some(tally.clone()));
        let later = Tally { format: FORMAT + 1, ..tally.clone() };
        assert_eq!(Tally::from_saved(&later.to_saved()), None);
        let mut next = Slate::default();
        next.count("a".into(), Caller::Known(7), one(), at(3));
        next.put_back(tally);
        let both = next.so_far("n", at(4)).unwrap();
        assert_eq!((both.from, both.to), (at(1).micros(), at(4).micros()));
        let seven = both.rows.iter().find(|row| row.caller == Caller::Known(7)).unwrap();
        assert_eq!((seven.counts.requests, both.rows.len()), (3, 3));
    }
}
