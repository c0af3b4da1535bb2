//! Time as data: what a moment is, and who may say which moment it is.
//!
//! Core never reads a clock. A store is given a [`Clock`] when it is made (or uses its server's),
//! and only that clock judges leases and retention. Tests use [`ManualClock`], so no test sleeps.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// A moment: microseconds since the Unix epoch.
///
/// An integer rather than a date type, because every store and every driver has 64-bit integers
/// and each has another idea of dates. Microseconds fit the fence's hybrid clock, and stay exact
/// in a double (Lua, JSON) until the year 2255.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

/// Says which moment it is.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present moment. It may step in either direction: callers must survive that.
    fn now(&self) -> Timestamp;
}

/// A clock that moves only when told to.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl Timestamp {
    /// A moment `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// This moment plus `span`. Saturates: a retention of a million years is "for ever", not a
    /// wrap-around into the past that would expire the record at once.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros_of(span)))
    }

    /// This moment minus `span`, saturating.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros_of(span)))
    }

    /// How long after `earlier` this moment is; zero if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.micros()))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros_of(by), Ordering::SeqCst);
    }

    /// Moves the clock back, as a bad time server or a restored virtual machine does.
    pub fn step_back(&self, by: Duration) {
        self.0.fetch_sub(micros_of(by), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

fn micros_of(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_spans_saturate_instead_of_wrapping() {
        let now = Timestamp::from_micros(1_763_000_000_000_000);
        assert_eq!(now.after(Duration::MAX).micros(), i64::MAX);
        assert!(now.before(Duration::MAX).micros() < 0);
        assert_eq!(Timestamp::from_micros(i64::MIN).since(now), Duration::ZERO);
    }

    #[test]
    fn a_manual_clock_moves_both_ways() {
        let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
        clock.advance(Duration::from_secs(2));
        assert_eq!(clock.now().micros(), 3_000_000);
        clock.step_back(Duration::from_secs(1));
        assert_eq!(clock.now().micros(), 2_000_000);
    }
}
