//! How long to wait for a slow client (T12).

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::super::sieve::Place;
use super::Why;

/// How fast a client has to be.
///
/// Only time in which we wait for the client counts. How long a connection may be idle between
/// requests is for others to say: from here it looks like one that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Pace {
    /// From the first byte of a head to its last.
    pub(in crate::proxy) head: Duration,
    /// How long a body may stand still. Waiting uses it up, and bytes win it back.
    pub(in crate::proxy) body: Duration,
    /// So many bytes of a body win back a second. Not zero.
    pub(in crate::proxy) rate: u32,
}

/// The patience with one client.
#[derive(Debug)]
pub(in crate::proxy) struct Patience {
    pace: Pace,
    wait: Wait,
    /// How long the body may still stand still.
    left: Duration,
    /// Made when a client is slow for the first time; most never are.
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    No,
    Head { until: Instant },
    Body { since: Instant },
}

impl Default for Pace {
    fn default() -> Self {
        // A head fits a few packets: ten seconds are many lost ones. A body may stall as long as a
        // phone in a tunnel does, and be as slow as the slowest modem that anybody still has.
        Self { head: Duration::from_secs(10), body: Duration::from_secs(30), rate: 1_024 }
    }
}

impl Patience {
    pub(in crate::proxy) fn new(pace: Pace) -> Self {
        Self { pace, wait: Wait::No, left: pace.body, timer: None }
    }

    /// So many bytes came, `passed` of what we have could go on, and the client is in `place` now.
    pub(in crate::proxy) fn arrived(&mut self, bytes: usize, passed: usize, place: Place) {
        match self.wait {
            Wait::Body { since } => {
                let spent = since.elapsed();
                self.left = self.left.saturating_sub(spent).saturating_add(self.worth(bytes));
                self.left = self.left.min(self.pace.body);
                self.wait = Wait::No;
            }
            // Something passed, so that head has ended. Another one may have begun.
            Wait::Head { .. } if passed > 0 => self.wait = Wait::No,
            Wait::Head { .. } | Wait::No => {}
        }
        if place != Place::Body {
            self.left = self.pace.body;
        }
    }

    /// Ready when the client was silent for too long in this place.
    pub(in crate::proxy) fn poll_spent(&mut self, cx: &mut Context<'_>, place: Place) -> Poll<Why> {
        let (deadline, why) = match place {
            Place::Head => (self.head_deadline(), Why::SlowHead),
            Place::Body => (self.body_deadline(), Why::SlowBody),
            Place::Between | Place::Waiting | Place::Last | Place::Open => return Poll::Pending,
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(why)
    }

    fn head_deadline(&mut self) -> Instant {
        if let Wait::Head { until } = self.wait {
            return until;
        }
        let until = Instant::now() + self.pace.head;
        self.wait = Wait::Head { until };
        until
    }

    fn body_deadline(&mut self) -> Instant {
        let since = match self.wait {
            Wait::Body { since } => since,
            Wait::Head { .. } | Wait::No => Instant::now(),
        };
        self.wait = Wait::Body { since };
        since + self.left
    }

    fn worth(&self, bytes: usize) -> Duration {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Duration::from_secs(bytes.into()) / self.pace.rate.max(1)
    }
}
