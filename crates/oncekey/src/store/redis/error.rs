//! What can go wrong with a Redis server, and what the caller can do about it.

use oncekey_core::{ErrorKind, StoreError};
use redis::RedisError;

use crate::store::parts::Damage;

/// A failure inside the store, before it is mapped to what the caller can do.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Failure {
    /// No connection could be made: nothing was sent.
    #[error(
        "the Redis server cannot be reached: check its address, that it runs, and that it takes more \
         connections (maxclients)"
    )]
    Unreachable(#[source] RedisError),
    /// The connection broke, or no answer came in time, after something was sent.
    #[error("the connection to the Redis server broke, or no answer came in time")]
    Broken(#[source] RedisError),
    /// The server said no: nothing changed.
    #[error("the Redis server refused")]
    Refused(#[source] RedisError),
    /// The server is a replica.
    #[error(
        "the server is a replica, which keeps no promise: give the address of the primary, or wait \
         for the failover to end"
    )]
    Replica,
    /// The store is not what it was.
    #[error("the store lost its data or failed over: {0}")]
    Lost(Loss),
    /// The server may throw records away.
    #[error(
        "the maxmemory-policy of the Redis server was changed, and it may throw records away \
         without a word: no key is granted until it is noeviction again"
    )]
    Evicts,
    /// A record is not what was written.
    #[error(transparent)]
    Record(#[from] Damage),
    /// The answer is none that a script of ours gives.
    #[error("the server gave an answer that no script of this version gives: {0}")]
    Odd(&'static str),
    /// Written, but not where it was asked to be before it counts.
    #[error(
        "the write stands on the primary, but {got} of {wanted} copies were confirmed in time: \
         check the replicas and the append-only file"
    )]
    Unconfirmed {
        /// So many copies were asked for.
        wanted: u32,
        /// So many were confirmed.
        got: u32,
    },
    /// Written, but the server that has it was not the one that was asked about copies.
    #[error(
        "the server that acknowledged the write was replaced before its copies were confirmed: \
         nobody knows whether the write stands"
    )]
    Elsewhere,
}

/// How a store was found not to be what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Loss {
    /// A shard is empty.
    #[error(
        "its epoch key is gone, as after FLUSHALL or a restart without persistence. No key is \
         granted until somebody has seen to what was running and calls `adopt`"
    )]
    Flushed,
    /// A shard is of another life.
    #[error(
        "its epoch is another one: somebody adopted it after a loss, or restored a copy. No key is \
         granted until somebody has seen to what was running and calls `adopt`"
    )]
    Replaced,
    /// A shard has forgotten writes that this process saw.
    #[error(
        "it has forgotten writes that it acknowledged, as after a crash without `appendfsync \
         always` or a failover. No key is granted until somebody has seen to what was running and \
         calls `adopt`"
    )]
    Behind,
    /// A replica was promoted.
    #[error(
        "a replica was promoted, and what the old primary acknowledged last may be missing. No key \
         is granted until somebody has seen to what was running and calls `adopt`"
    )]
    Promoted,
    /// A server was restarted that does not keep everything.
    #[error(
        "a server was restarted that does not sync every write to its disk, and what it \
         acknowledged last may be missing. No key is granted until somebody has seen to what was \
         running and calls `adopt`; with `appendfsync always` a restart loses nothing"
    )]
    Restarted,
}

impl Loss {
    /// What a script says about its shard; see `prelude.lua`.
    pub(super) const fn of_code(code: i64) -> Option<Self> {
        match code {
            -1 => Some(Self::Flushed),
            -2 => Some(Self::Replaced),
            -3 => Some(Self::Behind),
            _ => None,
        }
    }
}

impl Failure {
    /// The error code of the server, if it said no.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => error.code(),
            Self::Unreachable(_)
            | Self::Broken(_)
            | Self::Replica
            | Self::Evicts
            | Self::Lost(_)
            | Self::Record(_)
            | Self::Odd(_)
            | Self::Unconfirmed { .. }
            | Self::Elsewhere => None,
        }
    }
}

impl Failure {
    /// What it means for somebody who only reads: whatever became of the question, nothing has
    /// changed.
    pub(super) fn of_read(self) -> StoreError {
        let text = self.to_string();
        if let Self::Broken(error) = self {
            return StoreError::new(ErrorKind::Unavailable, text).with_source(error);
        }
        self.into()
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        let text = failure.to_string();
        match failure {
            Failure::Unreachable(error) => unreachable_server(text, error),
            Failure::Broken(error) => Self::new(ErrorKind::Ambiguous, text).with_source(error),
            Failure::Refused(error) => refused(error),
            Failure::Replica => Self::new(ErrorKind::Unavailable, text),
            Failure::Lost(_) | Failure::Evicts | Failure::Odd(_) => {
                Self::new(ErrorKind::Unsuitable, text)
            }
            Failure::Record(damage) => damage.into(),
            Failure::Unconfirmed { .. } | Failure::Elsewhere => {
                Self::new(ErrorKind::Ambiguous, text)
            }
        }
    }
}

/// No connection: because nobody is there, or because it does not let us in.
fn unreachable_server(text: String, error: RedisError) -> StoreError {
    let code = error.code().unwrap_or_default();
    if error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(code, "NOAUTH" | "WRONGPASS" | "NOPERM")
    {
        return denied(error);
    }
    if matches!(code, "LOADING" | "MASTERDOWN" | "BUSY") {
        return refused(error);
    }
    StoreError::new(ErrorKind::Unavailable, text).with_source(error)
}

fn denied(error: RedisError) -> StoreError {
    let message = "the Redis server does not accept the user or the password: check both in the \
                   URL, and that the user's rules allow EVALSHA, SCRIPT, INFO, PUBLISH and \
                   SUBSCRIBE on the key prefix";
    StoreError::new(ErrorKind::Unsuitable, message).with_source(error)
}

/// Maps what the server said before it did anything.
fn refused(error: RedisError) -> StoreError {
    let (kind, message) = match error.code().unwrap_or_default() {
        "OOM" => (
            ErrorKind::Unavailable,
            "the Redis server has used up its memory: raise `maxmemory`, or purge; never allow it \
             to evict",
        ),
        "READONLY" => return Failure::Replica.into(),
        "NOREPLICAS" => (
            ErrorKind::Unavailable,
            "the Redis server has fewer replicas than `min-replicas-to-write` asks for",
        ),
        "LOADING" => (ErrorKind::Unavailable, "the Redis server is still loading its data"),
        "BUSY" => (
            ErrorKind::Unavailable,
            "the Redis server is busy with somebody's slow script or function",
        ),
        "MISCONF" => (
            ErrorKind::Unavailable,
            "the Redis server cannot write to its disk: see its log, free some space",
        ),
        "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" => (
            ErrorKind::Unavailable,
            "the part of the Redis cluster that holds this key is down or being moved",
        ),
        "MOVED" | "ASK" => (
            ErrorKind::Unsuitable,
            "the server is part of a cluster: write the URL as redis+cluster://host:port,…",
        ),
        "CROSSSLOT" => (
            ErrorKind::Unsuitable,
            "the server spreads the keys of one hash tag: it is no Redis cluster that this store \
             can work with",
        ),
        "NOAUTH" | "WRONGPASS" | "NOPERM" => return denied(error),
        "WRONGTYPE" => (
            ErrorKind::Unsuitable,
            "a key of this store is something else: another program uses the same prefix",
        ),
        // What a script trips over while it reads is a record that nobody wrote.
        "ERR" if error.detail().is_some_and(|detail| detail.contains("user_script")) => {
            return Damage::Damaged("a script cannot read it").into();
        }
        _ => (ErrorKind::Unsuitable, "the Redis server does not do what it was asked to"),
    };
    StoreError::new(kind, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn said(code: &'static str) -> StoreError {
        let value = redis::parse_redis_value(format!("-{code} text\r\n").as_bytes()).unwrap();
        let redis::Value::ServerError(error) = value else { panic!("an error is an error") };
        Failure::Refused(error.into()).into()
    }

    #[test]
    fn every_refusal_says_what_the_caller_can_do() {
        let later = ErrorKind::Unavailable;
        let wrong = ErrorKind::Unsuitable;
        let rows = [
            ("OOM", later, "maxmemory"),
            ("READONLY", later, "replica"),
            ("NOREPLICAS", later, "min-replicas-to-write"),
            ("LOADING", later, "loading"),
            ("MISCONF", later, "disk"),
            ("BUSY", later, "script"),
            ("CLUSTERDOWN", later, "cluster"),
            ("MOVED", wrong, "redis+cluster://"),
            ("NOAUTH", wrong, "password"),
            ("WRONGPASS", wrong, "password"),
            ("NOPERM", wrong, "rules"),
            ("WRONGTYPE", wrong, "prefix"),
        ];
        for (code, kind, text) in rows {
            let error = said(code);
            assert_eq!(error.kind(), kind, "{code}");
            assert!(error.to_string().contains(text), "{code}: {error}");
        }
    }

    #[test]
    fn a_broken_connection_is_no_failure_and_no_success() {
        let broken = RedisError::from(io::Error::from(io::ErrorKind::ConnectionReset));
        let error = StoreError::from(Failure::Broken(broken.clone()));
        assert_eq!(error.kind(), ErrorKind::Ambiguous);
        let error = StoreError::from(Failure::Unreachable(broken));
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
