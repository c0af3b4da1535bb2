//! What a request for a flow comes to.

use std::time::Duration;

use oncekey_core::{Key, Scope};

use super::claim::Claimed;
use super::reply::Reply;
use super::store::TxError;

/// How a request to run a flow ended. None of these is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is finished.
    Replied {
        /// What it said, now or then.
        reply: Reply,
        /// Whether it said so before this request.
        source: Source,
    },
    /// Somebody else drives it.
    InProgress {
        /// When to ask again.
        retry_after: Duration,
    },
    /// It could not go on and will be tried again, by the completer or by the next request.
    Later {
        /// When to ask again.
        retry_after: Duration,
        /// Why.
        why: String,
    },
    /// The key was used with another input, or for another flow.
    Mismatch,
    /// It waits for a person.
    Parked {
        /// Why.
        reason: String,
    },
    /// It was given up by a person.
    Dead {
        /// Why.
        reason: String,
    },
    /// It is finished, and what it said was not kept or is not kept any more.
    NotRetained,
    /// It was begun by a version that this program does not go on with. Another node may.
    Skew {
        /// That version.
        version: i64,
    },
}

/// Whether a reply is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This request finished the flow.
    Fresh,
    /// It was finished before.
    Replayed,
}

/// Why a flow could not be asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// No flow has that name.
    #[error("no flow is called {0}")]
    NoSuchFlow(String),
    /// The input has no JSON form.
    #[error("the input of the flow has no form in JSON")]
    Input,
    /// The database could not be asked. Nothing was begun, or it goes on by itself.
    #[error("the database could not be asked")]
    Store(#[from] TxError),
    /// The runtime is shutting down.
    #[error("the program is shutting down")]
    Stopping,
}

/// Which flow: whose key it is, and the key.
#[derive(Clone, Debug)]
pub struct FlowKey {
    pub(crate) scope: Scope,
    pub(crate) key: Key,
}

impl FlowKey {
    /// The key of a client in its scope.
    #[must_use]
    pub const fn new(scope: Scope, key: Key) -> Self {
        Self { scope, key }
    }
}

/// What a claim comes to that was not won.
pub(crate) fn outcome_of(claimed: Claimed) -> Outcome {
    match claimed {
        Claimed::Replay(saved) => {
            Outcome::Replied { reply: Reply(saved), source: Source::Replayed }
        }
        Claimed::Busy(left) => Outcome::InProgress { retry_after: left },
        Claimed::Mismatch => Outcome::Mismatch,
        Claimed::Parked(reason) => Outcome::Parked { reason },
        Claimed::Dead(reason) => Outcome::Dead { reason },
        Claimed::Skew(version) => Outcome::Skew { version },
        Claimed::Won(_) => unreachable!("what was won is driven"),
    }
}
