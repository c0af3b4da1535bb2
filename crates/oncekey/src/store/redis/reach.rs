//! What every verb needs: the servers, the names of the keys, the epoch, and how far each shard was
//! seen to have come.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

use redis::Value;

use super::error::{Failure, Loss};
use super::layout;
use super::life::{Guard, Witness};
use super::place::{Names, SHARDS};
use super::script::{Call, Script};
use super::servers::Servers;
use crate::store::parts::check_format;

/// A store within reach.
#[derive(Debug)]
pub(super) struct Reach {
    pub(super) servers: Servers,
    pub(super) names: Names,
    pub(super) guard: Arc<Guard>,
    epoch: RwLock<Arc<str>>,
    /// Lives that this process has worked with before. A server that is in one of them is stale.
    left: Mutex<HashSet<Arc<str>>>,
    /// The highest mark that each shard has acknowledged to this process. A shard that falls behind
    /// it has lost something.
    seen: Vec<AtomicI64>,
}

/// The answer of a script: a code, and what belongs to it.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) code: i64,
    /// Who gave it.
    pub(super) witness: Witness,
    rest: std::vec::IntoIter<Value>,
}

impl Reach {
    pub(super) fn new(servers: Servers, names: Names, guard: Arc<Guard>) -> Self {
        let seen = (0..SHARDS).map(|_| AtomicI64::new(0)).collect();
        let (epoch, left) = (RwLock::new(Arc::from("")), Mutex::default());
        Self { servers, names, guard, epoch, left, seen }
    }

    /// The life of the store that this process works with.
    pub(super) fn epoch(&self) -> Arc<str> {
        Arc::clone(&self.epoch.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Works with another life of the store from now on.
    pub(super) fn follow(&self, epoch: &str) {
        let mut now = self.epoch.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *now, Arc::from(epoch));
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.insert(before);
        left.remove(epoch);
    }

    /// Whether this process has worked with a life and left it.
    pub(super) fn has_left(&self, epoch: &str) -> bool {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).contains(epoch)
    }

    /// The highest mark that a shard has acknowledged to this process.
    pub(super) fn seen(&self, shard: u8) -> i64 {
        self.seen[usize::from(shard)].load(Ordering::Relaxed)
    }

    /// A shard has acknowledged this mark.
    pub(super) fn saw(&self, shard: u8, mark: i64) {
        self.seen[usize::from(shard)].fetch_max(mark, Ordering::Relaxed);
    }

    /// A call that begins with what every script of a shard checks first.
    pub(super) fn call<K: redis::ToRedisArgs>(
        &self,
        script: &'static LazyLock<Script>,
        shard: u8,
        keys: impl IntoIterator<Item = K, IntoIter: ExactSizeIterator>,
    ) -> Call {
        Call::new(script, keys).in_life(self.epoch()).arg(layout::digits(self.seen(shard)))
    }

    /// Makes a call on a shard.
    pub(super) async fn ask(&self, shard: u8, call: &Call) -> Result<Reply, Failure> {
        self.read(call, self.servers.run(self.names.slot(shard), call).await?)
    }

    /// Makes a call on a shard that changes nothing.
    pub(super) async fn look_at(&self, shard: u8, call: &Call) -> Result<Reply, Failure> {
        self.read(call, self.servers.read_by(self.names.slot(shard), call).await?)
    }

    /// Reads an answer. If one shard has lost something, nobody knows what the others have lost.
    fn read(&self, call: &Call, answer: (Value, Witness)) -> Result<Reply, Failure> {
        let reply = Reply::of(answer);
        if let Err(Failure::Lost(loss)) = &reply {
            self.lost(call, *loss);
        }
        reply
    }

    /// The answer to `call` says that something was lost. If the store was adopted since the call was
    /// made, it speaks of a life that is over, and stops nothing.
    pub(super) fn lost(&self, call: &Call, loss: Loss) {
        if call.epoch.as_ref().is_none_or(|epoch| *epoch == self.epoch()) {
            self.guard.stop(loss);
        }
    }
}

impl Reply {
    /// A shard that cannot be trusted is a failure, and so is a record of another format.
    fn of((value, witness): (Value, Witness)) -> Result<Self, Failure> {
        let Value::Array(values) = value else { return Err(ODD) };
        let mut rest = values.into_iter();
        let Some(Value::Int(code)) = rest.next() else { return Err(ODD) };
        if let Some(loss) = Loss::of_code(code) {
            return Err(Failure::Lost(loss));
        }
        let mut reply = Self { code, witness, rest };
        if code == STRANGE {
            check_format(reply.number()?)?;
            return Err(ODD);
        }
        Ok(reply)
    }

    /// The next value, which is a number.
    pub(super) fn number(&mut self) -> Result<i64, Failure> {
        match self.rest.next() {
            Some(Value::Int(number)) => Ok(number),
            _ => Err(ODD),
        }
    }

    /// The next value, which is a string, or nothing.
    pub(super) fn bytes(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        match self.rest.next() {
            Some(Value::BulkString(bytes)) => Ok(Some(bytes)),
            Some(Value::Nil) | None => Ok(None),
            _ => Err(ODD),
        }
    }
}

const ODD: Failure = Failure::Odd("a script");

/// What a script says of a record whose format it does not know; see `prelude.lua`.
const STRANGE: i64 = -4;
