//! An attempt as the work sees it: who it is, and whether it may still act.

use std::fmt;
use std::sync::Arc;

use oncekey_core::{Fence, Key, Scope};

/// The right to do the work once, handed to the work.
///
/// The work calls [`send`](Self::send) right before its first foreign call, and not at all if it
/// never gets that far. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Attempt(pub(super) Arc<Held>);

/// Why an attempt must not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoSend {
    /// Somebody else has taken the key over.
    #[error("another attempt has taken the key over")]
    Lost,
    /// The lease is nearly over by the local clock, for example after a pause of the process.
    #[error("too little is left of the lease to begin")]
    TooLate,
    /// The store could not be told, so nothing may be sent.
    #[error("the store could not be told about the send")]
    Store,
}

impl Attempt {
    /// What the client sent.
    pub fn key(&self) -> &Key {
        todo!()
    }
    /// Whom the key belongs to.
    pub fn scope(&self) -> &Scope {
        todo!()
    }
    /// The number of this attempt: what outdates every older one. `None` if the work runs
    /// unprotected because the store is down and the route's policy says so.
    pub fn fence(&self) -> Option<Fence> {
        todo!()
    }
    /// Whether an earlier attempt began the same work, and may have done some of it.
    pub fn is_retry(&self) -> bool {
        todo!()
    }
    /// The key to send with a foreign call: the same for every attempt, different per step.
    pub fn derived_key(&self, step: &str) -> String {
        todo!()
    }
    /// Announces that from here on the work may have happened. Idempotent.
    ///
    /// # Errors
    /// The work must then not begin, and end with [`Finish::never_sent`](super::Finish).
    pub async fn send(&self) -> Result<(), NoSend> {
        todo!()
    }
    /// Whether the lease is known to be lost.
    pub fn is_lost(&self) -> bool {
        todo!()
    }
    /// Waits until the lease is lost. Never returns if it is kept.
    pub async fn lost(&self) {
        todo!()
    }
}
#[derive(Debug)]
pub(super) struct Held;
