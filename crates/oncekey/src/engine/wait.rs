//! Waiting for a key that another process holds.
//!
//! One loop for the whole node looks after all keys that are waited for; a store that can wake us
//! saves most of the looking. Being woken is a hint: whoever waited claims again and learns from
//! the decision what happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncekey_core::wake::Woken;
use oncekey_core::{Fence, KeyId, State, Store, Wake};
use tokio::sync::Notify;

use super::spawn::Spawn;

/// Keys of other processes that somebody here waits for.
#[derive(Debug)]
pub(super) struct Waits {
    store: Arc<dyn Store>,
    wake: Option<Arc<dyn Wake>>,
    spawner: Arc<dyn Spawn>,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    keys: BTreeMap<KeyId, Place>,
    /// How many wait, for any key.
    waiting: usize,
    /// Whether the loops run. They end when nothing is waited for.
    looking: bool,
    /// Counts their beginnings, so that loops of an earlier time notice that they are not meant.
    round: u64,
}

/// A key that is waited for, and who held it when the waiting began.
#[derive(Debug)]
struct Place {
    fence: Fence,
    bell: Arc<Notify>,
    waiting: usize,
}

/// Somebody who waits for a key. Dropping it ends the waiting.
#[derive(Debug)]
pub(super) struct Wait {
    waits: Arc<Waits>,
    id: KeyId,
    bell: Arc<Notify>,
}

/// The first looks come soon, because most work is short.
const SOON: Duration = Duration::from_millis(25);
/// Later ones cost the store more than they bring: a wait of ten seconds makes about thirty.
const LATER: Duration = Duration::from_millis(400);
/// With a store that wakes us, looking is a safety net.
const SAFETY_NET: Duration = Duration::from_secs(1);

impl Waits {
    pub(super) fn new(
        store: Arc<dyn Store>,
        wake: Option<Arc<dyn Wake>>,
        spawner: Arc<dyn Spawn>,
    ) -> Self {
        Self { store, wake, spawner, watched: Mutex::default() }
    }

    /// Begins to wait for the end of the attempt `fence` of `id`; `None` if as many wait as may.
    pub(super) fn wait(self: &Arc<Self>, id: KeyId, fence: Fence, most: usize) -> Option<Wait> {
        let mut watched = self.watched();
        if watched.waiting >= most {
            return None;
        }
        watched.waiting += 1;
        let place = watched.keys.entry(id).or_insert_with(|| Place {
            fence,
            bell: Arc::default(),
            waiting: 0,
        });
        place.waiting += 1;
        place.fence = place.fence.max(fence);
        let bell = Arc::clone(&place.bell);
        let starts = !std::mem::replace(&mut watched.looking, true);
        watched.round += u64::from(starts);
        let round = watched.round;
        drop(watched);
        if starts {
            self.spawner.spawn(Box::pin(Arc::clone(self).look(round)));
            if let Some(wake) = self.wake.clone() {
                self.spawner.spawn(Box::pin(Arc::clone(self).listen(wake, round)));
            }
        }
        Some(Wait { waits: Arc::clone(self), id, bell })
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.watched().waiting
    }

    /// Looks at every key that is waited for, until there is none.
    async fn look(self: Arc<Self>, round: u64) {
        let _looking = Looking { waits: &self, round };
        let longest = if self.wake.is_some() { SAFETY_NET } else { LATER };
        let mut pause = SOON;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
            let Some(keys) = self.keys() else { return };
            for (id, fence) in keys {
                match self.store.get(&id).await {
                    Ok(Some(record))
                        if record.fence == fence
                            && matches!(record.state, State::Running { .. }) => {}
                    Ok(_) => {
                        self.ring(&id);
                        // Where one ends others may begin.
                        pause = SOON;
                    }
                    // The store cannot be asked; whoever waits has a deadline of its own.
                    Err(_) => break,
                }
            }
        }
    }

    /// Passes on what the store says, until nobody waits.
    async fn listen(self: Arc<Self>, wake: Arc<dyn Wake>, round: u64) {
        let Ok(mut feed) = wake.watch().await else { return };
        loop {
            let heard = tokio::time::timeout(SAFETY_NET, feed.next()).await;
            match heard {
                Ok(Woken::Finished(id)) => self.ring(&id),
                Ok(Woken::Lagged) => self.ring_all(),
                Ok(Woken::Closed) => return,
                Err(_) => {}
            }
            let watched = self.watched();
            if !watched.looking || watched.round != round {
                return;
            }
        }
    }

    /// The keys to look at; `None` if there are none, and then the loops end.
    fn keys(&self) -> Option<Vec<(KeyId, Fence)>> {
        let mut watched = self.watched();
        if watched.keys.is_empty() {
            watched.looking = false;
            return None;
        }
        Some(watched.keys.iter().map(|(id, place)| (*id, place.fence)).collect())
    }

    fn ring(&self, id: &KeyId) {
        if let Some(place) = self.watched().keys.get(id) {
            place.bell.notify_waiters();
            // For somebody who has a place and is not at the bell yet.
            place.bell.notify_one();
        }
    }

    fn ring_all(&self) {
        for place in self.watched().keys.values() {
            place.bell.notify_waiters();
            place.bell.notify_one();
        }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wait {
    /// Returns when something may have happened to the key.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }
}

/// A loop that looks. Should its task be dropped, with its runtime or by a panic of the store, the
/// next one who waits begins another.
struct Looking<'a> {
    waits: &'a Waits,
    round: u64,
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut watched = self.waits.watched();
        if watched.round == self.round {
            watched.looking = false;
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut watched = self.waits.watched();
        watched.waiting -= 1;
        if let Some(place) = watched.keys.get_mut(&self.id) {
            place.waiting -= 1;
            if place.waiting == 0 {
                watched.keys.remove(&self.id);
            }
        }
    }
}
