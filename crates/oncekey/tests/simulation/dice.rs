//! Chance from a seed: the same seed throws the same dice, on every machine and for ever.
//!
//! Every part of the world has dice of its own, so that one more throw in one part does not change
//! what happens in all others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncekey::entropy::Entropy;

/// A seeded source of chance.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

/// Dice that several tasks throw. The tasks run on one thread, in an order that the seed decides.
#[derive(Clone, Debug)]
pub(crate) struct SharedDice(Arc<Mutex<Dice>>);

/// Owner tokens and request ids from a seed.
#[derive(Debug)]
pub(crate) struct SeededEntropy(SharedDice);

/// Two parts of the world never share a stream: each has its own name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Options,
    Store,
    Upstream,
    Load,
    Chaos,
    Operator,
    Entropy,
}

impl Dice {
    /// The dice of one part of one history.
    pub(crate) fn of(seed: u64, part: Part) -> Self {
        let stream = match part {
            Part::Options => 1,
            Part::Store => 2,
            Part::Upstream => 3,
            Part::Load => 4,
            Part::Chaos => 5,
            Part::Operator => 6,
            Part::Entropy => 7,
        };
        let mut dice = Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (stream << 56));
        // Neighbouring seeds differ in few bits; a few throws spread them.
        for _ in 0..4 {
            dice.next();
        }
        dice
    }

    /// Dice that go on by themselves from here.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// Sixty-four bits: the splitmix generator, which is small, fast and good enough to shuffle.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// An index into something of this length, which is not zero.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        let bound = u64::try_from(length).expect("lengths fit");
        usize::try_from(self.below(bound)).expect("less than a length")
    }

    /// True in this many of a thousand throws.
    pub(crate) fn chance(&mut self, per_thousand: u32) -> bool {
        self.below(1_000) < u64::from(per_thousand)
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// A number in an inclusive range.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// A span of this many to this many milliseconds.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.between(from, to))
    }
}

impl SharedDice {
    pub(crate) fn new(dice: Dice) -> Self {
        Self(Arc::new(Mutex::new(dice)))
    }

    /// Throws while nobody else does.
    pub(crate) fn throw<R>(&self, throw: impl FnOnce(&mut Dice) -> R) -> R {
        throw(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SeededEntropy {
    pub(crate) fn new(dice: Dice) -> Self {
        Self(SharedDice::new(dice))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.throw(|dice| {
            for chunk in bytes.chunks_mut(8) {
                let bits = dice.next().to_be_bytes();
                chunk.copy_from_slice(&bits[..chunk.len()]);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same_dice_and_parts_differ() {
        let throws = |seed, part| {
            let mut dice = Dice::of(seed, part);
            (0..9).map(|_| dice.next()).collect::<Vec<_>>()
        };
        assert_eq!(throws(7, Part::Store), throws(7, Part::Store));
        assert_ne!(throws(7, Part::Store), throws(8, Part::Store));
        assert_ne!(throws(7, Part::Store), throws(7, Part::Load));
    }
}
