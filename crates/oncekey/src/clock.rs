//! The only place that reads the time.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oncekey_core::{Clock, Timestamp};

/// The machine's wall clock.
///
/// It may step. Stores that use it survive that: fences rise anyway, leases are judged by the
/// clock that granted them, and retention counts from the later of clock and fence.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// How long the machine has been up, the time that it was asleep included.
///
/// An owner judges by this clock whether it may still send. `Instant` stands still while a laptop
/// or a virtual machine sleeps on Linux: an owner that slept for an hour would take its lease for
/// fresh.
pub trait Uptime: fmt::Debug + Send + Sync + 'static {
    /// Time since some fixed moment. Never steps back.
    fn elapsed(&self) -> Duration;
}

/// The uptime of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemUptime;

/// Measures how long something takes, by a clock that never steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn now(&self) -> Timestamp {
        // A clock before 1970 is wrong by decades; zero is as good a wrong time as any, and the
        // fence's high-water mark keeps what matters rising.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::default().after(since)
    }
}

impl Uptime for SystemUptime {
    fn elapsed(&self) -> Duration {
        use rustix::time::{ClockId, clock_gettime};
        // On Linux only this one counts suspend; on Apple's systems the monotonic clock does.
        #[cfg(target_os = "linux")]
        const COUNTS_SUSPEND: ClockId = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        const COUNTS_SUSPEND: ClockId = ClockId::Monotonic;

        let up = clock_gettime(COUNTS_SUSPEND);
        let nanos = u32::try_from(up.tv_nsec).unwrap_or(0);
        Duration::new(u64::try_from(up.tv_sec).unwrap_or(0), nanos)
    }
}

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
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

    #[test]
    fn uptime_never_stands_still_for_long() {
        let before = SystemUptime.elapsed();
        std::thread::sleep(Duration::from_millis(2));
        let passed = SystemUptime.elapsed().saturating_sub(before);
        assert!(passed >= Duration::from_millis(2), "{passed:?}");
    }
}
