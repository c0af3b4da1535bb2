//! Which life of which server a connection leads to.
//!
//! A connection leads to one process for as long as it stands. So who answers is asked once per
//! connection, before it is used: a server that was promoted since, and may lack what its primary
//! acknowledged last, is met here and nowhere else. What a server lost without being replaced, the
//! marks of the shards tell: see `prelude.lua`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{Failure, Loss};
use super::info::Info;

/// What a server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Life {
    run: String,
    replication: String,
    before: String,
}

/// Who carried something out, and how many alarms there had been before it was asked to.
#[derive(Clone, Debug)]
pub(super) struct Witness {
    life: Arc<Life>,
    alarms: u64,
}

/// Knows the servers that may be trusted, and whether grants are stopped.
#[derive(Debug, Default)]
pub(super) struct Guard(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    lives: HashSet<String>,
    met: Vec<Life>,
    settled: bool,
    loss: Option<Loss>,
    /// How often something was lost, adopted or not: what was written before an alarm may be gone,
    /// even if grants have gone on since.
    alarms: u64,
}

/// A primary that was never promoted has no replication id before its present one.
const NONE: &str = "0000000000000000000000000000000000000000";

impl Life {
    /// The life that answers, unless it is a replica's.
    pub(super) fn of(info: &Info) -> Result<Self, Failure> {
        if info.get("role") != Some("master") {
            return Err(Failure::Replica);
        }
        let text = |name| info.get(name).map(str::to_owned).ok_or(Failure::Odd("INFO"));
        Ok(Self {
            run: text("run_id")?,
            replication: text("master_replid")?,
            before: text("master_replid2")?,
        })
    }
}

impl Witness {
    /// Whether a write of this witness is in the stream of `now`: the same process has it, and it was
    /// nobody's replica in between. A replica throws away what its primary does not have.
    pub(super) fn is_one_with(&self, now: &Self) -> bool {
        self.life.run == now.life.run && self.alarms == now.alarms
    }
}

impl Guard {
    /// A connection leads to `life`. Stops grants if it is a replica that was promoted.
    pub(super) fn meet(&self, life: Life) -> Arc<Life> {
        let mut known = self.lock();
        if known.settled {
            known.judge(&life);
        }
        known.met.retain(|met| met.run != life.run);
        known.met.push(life.clone());
        Arc::new(life)
    }

    /// Whoever is asked over a connection to `life` from now on.
    pub(super) fn witness(&self, life: Arc<Life>) -> Witness {
        Witness { life, alarms: self.lock().alarms }
    }

    /// Judges everybody who was met while the store was opened, by the lives that the store itself
    /// knows; a store that knows none is new. Returns the lives that it should know from now on.
    pub(super) fn settle(&self, lives: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut known = self.lock();
        let lives: HashSet<String> = lives.into_iter().collect();
        let is_new = lives.is_empty();
        known.lives.extend(lives);
        known.settled = true;
        let met = known.met.clone();
        for life in &met {
            if is_new {
                known.trust(life);
            } else {
                known.judge(life);
            }
        }
        known.trusted()
    }

    /// Trusts everybody who was met, from now on. Returns the lives that the store should know.
    pub(super) fn trust(&self) -> Vec<String> {
        let mut known = self.lock();
        for life in known.met.clone() {
            known.trust(&life);
        }
        known.loss = None;
        known.trusted()
    }

    /// Something was lost: no key is granted until the store is adopted. What stopped it first is
    /// what people should hear.
    pub(super) fn stop(&self, loss: Loss) {
        let mut known = self.lock();
        if known.loss.is_none() {
            known.alarms += 1;
            tracing::error!("the store lost its data or failed over: {loss}");
            known.loss = Some(loss);
        }
    }

    /// Why no key may be granted, if so.
    pub(super) fn loss(&self) -> Option<Loss> {
        self.lock().loss
    }

    /// The replication ids that are not trusted, in order: part of the lineage.
    pub(super) fn strangers(&self) -> Vec<String> {
        let known = self.lock();
        let is_strange = |life: &&Life| !known.lives.contains(&life.replication);
        let mut ids: Vec<_> =
            known.met.iter().filter(is_strange).map(|life| life.replication.clone()).collect();
        ids.sort();
        ids
    }

    /// A panic while this is held leaves at worst a life that is judged once more.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// A server that continues nobody's stream is as good as its data: then the marks decide. One
    /// that went on with another's stream was promoted, even if the process is an old acquaintance:
    /// it may have been a replica in between.
    fn judge(&mut self, life: &Life) {
        if self.lives.contains(&life.replication) || life.before == NONE {
            self.trust(life);
        } else {
            // Every connection to the same stranger is the same alarm.
            if self.loss.is_none() || !self.met.contains(life) {
                self.alarms += 1;
                tracing::error!("the store failed over: {}", Loss::Promoted);
            }
            self.loss = Some(Loss::Promoted);
        }
    }

    fn trust(&mut self, life: &Life) {
        self.lives.insert(life.replication.clone());
    }

    fn trusted(&self) -> Vec<String> {
        let is_trusted = |life: &&Life| self.lives.contains(&life.replication);
        self.met.iter().filter(is_trusted).map(|life| life.replication.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(run: &str, replication: &str, before: &str) -> Life {
        Life { run: run.into(), replication: replication.into(), before: before.into() }
    }

    fn guard(known: &[&str]) -> Guard {
        let guard = Guard::default();
        guard.settle(known.iter().map(|&life| life.to_owned()));
        guard
    }

    #[test]
    fn a_promoted_replica_stops_grants_until_it_is_trusted() {
        let guard = guard(&["a"]);
        guard.meet(life("run-2", "b", "a"));
        assert_eq!(guard.loss(), Some(Loss::Promoted));
        assert_eq!(guard.strangers(), ["b"]);
        assert_eq!(guard.trust(), ["b"]);
        assert_eq!((guard.loss(), guard.strangers()), (None, Vec::new()));
        guard.meet(life("run-2", "b", "a"));
        assert_eq!(guard.loss(), None);
    }

    /// Two failovers while nobody looked are still a failover.
    #[test]
    fn a_replica_of_a_replica_stops_grants() {
        let guard = guard(&["a"]);
        guard.meet(life("run-3", "c", "b"));
        assert_eq!(guard.loss(), Some(Loss::Promoted));
    }

    /// A restart begins a new stream. So does the first replica of a server that had none.
    #[test]
    fn a_restart_is_judged_by_the_marks() {
        let guard = guard(&["a"]);
        guard.meet(life("run-2", "b", NONE));
        assert_eq!(guard.loss(), None);
        guard.meet(life("run-2", "c", NONE));
        assert_eq!(guard.loss(), None);
    }

    /// A server that was promoted before the store was made has lost nothing of it.
    #[test]
    fn a_new_store_trusts_whom_it_meets() {
        let guard = Guard::default();
        guard.meet(life("run-1", "b", "a"));
        assert_eq!(guard.settle([]), ["b"]);
        assert_eq!(guard.loss(), None);
        guard.meet(life("run-1", "b", "a"));
        assert_eq!(guard.loss(), None);
    }

    /// Copies are asked for over another connection, which may lead to another server by then.
    #[test]
    fn a_write_is_confirmed_by_nobody_but_the_server_that_has_it() {
        let guard = guard(&["a", "b"]);
        let witness = |run, replication, before| {
            let life = guard.meet(life(run, replication, before));
            guard.witness(life)
        };
        let wrote = witness("run-1", "a", NONE);
        assert!(wrote.is_one_with(&witness("run-1", "a", NONE)));
        assert!(!wrote.is_one_with(&witness("run-2", "b", NONE)), "another server");
        assert!(wrote.is_one_with(&witness("run-1", "c", NONE)), "its first replica has come");
        assert!(!wrote.is_one_with(&witness("run-1", "d", "b")), "it was a replica in between");
        guard.trust();
        assert!(!wrote.is_one_with(&witness("run-1", "d", "b")), "and is still not what it was");
        let wrote = witness("run-1", "d", "b");
        assert!(wrote.is_one_with(&witness("run-1", "d", "b")));
    }

    /// The store remembers whom it trusted: a process that is started after a failover notices.
    #[test]
    fn a_failover_while_nobody_was_there_is_noticed() {
        let guard = Guard::default();
        guard.meet(life("run-2", "b", "a"));
        guard.settle(["a".to_owned()]);
        assert_eq!(guard.loss(), Some(Loss::Promoted));
    }
}
