//! The SQLite store keeps every promise of the suite.

#![cfg(feature = "sqlite")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::core::conformance::Rig;
use oncekey::core::{Clock, ManualClock, Timestamp};
use oncekey::store::sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// A file in a folder of its own, with a clock that the test moves.
struct SqliteRig {
    clock: Arc<ManualClock>,
    path: PathBuf,
    open: Mutex<Option<Arc<SqliteStore>>>,
    _folder: TempDir,
}

impl SqliteRig {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("oncekey.db");
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_000_000)));
        let rig = Self { clock, path, open: Mutex::new(None), _folder: folder };
        rig.open_again();
        rig
    }

    fn open_again(&self) -> Arc<SqliteStore> {
        let mut open = self.open.lock().expect("no test panics while it holds this");
        // Closed first: dropping the last handle waits for the writer and closes the file.
        drop(open.take());
        let options = SqliteOptions::new(&self.path).clock(self.clock.clone());
        let store = Arc::new(options.open().expect("the file opens"));
        *open = Some(Arc::clone(&store));
        store
    }
}

impl Rig for SqliteRig {
    type Store = SqliteStore;

    fn store(&self) -> Arc<SqliteStore> {
        let open = self.open.lock().expect("no test panics while it holds this");
        Arc::clone(open.as_ref().expect("the rig always has a store open"))
    }

    async fn reopen(&self) -> Arc<SqliteStore> {
        self.open_again()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn step_back(&self, by: Duration) {
        self.clock.step_back(by);
    }

    fn clock(&self) -> Option<Arc<dyn Clock>> {
        Some(self.clock.clone())
    }
}

mod conformance {
    use super::SqliteRig;

    oncekey::core::conformance!(async || SqliteRig::new());
}
