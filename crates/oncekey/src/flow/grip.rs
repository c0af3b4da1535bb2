//! How long an attempt may still act, by the clock of its own process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Uptime;

/// What is known locally about the lease of an attempt.
#[derive(Debug)]
pub(crate) struct Grip {
    /// When the lease or its last renewal was asked for, in microseconds of uptime.
    since: AtomicU64,
    lease: Duration,
    lost: AtomicBool,
    turned: AtomicBool,
    uptime: Arc<dyn Uptime>,
}

/// So much of the lease must be left to begin something foreign: the rest of it covers the time until
/// the request has left.
const START_BUDGET: Duration = Duration::from_secs(2);

impl Grip {
    /// A lease of this length that was asked for at this time: counting from then, the local deadline
    /// is never the later one.
    pub(crate) fn new(uptime: Arc<dyn Uptime>, lease: Duration, asked: Duration) -> Self {
        let since = AtomicU64::new(micros(asked));
        Self { since, lease, lost: AtomicBool::new(false), turned: AtomicBool::new(false), uptime }
    }

    /// A clock that counts sleep.
    pub(crate) fn now(&self) -> Duration {
        self.uptime.elapsed()
    }

    pub(crate) fn renewed(&self, asked: Duration) {
        self.since.fetch_max(micros(asked), Ordering::AcqRel);
    }

    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// The flow has turned back: what was counted on the way there does not count any more.
    pub(crate) fn turn(&self) {
        self.turned.store(true, Ordering::Release);
    }

    pub(crate) fn has_turned(&self) -> bool {
        self.turned.load(Ordering::Acquire)
    }

    /// How much is left of the lease.
    pub(crate) fn left(&self) -> Duration {
        let since = Duration::from_micros(self.since.load(Ordering::Acquire));
        (since + self.lease).saturating_sub(self.now())
    }

    /// Whether enough is left to begin something.
    pub(crate) fn has_time(&self) -> bool {
        self.left() >= START_BUDGET.min(self.lease / 4)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
