//! Whether it pays to wait for callers that were just answered.
//!
//! A caller in a closed loop is back within microseconds, and waiting for it saves a commit. One that
//! does something else first is not, and everybody else has waited in vain: with requests that come
//! when they like, a third of every round was such waiting. So it is tried, and after every wait in
//! vain it is left alone for twice as many rounds.

/// What was learned from the last waits.
#[derive(Debug, Default)]
pub(super) struct Hope {
    /// So many rounds without waiting are left.
    resting: u32,
    /// How many rounds it rested after the last wait in vain. After the next one it rests twice as many,
    /// and one.
    rest: u32,
}

/// The longest rest, in rounds: it costs a hundredth to try again after it, and callers that begin to
/// come back at once are noticed in a few hundredths of a second.
const LONGEST_REST: u32 = 63;

impl Hope {
    /// Takes note of a round that began with `before` callers and would have gone on at once with
    /// `expected`, when `after` were there in the end.
    pub(super) fn learn(&mut self, expected: usize, before: usize, after: usize) {
        if expected <= before {
            // Nobody was waited for.
            return;
        }
        let came = after.saturating_sub(before);
        // With half of them the wait has paid: they share a commit that they would have had to wait for.
        if 2 * came >= expected - before {
            *self = Self::default();
        } else {
            self.rest = (2 * self.rest + 1).min(LONGEST_REST);
            self.resting = self.rest;
        }
    }

    /// Whether to wait in this round.
    pub(super) fn is_up(&mut self) -> bool {
        let is_up = self.resting == 0;
        self.resting = self.resting.saturating_sub(1);
        is_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the rounds without waiting until the next one with.
    fn rest_of(hope: &mut Hope) -> usize {
        std::iter::repeat_with(|| hope.is_up()).take_while(|is_up| !is_up).count()
    }

    #[test]
    fn callers_that_come_back_are_waited_for_in_every_round() {
        let mut hope = Hope::default();
        for _ in 0..10 {
            assert!(hope.is_up());
            hope.learn(64, 0, 40);
        }
    }

    #[test]
    fn waits_in_vain_become_rare_and_one_that_pays_makes_up_for_them() {
        let mut hope = Hope::default();
        let mut rests = Vec::new();
        for _ in 0..8 {
            hope.learn(4, 1, 2);
            rests.push(rest_of(&mut hope));
        }
        assert_eq!(rests, [1, 3, 7, 15, 31, 63, 63, 63]);
        hope.learn(4, 1, 3);
        assert_eq!(rest_of(&mut hope), 0);
    }

    #[test]
    fn a_round_in_which_nobody_was_waited_for_teaches_nothing() {
        let mut hope = Hope::default();
        hope.learn(0, 0, 1);
        hope.learn(3, 3, 3);
        assert_eq!(rest_of(&mut hope), 0);
    }
}
