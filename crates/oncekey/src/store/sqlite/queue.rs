//! The queue in front of the writer thread, which is woken once for many callers.
//!
//! A channel wakes the thread for every item: sixty-four callers that come back from one commit
//! would wake it sixty-four times, and it would find that it still waits for the others. Here it
//! says for how many it waits, and whoever makes the number full wakes it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Stopwatch;

/// The callers' end. Dropping it lets the thread finish what is queued and then end.
#[derive(Debug)]
pub(super) struct Entrance<T>(Arc<Queue<T>>);

/// The thread's end. Dropping it, even by a panic, drops what is queued and refuses the rest.
#[derive(Debug)]
pub(super) struct Exit<T>(Arc<Queue<T>>);

/// How long the thread waits for more than there is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    /// How long it waits for the first, if not for ever.
    pub(super) first: Option<Duration>,
    /// With so many it waits no longer.
    pub(super) expected: usize,
    /// If nobody comes for so long, nobody else will.
    pub(super) lull: Duration,
    /// So long in all.
    pub(super) longest: Duration,
}

#[derive(Debug)]
struct Queue<T> {
    state: Mutex<State<T>>,
    enough: Condvar,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// How many there must be before the thread is woken.
    wanted: usize,
    is_closed: bool,
}

/// Makes a queue.
pub(super) fn queue<T>() -> (Entrance<T>, Exit<T>) {
    let state = State { items: VecDeque::new(), wanted: usize::MAX, is_closed: false };
    let queue = Arc::new(Queue { state: Mutex::new(state), enough: Condvar::new() });
    (Entrance(Arc::clone(&queue)), Exit(queue))
}

impl<T> Entrance<T> {
    /// Adds an item, or drops it and returns false if the thread is gone.
    pub(super) fn put(&self, item: T) -> bool {
        let mut state = self.0.lock();
        if state.is_closed {
            return false;
        }
        state.items.push_back(item);
        if state.items.len() >= state.wanted {
            drop(state);
            self.0.enough.notify_one();
        }
        true
    }
}

impl<T> Drop for Entrance<T> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.enough.notify_one();
    }
}

impl<T> Exit<T> {
    /// Moves what is there to the end of `waiting`, without waiting.
    pub(super) fn take(&self, waiting: &mut VecDeque<T>) {
        waiting.append(&mut self.0.lock().items);
    }

    /// Waits until there is something, and then as long as `patience` says for more. Moves it to
    /// the end of `waiting`. Returns false when there is nothing and never will be; true with
    /// nothing if it waits for the first no longer.
    pub(super) fn gather(&self, waiting: &mut VecDeque<T>, patience: Patience) -> bool {
        let Patience { first, expected, lull, longest } = patience;
        let since = Stopwatch::start();
        let mut state = self.0.lock();
        while waiting.is_empty() && state.items.is_empty() {
            if state.is_closed {
                return false;
            }
            state.wanted = 1;
            let Some(first) = first else {
                state = self.0.enough.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = first.saturating_sub(since.elapsed());
            if left.is_zero() {
                state.wanted = usize::MAX;
                return true;
            }
            let waited = self.0.enough.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        waiting.append(&mut state.items);
        let watch = Stopwatch::start();
        while waiting.len() < expected && !state.is_closed {
            let left = longest.saturating_sub(watch.elapsed()).min(lull);
            state.wanted = expected - waiting.len();
            let waited = self.0.enough.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.items.is_empty() {
                break;
            }
            waiting.append(&mut state.items);
        }
        state.wanted = usize::MAX;
        true
    }
}

impl<T> Drop for Exit<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        let items = std::mem::take(&mut state.items);
        drop(state);
        drop(items);
    }
}

impl<T> Queue<T> {
    /// Nothing that holds the lock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_full_number_is_waited_for_and_then_taken_at_once() {
        let (entrance, exit) = queue();
        let thread = std::thread::spawn(move || {
            let mut waiting = VecDeque::new();
            let patience = Patience { first: None, expected: 3, lull: LONG, longest: LONG };
            assert!(exit.gather(&mut waiting, patience));
            waiting
        });
        for item in 1..=3 {
            assert!(entrance.put(item));
        }
        assert_eq!(thread.join().unwrap(), [1, 2, 3]);
    }

    #[test]
    fn a_lone_caller_waits_for_nobody() {
        let (entrance, exit) = queue();
        assert!(entrance.put(1));
        let mut waiting = VecDeque::new();
        let patience = Patience { first: None, expected: 1, lull: LONG, longest: LONG };
        assert!(exit.gather(&mut waiting, patience));
        assert_eq!(waiting, [1]);
    }

    #[test]
    fn nobody_comes_and_the_thread_goes_on() {
        let (entrance, exit) = queue::<u8>();
        let mut waiting = VecDeque::new();
        let patience = Patience { first: Some(Duration::from_micros(1)), ..Patience::default() };
        assert!(exit.gather(&mut waiting, patience));
        assert!(waiting.is_empty());
        assert!(entrance.put(1));
        assert!(exit.gather(&mut waiting, patience));
        assert_eq!(waiting, [1]);
    }

    #[test]
    fn callers_that_do_not_come_back_are_not_waited_for() {
        let (entrance, exit) = queue();
        assert!(entrance.put(1));
        let mut waiting = VecDeque::new();
        let lull = Duration::from_micros(1);
        let patience = Patience { first: None, expected: 64, lull, longest: LONG };
        assert!(exit.gather(&mut waiting, patience));
        assert_eq!(waiting, [1]);
    }

    #[test]
    fn what_was_queued_is_done_before_the_thread_ends() {
        let (entrance, exit) = queue();
        assert!(entrance.put(1));
        drop(entrance);
        let mut waiting = VecDeque::new();
        let patience = Patience { first: None, expected: 2, lull: LONG, longest: LONG };
        assert!(exit.gather(&mut waiting, patience));
        assert_eq!(waiting.pop_front(), Some(1));
        assert!(!exit.gather(&mut waiting, Patience::default()));
    }

    #[test]
    fn a_thread_that_is_gone_leaves_nobody_waiting() {
        let (entrance, exit) = queue();
        let queued = Arc::new(());
        assert!(entrance.put(Arc::clone(&queued)));
        drop(exit);
        assert_eq!(Arc::strong_count(&queued), 1);
        assert!(!entrance.put(queued));
    }
}
