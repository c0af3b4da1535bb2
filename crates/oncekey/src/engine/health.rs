//! Whether the store answers.
//!
//! After a few failures in a row nobody asks the store about new work for a moment: a store that is
//! down is not helped by a thousand more questions, and a client is better served by a quick 503
//! with a time to come back. Decisions are no failures: a conflict or a mismatch is a store that
//! works. Ends of work and renewals are always tried.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The recent luck with the store.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Failures since the last answer.
    failures: AtomicU32,
    /// Until when nobody asks, in microseconds of uptime.
    rests_until: AtomicU64,
}

/// One failure is a hiccup, a connection that was closed while idle. Five in a row are an outage.
const OUTAGE: u32 = 5;
/// The first rest. Long enough to spare the store, short enough that nobody notices a restart.
const SHORTEST_REST: Duration = Duration::from_millis(500);
/// The longest. A store that comes back is found out about within this time.
const LONGEST_REST: Duration = Duration::from_secs(8);

impl Health {
    /// `Err` with the time to come back if the store should be left alone.
    ///
    /// Once a rest is over one caller tries, and the others rest on until it knows more.
    pub(super) fn may_ask(&self, now: Duration) -> Result<(), Duration> {
        let failures = self.failures.load(Ordering::Relaxed);
        if failures < OUTAGE {
            return Ok(());
        }
        let until = self.rests_until.load(Ordering::Relaxed);
        let (now, rest) = (micros(now), rest_after(failures));
        if now < until {
            return Err(Duration::from_micros(until - now));
        }
        let next = now.saturating_add(micros(rest));
        match self.rests_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(rest),
        }
    }

    /// The store answered, whatever it said.
    pub(super) fn answered(&self) {
        // Read first: a line of memory that nobody writes is shared by all cores.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// The store could not be asked.
    pub(super) fn failed(&self, now: Duration) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures >= OUTAGE {
            let until = micros(now).saturating_add(micros(rest_after(failures)));
            self.rests_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// Whether the store is left alone just now.
    pub(super) fn is_resting(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= OUTAGE
    }
}

fn rest_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(OUTAGE).min(8);
    (SHORTEST_REST * 2_u32.pow(doublings)).min(LONGEST_REST)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_few_failures_in_a_row_make_a_rest_and_one_answer_ends_it() {
        let health = Health::default();
        for _ in 0..OUTAGE - 1 {
            health.failed(SECOND);
        }
        assert_eq!(health.may_ask(SECOND), Ok(()));
        health.failed(SECOND);
        let rest = health.may_ask(SECOND).unwrap_err();
        assert!(rest <= SHORTEST_REST && !rest.is_zero(), "{rest:?}");
        assert!(health.is_resting());
        health.answered();
        assert_eq!(health.may_ask(SECOND), Ok(()));
    }

    #[test]
    fn after_a_rest_one_caller_tries_and_the_others_rest_on() {
        let health = Health::default();
        for _ in 0..OUTAGE {
            health.failed(SECOND);
        }
        let later = SECOND + SHORTEST_REST;
        assert_eq!(health.may_ask(later), Ok(()));
        assert!(health.may_ask(later).is_err());
    }

    /// L7: successes of any kind, which is what conflicts and mismatches are, keep it closed.
    #[test]
    fn answers_between_failures_keep_the_store_in_use() {
        let health = Health::default();
        for _ in 0..100 {
            health.failed(SECOND);
            health.answered();
        }
        assert_eq!(health.may_ask(SECOND), Ok(()));
    }
}
