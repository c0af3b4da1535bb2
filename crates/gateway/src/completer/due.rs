//! When a request that nobody finishes is sent again.
//!
//! Everything is judged by what stands in the store and by the store's clock. So a restart forgets
//! nothing, and gateways on one store agree: an attempt of one puts the next one off for all.

use std::time::Duration;

use oncekey::core::browse::Summary;
use oncekey::core::{StateKind, Timestamp};

/// What a route says about its abandoned requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) lease: Duration,
    pub(super) grace: Duration,
    /// How long a request is kept, from its first attempt on.
    pub(super) horizon: Duration,
}

/// Whether it is time for an abandoned request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    Later,
    /// It was first tried too long ago.
    Over,
}

/// The shortest pause after an attempt: a connection that was refused may be accepted a moment
/// later.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest one. An upstream that is back is noticed within minutes, and one that stays away
/// costs a dozen tries in an hour.
const LONGEST: Duration = Duration::from_secs(5 * 60);

/// Whether it is time for a running or unknown record at `now`. A hundred that were abandoned in
/// the same moment are spread over a quarter of their pause by `chance`.
pub(super) fn due(summary: &Summary, now: Timestamp, terms: Terms, chance: u8) -> Due {
    let at = summary.at;
    // Retries of clients do not put it off: after that time the upstream may have forgotten the key.
    if summary.created.after(terms.horizon) <= now {
        return Due::Over;
    }
    let lasted = at.since(summary.created);
    // How long it has been tried so far. A record that runs says until when its lease is good, and
    // nobody was at it for the last part of that.
    let tried = match summary.state {
        StateKind::Running => lasted.saturating_sub(terms.lease),
        StateKind::Unknown | StateKind::Done | StateKind::Parked => lasted,
    };
    // As long again as it took so far: the pauses double, and nobody has to count the attempts.
    let pause = tried.clamp(SHORTEST, LONGEST).max(terms.grace);
    let pause = pause.saturating_add(pause.mul_f64(f64::from(chance) / 1_024.0));
    if at.after(pause) <= now { Due::Now } else { Due::Later }
}

#[cfg(test)]
mod tests {
    use oncekey::core::{Class, Fence, KeyId, Origin};

    use super::*;

    const TERMS: Terms = Terms {
        lease: Duration::from_secs(30),
        grace: Duration::from_secs(2),
        horizon: Duration::from_secs(3_600),
    };
    const BEGAN: Timestamp = Timestamp::from_micros(1_000_000_000_000);

    fn second(number: u64) -> Timestamp {
        BEGAN.after(Duration::from_secs(number))
    }

    fn summary(state: StateKind, at: Timestamp) -> Summary {
        Summary {
            id: KeyId::from_bytes([7; 32]),
            fence: Fence::next(None, BEGAN),
            class: Class::Keyed,
            created: BEGAN,
            origin: Origin::default(),
            state,
            at,
            expires: None,
            status: None,
        }
    }

    fn due_at(summary: &Summary, now: u64) -> Due {
        due(summary, second(now), TERMS, 0)
    }

    #[test]
    fn a_lease_that_lapsed_is_respected_for_its_grace() {
        let lapsed = summary(StateKind::Running, second(30));
        assert_eq!(due_at(&lapsed, 29), Due::Later, "its owner is alive");
        assert_eq!(due_at(&lapsed, 31), Due::Later);
        assert_eq!(due_at(&lapsed, 32), Due::Now);
    }

    /// A request that kills whoever sends it is not sent again at once by everybody.
    #[test]
    fn an_attempt_that_lasted_puts_the_next_one_off_for_as_long() {
        let taken_over = summary(StateKind::Running, second(30 + 40));
        assert_eq!(due_at(&taken_over, 70 + 39), Due::Later);
        assert_eq!(due_at(&taken_over, 70 + 40), Due::Now);
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut at = 0;
        let mut pauses = Vec::new();
        while pauses.len() < 14 {
            let open = summary(StateKind::Unknown, second(at));
            let pause = (0..).find(|pause| due_at(&open, at + pause) != Due::Later).unwrap();
            at += pause;
            pauses.push(pause);
        }
        assert_eq!(pauses, [2, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300, 300]);
    }

    #[test]
    fn chance_only_puts_off() {
        let open = summary(StateKind::Unknown, second(100));
        assert_eq!(due(&open, second(200), TERMS, 0), Due::Now);
        assert_eq!(due(&open, second(200), TERMS, 255), Due::Later);
        assert_eq!(due(&open, second(225), TERMS, 255), Due::Now);
    }

    #[test]
    fn after_the_horizon_it_is_left_alone() {
        // Whoever tried it last, and when, puts nothing off.
        for last in [0, 10, 3_000] {
            let open = summary(StateKind::Unknown, second(last));
            assert_ne!(due_at(&open, 3_599), Due::Over);
            assert_eq!(due_at(&open, 3_600), Due::Over);
        }
    }
}
