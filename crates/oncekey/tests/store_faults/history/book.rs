//! Everything that is known of one key, sorted by attempt.

use std::collections::BTreeMap;
use std::time::Duration;

use oncekey::core::{Class, Fence, Grant, Owner, Renewal, Sent, Timestamp, Write};

use super::log::{Act, Claiming, Deed, End, Event, Hold, Seen, Sight};

/// How long things last in a history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    pub(crate) retention: Duration,
    pub(crate) linger: Duration,
}

/// The class of a key; all its claims have the same, so that nobody has to guess whose counted.
pub(crate) const fn class_of(key: u64) -> Class {
    if key.is_multiple_of(2) { Class::Once } else { Class::Keyed }
}

/// When a call began and returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct When {
    pub(crate) call: i64,
    pub(crate) ret: i64,
}

/// All that was told about one key.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) key: u64,
    pub(crate) claims: Vec<Asked>,
    pub(crate) attempts: BTreeMap<Fence, Attempt>,
    /// Reads that found no record.
    pub(crate) absences: Vec<When>,
    pub(crate) erasures: Vec<When>,
}

/// A claim, whatever came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) when: When,
    pub(crate) owner: Owner,
    pub(crate) sent: Sent,
    /// The fence it won, if it may have won at all.
    pub(crate) may_own: Option<Option<Fence>>,
}

/// All that was told about one fence.
#[derive(Debug, Default)]
pub(crate) struct Attempt {
    /// More than one is a violation.
    pub(crate) owners: Vec<Owner>,
    pub(crate) grants: Vec<(When, Granted)>,
    pub(crate) sights: Vec<(When, Seen)>,
    pub(crate) renewals: Vec<(When, End<Renewal>)>,
    pub(crate) writes: Vec<(When, Act, End<Write>)>,
}

/// A claim that was won.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) grant: Grant,
    pub(crate) earlier: Sent,
    pub(crate) until: Timestamp,
}

impl When {
    /// Whether this was over before `other` began.
    pub(crate) const fn before(self, other: Self) -> bool {
        self.ret < other.call
    }

    /// Whether this may have happened before `other` did.
    pub(crate) const fn may_precede(self, other: Self) -> bool {
        self.call <= other.ret
    }
}

impl Book {
    pub(crate) const fn new(key: u64) -> Self {
        Self {
            key,
            claims: Vec::new(),
            attempts: BTreeMap::new(),
            absences: Vec::new(),
            erasures: Vec::new(),
        }
    }

    pub(crate) fn enter(&mut self, event: &Event) {
        let when = When { call: event.call, ret: event.ret };
        match &event.deed {
            Deed::Claim { owner, sent, end } => {
                let may_own = match end {
                    End::Said(Claiming::Won { lease, grant, earlier }) => {
                        let (grant, earlier, until) = (*grant, *earlier, lease.until);
                        let granted = Granted { grant, earlier, until };
                        self.attempt(lease.into()).grants.push((when, granted));
                        Some(Some(lease.fence))
                    }
                    End::Said(Claiming::Lost(sight)) => {
                        self.see(when, sight);
                        None
                    }
                    End::Nothing => None,
                    End::Open => Some(None),
                };
                self.claims.push(Asked { when, owner: *owner, sent: *sent, may_own });
            }
            Deed::Renew { hold, end } => {
                self.attempt(*hold).renewals.push((when, end.clone()));
            }
            Deed::Write { hold, act, end } => {
                self.attempt(*hold).writes.push((when, *act, end.clone()));
            }
            Deed::Get { end: End::Said(Some(sight)) } => self.see(when, sight),
            Deed::Get { end: End::Said(None) } => self.absences.push(when),
            Deed::Get { end: End::Nothing | End::Open } => {}
            Deed::Erase => self.erasures.push(when),
        }
    }

    fn see(&mut self, when: When, sight: &Sight) {
        self.attempt(sight.hold).sights.push((when, sight.state));
    }

    fn attempt(&mut self, hold: Hold) -> &mut Attempt {
        let attempt = self.attempts.entry(hold.fence).or_default();
        if !attempt.owners.contains(&hold.owner) {
            attempt.owners.push(hold.owner);
        }
        attempt
    }
}

impl Attempt {
    /// Every moment at which the store itself told of this attempt.
    pub(crate) fn shown(&self) -> impl Iterator<Item = When> {
        let granted = self.grants.iter().map(|(when, _)| *when);
        granted.chain(self.sights.iter().map(|(when, _)| *when))
    }

    /// Whether a write of this sort was acknowledged before `other` began.
    pub(crate) fn acknowledged(&self, other: When, is_it: impl Fn(Act) -> bool) -> bool {
        self.writes.iter().any(|(when, act, end)| {
            is_it(*act) && matches!(end, End::Said(Write::Applied)) && when.before(other)
        })
    }

    /// Whether a write of this sort may have taken effect before `other` did.
    pub(crate) fn may_have(&self, other: When, is_it: impl Fn(Act) -> bool) -> bool {
        self.writes
            .iter()
            .any(|(when, act, end)| is_it(*act) && end.may_stand() && when.may_precede(other))
    }

    /// Until when the lease lasted at least, by what was told before `other` began.
    pub(crate) fn until(&self, other: When) -> Option<Timestamp> {
        let granted = self.grants.iter().map(|(when, granted)| (*when, Some(granted.until)));
        let renewed = self.renewals.iter().map(|(when, end)| match end {
            End::Said(Renewal::Until(until)) => (*when, Some(*until)),
            End::Said(Renewal::Lost | Renewal::Failed) | End::Nothing | End::Open => (*when, None),
        });
        let seen = self.sights.iter().map(|(when, seen)| match seen {
            Seen::Running { until, .. } => (*when, Some(*until)),
            Seen::Done { .. } | Seen::Unknown | Seen::Parked => (*when, None),
        });
        let told = granted.chain(renewed).chain(seen);
        told.filter(|(when, _)| when.before(other)).filter_map(|(_, until)| until).max()
    }
}

pub(crate) fn is_complete(act: Act) -> bool {
    matches!(act, Act::Complete(_))
}

pub(crate) fn is_release(act: Act) -> bool {
    act == Act::Release
}

pub(crate) fn is_unknown(act: Act) -> bool {
    act == Act::Unknown
}

pub(crate) fn is_send(act: Act) -> bool {
    act == Act::Send
}
