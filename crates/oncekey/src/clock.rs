//! The only place that reads the time.

use std::time::{SystemTime, UNIX_EPOCH};

use oncekey_core::{Clock, Timestamp};

/// The machine's wall clock.
///
/// It may step. Stores that use it survive that: fences rise anyway, leases are judged by the
/// clock that granted them, and retention counts from the later of clock and fence.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn now(&self) -> Timestamp {
        // A clock before 1970 is wrong by decades; zero is as good a wrong time as any, and the
        // fence's high-water mark keeps what matters rising.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::default().after(since)
    }
}

/// Measures how long something takes, by a clock that never steps.
#[cfg(feature = "sqlite")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(std::time::Instant);

#[cfg(feature = "sqlite")]
impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn elapsed(self) -> std::time::Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_is_past_the_day_this_was_written() {
        assert!(SystemClock.now() > Timestamp::from_micros(1_763_000_000_000_000));
    }
}
