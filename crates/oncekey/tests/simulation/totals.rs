//! What all histories together went through: a simulation that exercises nothing proves nothing.

use std::collections::{BTreeMap, BTreeSet};

use oncekey::core::decide::{Grant, Refusal};
use oncekey::core::{Claimed, ErrorKind, Owner, Renewal, Write};
use oncekey::engine::{Happened, NoSend, Recorded, Refused, Source};

use crate::log::{Ask, Away, Change, End, Event, Got, Note, Told, What, Who};
use crate::run::History;

/// How often each thing happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals(BTreeMap<&'static str, u64>);

/// What must have happened at least once in any run of some length.
const MUST_HAPPEN: &[&str] = &[
    "claims fresh",
    "claims recognised",
    "claims of expired keys",
    "takeovers",
    "takeovers of what may have acted",
    "refused: replay",
    "refused: in progress",
    "refused: mismatch",
    "refused: unknown",
    "refused: not retained",
    "refused: expired",
    "renewals",
    "renewals lost",
    "writes fenced",
    "completions fenced",
    "forgeries fenced",
    "claims ambiguous",
    "writes ambiguous",
    "writes that arrived late",
    "calls to an unavailable store",
    "purges",
    "operator verdicts",
    "probes: yes",
    "probes: no",
    "probes: cannot tell",
    "sends",
    "sends that acted",
    "sends denied: lost",
    "sends denied: too late",
    "sends denied: store",
    "connections refused",
    "no answers",
    "panics",
    "work stopped by a shutdown",
    "replies: kept",
    "replies: tombstone",
    "replies: released",
    "replies: unknown",
    "replies: fenced",
    "replies: unrecorded",
    "replies: unprotected",
    "replies: replayed",
    "replies: coalesced",
    "replies: mismatch",
    "replies: in progress",
    "replies: accepted",
    "replies: unknown outcome",
    "replies: not retained",
    "replies: unavailable",
    "clients that hung up",
    "clients whose node died",
    "pauses",
    "crashes",
    "drains",
    "clock steps forward",
    "clock steps back",
    "outages",
    "zombies",
];

impl Totals {
    /// Adds what happened in a history.
    pub(crate) fn count(&mut self, history: &History) {
        let mut ledger = Ledger::default();
        for event in &history.events {
            for name in ledger.names(event) {
                *self.0.entry(name).or_default() += 1;
            }
        }
        *self.0.entry("events").or_default() += u64::try_from(history.events.len()).expect("fits");
        *self.0.entry("histories").or_default() += 1;
        *self.0.entry("simulated seconds").or_default() += history.length.as_secs();
    }

    /// Adds other totals.
    pub(crate) fn add(&mut self, other: &Self) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// What should have happened and did not.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        MUST_HAPPEN.iter().filter(|name| !self.0.contains_key(*name)).copied().collect()
    }

    /// Returns true if and only if this happened.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// One line for each, in the order of their names.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(name, count)| format!("{count:>12}  {name}"))
    }
}

/// What has to be remembered to tell what an event means.
#[derive(Default)]
struct Ledger {
    /// By whom each owner was drawn.
    claimants: BTreeMap<Owner, Who>,
    asked: BTreeMap<u32, (Who, std::sync::Arc<Ask>)>,
    /// Calls whose askers were told that nobody knows.
    ambiguous: BTreeSet<u32>,
}

impl Ledger {
    fn names(&mut self, event: &Event) -> Vec<&'static str> {
        match &event.what {
            What::Asked { call, by, ask } => {
                self.asked.insert(*call, (*by, std::sync::Arc::clone(ask)));
                if let Ask::Claim(claim) = &**ask {
                    self.claimants.insert(claim.owner, *by);
                }
                Vec::new()
            }
            What::Committed { call, told, .. } => self.committed(*call, told),
            What::Heard { call, told: Err(kind) } => self.failed(*call, *kind),
            What::Replied { note, .. } => vec![reply(note)],
            What::WentAway { why: Away::HungUp, .. } => vec!["clients that hung up"],
            What::WentAway { why: Away::NodeDied, .. } => vec!["clients whose node died"],
            What::Denied { why, .. } => vec![match why {
                NoSend::Lost => "sends denied: lost",
                NoSend::TooLate => "sends denied: too late",
                NoSend::Store => "sends denied: store",
            }],
            What::Arrived { .. } => vec!["sends"],
            What::Acted { .. } => vec!["sends that acted"],
            What::Ended { end, .. } => match end {
                End::Panicked => vec!["panics"],
                End::Stopped => vec!["work stopped by a shutdown"],
                End::Finished(Got::Nothing) => vec!["no answers"],
                End::Finished(Got::Refused) => vec!["connections refused"],
                End::Finished(Got::Answer(_) | Got::TooLarge(_) | Got::Denied(_)) => Vec::new(),
            },
            What::Node(_, change) => match change {
                Change::Paused => vec!["pauses"],
                Change::Crashed => vec!["crashes"],
                Change::Draining => vec!["drains"],
                Change::Started | Change::Resumed => Vec::new(),
            },
            What::Stepped(micros) if *micros > 0 => vec!["clock steps forward"],
            What::Stepped(_) => vec!["clock steps back"],
            What::Outage(_) => vec!["outages"],
            What::Called { .. } => vec!["calls of clients"],
            What::Probed { happened, .. } => vec![match happened {
                Happened::Yes(_) => "probes: yes",
                Happened::No => "probes: no",
                Happened::CannotTell => "probes: cannot tell",
            }],
            What::Heard { .. }
            | What::Began { .. }
            | What::Settled { .. }
            | What::Answered { .. }
            | What::Healed
            | What::Escaped(_)
            | What::Stuck(_) => Vec::new(),
        }
    }

    fn failed(&mut self, call: u32, kind: ErrorKind) -> Vec<&'static str> {
        let Some((_, ask)) = self.asked.get(&call) else { return Vec::new() };
        if kind != ErrorKind::Ambiguous {
            return vec!["calls to an unavailable store"];
        }
        self.ambiguous.insert(call);
        match &**ask {
            Ask::Claim(_) => vec!["claims ambiguous"],
            Ask::Send(_) | Ask::Complete(..) | Ask::Release(_) | Ask::Unknown(_) => {
                vec!["writes ambiguous"]
            }
            Ask::Renew(..) | Ask::Get(_) | Ask::Purge(_) => Vec::new(),
        }
    }

    fn committed(&self, call: u32, told: &Told) -> Vec<&'static str> {
        let Some((by, ask)) = self.asked.get(&call) else { return Vec::new() };
        let mut names = Vec::new();
        if self.ambiguous.contains(&call) {
            names.push("writes that arrived late");
        }
        match told {
            Told::Claimed(Claimed::Won { grant, earlier, .. }) => names.push(match grant {
                Grant::Fresh => "claims fresh",
                Grant::Again => "claims recognised",
                Grant::Reused => "claims of expired keys",
                Grant::TakenOver if *earlier == oncekey::core::Sent::Yes => {
                    "takeovers of what may have acted"
                }
                Grant::TakenOver => "takeovers",
            }),
            Told::Claimed(Claimed::Lost { refusal, .. }) => names.push(match refusal {
                Refusal::Mismatch => "refused: mismatch",
                Refusal::Replay => "refused: replay",
                Refusal::NotRetained => "refused: not retained",
                Refusal::Expired => "refused: expired",
                Refusal::InProgress(_) => "refused: in progress",
                Refusal::Unknown => "refused: unknown",
                Refusal::Parked => "refused: parked",
            }),
            Told::Renewed(renewals) => {
                names.push("renewals");
                names.extend(
                    renewals.iter().filter(|it| **it == Renewal::Lost).map(|_| "renewals lost"),
                );
            }
            Told::Wrote(write) => {
                names.extend(wrote(*by, ask, *write));
                let claimant = ask.lease().and_then(|lease| self.claimants.get(&lease.owner));
                if let (Who::Node(_), Some(claimant)) = (by, claimant)
                    && claimant != by
                {
                    names.push("ends from a journal");
                }
            }
            Told::Purged(_) => names.push("purges"),
            Told::Found(_) | Told::Failed(_) => {}
        }
        names
    }
}

fn wrote(by: Who, ask: &Ask, write: Write) -> Vec<&'static str> {
    match (by, ask, write) {
        (Who::Operator, _, Write::Applied) => vec!["operator verdicts"],
        (Who::Forger, _, Write::Fenced) => vec!["forgeries fenced"],
        // An attempt that was replaced comes back with an answer: that is what fences are for.
        (_, Ask::Complete(..), Write::Fenced) => {
            vec!["writes fenced", "completions fenced", "zombies"]
        }
        (_, _, Write::Fenced) => vec!["writes fenced"],
        (_, _, Write::Applied) => Vec::new(),
    }
}

fn reply(note: &Note) -> &'static str {
    match note {
        Note::Ran { recorded, .. } => match recorded {
            Recorded::Kept => "replies: kept",
            Recorded::Tombstone(_) => "replies: tombstone",
            Recorded::Released => "replies: released",
            Recorded::Unknown => "replies: unknown",
            Recorded::Journalled => "replies: journalled",
            Recorded::Fenced => "replies: fenced",
            Recorded::Unrecorded => "replies: unrecorded",
            Recorded::Unprotected => "replies: unprotected",
        },
        Note::Replayed { source: Source::Record, .. } => "replies: replayed",
        Note::Replayed { source: Source::Coalesced, .. } => "replies: coalesced",
        Note::Refused(refused) => match refused {
            Refused::Mismatch { .. } => "replies: mismatch",
            Refused::InProgress { .. } => "replies: in progress",
            Refused::Accepted { .. } => "replies: accepted",
            Refused::Unknown { .. } => "replies: unknown outcome",
            Refused::NotRetained { .. } => "replies: not retained",
            Refused::Expired { .. } => "replies: expired",
            Refused::Parked { .. } => "replies: parked",
            Refused::Unavailable { .. } => "replies: unavailable",
            Refused::Damaged => "replies: damaged",
        },
    }
}
