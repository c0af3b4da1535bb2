//! What a caller gets back from the engine.
//!
//! None of these is an error: a replay, a conflict and a store that is down are ordinary ends of a
//! keyed request. The layer turns them into responses.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::saved::NotKept;
use oncekey_core::{Fence, Saved, Timestamp};

/// How a keyed request ended.
#[derive(Debug)]
pub enum Reply<T> {
    /// This call ran the work.
    Ran(Ran<T>),
    /// Another call ran it, now or before; here is its answer.
    Replayed(Replayed),
    /// There is no answer, and this is why.
    Refused(Refused),
}

/// The work ran in this call.
#[derive(Debug)]
pub struct Ran<T> {
    /// What the work returned; `None` if it panicked.
    pub value: Option<T>,
    /// What became of it in the store.
    pub recorded: Recorded,
    /// The number of the attempt; `None` if it ran unprotected.
    pub fence: Option<Fence>,
}

/// What became of finished work in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recorded {
    /// The answer is kept and will be replayed.
    Kept,
    /// The fact is kept, the answer is not.
    Tombstone(NotKept),
    /// Nothing happened: the key is free.
    Released,
    /// Nobody knows whether it happened, and the record says so.
    Unknown,
    /// The store is down. The end is in the local journal and reaches the store later.
    Journalled,
    /// Another attempt has taken the key over, so nothing was recorded.
    Fenced,
    /// The store is down and there is no journal. It is tried again for a while; a crash of this
    /// process loses it.
    Unrecorded,
    /// The store was down, and the route's policy said to run without protection.
    Unprotected,
}

/// The answer of another call.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The answer.
    pub saved: Saved,
    /// Where it came from.
    pub source: Source,
    /// How long ago it was completed.
    pub age: Duration,
    /// How much longer it will be replayed.
    pub ttl: Duration,
    /// The id of the request that ran.
    pub original: Arc<str>,
    /// The number of the attempt that ran; `None` if it ran unprotected.
    pub fence: Option<Fence>,
}

/// Where a replayed answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A finished record.
    Record,
    /// An attempt that was running when this call came, in this process.
    Coalesced,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The key was first used for a different request. This one was not executed.
    Mismatch {
        /// The places that differ, never their values. May be empty if that cannot be told.
        differs: Vec<String>,
        /// The id of the request that used the key first.
        original: Arc<str>,
        /// When that was, by the store's clock.
        first_used: Timestamp,
    },
    /// Another attempt is still running.
    InProgress {
        /// How long to wait before asking again.
        retry_after: Duration,
        /// How long this call has waited already.
        waited: Duration,
        /// The id of the request that is running, if it is known.
        original: Option<Arc<str>>,
    },
    /// Another attempt is running, and the policy says where its answer will be.
    Accepted {
        /// How long to wait before asking there.
        retry_after: Duration,
        /// The id of the request that is running, if it is known.
        original: Option<Arc<str>>,
    },
    /// The work may have happened and nobody knows.
    Unknown {
        /// The id of the request whose outcome is unknown.
        original: Arc<str>,
    },
    /// The work is done, but its answer was not kept.
    NotRetained {
        /// The status that the first caller got.
        status: Option<u16>,
        /// Why.
        reason: NotKept,
        /// The id of the request that ran.
        original: Arc<str>,
    },
    /// The work was done so long ago that its answer is gone.
    Expired {
        /// The id of the request that ran.
        original: Arc<str>,
    },
    /// A flow that waits for a person.
    Parked {
        /// The id of the request that is parked.
        original: Arc<str>,
    },
    /// Nothing was executed: the store cannot be asked, or this node has too much to do.
    Unavailable {
        /// What stands in the way.
        why: Unavailable,
        /// How long to wait before asking again.
        retry_after: Duration,
    },
    /// What is stored for this key cannot be trusted, so it was neither executed nor replayed.
    /// Asking again does not help; a person has to look.
    Damaged,
}

/// Why nothing can be executed just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unavailable {
    /// The store does not answer.
    Store,
    /// The store failed over, and what it may have lost is being put back; or it answers, and nobody
    /// has found out yet whether it did; or it refuses to grant anything as it is. Never a reason to run without protection: what was lost may
    /// have been this very key.
    Regressed,
    /// This node has as many claims or attempts under way as it may.
    Busy,
    /// This node is shutting down.
    Draining,
    /// The attempt lost its lease before it sent anything.
    LeaseLost,
}

impl<T> Reply<T> {
    /// The outcome of the request, as metrics and logs name it.
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Ran(Ran { recorded: Recorded::Unprotected, .. }) => "unprotected",
            Self::Ran(_) => "executed",
            Self::Replayed(Replayed { source: Source::Record, .. }) => "replayed",
            Self::Replayed(Replayed { source: Source::Coalesced, .. }) => "coalesced",
            Self::Refused(refused) => refused.outcome(),
        }
    }
}

impl Refused {
    /// The outcome of the request, as metrics and logs name it.
    #[must_use]
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::Mismatch { .. } => "mismatch",
            Self::InProgress { .. } | Self::Accepted { .. } | Self::Parked { .. } => "in_progress",
            Self::Unknown { .. } => "unknown",
            Self::NotRetained { .. } | Self::Expired { .. } => "not_retained",
            Self::Unavailable { .. } | Self::Damaged => "store_unavailable",
        }
    }
}

impl Recorded {
    /// The word for it in logs and in `Idempotency-Status`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Tombstone(_) => "tombstone",
            Self::Released => "released",
            Self::Unknown => "unknown",
            Self::Journalled => "journalled",
            Self::Fenced => "fenced",
            Self::Unrecorded => "unrecorded",
            Self::Unprotected => "unprotected",
        }
    }
}
