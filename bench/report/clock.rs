//! The only file of these programs that reads a clock, but for those that are measured together
//! with a peer.

use std::time::{Duration, Instant};

/// Measures how long something takes.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "this is the clock of this program")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// How long ago that was.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
