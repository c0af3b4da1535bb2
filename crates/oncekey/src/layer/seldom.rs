//! What is worth saying, but not every time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Something that happens as often as clients like and is said once a minute at most.
///
/// A client with weak keys sends them with every request: a line for each of them took a twentieth of
/// the time of a replay, and nobody read the second one.
#[derive(Debug, Default)]
pub(super) struct Seldom {
    /// From when on it may be said, in microseconds of uptime.
    from: AtomicU64,
    /// How often it happened since it was last said.
    unsaid: AtomicU64,
}

/// Often enough that whoever looks at a log meets it, and too seldom to fill one.
const PAUSE: Duration = Duration::from_secs(60);

impl Seldom {
    /// Counts one more at `now`, by uptime. If it is time to say so, how many there were since the last
    /// time; of callers that come at the same moment one is told.
    pub(super) fn happened(&self, now: Duration) -> Option<u64> {
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (from, now) = (self.from.load(Ordering::Relaxed), micros(now));
        let next = now.saturating_add(micros(PAUSE));
        let mine = now >= from
            && self.from.compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        mine.then(|| self.unsaid.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_at_once_and_the_others_are_counted_for_a_minute() {
        let seldom = Seldom::default();
        let happened = |seconds| seldom.happened(Duration::from_secs(seconds));
        assert_eq!(happened(5), Some(1));
        assert_eq!([happened(5), happened(6), happened(64)], [None; 3]);
        assert_eq!(happened(65), Some(4));
        assert_eq!(happened(66), None);
        assert_eq!(happened(1_000), Some(2));
    }
}
