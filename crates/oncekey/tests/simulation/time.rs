//! The clocks of a history: simulated time, the store's clock that steps, and each node's uptime.
//!
//! Simulated time is tokio's paused clock: it stands still while anybody has something to do and
//! then jumps to the next timer. No history ever waits.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncekey::clock::Uptime;
use oncekey::core::{Clock, ManualClock, Timestamp};
use tokio::time::Instant;

use crate::gate::Gate;

/// Time since the history began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimTime(Instant);

/// The store's clock: simulated time plus steps in either direction.
#[derive(Debug)]
pub(crate) struct StoreClock {
    time: SimTime,
    stepped: AtomicI64,
    /// The latest time that it ever showed.
    latest: AtomicI64,
    /// The same clock for stores that only know manual ones; brought up to date before each call.
    manual: Arc<ManualClock>,
    shown: Mutex<Timestamp>,
}

/// The uptime of a node, which counts while the node is paused.
#[derive(Debug)]
pub(crate) struct NodeUptime(pub(crate) SimTime);

/// A planted bug: a clock that stands still while the node is paused, as `Instant` does.
#[derive(Debug)]
pub(crate) struct UptimeThatSleeps {
    pub(crate) time: SimTime,
    pub(crate) gate: Arc<Gate>,
}

/// Some day in 2025, an odd number of microseconds in, so that rounding would show. The stores with
/// planted bugs begin there too.
pub(crate) const BASE: Timestamp = Timestamp::from_micros(1_763_000_000_123_457);

impl SimTime {
    /// Begins now. Must be called on the history's runtime.
    pub(crate) fn begin() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Duration {
        self.0.elapsed()
    }
}

impl StoreClock {
    /// A clock that also shows itself on `manual`, which stands at [`BASE`].
    pub(crate) fn new(time: SimTime, manual: Arc<ManualClock>) -> Self {
        let (stepped, latest) = (AtomicI64::new(0), AtomicI64::new(BASE.micros()));
        Self { time, stepped, latest, manual, shown: Mutex::new(BASE) }
    }

    /// Steps by this many microseconds.
    pub(crate) fn step(&self, micros: i64) {
        self.stepped.fetch_add(micros, Ordering::SeqCst);
    }

    /// Puts the clock right after it stepped back: to the latest time that it ever showed.
    pub(crate) fn put_right(&self) {
        let (now, latest) = (self.now(), self.latest.load(Ordering::SeqCst));
        self.step(latest.saturating_sub(now.micros()).max(0));
    }

    /// Brings the manual clock up to date.
    pub(crate) fn show(&self) {
        let now = self.now();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        self.latest.fetch_max(now.micros(), Ordering::SeqCst);
        self.manual.advance(now.since(*shown));
        self.manual.step_back(shown.since(now));
        *shown = now;
    }
}

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        let stepped = self.stepped.load(Ordering::SeqCst);
        let micros = BASE.after(self.time.now()).micros();
        Timestamp::from_micros(micros.saturating_add(stepped))
    }
}

impl Uptime for NodeUptime {
    fn elapsed(&self) -> Duration {
        self.0.now()
    }
}

impl Uptime for UptimeThatSleeps {
    fn elapsed(&self) -> Duration {
        self.time.now().saturating_sub(self.gate.asleep())
    }
}
