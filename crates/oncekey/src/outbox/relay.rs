//! Takes staged messages, gives them to sinks, settles them.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::lane::Lane;
use super::settle::Ended;
use super::sink::Sink;
use crate::clock::{SystemUptime, Uptime};
use crate::entropy::{Entropy, SystemEntropy};
use crate::flow::{TxError, TxStore};

/// Delivers staged messages.
///
/// Every node may run one: locks and leases decide who delivers a message. After a crash its leases
/// lapse, and others deliver what it had taken.
pub struct Relay<S: TxStore> {
    store: S,
    inner: Inner,
    batch: usize,
    lanes: usize,
    every: Duration,
}

/// What deliveries need to know.
#[derive(Clone)]
pub(super) struct Inner {
    routes: Vec<Route>,
    pub(super) at_once: usize,
    pub(super) lease: Duration,
    pub(super) limit: Duration,
    pub(super) attempts: i64,
    first: Duration,
    longest: Duration,
    pub(super) after_dead: AfterDead,
    pub(super) uptime: Arc<dyn Uptime>,
    pub(super) entropy: Arc<dyn Entropy>,
    /// Topics without a sink that the log has named.
    named: Arc<Mutex<HashSet<String>>>,
}

/// A sink and the topics that go to it.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) pattern: String,
    pub(super) sink: Arc<dyn Sink>,
}

/// What happens to later messages of an order key when one has become a dead letter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterDead {
    /// They wait until it is replayed or discarded: the order is kept, whatever happens.
    #[default]
    Hold,
    /// They are delivered. If it is replayed, it comes after them.
    GoOn,
}

/// What one look came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Messages that were taken.
    pub taken: usize,
    /// Messages that have arrived.
    pub sent: usize,
    /// Messages that will be tried again.
    pub later: usize,
    /// Messages that have become dead letters.
    pub dead: usize,
    /// Messages that were taken and not tried, because one of their key did not arrive, because the
    /// relay stops, or because the lease would not have lasted.
    pub given_back: usize,
    /// Messages that were due and stand behind another one of their key.
    pub put_off: usize,
    /// Messages that were due and that no route fits.
    pub unrouted: usize,
    /// Settlements that were refused, because the lease had lapsed and somebody else has the message.
    pub refused: usize,
}

impl<S: TxStore> Relay<S> {
    /// Delivers what is staged on this store. Add at least one [`route`](Self::route).
    #[must_use]
    pub fn new(store: S) -> Self {
        let inner = Inner {
            routes: Vec::new(),
            // Enough to keep slow receivers busy, few enough for one process's connections.
            at_once: 64,
            // A crash costs at most so much delay.
            lease: Duration::from_secs(60),
            // What an HTTP client of today waits; longer than a receiver that is merely busy needs.
            limit: Duration::from_secs(30),
            // With the backoff below, the last one is about half a day after the first.
            attempts: 20,
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60 * 60),
            after_dead: AfterDead::default(),
            uptime: Arc::new(SystemUptime),
            entropy: Arc::new(SystemEntropy::default()),
            named: Arc::default(),
        };
        // Batches beyond a few hundred gain little; lanes gain where messages have no order.
        Self { store, inner, batch: 500, lanes: 1, every: Duration::from_millis(200) }
    }

    /// Gives messages to a sink: those of a topic, with `orders.*` those of every topic that begins with
    /// `orders.`, with `*` all. The first route that fits is taken. A message that no route fits waits
    /// without losing an attempt until a relay comes whose routes fit; the log names its topic once.
    #[must_use]
    pub fn route(mut self, pattern: impl Into<String>, sink: impl Sink) -> Self {
        self.inner.routes.push(Route { pattern: pattern.into(), sink: Arc::new(sink) });
        self
    }

    /// How many messages are taken in one transaction.
    #[must_use]
    pub fn batch(mut self, messages: usize) -> Self {
        self.batch = messages.max(1);
        self
    }

    /// How many messages each lane delivers at the same time. Those of one order key never are.
    #[must_use]
    pub fn at_once(mut self, messages: usize) -> Self {
        self.inner.at_once = messages.max(1);
        self
    }

    /// How many look for messages at the same time, each with its own deliveries.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes.max(1);
        self
    }

    /// How long a message is owned, and how long one delivery may take. A delivery that takes longer is
    /// ended and counts as failed.
    ///
    /// The limit is at most half of the lease, and a delivery is begun only if its end and its settlement
    /// fall within the lease. Leases are not renewed instead: a sink that hangs would hold its message
    /// for ever, and whoever renews can stand still just like whoever delivers.
    #[must_use]
    pub fn times(mut self, lease: Duration, limit: Duration) -> Self {
        (self.inner.lease, self.inner.limit) = (lease, limit.min(lease / 2));
        self
    }

    /// How often a message is tried before it becomes a dead letter.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.inner.attempts = i64::from(attempts.max(1));
        self
    }

    /// How long after the first failure a message is tried again, and the longest such time. It doubles
    /// from one to the other, and half of it is chance.
    #[must_use]
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        (self.inner.first, self.inner.longest) = (first, longest);
        self
    }

    /// What happens behind a dead letter.
    #[must_use]
    pub fn after_dead(mut self, after: AfterDead) -> Self {
        self.inner.after_dead = after;
        self
    }

    /// How long to wait when nothing is due and nobody wakes the relay.
    #[must_use]
    pub fn every(mut self, pause: Duration) -> Self {
        self.every = pause;
        self
    }

    /// Another clock for leases, for tests.
    #[must_use]
    pub fn uptime(mut self, uptime: Arc<dyn Uptime>) -> Self {
        self.inner.uptime = uptime;
        self
    }

    /// Relays until `stop` ends. Deliveries that are under way then are finished and settled; what was
    /// taken and not begun is given back.
    ///
    /// # Cancellation
    /// Dropping it loses nothing: what was under way is delivered again when its lease has lapsed.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let (tell, told) = watch::channel(false);
        let mut lanes = JoinSet::new();
        for _ in 0..self.lanes {
            lanes.spawn(self.lane(told.clone()).run());
        }
        stop.await;
        let _ = tell.send(true);
        while lanes.join_next().await.is_some() {}
    }

    /// Takes what is due, at most one batch, and brings it to its end.
    ///
    /// # Errors
    /// If the database cannot be asked. What was delivered and could not be settled comes again.
    pub async fn run_once(&self) -> Result<Relayed, TxError> {
        let (_tell, stop) = watch::channel(false);
        self.lane(stop).once().await
    }

    fn lane(&self, stop: watch::Receiver<bool>) -> Lane<S> {
        Lane::new(self.store.clone(), self.inner.clone(), self.batch, self.every, stop)
    }
}

impl Relayed {
    pub(super) fn count(&mut self, ended: &Ended) {
        match ended {
            Ended::Sent => self.sent += 1,
            Ended::Later { .. } => self.later += 1,
            Ended::Dead { .. } => self.dead += 1,
            Ended::GivenBack { .. } => self.given_back += 1,
        }
    }
}

impl Inner {
    pub(super) fn route_of(&self, topic: &str) -> Option<&Route> {
        self.routes.iter().find(|route| fits(&route.pattern, topic))
    }

    /// The longest time between taking a message and beginning to deliver it. A tenth of the lease is left
    /// for the settlement, so that what ends at its limit still meets its row.
    pub(super) fn latest_begin(&self) -> Duration {
        self.lease.saturating_sub(self.limit).saturating_sub(self.lease / 10)
    }

    /// Says once for each topic that no sink takes it.
    pub(super) fn name_unrouted(&self, topic: &str) {
        // Whoever has more topics than this knows by then.
        const MOST: usize = 100;
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() < MOST && !named.contains(topic) {
            named.insert(topic.to_owned());
            tracing::warn!(
                topic,
                "no route of this relay fits a staged message: add one, or run a relay that has it"
            );
        }
    }

    /// From half of the time to all of it, so that messages that failed together do not come together.
    pub(super) fn backoff(&self, attempt: i64) -> Duration {
        let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX).min(30);
        let full = self.first.saturating_mul(1 << doublings).min(self.longest);
        let mut chance = [0; 2];
        self.entropy.fill(&mut chance);
        let chance = f64::from(u16::from_le_bytes(chance)) / f64::from(u16::MAX);
        full.mul_f64(0.5 + chance / 2.0)
    }
}

fn fits(pattern: &str, topic: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => topic.starts_with(start),
        None => pattern == topic,
    }
}

impl<S: TxStore> fmt::Debug for Relay<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes: Vec<_> = self.inner.routes.iter().map(|route| &route.pattern).collect();
        out.debug_struct("Relay").field("routes", &routes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_goes_where_its_route_says() {
        assert!(fits("*", "a") && fits("a.*", "a.b") && fits("a", "a"));
        assert!(!fits("a.*", "ab") && !fits("a", "a.b") && !fits("", "a"));
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn the_backoff_doubles_and_ends() {
        let pool = sqlx::SqlitePool::connect_lazy("sqlite::memory:").unwrap();
        let relay = Relay::new(crate::flow::sqlx::SqlxSqlite::new(pool));
        let inner = relay.backoff(Duration::from_secs(1), Duration::from_secs(60)).inner;
        for (attempt, full) in [(1, 1.0), (2, 2.0), (4, 8.0), (7, 60.0), (i64::MAX, 60.0)] {
            let pauses: Vec<_> = (0..50).map(|_| inner.backoff(attempt).as_secs_f64()).collect();
            assert!(pauses.iter().all(|pause| (full / 2.0..=full).contains(pause)), "{pauses:?}");
            assert!(pauses.iter().any(|pause| (pause - pauses[0]).abs() > full / 100.0));
        }
    }
}
