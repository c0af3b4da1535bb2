//! Waiting until a write is on replicas or on the disk, if the options ask for it.
//!
//! `WAIT` holds back everything that comes behind it on its connection. So it goes over a connection
//! of its own, behind a small write that makes it cover everything that the server has written
//! before. One round covers all callers whose writes were acknowledged when it began.
//!
//! Another connection may lead to another server, if the first one has died meanwhile. So a round
//! ends with the question who it was that answered, and confirms the writes of that server alone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Pipeline, Value};

use super::error::Failure;
use super::life::Witness;
use super::reach::Reach;
use super::servers::Server;

/// What must have happened to a write before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// So many replicas have it in memory.
    Replicas(u32),
    /// The primary has it on its disk, and so many replicas on theirs. Redis 7.2 and newer.
    Disks(u32),
}

/// Confirms writes.
#[derive(Debug)]
pub(super) struct Confirmer {
    rule: Rule,
    within: Duration,
    lanes: Mutex<HashMap<String, Arc<Lane>>>,
}

/// Those who wait for one server.
#[derive(Debug, Default)]
struct Lane {
    arrived: AtomicU64,
    /// How many of them the last round covered, and what came of it.
    round: tokio::sync::Mutex<Option<(u64, Result<Witness, Failure>)>>,
}

impl Confirmer {
    pub(super) fn new(rule: Rule, within: Duration) -> Self {
        Self { rule, within, lanes: Mutex::default() }
    }

    /// Waits until everything that a shard's server has acknowledged so far is where it must be. If
    /// it is not in time, nobody knows whether it will be: the write stands on the primary. If it is
    /// not the server that acknowledged the write, nobody knows whether the write stands.
    pub(super) async fn confirm(
        &self,
        reach: &Reach,
        shard: u8,
        by: &Witness,
    ) -> Result<(), Failure> {
        let now = self.round(reach, shard).await?;
        if by.is_one_with(&now) { Ok(()) } else { Err(Failure::Elsewhere) }
    }

    /// Takes part in a round that begins from now on, and says who answered.
    async fn round(&self, reach: &Reach, shard: u8) -> Result<Witness, Failure> {
        let server = reach.servers.server(reach.names.slot(shard)).await;
        let server = server.map_err(|_| self.unconfirmed(0))?;
        let lane = Arc::clone(
            self.lanes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(server.name.clone())
                .or_default(),
        );
        let ticket = lane.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        let mut round = lane.round.lock().await;
        if let Some((covered, outcome)) = &*round
            && *covered >= ticket
        {
            return outcome.clone();
        }
        let covered = lane.arrived.load(Ordering::Acquire);
        let outcome = self.wait(&server, reach.names.tick(shard)).await;
        *round = Some((covered, outcome.clone()));
        outcome
    }

    async fn wait(&self, server: &Server, tick: String) -> Result<Witness, Failure> {
        let (wanted, command) = self.command(tick);
        let answers = server.waiter.send_all_and_ask_who(command).await;
        let (answers, now) = answers.map_err(|_| self.unconfirmed(0))?;
        let got = match answers.last() {
            Some(Value::Int(replicas)) => u32::try_from(*replicas).unwrap_or(0),
            Some(Value::Array(copies)) => match copies.as_slice() {
                [Value::Int(1..), Value::Int(replicas)] => {
                    u32::try_from(*replicas).unwrap_or(0).saturating_add(1)
                }
                _ => 0,
            },
            _ => 0,
        };
        if got >= wanted { Ok(now) } else { Err(Failure::Unconfirmed { wanted, got }) }
    }

    fn command(&self, tick: String) -> (u32, Pipeline) {
        let millis = u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut both = redis::pipe();
        both.cmd("SET").arg(tick).arg(1);
        match self.rule {
            Rule::Replicas(count) => {
                both.cmd("WAIT").arg(count).arg(millis);
                (count, both)
            }
            Rule::Disks(replicas) => {
                both.cmd("WAITAOF").arg(1).arg(replicas).arg(millis);
                (replicas.saturating_add(1), both)
            }
        }
    }

    fn unconfirmed(&self, got: u32) -> Failure {
        let wanted = match self.rule {
            Rule::Replicas(count) => count,
            Rule::Disks(replicas) => replicas.saturating_add(1),
        };
        Failure::Unconfirmed { wanted, got }
    }
}
