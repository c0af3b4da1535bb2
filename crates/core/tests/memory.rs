//! The reference store passes its own suite.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::conformance::Rig;
use oncekey_core::conformance::model::{Op, agrees_while_erasing, agrees_with_the_model};
use oncekey_core::{Clock, ManualClock, MemoryStore, Timestamp};

/// A store in memory with a clock that moves when told to.
struct MemoryRig {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
}

impl MemoryRig {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_123_457)));
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
oncekey_core::erase_conformance!(async || MemoryRig::new());
oncekey_core::erase_browse_conformance!(async || MemoryRig::new());
oncekey_core::restore_conformance!(async || MemoryRig::new());
oncekey_core::restore_browse_conformance!(async || MemoryRig::new());
oncekey_core::wake_conformance!(async || MemoryRig::new());

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(512))]

    /// Random histories: the store says what the decision tables say, and shows it.
    #[test]
    fn agrees_with_the_model_in_every_history(
        bits in proptest::collection::vec(proptest::prelude::any::<[u8; 6]>(), 1..80)
    ) {
        let history: Vec<Op> = bits.into_iter().map(Op::from_bits).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(agrees_with_the_model(&MemoryRig::new(), &history));
        runtime.block_on(agrees_while_erasing(&MemoryRig::new(), &history));
    }
}

/// The same without a readable clock, which is how servers with a clock of their own are compared.
#[tokio::test]
async fn agrees_with_the_model_by_decisions_alone() {
    for seed in 0..256 {
        agrees_with_the_model(&Blind(MemoryRig::new()), &Op::history(seed, 60)).await;
        agrees_while_erasing(&Blind(MemoryRig::new()), &Op::history(seed, 60)).await;
    }
}

/// A rig that does not show its clock.
struct Blind(MemoryRig);

impl Rig for Blind {
    type Store = MemoryStore;

    fn store(&self) -> Arc<MemoryStore> {
        self.0.store()
    }

    async fn reopen(&self) -> Arc<MemoryStore> {
        self.0.reopen().await
    }

    async fn advance(&self, by: Duration) {
        // A clock that goes on by itself is never exactly where the test thinks it is.
        self.0.advance(by + Duration::from_micros(777)).await;
    }

    async fn step_back(&self, by: Duration) {
        self.0.step_back(by).await;
    }
}
