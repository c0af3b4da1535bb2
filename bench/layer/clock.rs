//! The only file of this program that reads a clock. The peer's program has a copy of it.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// When this program first looked.
static BEGUN: LazyLock<Instant> = LazyLock::new(now);

/// How long this program has run, on the wall.
pub(crate) fn wall() -> Duration {
    BEGUN.elapsed()
}

/// Nanoseconds on the wall and of processor time, of all threads, since some moment.
///
/// Processor time is what the bars are about: it counts what a layer costs on every thread, and
/// does not count what else runs on the machine.
pub(crate) fn times() -> [u64; 2] {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    [wall(), Duration::try_from(cpu).unwrap_or_default()]
        .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "this is the clock of this program")]
fn now() -> Instant {
    Instant::now()
}
