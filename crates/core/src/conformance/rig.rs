//! What a store author supplies.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::store::Store;

/// A store under test, and the levers that a test needs on the world around it.
///
/// Every test makes a rig of its own and they run at the same time, so a rig must not see the
/// records of another: give each a folder, a schema, a table or a key prefix of its own. The
/// suite purges, and it moves the clock, and both would disturb a neighbour. Nothing may be left
/// over from an earlier run either: key ids are drawn from a seed and come back.
///
/// The methods may be written as `async fn`. They are the author's scaffolding: if one of them
/// cannot do its work it panics, and the test fails.
pub trait Rig: Send + Sync {
    /// The kind of store.
    type Store: Store;

    /// The store as it is open now.
    fn store(&self) -> Arc<Self::Store>;

    /// Closes everything and opens it again, as a restart of the process would.
    ///
    /// What was acknowledged must still be there. The case holds no other handle at that moment.
    /// A store without durability, such as [`MemoryStore`](crate::memory::MemoryStore), returns
    /// the same instance: the suite then says nothing about restarts, and the store's
    /// documentation must say that there is nothing to say.
    fn reopen(&self) -> impl Future<Output = Arc<Self::Store>> + Send;

    /// Moves the store's clock forward by exactly so much.
    ///
    /// A store that takes a [`Clock`] is given a [`ManualClock`](crate::clock::ManualClock). For
    /// a server with a clock of its own, move all stored *times* of this rig's records back
    /// instead, which looks the same; never the fences.
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send;

    /// Moves the store's clock back, as a bad time server or a restored virtual machine does.
    ///
    /// For a server with a clock of its own: move all stored times forward instead.
    fn step_back(&self, by: Duration) -> impl Future<Output = ()> + Send;

    /// The clock that the store judges by, if the test can read it and nobody else moves it.
    ///
    /// With it, every time that the store tells is compared to the microsecond. Without it, times
    /// are compared as far as a clock that goes on by itself allows.
    fn clock(&self) -> Option<Arc<dyn Clock>> {
        None
    }
}
