//! Places on a connection that many requests share: an upstream says how many it takes at once.
//!
//! hyper would hold a request back by itself, but nobody could tell then whether it was sent. Whoever
//! waits here has sent nothing.

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

/// The places on one connection. Cheap to clone; all clones are the same places.
#[derive(Clone, Default)]
pub(super) struct Places(Arc<Inner>);

#[derive(Default)]
struct Inner {
    taken: StdMutex<usize>,
    /// Rings when a place becomes free.
    freed: Notify,
    /// Held by whoever is next, so that nobody is overtaken.
    turn: Mutex<()>,
}

/// A place, until this goes.
pub(super) struct Place(Places);

/// What a connection says about its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// So many requests may be on it at once.
    For(usize),
    /// It is not used any more.
    Closed,
}

/// How often to look whether the upstream takes more at once than before, or has gone: no bell rings for
/// that. It rarely says so, and whoever waits has time.
const LOOK: Duration = Duration::from_millis(100);

impl Places {
    /// Waits for a place; there is none on a connection that is closed.
    ///
    /// The stream of a request that was given up may be open for a moment after its place was given back.
    /// hyper holds the next one back then, which counts as sent: too careful, but never wrong.
    pub(super) async fn take(&self, room: impl Fn() -> Room) -> Option<Place> {
        let _turn = self.0.turn.lock().await;
        loop {
            match room() {
                Room::Closed => return None,
                Room::For(most) => {
                    let mut taken = self.taken();
                    if *taken < most {
                        *taken += 1;
                        return Some(Place(self.clone()));
                    }
                }
            }
            // A place that became free since then has left its ring behind.
            drop(timeout(LOOK, self.0.freed.notified()).await);
        }
    }

    fn taken(&self) -> MutexGuard<'_, usize> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.taken() -= 1;
        self.0.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_place_is_given_to_one_at_a_time_and_in_turn() {
        let places = Places::default();
        let first = places.take(|| Room::For(1)).await.unwrap();
        let order = Arc::new(StdMutex::new(Vec::new()));
        let waiting: Vec<_> = (0..3)
            .map(|at| {
                let (places, order) = (places.clone(), Arc::clone(&order));
                tokio::spawn(async move {
                    let _place = places.take(|| Room::For(1)).await.unwrap();
                    order.lock().unwrap().push(at);
                    tokio::time::sleep(LONG).await;
                })
            })
            .collect();
        tokio::time::sleep(LONG).await;
        assert!(order.lock().unwrap().is_empty());
        let began = Instant::now();
        drop(first);
        for waiting in waiting {
            waiting.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
        assert_eq!(began.elapsed(), LONG * 3, "nobody waits longer than for the one before");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_notices_that_there_is_more_room_or_none_any_more() {
        let places = Places::default();
        let room = Cell::new(Room::For(0));
        for (later, is_taken) in [(Room::For(1), true), (Room::Closed, false)] {
            room.set(Room::For(0));
            let change = async {
                tokio::time::sleep(LONG).await;
                room.set(later);
            };
            let (place, ()) = tokio::join!(places.take(|| room.get()), change);
            assert_eq!(place.is_some(), is_taken, "{later:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stops_waiting_leaves_nothing_behind() {
        let places = Places::default();
        let first = places.take(|| Room::For(1)).await.unwrap();
        assert!(timeout(LONG, places.take(|| Room::For(1))).await.is_err());
        drop(first);
        let again = timeout(LONG, places.take(|| Room::For(1))).await.unwrap();
        assert!(again.is_some());
    }
}
