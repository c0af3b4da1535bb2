//! Which life of which server a connection leads to.
//!
//! A connection leads to one process for as long as it stands. So who answers is asked once per
//! connection, before it is used: a server that was promoted since, and may lack what its primary
//! acknowledged last, is met here and nowhere else. So is one that was restarted: what it forgot in
//! between may be another process's, whom nobody can ask. What a server lost without either, the marks
//! of the shards tell: see `prelude.lua`.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncekey_core::health::Tier;

use super::error::{Failure, Loss};
use super::info::Info;

/// What a server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// Which server of the store it is, wherever it is. A node that is only asked for the others is
    /// none.
    node: Option<Arc<str>>,
    run: String,
    restart: Restart,
    replication: String,
    before: String,
}

/// What a restart leaves of what a server has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    /// Everything: it was on the disk before it was acknowledged.
    KeepsAll,
    /// Perhaps not the last writes, perhaps nothing.
    MayLose,
}

/// The process that had the data of a server when it was last trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    id: String,
    restart: Restart,
}

/// What the store should know from now on.
#[derive(Debug, Default)]
pub(super) struct Trusted {
    /// Replication ids.
    pub(super) lives: Vec<String>,
    /// Servers, each with its process.
    pub(super) runs: Vec<(String, Run)>,
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
    runs: HashMap<String, Run>,
    met: Vec<Life>,
    settled: bool,
    loss: Option<Loss>,
    /// How often something was lost, adopted or not: what was written before an alarm may be gone,
    /// even if grants have gone on since.
    alarms: u64,
}

/// A primary that was never promoted has no replication id before its present one.
const NONE: &str = "0000000000000000000000000000000000000000";

/// How it stands in the root what a restart leaves.
const KEEPS_ALL: &str = "keeps-all";
const MAY_LOSE: &str = "may-lose";

impl Life {
    /// The life that answers, unless it is a replica's.
    pub(super) fn of(
        info: &Info,
        node: Option<Arc<str>>,
        restart: Restart,
    ) -> Result<Self, Failure> {
        if info.get("role") != Some("master") {
            return Err(Failure::Replica);
        }
        let text = |name| info.get(name).map(str::to_owned).ok_or(Failure::Odd("INFO"));
        Ok(Self {
            node,
            run: text("run_id")?,
            restart,
            replication: text("master_replid")?,
            before: text("master_replid2")?,
        })
    }

    /// The life that answers on the same connection now.
    pub(super) fn later(&self, info: &Info) -> Result<Self, Failure> {
        Self::of(info, self.node.clone(), self.restart)
    }
}

impl Restart {
    /// What a restart of a server of this tier leaves.
    pub(super) const fn of(tier: Tier) -> Self {
        match tier {
            Tier::Replicated | Tier::Durable => Self::KeepsAll,
            Tier::Process | Tier::Volatile => Self::MayLose,
        }
    }
}

impl Run {
    /// How it stands in the root.
    pub(super) fn written(&self) -> String {
        let restart = match self.restart {
            Restart::KeepsAll => KEEPS_ALL,
            Restart::MayLose => MAY_LOSE,
        };
        format!("{restart} {}", self.id)
    }

    /// Reads what stands in the root. What nobody wrote is a run that is over.
    pub(super) fn read(text: &str) -> Self {
        let (restart, id) = text.split_once(' ').unwrap_or_default();
        let restart = if restart == KEEPS_ALL { Restart::KeepsAll } else { Restart::MayLose };
        Self { id: id.to_owned(), restart }
    }
}

impl Witness {
    /// Who it was.
    pub(super) fn life(&self) -> &Life {
        &self.life
    }

    /// Whether a write of this witness is in the stream of `now`: the same process has it, and it was
    /// nobody's replica in between. A replica throws away what its primary does not have.
    pub(super) fn is_one_with(&self, now: &Self) -> bool {
        self.life.run == now.life.run && self.alarms == now.alarms
    }
}

impl Guard {
    /// A connection leads to `life`. Stops grants if it is a replica that was promoted, or a server
    /// that was restarted and may have lost something.
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

    /// Judges everybody who was met while the store was opened, by the lives and the runs that the
    /// store itself knows; a store that knows no life is new. Returns what it does not know yet.
    pub(super) fn settle(
        &self,
        lives: impl IntoIterator<Item = String>,
        runs: &HashMap<String, Run>,
    ) -> Trusted {
        let mut known = self.lock();
        let lives: HashSet<String> = lives.into_iter().collect();
        let is_new = lives.is_empty();
        known.lives.extend(lives);
        known.runs.clone_from(runs);
        known.settled = true;
        let met = known.met.clone();
        for life in &met {
            if is_new {
                known.trust(life);
            } else {
                known.judge(life);
            }
        }
        let mut trusted = known.trusted();
        // What stands there already is not written again: somebody may have replaced it meanwhile.
        trusted.runs.retain(|(node, run)| runs.get(node) != Some(run));
        trusted
    }

    /// Trusts everybody who was met, from now on, and of the processes of a server the one that was
    /// met last. Returns what the store should know.
    pub(super) fn trust(&self) -> Trusted {
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
        // A node that was only asked for the others is none of the store's, unless it was promoted.
        let is_strange = |life: &&Life| {
            !known.lives.contains(&life.replication) && (life.node.is_some() || life.before != NONE)
        };
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
        let loss = if !self.lives.contains(&life.replication) && life.before != NONE {
            Loss::Promoted
        } else if self.may_have_forgotten(life) {
            Loss::Restarted
        } else {
            // Of a node that was only asked for the others nobody knows yet which one it is.
            if life.node.is_some() {
                self.trust(life);
            }
            return;
        };
        // Every connection to the same stranger is the same alarm.
        if self.loss.is_none() || !self.met.contains(life) {
            self.alarms += 1;
            tracing::error!("the store lost its data or failed over: {loss}");
        }
        self.loss = Some(loss);
    }

    /// Whether a server was restarted and may lack what it acknowledged to somebody. How it is set up
    /// now counts, too: without its append-only file it would come back with an old snapshot.
    fn may_have_forgotten(&self, life: &Life) -> bool {
        let Some(before) = life.node.as_deref().and_then(|node| self.runs.get(node)) else {
            return false;
        };
        let keeps_all = [before.restart, life.restart] == [Restart::KeepsAll; 2];
        before.id != life.run && !keeps_all
    }

    fn trust(&mut self, life: &Life) {
        self.lives.insert(life.replication.clone());
        if let Some(node) = &life.node {
            let run = Run { id: life.run.clone(), restart: life.restart };
            self.runs.insert(node.to_string(), run);
        }
    }

    fn trusted(&self) -> Trusted {
        let is_trusted = |life: &&Life| self.lives.contains(&life.replication);
        let lives = self.met.iter().filter(is_trusted).map(|life| life.replication.clone());
        let runs = self.runs.iter().map(|(node, run)| (node.clone(), run.clone()));
        Trusted { lives: lives.collect(), runs: runs.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(run: &str, replication: &str, before: &str) -> Life {
        let (run, replication, before) = (run.into(), replication.into(), before.into());
        Life { node: None, run, restart: Restart::MayLose, replication, before }
    }

    /// A server of the store, in one of its runs.
    fn server(run: &str, restart: Restart) -> Life {
        Life { node: Some("one".into()), restart, ..life(run, run, NONE) }
    }

    fn runs(written: &str) -> HashMap<String, Run> {
        HashMap::from([("one".to_owned(), Run::read(written))])
    }

    fn guard(known: &[&str]) -> Guard {
        let guard = Guard::default();
        guard.settle(known.iter().map(|&life| life.to_owned()), &HashMap::new());
        guard
    }

    #[test]
    fn a_promoted_replica_stops_grants_until_it_is_trusted() {
        let guard = guard(&["a"]);
        guard.meet(life("run-2", "b", "a"));
        assert_eq!(guard.loss(), Some(Loss::Promoted));
        assert_eq!(guard.strangers(), ["b"]);
        assert_eq!(guard.trust().lives, ["b"]);
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

    /// What it lost may be another process's, which nobody here can know.
    #[test]
    fn a_restart_that_may_have_lost_something_stops_grants_until_it_is_trusted() {
        use Restart::{KeepsAll, MayLose};
        let rows = [
            (KeepsAll, KeepsAll, None),
            (KeepsAll, MayLose, Some(Loss::Restarted)),
            (MayLose, KeepsAll, Some(Loss::Restarted)),
            (MayLose, MayLose, Some(Loss::Restarted)),
        ];
        for (then, now, expected) in rows {
            let guard = guard(&["a"]);
            guard.meet(server("run-1", then));
            assert_eq!(guard.loss(), None, "nobody has seen it before");
            // Twice: there is more than one connection.
            for _ in 0..2 {
                guard.meet(server("run-2", now));
                assert_eq!(guard.loss(), expected, "{then:?} {now:?}");
                assert_eq!(guard.strangers().is_empty(), expected.is_none());
            }
            assert_eq!(
                guard.trust().runs,
                [("one".into(), Run { id: "run-2".into(), restart: now })]
            );
            guard.meet(server("run-2", now));
            assert_eq!((guard.loss(), guard.strangers()), (None, Vec::new()));
        }
    }

    /// The store remembers the runs of its servers, and nobody overwrites them before the loss is
    /// seen to.
    #[test]
    fn a_restart_while_nobody_was_there_is_noticed() {
        let [same, other] = [Run::read("may-lose run-2"), Run::read("may-lose run-1")];
        assert_eq!(
            (same.written(), other.written()),
            ("may-lose run-2".into(), "may-lose run-1".into())
        );
        for (before, expected, writes) in [
            ("may-lose run-2", None, 0),
            ("may-lose run-1", Some(Loss::Restarted), 0),
            ("keeps-all run-1", Some(Loss::Restarted), 0),
            ("keeps-all run-2", None, 1),
            ("nonsense", Some(Loss::Restarted), 0),
        ] {
            let guard = Guard::default();
            guard.meet(server("run-2", Restart::MayLose));
            let trusted = guard.settle(["a".to_owned()], &runs(before));
            assert_eq!((guard.loss(), trusted.runs.len()), (expected, writes), "{before}");
        }
    }

    /// A cluster has a run for each of its nodes, and new nodes come.
    #[test]
    fn a_node_that_nobody_knows_is_no_restart() {
        let guard = Guard::default();
        guard.meet(server("run-1", Restart::MayLose));
        guard.settle(["a".to_owned()], &runs("may-lose run-1"));
        guard.meet(Life { node: Some("two".into()), ..server("run-9", Restart::MayLose) });
        assert_eq!(guard.loss(), None);
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
        assert_eq!(guard.settle([], &HashMap::new()).lives, ["b"]);
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
        guard.settle(["a".to_owned()], &HashMap::new());
        assert_eq!(guard.loss(), Some(Loss::Promoted));
    }
}
