//! Judges a history by its log alone.
//!
//! One pass in commit order, with a book for each key: what stands in the store, who was granted
//! what, what arrived upstream and what was said to clients. The rules are written down here a
//! second time, without the decision tables that the stores use: those cannot vouch for themselves.

mod books;
mod calm;
mod claims;
mod replies;
mod sends;
mod snapshots;
#[cfg(test)]
mod tests;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{ErrorKind, KeyId, Owner, Timestamp};
use oncekey::engine::Happened;

use self::books::{Book, Visited};
use crate::log::{Ask, Change, Job, Life, Told, What, Who};
use crate::run::History;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The invariant, such as `I8`.
    pub(crate) rule: &'static str,
    /// The number of the event at which it showed.
    pub(crate) event: usize,
    pub(crate) text: String,
}

/// A history under judgement.
pub(super) struct Judge<'h> {
    history: &'h History,
    /// The event that is being looked at.
    event: usize,
    at: Duration,
    asked: BTreeMap<u32, Asked>,
    committed: BTreeMap<u32, Arc<Told>>,
    jobs: BTreeMap<u32, (Job, Life)>,
    /// When each request was made.
    called: BTreeMap<u32, Duration>,
    books: BTreeMap<KeyId, Book>,
    visits: BTreeMap<u32, Visited>,
    works: BTreeMap<u32, books::Work>,
    /// For which request each owner was drawn.
    owners: BTreeMap<Owner, (KeyId, Vec<u8>)>,
    /// The owner of each request.
    claims: BTreeMap<(Who, Vec<u8>), Owner>,
    dead: BTreeSet<Life>,
    draining: BTreeSet<Life>,
    /// What the store's clock is ahead of simulated time, in microseconds.
    stepped: i64,
    violations: Vec<Violation>,
}

/// A question that was asked.
#[derive(Clone, Debug)]
struct Asked {
    at: Duration,
    /// The number of the event.
    event: usize,
    by: Who,
    ask: Arc<Ask>,
}

/// Everything that is wrong with a history, in order.
pub(crate) fn check(history: &History) -> Vec<Violation> {
    let mut judge = Judge {
        history,
        event: 0,
        at: Duration::ZERO,
        asked: BTreeMap::new(),
        committed: BTreeMap::new(),
        jobs: BTreeMap::new(),
        called: BTreeMap::new(),
        books: BTreeMap::new(),
        visits: BTreeMap::new(),
        works: BTreeMap::new(),
        owners: BTreeMap::new(),
        claims: BTreeMap::new(),
        dead: BTreeSet::new(),
        draining: BTreeSet::new(),
        stepped: 0,
        violations: Vec::new(),
    };
    for (number, event) in history.events.iter().enumerate() {
        (judge.event, judge.at) = (number, event.at);
        judge.look(&event.what);
    }
    judge.look_back();
    judge.violations
}

impl Judge<'_> {
    fn look(&mut self, what: &What) {
        if self.history.options.is_calm() {
            self.look_calmly(what);
        }
        match what {
            What::Asked { call, by, ask } => {
                let ask = Arc::clone(ask);
                self.asked.insert(*call, Asked { at: self.at, event: self.event, by: *by, ask });
            }
            What::Committed { call, told, now, after } => {
                self.committed.insert(*call, Arc::clone(told));
                self.commit(*call, told, *now);
                for (id, record) in after {
                    self.compare(*id, record.as_ref(), *now);
                }
            }
            What::Heard { call, told } => self.heard(*call, told),
            What::Called { job, by } => {
                self.jobs.insert(job.request, (job.clone(), *by));
                self.called.insert(job.request, self.at);
            }
            What::Replied { request, note } => self.replied(*request, note),
            What::Began { request, by, fence, .. } => self.began(*request, *by, *fence),
            What::Denied { .. } | What::WentAway { .. } | What::Outage(_) | What::Healed => {}
            What::Arrived { visit, request, by, fence, .. } => {
                self.arrived(*visit, *request, *by, *fence);
            }
            What::Acted { visit } => self.acted(*visit),
            What::Settled { visit } => self.settled(*visit),
            What::Answered { visit, answer } => self.answered(*visit, answer),
            What::Ended { request, end, .. } => self.ended(*request, end),
            What::Node(life, Change::Crashed) => {
                self.dead.insert(*life);
            }
            What::Node(life, Change::Draining) => {
                self.draining.insert(*life);
            }
            What::Node(_, Change::Started | Change::Paused | Change::Resumed) => {}
            What::Probed { id, fence, happened: Happened::Yes(answer) } => {
                if let Some(attempt) = self.book(*id).attempts.get_mut(fence) {
                    attempt.found_out = Some(answer.clone());
                }
            }
            What::Probed { happened: Happened::No | Happened::CannotTell, .. } => {}
            What::Stepped(micros) => self.stepped += micros,
            What::Escaped(life) => {
                self.wrong("I41", format!("a panic left a task of {life:?}"));
            }
            What::Stuck(text) => self.wrong("L4", text.clone()),
        }
    }

    fn commit(&mut self, call: u32, told: &Told, now: Timestamp) {
        let Some(asked) = self.asked.get(&call).cloned() else { return };
        match (&*asked.ask, told) {
            (Ask::Claim(claim), Told::Claimed(claimed)) => {
                self.claimed(asked.by, claim, claimed, now)
            }
            (Ask::Renew(leases, span), Told::Renewed(renewals)) => {
                for (lease, renewal) in leases.iter().zip(renewals) {
                    self.renewed(lease, *renewal, now.after(*span));
                }
            }
            (Ask::Purge(_), Told::Purged(_)) => self.purged(now),
            (_, Told::Wrote(write)) => self.wrote(&asked, *write, now),
            (Ask::Get(_), _) | (_, Told::Failed(_)) => {}
            (ask, told) => self.wrong("I3", format!("{told:?} is no answer to {ask:?}")),
        }
    }

    /// What somebody hears must be what happened.
    fn heard(&mut self, call: u32, told: &Result<Arc<Told>, ErrorKind>) {
        let Some(asked) = self.asked.get(&call).cloned() else { return };
        match (told, self.committed.get(&call)) {
            (Ok(told), Some(happened)) if told == happened => {}
            (Ok(told), Some(happened)) => {
                let text = format!("call {call} was told {told:?} where {happened:?} happened");
                self.wrong("I3", text);
            }
            (Ok(told), None) => {
                self.wrong("I3", format!("call {call} was told {told:?} and nothing happened"));
            }
            (Err(ErrorKind::Unavailable), Some(happened)) => {
                let text = format!("call {call} was told that nothing changed: {happened:?}");
                self.wrong("I3", text);
            }
            (Err(_), _) => {}
        }
        if let (Who::Node(life), Ok(told)) = (asked.by, told) {
            self.learned(life, &asked, told);
        }
    }

    /// What can only be said at the end.
    fn look_back(&mut self) {
        let unfinished: Vec<_> = self
            .works
            .iter()
            .filter(|(_, work)| work.end.is_none() && !self.dead.contains(&work.by))
            .map(|(request, work)| format!("the work of request {request} on {:?}", work.by))
            .collect();
        for text in unfinished {
            self.wrong("I41", format!("{text} began and never ended"));
        }
        let unwritten: Vec<_> = self
            .works
            .values()
            .filter(|work| work.end.is_some() && !self.dead.contains(&work.by))
            .filter_map(|work| Some((work, self.books.get(&work.id)?.attempts.get(&work.fence?)?)))
            .filter(|(work, attempt)| !attempt.is_settled(work.by))
            .map(|(work, _)| format!("the end of fence {:?} on {:?}", work.fence, work.by))
            .collect();
        for text in unwritten {
            self.wrong("L4", format!("{text} never reached the store"));
        }
    }

    fn book(&mut self, id: KeyId) -> &mut Book {
        self.books.entry(id).or_default()
    }

    fn wrong(&mut self, rule: &'static str, text: String) {
        self.violations.push(Violation { rule, event: self.event, text });
    }
}
