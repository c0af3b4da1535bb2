//! What becomes of a question on its way to the store and back.

use std::time::Duration;

use crate::dice::Dice;
use crate::options::Options;

/// What becomes of one question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    pub(crate) before: Duration,
    pub(crate) after: Duration,
    pub(crate) effect: Effect,
    pub(crate) reply: Reply,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    Now,
    Never,
    /// After whoever asked has been told that nobody knows.
    Later(Duration),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    True,
    Unavailable,
    Ambiguous,
}

/// Nothing goes wrong.
pub(crate) fn fine(dice: &mut Dice, latency: u64) -> Fate {
    let (before, after) = (dice.millis(0, latency), dice.millis(0, latency));
    Fate { before, after, effect: Effect::Now, reply: Reply::True }
}

/// Nothing gets through.
pub(crate) fn outage(dice: &mut Dice) -> Fate {
    let reply = dice.pick(&[Reply::Unavailable, Reply::Unavailable, Reply::Ambiguous]);
    let before = dice.millis(0, 300);
    Fate { before, after: Duration::ZERO, effect: Effect::Never, reply }
}

/// Now and then something goes wrong.
pub(crate) fn faulty(dice: &mut Dice, options: &Options) -> Fate {
    let faults = &options.store;
    let lease = u64::try_from(options.lease.as_millis()).expect("leases are short");
    let fate = fine(dice, faults.latency);
    let fate = if dice.chance(faults.slow) {
        let (before, after) = (dice.millis(0, lease), dice.millis(0, lease));
        Fate { before, after, ..fate }
    } else {
        fate
    };
    if dice.chance(faults.unavailable) {
        Fate { effect: Effect::Never, reply: Reply::Unavailable, ..fate }
    } else if dice.chance(faults.reply_lost) {
        Fate { reply: Reply::Ambiguous, ..fate }
    } else if dice.chance(faults.request_lost) {
        Fate { effect: Effect::Never, reply: Reply::Ambiguous, ..fate }
    } else if dice.chance(faults.late_effect) {
        // Some of them arrive when the lease is long over.
        let delay =
            if dice.chance(800) { dice.millis(1, lease) } else { dice.millis(1, 20 * lease) };
        Fate { effect: Effect::Later(delay), reply: Reply::Ambiguous, ..fate }
    } else {
        fate
    }
}
