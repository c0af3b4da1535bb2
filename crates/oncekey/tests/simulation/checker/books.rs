//! What the checker knows about a key, an attempt and a visit.

use std::collections::BTreeMap;
use std::time::Duration;

use oncekey::core::{
    Answer, Claim, Class, Fence, Fingerprint, KeyId, Outcome, Owner, Saved, Sent, Timestamp,
};

use crate::log::{End, Got, Life, Who};

/// A key.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) highest: Option<Fence>,
    pub(super) standing: Option<Standing>,
    pub(super) attempts: BTreeMap<Fence, Attempt>,
    pub(super) generations: Vec<Generation>,
}

/// What stands in the store for a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Standing {
    pub(super) fence: Fence,
    pub(super) owner: Owner,
    pub(super) fingerprint: Fingerprint,
    pub(super) class: Class,
    pub(super) generation: usize,
    pub(super) phase: Phase,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    Running { until: Timestamp, sent: Sent },
    Done(Finished),
    Unknown,
}

/// A recorded answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finished {
    pub(super) expires: Timestamp,
    pub(super) forget: Timestamp,
    pub(super) outcome: Outcome,
    pub(super) answer: Answer,
    /// By simulated time.
    pub(super) at: Duration,
}

/// One grant of a key.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) claim: Claim,
    pub(super) by: Who,
    pub(super) generation: usize,
    /// Whether its owner was told that somebody before it may have acted.
    pub(super) earlier: Sent,
    /// Whether the store has its send mark.
    pub(super) marked: Sent,
    /// By whom it is known, since when it is held for sure, and whether it is known to be lost.
    pub(super) known: BTreeMap<Life, Known>,
    /// The request that it was the attempt of, if its work began.
    pub(super) request: Option<u32>,
    pub(super) visits: Vec<u32>,
    /// What a probe found out about it.
    pub(super) found_out: Option<Saved>,
    /// What was recorded under it.
    pub(super) completed: Option<Finished>,
    pub(super) released: bool,
    pub(super) unknown: bool,
}

/// What a node knows about a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Until when it may send, by simulated time.
    pub(super) deadline: Duration,
    /// Whether it was told that the send mark is durable.
    pub(super) marked: Sent,
    pub(super) lost: bool,
    /// Whether it was told that a write came too late.
    pub(super) fenced: bool,
}

/// One life of a record, from its creation to its release or expiry.
#[derive(Debug, Default)]
pub(super) struct Generation {
    pub(super) visits: Vec<u32>,
    pub(super) completions: u32,
}

/// A request that arrived upstream.
#[derive(Debug)]
pub(super) struct Visited {
    pub(super) id: KeyId,
    pub(super) request: u32,
    pub(super) generation: Option<usize>,
    /// The class that the key really has.
    pub(super) class: Class,
    pub(super) acted: bool,
    pub(super) settled: bool,
}

/// The work of a request.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) by: Life,
    /// What the upstream answered last.
    pub(super) answer: Option<Got>,
    pub(super) end: Option<End>,
    /// When it ended, and the number of that event.
    pub(super) ended: Duration,
    pub(super) ended_event: usize,
    pub(super) fence: Option<Fence>,
    pub(super) id: KeyId,
}

impl Standing {
    /// Returns true if and only if it is as good as gone at this time.
    pub(super) fn is_forgotten(&self, now: Timestamp) -> bool {
        matches!(&self.phase, Phase::Done(done) if done.forget <= now)
    }
}

impl Attempt {
    /// Returns true if and only if its end is in the store, or its owner knows that it is too late.
    pub(super) fn is_settled(&self, owner: Life) -> bool {
        let fenced = self.known.get(&owner).is_some_and(|known| known.fenced);
        self.completed.is_some() || self.released || self.unknown || fenced
    }
}

impl Book {
    /// What a reader sees at this time.
    pub(super) fn visible(&self, now: Timestamp) -> Option<&Standing> {
        self.standing.as_ref().filter(|standing| !standing.is_forgotten(now))
    }
}
