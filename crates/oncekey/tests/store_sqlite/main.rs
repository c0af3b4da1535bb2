//! The SQLite store keeps every promise of the suite: through one handle, through two handles of
//! one process that take turns, and through handles in several processes.

#![cfg(feature = "sqlite")]

#[path = "../common/mod.rs"]
mod common;
mod process;
#[path = "../common/turns.rs"]
mod turns;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::core::conformance::Rig;
use oncekey::core::conformance::model::{Op, agrees_while_erasing, agrees_with_the_model};
use oncekey::core::{Browse, Clock, Erase, ManualClock, Restore, Store, Timestamp, Wake};
use oncekey::store::sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

use self::common::child;
use self::process::Elsewhere;
use self::turns::InTurns;

/// Not a test: what the child processes do.
#[test]
fn child() {
    let Some(orders) = child::orders() else { return };
    assert_eq!(orders.role, "serve", "the only role");
    process::serve(&orders.file, open);
}

/// A file in a folder of its own, with a clock that the test moves.
struct FileRig<S> {
    clock: Arc<ManualClock>,
    path: PathBuf,
    opening: fn(&Path, Arc<ManualClock>) -> S,
    open: Mutex<Option<Arc<S>>>,
    _folder: TempDir,
}

fn one_handle() -> FileRig<SqliteStore> {
    FileRig::new(|path, clock| open(path, clock))
}

fn two_handles() -> FileRig<InTurns<SqliteStore>> {
    // One after the other: both find the tables, whoever makes them.
    FileRig::new(|path, clock| {
        InTurns::new([open(path, Arc::clone(&clock) as _), open(path, clock)].map(Arc::new))
    })
}

/// A handle here and two elsewhere. Opening it again kills those and starts others.
fn three_processes() -> FileRig<InTurns<dyn Whole>> {
    FileRig::new(|path, clock| {
        let handles: [Arc<dyn Whole>; 3] = [
            Arc::new(open(path, Arc::clone(&clock) as _)),
            Arc::new(Elsewhere::open(path, Arc::clone(&clock))),
            Arc::new(Elsewhere::open(path, clock)),
        ];
        InTurns::new(handles)
    })
}

/// A handle of any kind that can do what the SQLite store can.
trait Whole: Browse + Erase + Restore + Wake {}

impl<S: Browse + Erase + Restore + Wake> Whole for S {}

/// Lets keys settle after the third, so that every case meets both key maps.
fn open(path: &Path, clock: Arc<dyn Clock>) -> SqliteStore {
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
    oncekey::core::browse_conformance!(async || super::two_handles());
    oncekey::core::erase_conformance!(async || super::two_handles());
    oncekey::core::erase_browse_conformance!(async || super::two_handles());
    oncekey::core::restore_conformance!(async || super::two_handles());
    oncekey::core::restore_browse_conformance!(async || super::two_handles());
    oncekey::core::wake_conformance!(async || super::two_handles());
}

mod through_three_processes {
    oncekey::core::conformance!(async || super::three_processes());
    oncekey::core::clock_conformance!(async || super::three_processes());
    oncekey::core::browse_conformance!(async || super::three_processes());
    oncekey::core::erase_conformance!(async || super::three_processes());
    oncekey::core::erase_browse_conformance!(async || super::three_processes());
    oncekey::core::restore_conformance!(async || super::three_processes());
    oncekey::core::restore_browse_conformance!(async || super::three_processes());
    oncekey::core::wake_conformance!(async || super::three_processes());
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
