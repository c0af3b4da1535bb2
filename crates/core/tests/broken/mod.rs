//! A store that is right in everything but one planted bug.
//!
//! It is written apart from `MemoryStore` on purpose, so that it can be wrong in the middle of a
//! step. Without a bug it passes the whole suite, which shows that a case fails for the bug alone.

mod browse;
mod bug;
mod erase;
mod restore;
mod rules;
mod store;
mod table;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use oncekey_core::conformance::Rig;
use oncekey_core::wake::Hub;
use oncekey_core::{Clock, Fence, KeyId, ManualClock, Record, Sent, State, Timestamp};

pub(crate) use self::bug::Bug;

/// The store.
#[derive(Debug)]
pub(crate) struct Broken {
    bug: Option<Bug>,
    clock: Arc<ManualClock>,
    table: Mutex<Table>,
    hub: Hub,
    /// Nobody ever speaks here.
    silence: Hub,
    announced: AtomicUsize,
    /// How often it was started.
    starts: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    records: HashMap<KeyId, Record>,
    highest: Option<Fence>,
    /// Removed records, for a store that forgets that it removed them.
    graveyard: Vec<Record>,
    /// Records as they were before they were erased, for a store that loses erasures or cannot
    /// leave them behind.
    erased: Vec<Record>,
    /// Records that were restored, for a store that loses or hides them.
    restored: HashSet<KeyId>,
    /// When finished records fall due, for a store that purges by an index it does not maintain.
    index: Vec<(Timestamp, KeyId)>,
}

/// The store and the levers around it.
#[derive(Debug)]
pub(crate) struct BrokenRig {
    pub(crate) clock: Arc<ManualClock>,
    store: Arc<Broken>,
}

impl BrokenRig {
    /// A store with this bug, or with none.
    pub(crate) fn new(bug: Option<Bug>) -> Self {
        // An odd number of microseconds, so that rounding shows.
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_123_457)));
        let store = Arc::new(Broken {
            bug,
            clock: Arc::clone(&clock),
            table: Mutex::default(),
            hub: Hub::default(),
            silence: Hub::default(),
            announced: AtomicUsize::new(0),
            starts: AtomicUsize::new(1),
        });
        Self { clock, store }
    }
}

impl Rig for BrokenRig {
    type Store = Broken;

    fn store(&self) -> Arc<Broken> {
        Arc::clone(&self.store)
    }

    async fn reopen(&self) -> Arc<Broken> {
        self.store.restart();
        self.store()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn step_back(&self, by: Duration) {
        self.clock.step_back(by);
    }

    fn clock(&self) -> Option<Arc<dyn Clock>> {
        Some(Arc::clone(&self.clock) as Arc<dyn Clock>)
    }
}

impl Broken {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no case panics inside the store")
    }

    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        if self.has(Bug::TimesInSeconds) {
            return Timestamp::from_micros(now.micros() / 1_000_000 * 1_000_000);
        }
        now
    }

    /// Lets others go first: what a round trip to a server between two statements does.
    async fn pause(&self) {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    /// What a restart leaves of it.
    fn restart(&self) {
        self.starts.fetch_add(1, Ordering::SeqCst);
        let mut table = self.table();
        match self.bug {
            Some(Bug::HighestFenceForgottenAtRestart) => table.highest = None,
            Some(Bug::AnswersAreNotDurable) => {
                table.records.retain(|_, record| !matches!(record.state, State::Done { .. }));
            }
            Some(Bug::LeasesAreNotDurable) => {
                table.records.retain(|_, record| !matches!(record.state, State::Running { .. }));
            }
            Some(Bug::SendMarksAreNotDurable) => {
                for record in table.records.values_mut() {
                    if let State::Running { sent, .. } = &mut record.state {
                        *sent = Sent::No;
                    }
                }
            }
            Some(Bug::ErasuresAreNotDurable) => {
                for record in std::mem::take(&mut table.erased) {
                    table.records.insert(record.id, record);
                }
            }
            Some(Bug::RestoresAreNotDurable) => {
                for id in std::mem::take(&mut table.restored) {
                    table.records.remove(&id);
                }
            }
            Some(Bug::RemovalsAreNotDurable) => {
                for record in std::mem::take(&mut table.graveyard) {
                    table.records.insert(record.id, record);
                }
            }
            Some(_) | None => {}
        }
    }
}
