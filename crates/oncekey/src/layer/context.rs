//! What a handler can learn about the attempt that it is part of.

use oncekey_core::{Fence, Key, KeyId, Scope};

use crate::engine::{Attempt, Engine, NoSend};

/// The attempt that a protected request belongs to, found in the request's extensions.
///
/// A request that passed through the layer has none.
#[derive(Clone, Debug)]
pub struct IdempotencyContext(Attempt);

impl IdempotencyContext {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self(attempt)
    }

    /// Whether it is an attempt of this engine for this record, and still under way.
    pub(super) fn is_under_way_for(&self, engine: &Engine, id: &KeyId) -> bool {
        self.0.is_under_way_in(engine) && self.0.key_id() == id
    }

    /// What the client sent.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// Whom the key belongs to.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        self.0.scope()
    }

    /// The id of the record.
    #[must_use]
    pub fn key_id(&self) -> &KeyId {
        self.0.key_id()
    }

    /// The number of this attempt. Store it with what the handler writes, and refuse writes with
    /// a smaller one: then an attempt that was replaced can change nothing.
    ///
    /// `None` if the request runs unprotected because the store is down and the policy says so.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.0.fence()
    }

    /// The key to send with a foreign call: the same for every attempt, different for every step.
    #[must_use]
    pub fn derived_key(&self, step: &str) -> String {
        self.0.derived_key(step)
    }

    /// Whether an earlier attempt began the same work, and may have done some of it. True only
    /// under the classes `keyed` and `retry`.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        self.0.is_retry()
    }

    /// Looks whether this attempt may still act. The layer did so before it called the service; a
    /// service that does something else first asks again right before its foreign call.
    ///
    /// # Errors
    /// Nothing may be sent then. If nothing was sent before, the service says so with
    /// [`Undelivered::NeverSent`](super::Undelivered::NeverSent).
    ///
    /// # Cancellation
    /// Dropping the future changes nothing.
    pub async fn send(&self) -> Result<(), NoSend> {
        self.0.send().await
    }

    /// Waits until this attempt has lost its lease. Never returns if it keeps it. For handlers
    /// that would rather stop than work for nothing.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing.
    pub async fn lost(&self) {
        self.0.lost().await;
    }
}
