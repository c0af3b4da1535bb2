//! The reference store passes its own suite.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::conformance::Rig;
use oncekey_core::{Clock, ManualClock, MemoryStore, Timestamp};

/// A store in memory with a clock that moves when told to.
struct MemoryRig {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
}

impl MemoryRig {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_000_000)));
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>));
        Self { clock, store }
    }
}

impl Rig for MemoryRig {
    type Store = MemoryStore;

    fn store(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.store)
    }

    /// Memory has nothing to open again: what it holds ends with the process, and it says so.
    async fn reopen(&self) -> Arc<MemoryStore> {
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

oncekey_core::conformance!(async || MemoryRig::new());
oncekey_core::clock_conformance!(async || MemoryRig::new());
oncekey_core::browse_conformance!(async || MemoryRig::new());
oncekey_core::wake_conformance!(async || MemoryRig::new());
