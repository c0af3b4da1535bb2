//! Whether a lease has lapsed, where no server has a clock.
//!
//! DynamoDB cannot be asked for the time, and the clocks of the machines that share a table may
//! differ. So a lease is not compared with anybody's clock: a node that finds a key in use remembers
//! the fence and the beat that it saw, and when it saw them first, by its own uptime. An owner that
//! is alive renews, and every renewal changes the beat. If fence and beat have stood still for the
//! span of the lease and the grace, the owner's own deadline has passed, whatever its clock says: it
//! counts from before its last renewal was asked for, and that renewal was done before we saw it.
//!
//! An old sight is as good as a fresh one, even from a read that lags behind: beats only rise, also when
//! a record is put back, so what is still the same in the conditional write of a takeover has been the
//! same all the time.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::{Claim, Decision, Fence, KeyId, Record, State, Timestamp, decide};
use quick_cache::sync::Cache;

use super::item::Found;
use crate::clock::Uptime;

/// How it is told that a lease has lapsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lapse {
    /// By watching: this process has seen the same fence and beat for the whole lease and the grace,
    /// by its own uptime. Wall clocks play no part, so none can be wrong. A process that has just
    /// started waits for one lease before it takes anything over.
    #[default]
    Observed,
    /// By the wall clocks of the machines, which the operator declares to agree within
    /// [`DynamoOptions::skew`](super::DynamoOptions::skew). For processes that live too short to
    /// watch a lease, such as functions. Clocks that differ by more take live leases over; the fence
    /// still keeps the old owner from writing, and from sending what it has not announced.
    Clocked,
}

/// What this process has seen of others' leases.
#[derive(Debug)]
pub(super) struct Sight {
    lapse: Lapse,
    skew: Duration,
    uptime: Arc<dyn Uptime>,
    seen: Cache<KeyId, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    fence: Fence,
    beat: i64,
    first: Duration,
}

/// How many leases are watched: some eight megabytes. One that is pushed out is watched anew, which
/// delays its takeover and harms nothing else.
const WATCHED: usize = 65_536;

impl Sight {
    pub(super) fn new(lapse: Lapse, skew: Duration, uptime: Arc<dyn Uptime>) -> Self {
        Self { lapse, skew, uptime, seen: Cache::new(WATCHED) }
    }

    /// Remembers a fence and a beat that have just been seen, and says for how long they have been
    /// the same; `None` if newer ones have been seen already. To be called after the answer came:
    /// what is seen is older than the sight, so the time is never taken for longer than it was.
    pub(super) fn note(&self, id: &KeyId, fence: Fence, beat: i64) -> Option<Duration> {
        let now = self.uptime.elapsed();
        match self.seen.get(id) {
            Some(seen) if (seen.fence, seen.beat) == (fence, beat) => {
                Some(now.saturating_sub(seen.first))
            }
            Some(seen) if (seen.fence, seen.beat) > (fence, beat) => None,
            Some(_) | None => {
                self.seen.insert(*id, Seen { fence, beat, first: now });
                Some(Duration::ZERO)
            }
        }
    }

    /// Remembers what was seen of a record that runs.
    pub(super) fn watch(&self, found: &Found) {
        let record = found.record();
        if let State::Running { .. } = record.state {
            self.note(&record.id, record.fence, found.beat);
        }
    }

    /// Forgets what was seen of a key. Not when its attempt ends: a caller that read the record a
    /// moment earlier would take it for new.
    pub(super) fn forget(&self, id: &KeyId) {
        self.seen.remove(id);
    }

    /// What `decide` says, with the lease as this process sees it; `None` if what was found is
    /// outdated, as this process knows already. Then it is to be read anew. What is still lower then
    /// is no late read, but a table that was put back to an earlier state: that is to be forgotten
    /// first.
    pub(super) fn decide(&self, found: &Found, claim: &Claim, now: Timestamp) -> Option<Decision> {
        let record = found.record();
        Some(match record.state {
            State::Running { until, sent } => {
                let seen_for = self.note(&record.id, record.fence, found.beat)?;
                let until = match self.lapse {
                    Lapse::Observed => ends(now, found.span, seen_for),
                    Lapse::Clocked => until.after(self.skew),
                };
                let state = State::Running { until, sent };
                decide(Some(&Record { state, ..record.clone() }), claim, now)
            }
            State::Done { .. } => decide(Some(record), claim, self.judging(now)),
            State::Unknown { .. } | State::Parked { .. } => decide(Some(record), claim, now),
        })
    }

    /// The time by which retention is judged: no record is forgotten early because the clock of
    /// this machine is fast by less than the declared skew.
    pub(super) fn judging(&self, now: Timestamp) -> Timestamp {
        now.before(self.skew)
    }
}

/// When a lease of `span` ends on this machine's clock if nothing has changed for `seen_for`.
fn ends(now: Timestamp, span: i64, seen_for: Duration) -> Timestamp {
    let span = Duration::from_micros(u64::try_from(span).unwrap_or(0));
    now.after(span).before(seen_for)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Manual(Mutex<Duration>);

    impl Manual {
        fn pass(&self, by: Duration) {
            *self.0.lock().unwrap() += by;
        }
    }

    impl Uptime for Manual {
        fn elapsed(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    #[test]
    fn only_what_stands_still_grows_old() {
        let uptime = Arc::new(Manual::default());
        let sight = Sight::new(Lapse::Observed, Duration::ZERO, Arc::clone(&uptime) as _);
        let (id, second) = (KeyId::from_bytes([1; 32]), Duration::from_secs(1));
        let fence = |number| Fence::from_number(number).unwrap();
        assert_eq!(sight.note(&id, fence(5), 0), Some(Duration::ZERO), "the first sight");
        uptime.pass(second);
        assert_eq!(sight.note(&id, fence(5), 0), Some(second), "nothing has changed");
        assert_eq!(sight.note(&id, fence(5), 1), Some(Duration::ZERO), "a renewal");
        uptime.pass(second);
        assert_eq!(sight.note(&id, fence(5), 0), None, "a read that lags behind");
        assert_eq!(sight.note(&id, fence(5), 1), Some(second), "does not disturb");
        assert_eq!(sight.note(&id, fence(6), 0), Some(Duration::ZERO), "a new owner");
        sight.forget(&id);
        uptime.pass(second);
        assert_eq!(sight.note(&id, fence(6), 0), Some(Duration::ZERO), "forgotten");
    }

    #[test]
    fn an_endless_lease_does_not_end() {
        let now = Timestamp::from_micros(1_763_000_000_000_000);
        assert!(
            ends(now, i64::MAX, Duration::from_secs(9)) > now.after(Duration::from_secs(1 << 40))
        );
        assert_eq!(
            ends(now, 5, Duration::from_micros(7)),
            Timestamp::from_micros(now.micros() - 2)
        );
    }
}
