//! What every request to the admin API can look at.

use std::time::Duration;

use oncekey::clock::{SystemUptime, Uptime as _};
use oncekey::core::StoreError;
use oncekey::engine::Engine;
use oncekey::store::Opened;
use std::sync::Arc;

use super::access::Access;
use super::audit::Audit;
use super::events::Events;
use super::gateway::Gateway;
use super::health::Readiness;
use super::problem::{Code, Problem};
use crate::observe::Ledger;
use crate::telemetry::prometheus::Prometheus;

/// The admin API of one gateway.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(super) engine: Engine,
    pub(super) store: Opened,
    pub(super) gateway: Arc<dyn Gateway>,
    pub(super) metrics: Prometheus,
    pub(super) access: Arc<Access>,
    pub(super) audit: Audit,
    pub(super) events: Events,
    pub(super) readiness: Readiness,
    pub(super) instance: String,
    pub(super) ledger: Ledger,
    pub(super) written: Written,
    started: Duration,
}

/// How records lie in the store: whether it can be searched for what clients sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Written {
    /// It can.
    #[default]
    Clear,
    /// Nothing that clients sent looks the same twice in it.
    Encrypted,
}

/// How long an operator waits for a store. Longer than a failover of a good one; shorter than the
/// patience of a person.
const STORE_WITHIN: Duration = Duration::from_secs(5);

impl Admin {
    /// An API for the engine and its own store. `instance` is the name of this process among its
    /// like.
    pub(crate) fn new(
        engine: Engine,
        store: Opened,
        gateway: Arc<dyn Gateway>,
        metrics: Prometheus,
        access: impl Into<Arc<Access>>,
    ) -> Self {
        let ledger = Ledger::unused(engine.clone());
        Self {
            engine,
            store,
            gateway,
            metrics,
            access: access.into(),
            audit: Audit::in_memory(),
            events: Events::default(),
            readiness: Readiness::default(),
            instance: String::from("oncekey"),
            ledger,
            written: Written::default(),
            started: SystemUptime.elapsed(),
        }
    }

    /// Keeps the audit elsewhere than in memory alone.
    pub(crate) fn audit(mut self, audit: Audit) -> Self {
        self.audit = audit;
        self
    }

    /// Shows what is published here.
    pub(crate) fn events(mut self, events: Events) -> Self {
        self.events = events;
        self
    }

    /// The name of this process among its like.
    pub(crate) fn instance(mut self, instance: impl Into<String>) -> Self {
        self.instance = instance.into();
        self
    }

    /// Shows what is read from here.
    pub(crate) fn ledger(mut self, ledger: Ledger) -> Self {
        self.ledger = ledger;
        self
    }

    /// Whether its records are encrypted.
    pub(crate) fn written(mut self, written: Written) -> Self {
        self.written = written;
        self
    }

    pub(super) fn uptime(&self) -> Duration {
        SystemUptime.elapsed().saturating_sub(self.started)
    }

    /// Asks the store, and does not wait for ever.
    pub(super) async fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Problem> {
        match tokio::time::timeout(STORE_WITHIN, question).await {
            Ok(answered) => answered.map_err(Problem::from),
            Err(_) => Err(Problem::new(
                Code::StoreUnavailable,
                format!(
                    "the store did not answer within {} s: a change may or may not have taken \
                     effect, look at the record",
                    STORE_WITHIN.as_secs()
                ),
            )),
        }
    }
}
