//! The one place where claim, run and complete happen.
//!
//! Everything that makes work safe to repeat calls [`Engine::answer`]: the layer, the gateway,
//! flows, webhooks and jobs. The order of a keyed request is: cache, coalesce, claim, mark as
//! sent, run, record, answer the owner and everybody who waited.
//!
//! Owned work runs in a task of its own. Whoever drops the future of [`Engine::answer`] stops
//! waiting for the answer and changes nothing else.

mod attempt;
mod builder;
mod call;
mod reply;
mod request_id;

use std::sync::Arc;

use oncekey_core::{Key, KeyId, Scope, derived_key};

pub use self::attempt::{Attempt, NoSend};
pub use self::builder::{Builder, Heartbeat};
pub use self::call::{Call, Finish};
pub use self::reply::{Ran, Recorded, Refused, Replayed, Reply, Source, Unavailable};
pub use self::request_id::RequestId;

/// Runs work at most once for each key. Cheap to clone; all clones are one engine.
#[derive(Clone, Debug)]
pub struct Engine(Arc<Shared>);

#[derive(Debug)]
struct Shared {}

impl Engine {
    /// Puts an engine together around a store.
    pub fn builder(store: Arc<dyn oncekey_core::Store>) -> Builder {
        Builder { store }
    }
    /// The id of the record of `key` in `scope`.
    #[must_use]
    pub fn key_id(&self, scope: &Scope, key: &Key) -> KeyId {
        todo!()
    }
    /// A new request id.
    #[must_use]
    pub fn request_id(&self) -> RequestId {
        todo!()
    }
    /// Runs `work` if nobody did, and says what came of it.
    ///
    /// # Cancellation
    /// Dropping the future stops the waiting, not the work.
    pub async fn answer<T, W, F>(&self, call: Call, work: W) -> Reply<T>
    where
        T: Send + 'static,
        W: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Finish<T>> + Send + 'static,
    {
        let _ = (call, work);
        todo!()
    }
    /// What is known about a key, without any effect: for status URLs.
    pub async fn look(&self, id: &KeyId) -> Result<Option<Looked>, oncekey_core::StoreError> {
        let _ = (id, derived_key("", id, ""));
        todo!()
    }
    /// Finishes what is running, for at most `within`.
    pub async fn shutdown(&self, within: std::time::Duration) {
        let _ = within;
        todo!()
    }
}

/// What is known about a key.
#[derive(Debug)]
pub enum Looked {
    /// Somebody is at it. The id of the request that is.
    Running(String),
    /// It is done.
    Done(Box<Replayed>),
    /// It is done, unknown, parked or expired, and there is no answer.
    Without(Refused),
}
