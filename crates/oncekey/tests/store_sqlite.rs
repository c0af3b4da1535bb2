//! The SQLite store keeps every promise of the suite: through one handle, and through two handles
//! on one file that take turns, as two processes would.

#![cfg(feature = "sqlite")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncekey::core::conformance::Rig;
use oncekey::core::conformance::model::{Op, agrees_while_erasing, agrees_with_the_model};
use oncekey::core::store::Purged;
use oncekey::core::{
    Claim, Claimed, Clock, Completion, Erase, Erased, KeyId, Lease, Lineage, ManualClock, Record,
    Renewal, Restore, Restored, Store, StoreError, Timestamp, Write,
};
use oncekey::store::sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// A file in a folder of its own, with a clock that the test moves.
struct FileRig<S> {
    clock: Arc<ManualClock>,
    path: PathBuf,
    opening: fn(&Path, Arc<ManualClock>) -> S,
    open: Mutex<Option<Arc<S>>>,
    _folder: TempDir,
}

fn one_handle() -> FileRig<SqliteStore> {
    FileRig::new(open)
}

fn two_handles() -> FileRig<InTurns> {
    FileRig::new(|path, clock| InTurns {
        // One after the other: both find the tables, whoever makes them.
        handles: [open(path, Arc::clone(&clock)), open(path, clock)],
        turn: AtomicUsize::new(0),
    })
}

/// Lets keys settle after the third, so that every case meets both key maps.
fn open(path: &Path, clock: Arc<ManualClock>) -> SqliteStore {
    SqliteOptions::new(path).clock(clock).small_map(3).open().expect("the file opens")
}

impl<S> FileRig<S> {
    fn new(opening: fn(&Path, Arc<ManualClock>) -> S) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("oncekey.db");
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_000_000)));
        let rig = Self { clock, path, opening, open: Mutex::new(None), _folder: folder };
        rig.open_again();
        rig
    }

    fn open_again(&self) -> Arc<S> {
        let mut open = self.open.lock().expect("no test panics while it holds this");
        // Closed first: dropping the last handle waits for the writer and closes the file.
        drop(open.take());
        let store = Arc::new((self.opening)(&self.path, Arc::clone(&self.clock)));
        *open = Some(Arc::clone(&store));
        store
    }
}

impl<S: Store> Rig for FileRig<S> {
    type Store = S;

    fn store(&self) -> Arc<S> {
        let open = self.open.lock().expect("no test panics while it holds this");
        Arc::clone(open.as_ref().expect("the rig always has a store open"))
    }

    async fn reopen(&self) -> Arc<S> {
        self.open_again()
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

/// Two handles with a writer thread each; every call goes to the other one.
#[derive(Debug)]
struct InTurns {
    handles: [SqliteStore; 2],
    turn: AtomicUsize,
}

impl InTurns {
    fn next(&self) -> &SqliteStore {
        &self.handles[self.turn.fetch_add(1, Ordering::Relaxed) % 2]
    }
}

#[async_trait]
impl Store for InTurns {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.next().claim(claim).await
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        self.next().renew(leases, span).await
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.next().send(lease).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        self.next().complete(lease, completion).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.next().release(lease).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.next().unknown(lease).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        self.next().get(id).await
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        self.next().purge(limit).await
    }
}

#[async_trait]
impl Erase for InTurns {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        self.next().erase(id).await
    }
}

#[async_trait]
impl Restore for InTurns {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        self.next().restore(record).await
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        self.next().lineage().await
    }
}

mod through_one_handle {
    oncekey::core::conformance!(async || super::one_handle());
    oncekey::core::clock_conformance!(async || super::one_handle());
    oncekey::core::browse_conformance!(async || super::one_handle());
    oncekey::core::erase_conformance!(async || super::one_handle());
    oncekey::core::erase_browse_conformance!(async || super::one_handle());
    oncekey::core::restore_conformance!(async || super::one_handle());
    oncekey::core::restore_browse_conformance!(async || super::one_handle());
    oncekey::core::wake_conformance!(async || super::one_handle());
}

mod through_two_handles_in_turns {
    oncekey::core::conformance!(async || super::two_handles());
    oncekey::core::clock_conformance!(async || super::two_handles());
    oncekey::core::erase_conformance!(async || super::two_handles());
    oncekey::core::restore_conformance!(async || super::two_handles());
}

proptest::proptest! {
    // Every case opens a file; a failing history is shrunk to a short one.
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]

    /// Random histories: the store says what the decision tables say, and shows it.
    #[test]
    fn agrees_with_the_model_in_every_history(
        bits in proptest::collection::vec(proptest::prelude::any::<[u8; 6]>(), 1..60)
    ) {
        let history: Vec<Op> = bits.into_iter().map(Op::from_bits).collect();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(agrees_with_the_model(&one_handle(), &history));
        runtime.block_on(agrees_while_erasing(&one_handle(), &history));
    }
}

/// One long history meets more of the past than many short ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agrees_with_the_model_through_a_long_history() {
    agrees_with_the_model(&two_handles(), &Op::history(7, 1_500)).await;
    agrees_while_erasing(&two_handles(), &Op::history(8, 1_500)).await;
}
