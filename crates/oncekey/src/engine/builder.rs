//! How an engine is put together.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::{Clock, Pepper, Store, Wake};

use super::Engine;
use crate::clock::Uptime;
use crate::entropy::Entropy;

/// Puts an engine together. Everything but the store has a default.
#[derive(Debug)]
#[must_use]
pub struct Builder {
    pub(super) store: Arc<dyn Store>,
}

/// Who renews the leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heartbeat {
    /// A thread of its own with a runtime of its own, so that handlers which block every worker
    /// thread cannot cost the leases.
    #[default]
    Thread,
    /// A task on the engine's runtime, for simulations.
    Task,
}

impl Builder {
    /// Keeps the keys of deployments that share a store apart.
    pub fn namespace(self, namespace: &str) -> Self {
        let _ = namespace;
        self
    }
    /// Keys the digests of keys and scopes with a secret.
    pub fn pepper(self, pepper: Pepper) -> Self {
        let _ = pepper;
        self
    }
    /// Learns from the store when a key is finished, instead of asking again and again.
    pub fn wake(self, wake: Arc<dyn Wake>) -> Self {
        let _ = wake;
        self
    }
    /// Where ends are kept that could not be written to the store: a folder on a local disk.
    pub fn journal(self, folder: PathBuf) -> Self {
        let _ = folder;
        self
    }
    /// How many bytes of finished answers are kept in memory; zero for none.
    pub fn cache(self, bytes: u64) -> Self {
        let _ = bytes;
        self
    }
    /// A second handle to the same store for renewals, with a connection of its own.
    pub fn heartbeat_store(self, store: Arc<dyn Store>) -> Self {
        let _ = store;
        self
    }
    /// Who renews the leases.
    pub fn heartbeat(self, heartbeat: Heartbeat) -> Self {
        let _ = heartbeat;
        self
    }
    /// How long an owner waits for the store to take the end of its work, before it answers
    /// without.
    pub fn patience(self, patience: Duration) -> Self {
        let _ = patience;
        self
    }
    /// The wall clock, for request ids.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        let _ = clock;
        self
    }
    /// The clock that judges whether an owner may still send.
    pub fn uptime(self, uptime: Arc<dyn Uptime>) -> Self {
        let _ = uptime;
        self
    }
    /// Where random bits come from.
    pub fn entropy(self, entropy: Arc<dyn Entropy>) -> Self {
        let _ = entropy;
        self
    }
    /// The engine. Must be called on a tokio runtime.
    pub fn build(self) -> Engine {
        todo!()
    }
}
