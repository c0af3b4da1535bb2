//! How much a node has to do.

use std::time::Duration;

use super::Engine;

/// What is under way on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Attempts that hold a key.
    pub in_flight: usize,
    /// How long the oldest of them has run.
    pub oldest: Duration,
    /// Calls that wait for another call's answer, in this process or in others.
    pub waiters: usize,
    /// Tasks that are not finished, ends that wait for the store included.
    pub tasks: usize,
    /// Ends that are in the journal and wait for the store.
    pub journalled: usize,
    /// Whether the store answers and has what it should.
    pub store: StoreHealth,
}

/// Whether the store answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreHealth {
    /// It does, as far as we know.
    #[default]
    Answers,
    /// It does not, and is left alone for a moment.
    Resting,
    /// It has lost records that it had acknowledged: nothing is granted until they are put back.
    /// [`Engine::findings`] says more.
    Regressed,
}

impl Engine {
    /// What is under way now. Also sets the gauges, so call it before metrics are read.
    pub fn load(&self) -> Load {
        let shared = &self.0;
        let held = shared.heart.everything();
        let now = shared.uptime.elapsed();
        let oldest = held.iter().map(|held| now.saturating_sub(held.began)).max();
        let is_regressed = shared.sentry.as_ref().is_some_and(|sentry| sentry.is_regressed());
        let store = match shared.health.is_resting() {
            _ if is_regressed => StoreHealth::Regressed,
            true => StoreHealth::Resting,
            false => StoreHealth::Answers,
        };
        let load = Load {
            in_flight: held.len(),
            oldest: oldest.unwrap_or_default(),
            waiters: shared.flights.waiting() + shared.waits.waiting(),
            tasks: shared.gate.tasks(),
            journalled: shared.backlog.as_ref().map_or(0, |backlog| backlog.len()),
            store,
        };
        metrics::gauge!("oncekey_in_flight").set(float(load.in_flight));
        metrics::gauge!("oncekey_in_flight_oldest_seconds").set(load.oldest.as_secs_f64());
        if let Some(backlog) = &shared.backlog {
            metrics::gauge!("oncekey_journal_waiting").set(float(load.journalled));
            let bytes = usize::try_from(backlog.bytes()).unwrap_or(usize::MAX);
            metrics::gauge!("oncekey_journal_bytes").set(float(bytes));
        }
        metrics::gauge!("oncekey_waiters").set(float(load.waiters));
        load
    }
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
