//! The lives of a store: how one begins, how its end is noticed, and how the next one is adopted.
//!
//! A life has an epoch, a random word that stands in the root and in every shard. Every script
//! compares it. Whatever empties a server takes the epochs with it, and whoever restores something
//! older brings back other ones.

use std::collections::HashMap;

use futures_util::future::try_join_all;
use oncekey_core::Lineage;
use redis::Value;

use super::error::{Failure, Loss};
use super::layout;
use super::life::{Run, Trusted};
use super::options::Missing;
use super::place::shards;
use super::reach::{Reach, Reply};
use super::script::{Call, ROOT, SHARD};
use crate::entropy::{Entropy as _, SystemEntropy};

/// What a root says once all shards have its epoch.
const READY: &str = "ready";

/// How trusted servers are written into the root.
const LIFE: &str = "life:";

/// How the processes that had the data of the servers are written into the root.
const RUN: &str = "run:";

/// The root of a store.
#[derive(Debug, Default)]
struct Root {
    epoch: Option<String>,
    is_ready: bool,
    lives: Vec<String>,
    runs: HashMap<String, Run>,
}

/// What there was to wake up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A store, which may have been made a moment ago.
    Store,
    /// Nothing, and nothing was made.
    Nothing,
}

impl Reach {
    /// Finds the present life of the store, or begins the first one. A crash half-way leaves a root
    /// that is not ready: whoever comes next goes on from there. A store that has lost something is
    /// found, too, and grants nothing: it must be open to be put right.
    pub(super) async fn awake(&self, missing: Missing) -> Result<Found, Failure> {
        let root = self.root().await?;
        match &root.epoch {
            Some(epoch) if root.is_ready => self.follow(epoch),
            Some(epoch) => self.spread(epoch).await?,
            None => {
                // A root that is gone while shards are there was lost.
                if self.marks().await?.iter().any(Option::is_some) {
                    self.guard.stop(Loss::Flushed);
                } else if missing == Missing::Refuse {
                    return Ok(Found::Nothing);
                } else {
                    self.begin("").await?;
                }
            }
        }
        let trusted = self.guard.settle(root.lives, &root.runs);
        self.remember(&trusted).await?;
        for (shard, meta) in shards().zip(self.marks().await?) {
            match meta {
                None => self.guard.stop(Loss::Flushed),
                Some(meta) if !meta.starts_with(self.epoch().as_bytes()) => {
                    self.guard.stop(Loss::Replaced);
                }
                Some(meta) => self.saw(shard, mark_in(&meta)),
            }
        }
        Ok(Found::Store)
    }

    /// Ends the life that this process knows and begins the next one, or joins the one that another
    /// process has begun. Fences go on rising: no mark falls below what was seen here.
    pub(super) async fn adopt(&self) -> Result<(), Failure> {
        let found = self.root().await?.epoch;
        let old = match found {
            // A replica that was cut off before the last adoption, and promoted after it.
            Some(epoch) if self.has_left(&epoch) => epoch,
            Some(_) | None => self.epoch().to_string(),
        };
        self.begin(&old).await?;
        for server in self.servers.all() {
            server.any().info().await?;
        }
        let trusted = self.guard.trust();
        self.remember(&trusted).await
    }

    /// Which life of the store answers now.
    pub(super) async fn lineage(&self) -> Result<Lineage, Failure> {
        let root = self.root().await?;
        let mut text = root.epoch.unwrap_or_else(|| "empty".to_owned());
        // Before the marks are read: others raise both meanwhile.
        let seen: Vec<i64> = shards().map(|shard| self.seen(shard)).collect();
        let marks = self.marks().await?;
        let is_behind = |(seen, meta): (&i64, &Option<Vec<u8>>)| {
            meta.as_ref().is_none_or(|meta| mark_in(meta) < *seen)
        };
        if seen.iter().zip(&marks).any(is_behind) {
            text.push_str(" behind");
        }
        for stranger in self.guard.strangers() {
            text.push(' ');
            text.push_str(&stranger);
        }
        Ok(Lineage::new(text))
    }

    /// Begins a life unless there is one other than `old`, and follows it.
    async fn begin(&self, old: &str) -> Result<(), Failure> {
        let mut bytes = [0; 16];
        SystemEntropy::default().fill(&mut bytes);
        let new: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let call = Call::new(&ROOT, [self.names.root()]).arg(old).arg(new);
        let (value, _) = self.servers.run(self.names.root_slot(), &call).await?;
        let Value::Array(values) = value else { return Err(Failure::Odd("the root")) };
        let [Value::BulkString(epoch), Value::BulkString(state)] = values.as_slice() else {
            return Err(Failure::Odd("the root"));
        };
        let epoch = String::from_utf8_lossy(epoch).into_owned();
        if state == READY.as_bytes() {
            self.raise(&epoch).await?;
            self.follow(&epoch);
            return Ok(());
        }
        self.spread(&epoch).await
    }

    /// Raises the marks of a life that another process has begun to what this one has seen: that one
    /// could not know of it.
    async fn raise(&self, epoch: &str) -> Result<(), Failure> {
        let marks = self.marks().await?;
        let is_behind = |(shard, meta): &(u8, Option<Vec<u8>>)| {
            meta.as_ref().is_some_and(|meta| mark_in(meta) < self.seen(*shard))
        };
        let behind = shards().zip(marks).filter(is_behind);
        try_join_all(behind.map(|(shard, _)| self.give(shard, epoch))).await?;
        Ok(())
    }

    /// Gives a shard the epoch. Its mark does not fall, and not below what was seen here.
    async fn give(&self, shard: u8, epoch: &str) -> Result<(), Failure> {
        let keys = [self.names.mark(shard)];
        let seen = layout::digits(self.seen(shard));
        let mut reply = self.ask(shard, &Call::new(&SHARD, keys).arg(epoch).arg(seen)).await?;
        self.saw(shard, Reply::number(&mut reply)?);
        Ok(())
    }

    /// Gives every shard the epoch, and says so in the root.
    async fn spread(&self, epoch: &str) -> Result<(), Failure> {
        try_join_all(shards().map(|shard| self.give(shard, epoch))).await?;
        let mut ready = redis::cmd("HSET");
        ready.arg(self.names.root()).arg("state").arg(READY);
        self.servers.send(self.names.root_slot(), &ready).await?;
        self.follow(epoch);
        Ok(())
    }

    /// Writes the servers that are trusted into the root. Whoever connects after a restart finds
    /// another run there than the one that answers.
    async fn remember(&self, trusted: &Trusted) -> Result<(), Failure> {
        if trusted.lives.is_empty() && trusted.runs.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("HSET");
        command.arg(self.names.root());
        for life in &trusted.lives {
            command.arg(format!("{LIFE}{life}")).arg(1);
        }
        for (node, run) in &trusted.runs {
            command.arg(format!("{RUN}{node}")).arg(run.written());
        }
        self.servers.send(self.names.root_slot(), &command).await?;
        Ok(())
    }

    async fn root(&self) -> Result<Root, Failure> {
        let mut command = redis::cmd("HGETALL");
        command.arg(self.names.root());
        let value = self.servers.read(self.names.root_slot(), &command).await?;
        let pairs: Vec<(String, String)> =
            redis::from_redis_value(value).map_err(|_| Failure::Odd("the root"))?;
        let mut root = Root::default();
        for (name, value) in pairs {
            match name.as_str() {
                "epoch" => root.epoch = Some(value),
                "state" => root.is_ready = value == READY,
                name => {
                    root.lives.extend(name.strip_prefix(LIFE).map(str::to_owned));
                    let node = name.strip_prefix(RUN).map(str::to_owned);
                    root.runs.extend(node.map(|node| (node, Run::read(&value))));
                }
            }
        }
        Ok(root)
    }

    /// What stands in each shard: its epoch and its mark.
    async fn marks(&self) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let read = |shard| async move {
            let mut command = redis::cmd("GET");
            command.arg(self.names.mark(shard));
            let meta = self.servers.read(self.names.slot(shard), &command).await?;
            if meta == Value::Nil {
                return Ok(None);
            }
            let Value::BulkString(meta) = meta else { return Err(Failure::Odd("a shard")) };
            Ok(Some(meta))
        };
        try_join_all(shards().map(read)).await
    }
}

/// The high-water mark in what stands in a shard.
fn mark_in(meta: &[u8]) -> i64 {
    let digits = meta.get(32..48).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
