//! When the loop that renews leases looks at them next, and whether a new lease has to wake it.
//!
//! To wake a thread is a system call, and a switch to it and back. Most leases end long before they are
//! due, so the loop looks in time anyway if it sleeps no longer than the leases of a moment ago may
//! take: whoever comes while it sleeps and lasts as long is due after it has looked. One that is due
//! earlier always wakes it. Knows no clock and no lease: times are uptimes.

use std::time::Duration;

/// The plan of the loop.
#[derive(Debug, Default)]
pub(super) struct Rhythm {
    /// When the loop looks next; `None` if it waits to be woken.
    looks_at: Option<Duration>,
    /// The shortest span of a lease that came since the loop looked last.
    came: Option<Duration>,
}

/// Whether the loop looks at a new lease before it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    InTime,
    /// It has to be woken.
    TooLate,
}

/// How soon a failed round is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// However short a lease is, the loop must not spin: a policy that nobody checked may say zero.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

impl Rhythm {
    /// A lease of this span is held from now on that was asked for at `since`.
    pub(super) fn comes(&mut self, since: Duration, span: Duration) -> Look {
        self.came = Some(self.came.map_or(span, |shortest| shortest.min(span)));
        match self.looks_at {
            // If that moment has passed, the machine was asleep, and the loop does not know.
            Some(at) if since <= at && at <= due(since, span) => Look::InTime,
            Some(_) | None => Look::TooLate,
        }
    }

    /// The loop has looked at what is `held`, each as when it was renewed last and its span. Says how
    /// long it may sleep from `now`; `None` if nothing is held, and nothing has come for a while.
    pub(super) fn next(
        &mut self,
        now: Duration,
        held: impl Iterator<Item = (Duration, Duration)>,
    ) -> Option<Duration> {
        let held = held.map(|(since, span)| match due(since, span).saturating_sub(now) {
            // It was just tried, or came while the others were.
            Duration::ZERO => RETRY.min(span / 6),
            left => left,
        });
        // What came since the last look will be followed by more like it.
        let more = self.came.take().map(|span| span / 3);
        let pause = held.chain(more).min().map(|pause| pause.max(SHORTEST_PAUSE));
        self.looks_at = pause.map(|pause| now.saturating_add(pause));
        pause
    }
}

/// When a lease is due: at a third of its span, so that two rounds may fail.
pub(super) fn due(since: Duration, span: Duration) -> Duration {
    since.saturating_add(span / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// A node as the loop sees it: leases of `spans` come every `pause` and last for `works`, in turn.
    struct Load<'l> {
        spans: &'l [Duration],
        works: &'l [Duration],
        pause: Duration,
    }

    impl Load<'_> {
        /// Lets them come until `end`. Says how often the loop was woken by one of them, how often it
        /// looked, and by how much the latest renewal was late.
        fn run(&self, rhythm: &mut Rhythm, end: Duration) -> (usize, usize, Duration) {
            let (mut woken, mut looks, mut latest) = (0, 0, Duration::ZERO);
            // When each was renewed last, its span, and when its work ends.
            let mut held: Vec<(Duration, Duration, Duration)> = Vec::new();
            let (mut comes, mut nth) = (Duration::ZERO, 0);
            while comes < end {
                let now = rhythm.looks_at.filter(|at| *at < comes).unwrap_or(comes);
                held.retain(|(_, _, ends)| *ends > now);
                let mut is_woken = false;
                if now == comes {
                    let span = self.spans[nth % self.spans.len()];
                    held.push((now, span, now + self.works[nth % self.works.len()]));
                    is_woken = rhythm.comes(now, span) == Look::TooLate;
                    woken += usize::from(is_woken);
                    (comes, nth) = (comes + self.pause, nth + 1);
                }
                if is_woken || rhythm.looks_at == Some(now) {
                    looks += 1;
                    for (since, span, _) in &mut held {
                        if due(*since, *span) <= now {
                            latest = latest.max(now - due(*since, *span));
                            *since = now;
                        }
                    }
                    rhythm.next(now, held.iter().map(|(since, span, _)| (*since, *span)));
                }
                // One that the loop sleeps past is late, and shows as late when it is looked at.
            }
            (woken, looks, latest)
        }
    }

    /// Under a light load nothing is held most of the time. One claim in a minute and more wakes the
    /// loop, and not each.
    #[test]
    fn a_claim_wakes_nobody_who_looks_in_time_anyway() {
        let pause = Duration::from_millis(700);
        let load = Load { spans: &[seconds(30)], works: &[Duration::from_millis(5)], pause };
        let (woken, looks, _) = load.run(&mut Rhythm::default(), seconds(600));
        assert_eq!(woken, 1, "the first one");
        assert!(looks <= 62, "it looks every ten seconds: {looks}");
    }

    /// Whatever comes after whatever, each lease that is still held is renewed when it is due. The loop
    /// never rests for less than its shortest pause.
    #[test]
    fn no_lease_is_renewed_late_because_nobody_was_woken() {
        const SPANS: [&[Duration]; 4] = [
            &[seconds(30)],
            &[seconds(30), Duration::from_millis(300)],
            &[seconds(300), seconds(30), seconds(3), Duration::from_millis(90), seconds(60)],
            &[Duration::ZERO, seconds(30)],
        ];
        const WORKS: [&[Duration]; 3] = [
            &[Duration::from_millis(1)],
            &[Duration::from_millis(1), seconds(40), Duration::from_millis(350), seconds(2)],
            &[seconds(100)],
        ];
        for spans in SPANS {
            for works in WORKS {
                for pause in [45, 333, 2_500, 31_000].map(Duration::from_millis) {
                    let load = Load { spans, works, pause };
                    let end = (pause * 400).min(seconds(1_000));
                    let (_, _, latest) = load.run(&mut Rhythm::default(), end);
                    assert!(latest <= SHORTEST_PAUSE, "{spans:?} {works:?} {pause:?}: {latest:?}");
                }
            }
        }
    }

    #[test]
    fn a_shorter_lease_than_those_before_wakes_the_loop() {
        let mut rhythm = Rhythm::default();
        assert_eq!(rhythm.comes(seconds(0), seconds(30)), Look::TooLate, "nobody has looked yet");
        // Its work has ended before the loop looked.
        assert_eq!(rhythm.next(seconds(0), [].into_iter()), Some(seconds(10)));
        assert_eq!(rhythm.comes(seconds(1), seconds(30)), Look::InTime);
        assert_eq!(
            rhythm.comes(seconds(2), seconds(3)),
            Look::TooLate,
            "due at 3, and it looks at 10"
        );
        assert_eq!(rhythm.comes(seconds(9), seconds(3)), Look::InTime, "due at 10");
    }

    /// A machine that was asleep has slept through the moment, and the loop may sleep on.
    #[test]
    fn a_loop_that_has_missed_its_moment_is_woken() {
        let mut rhythm = Rhythm::default();
        rhythm.comes(seconds(0), seconds(30));
        rhythm.next(seconds(0), [].into_iter());
        assert_eq!(rhythm.comes(seconds(500), seconds(30)), Look::TooLate);
    }

    /// A node without work does not wake up again and again.
    #[test]
    fn a_loop_with_nothing_to_do_rests() {
        let mut rhythm = Rhythm::default();
        assert_eq!(rhythm.next(seconds(0), [].into_iter()), None);
        rhythm.comes(seconds(1), seconds(30));
        assert_eq!(rhythm.next(seconds(1), [].into_iter()), Some(seconds(10)));
        assert_eq!(rhythm.next(seconds(11), [].into_iter()), None, "nothing came since");
    }
}
