//! The only file of this program that reads a clock. The peer's program has a copy of it.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Measures how long something takes, on the wall and in processor time of all threads.
///
/// Processor time is what the bars are about: it counts what the layer costs on every thread, and
/// does not count what else runs on the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

/// What a stopwatch shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "this is the clock of this program")]
    pub(crate) fn start() -> Self {
        Self { wall: Instant::now(), cpu: cpu() }
    }

    pub(crate) fn elapsed(self) -> Span {
        Span { wall: self.wall.elapsed(), cpu: cpu().saturating_sub(self.cpu) }
    }
}

fn cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(spent).unwrap_or_default()
}
