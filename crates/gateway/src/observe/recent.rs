//! What was seen lately, in bounded memory.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

/// A map that forgets: what is older than its span, and the oldest of more than it has room for.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    seen: HashMap<K, (Duration, V)>,
    /// In the order in which they came; some of them may have been replaced since.
    order: VecDeque<(Duration, K)>,
    span: Duration,
    room: usize,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    pub(super) fn new(span: Duration, room: usize) -> Self {
        Self { seen: HashMap::new(), order: VecDeque::new(), span, room }
    }

    /// What was noted under a key and is not forgotten at `now`, and how long ago that was.
    pub(super) fn get(&self, key: &K, now: Duration) -> Option<(Duration, &V)> {
        let (at, value) = self.seen.get(key)?;
        let age = now.saturating_sub(*at);
        (age <= self.span).then_some((age, value))
    }

    /// Notes something, in place of what was noted before.
    pub(super) fn note(&mut self, key: K, value: V, now: Duration) {
        self.forget(now);
        self.seen.insert(key, (now, value));
        self.order.push_back((now, key));
    }

    fn forget(&mut self, now: Duration) {
        while let Some((at, key)) = self.order.front().copied() {
            let is_old = now.saturating_sub(at) > self.span;
            if !is_old && self.order.len() < self.room {
                return;
            }
            self.order.pop_front();
            // If it was noted again since, there is a younger line for it.
            if self.seen.get(&key).is_some_and(|(noted, _)| *noted == at) {
                self.seen.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_old_is_forgotten_and_what_is_noted_again_is_not() {
        let mut recent = Recent::new(at(10), 100);
        recent.note('a', 1, at(0));
        recent.note('b', 2, at(1));
        recent.note('a', 3, at(8));
        assert_eq!(recent.get(&'a', at(12)), Some((at(4), &3)));
        assert_eq!(recent.get(&'b', at(12)), None);
        recent.note('c', 4, at(12));
        assert_eq!(recent.seen.len(), 2, "b is gone");
    }

    /// I43: however many keys a client makes up, memory stays bounded.
    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let mut recent = Recent::new(at(1_000), 50);
        for key in 0..10_000 {
            recent.note(key, (), at(1));
        }
        assert!(recent.seen.len() <= 50 && recent.order.len() <= 50);
        assert!(recent.get(&9_999, at(1)).is_some());
    }
}
