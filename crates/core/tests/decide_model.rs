//! The reference store keeps its promises in every state that a small world can reach.

mod world;

use std::sync::Arc;

use oncekey_core::{Clock, ManualClock, MemoryStore, Timestamp};

/// I1, I2, I4, I5, I8, I10, I11, I15, I17, I23, I27 and I28, without asking `decide`.
#[test]
fn no_history_of_a_small_world_breaks_an_invariant() {
    let states = world::search(|| {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_123_457)));
        let store = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>);
        (clock, Arc::new(store))
    });
    assert!(states > 2_000, "the world is not trivial: {states} states");
}
