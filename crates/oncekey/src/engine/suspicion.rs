//! Whether the store's clock can be trusted just now.
//!
//! Leases are judged by the store's clock. If it steps forward by an hour, every lease looks lapsed
//! although every owner is alive. Fences keep that safe, but work would be taken over in masses. So
//! each answer of the store is compared with the local uptime, and when the two part, no lease is
//! taken over for as long as a lease lasts: by then every living owner has renewed under the new
//! time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncekey_core::Timestamp;
use oncekey_core::policy::DEFAULT_LEASE;

/// Compares the store's clock with the local uptime.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    seen: Mutex<Seen>,
    steps: AtomicU64,
}

#[derive(Debug, Default)]
struct Seen {
    /// Store time minus uptime, in microseconds, at the last answer.
    offset: Option<i64>,
    /// When the two last parted, by uptime.
    parted: Option<Duration>,
    /// The shortest and the longest lease that this node has seen. Routes differ, and whichever of
    /// them is asked first after a step has to speak for all.
    leases: Option<(Duration, Duration)>,
}

/// What clocks that are kept in step by the usual means may differ in a moment.
const TOLERATED: Duration = Duration::from_secs(2);

/// The grace of a claim that must not take anything over: longer than any lease lapsed.
pub(super) const NO_TAKEOVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

impl Suspicion {
    /// Takes a look at the store's clock: it showed `store` at some moment between `asked` and
    /// `answered`, to somebody who asked for this lease, if for any.
    pub(super) fn look(
        &self,
        store: Timestamp,
        asked: Duration,
        answered: Duration,
        lease: Option<Duration>,
    ) {
        // A slow answer says too little about the moment at which the clock was read.
        if answered.saturating_sub(asked) > TOLERATED / 4 {
            return;
        }
        let offset = store.micros().saturating_sub(micros(asked));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = lease {
            let (shortest, longest) = seen.leases.unwrap_or((lease, lease));
            seen.leases = Some((shortest.min(lease), longest.max(lease)));
        }
        if let Some(before) = seen.offset {
            let parted = Duration::from_micros(offset.abs_diff(before));
            if parted > TOLERATED.max(seen.leases().0 / 4) {
                tracing::warn!(
                    parted_seconds = parted.as_secs_f64(),
                    "the store's clock stepped: no lease is taken over for a while"
                );
                seen.parted = Some(answered);
                self.steps.fetch_add(1, Ordering::Release);
            }
        }
        seen.offset = Some(offset);
    }

    /// What the store's clock shows at `now`, if it kept step since it was last seen.
    pub(super) fn store_time(&self, now: Duration) -> Option<Timestamp> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.offset.map(|offset| Timestamp::from_micros(offset.saturating_add(micros(now))))
    }

    /// The longest lease that this node has seen.
    pub(super) fn longest_lease(&self) -> Duration {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).leases().1
    }

    /// How often the clock has stepped. What was reckoned before a step is worth nothing after it.
    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Acquire)
    }

    /// The grace that a claim should carry at `now` instead of `grace`.
    pub(super) fn grace(&self, grace: Duration, now: Duration) -> Duration {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.parted {
            Some(parted) if now < parted.saturating_add(seen.leases().1) => NO_TAKEOVER,
            Some(_) | None => grace,
        }
    }
}

impl Seen {
    /// A node that has only swept so far knows no lease, and takes the usual one for it.
    fn leases(&self) -> (Duration, Duration) {
        self.leases.unwrap_or((DEFAULT_LEASE, DEFAULT_LEASE))
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);
    const GRACE: Duration = Duration::from_secs(2);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn up(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_clock_that_keeps_step_is_trusted() {
        let suspicion = Suspicion::default();
        for second in 0..100 {
            let (now, store) = (up(second), at(1_000_000 + i64::try_from(second).unwrap()));
            suspicion.look(store, now, now, Some(LEASE));
            assert_eq!(suspicion.grace(GRACE, now), GRACE);
        }
    }

    /// I30, F45: a clock that steps in either direction stops takeovers for a lease, and no longer.
    #[test]
    fn a_clock_that_steps_stops_takeovers_for_a_lease() {
        for step in [3_600, -3_600] {
            let suspicion = Suspicion::default();
            suspicion.look(at(1_000_000), up(10), up(10), Some(LEASE));
            suspicion.look(at(1_000_001 + step), up(11), up(11), Some(LEASE));
            assert_eq!(suspicion.grace(GRACE, up(12)), NO_TAKEOVER);
            suspicion.look(at(1_000_002 + step), up(12), up(12), Some(LEASE));
            assert_eq!(suspicion.grace(GRACE, up(40)), NO_TAKEOVER);
            assert_eq!(suspicion.grace(GRACE, up(41)), GRACE);
        }
    }

    /// F45: a node whose routes have leases of different lengths notices a step whichever of them
    /// is asked first, and waits as long as the longest of them needs.
    #[test]
    fn a_step_is_judged_by_the_shortest_lease_and_outlasts_the_longest() {
        let long = Duration::from_secs(3_600);
        for (first, second) in [(LEASE, long), (long, LEASE)] {
            let suspicion = Suspicion::default();
            suspicion.look(at(1_000_000), up(10), up(10), Some(first));
            suspicion.look(at(1_000_001), up(11), up(11), Some(second));
            // Ten minutes: less than a quarter of the long lease, far more than the short one.
            suspicion.look(at(1_000_602), up(12), up(12), Some(second));
            assert_eq!(suspicion.grace(GRACE, up(13)), NO_TAKEOVER);
            assert_eq!(suspicion.grace(GRACE, up(3_600)), NO_TAKEOVER);
            assert_eq!(suspicion.grace(GRACE, up(3_612)), GRACE);
        }
    }

    #[test]
    fn a_slow_answer_is_no_step() {
        let suspicion = Suspicion::default();
        suspicion.look(at(1_000_000), up(10), up(10), Some(LEASE));
        suspicion.look(at(1_000_001), up(11), up(31), Some(LEASE));
        suspicion.look(at(1_000_022), up(32), up(32), Some(LEASE));
        assert_eq!(suspicion.grace(GRACE, up(32)), GRACE);
    }
}
