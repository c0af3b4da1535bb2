//! The MySQL store keeps every promise of the suite on MariaDB.
//!
//! Each test has a database of its own. The server's clock cannot be moved, so the stored times are,
//! which looks the same; the fences stay.

#![cfg(feature = "mysql")]

use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use oncekey::core::conformance::Rig;
use oncekey::core::conformance::model::{Op, agrees_while_erasing, agrees_with_the_model};
use oncekey::store::mysql::{MysqlOptions, MysqlStore};

/// A database of its own, which goes with the rig.
struct DatabaseRig {
    url: String,
    name: String,
    open: Mutex<Option<Arc<MysqlStore>>>,
}

/// Where the server is, or a panic that says how to get one.
fn server() -> String {
    env::var("ONCEKEY_TEST_MYSQL").expect(
        "ONCEKEY_TEST_MYSQL is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports",
    )
}

async fn connect() -> Conn {
    let options = Opts::from_url(&server()).expect("a mysql:// URL");
    Conn::new(OptsBuilder::from_opts(options).prefer_socket(false)).await.expect("MariaDB")
}

impl DatabaseRig {
    async fn new() -> Self {
        static RIGS: AtomicU64 = AtomicU64::new(0);
        let rig = RIGS.fetch_add(1, Ordering::Relaxed);
        let name = format!("oncekey_rig_{}_{rig}", std::process::id());
        let sql = format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}");
        connect().await.query_drop(sql).await.expect("a new database");
        let server = server();
        let (address, _) = server.rsplit_once('/').expect("a URL with a database");
        let rig = Self { url: format!("{address}/{name}"), name, open: Mutex::new(None) };
        rig.open_again().await;
        rig
    }

    async fn open_again(&self) -> Arc<MysqlStore> {
        drop(self.open.lock().expect("no test panics while it holds this").take());
        let options = MysqlOptions::new(&self.url).writers(2).readers(4);
        let store = Arc::new(options.open().await.expect("the store opens"));
        *self.open.lock().expect("no test panics while it holds this") = Some(Arc::clone(&store));
        store
    }

    /// Moves all stored times.
    async fn shift(&self, micros: i128) {
        let tables =
            [("records", &["at", "created"][..]), ("answers", &["expires", "forget", "due"])];
        for (table, columns) in tables {
            let moved =
                columns.iter().map(|column| format!("`{column}` = `{column}` + ({micros})"));
            let moved: Vec<_> = moved.collect();
            let sql = format!("UPDATE {}.oncekey_{table} SET {}", self.name, moved.join(", "));
            connect().await.query_drop(sql).await.expect("times are moved");
        }
    }
}

impl Rig for DatabaseRig {
    type Store = MysqlStore;

    fn store(&self) -> Arc<MysqlStore> {
        let open = self.open.lock().expect("no test panics while it holds this");
        Arc::clone(open.as_ref().expect("the rig always has a store open"))
    }

    async fn reopen(&self) -> Arc<MysqlStore> {
        self.open_again().await
    }

    async fn advance(&self, by: Duration) {
        self.shift(-i128::try_from(by.as_micros()).expect("a test's span")).await;
    }

    async fn step_back(&self, by: Duration) {
        self.shift(i128::try_from(by.as_micros()).expect("a test's span")).await;
    }
}

impl Drop for DatabaseRig {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {}", self.name);
        // A thread with a runtime of its own: this one may be shutting down.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                connect().await.query_drop(sql).await.expect("the database is dropped");
            });
        });
        let is_gone = dropped.join().is_ok() || std::thread::panicking();
        assert!(is_gone, "the database {} was left behind", self.name);
    }
}

mod on_one_server {
    use super::*;

    oncekey_core::conformance!(
        #[ignore = "needs MariaDB: run cargo xtask test"]
        async || DatabaseRig::new().await
    );
    oncekey_core::browse_conformance!(
        #[ignore = "needs MariaDB: run cargo xtask test"]
        async || DatabaseRig::new().await
    );
    oncekey_core::erase_conformance!(
        #[ignore = "needs MariaDB: run cargo xtask test"]
        async || DatabaseRig::new().await
    );
    oncekey_core::erase_browse_conformance!(
        #[ignore = "needs MariaDB: run cargo xtask test"]
        async || DatabaseRig::new().await
    );
    oncekey_core::restore_conformance!(
        #[ignore = "needs MariaDB: run cargo xtask test"]
        async || DatabaseRig::new().await
    );
    oncekey_core::restore_browse_conformance!(
        #[ignore = "needs MariaDB: run cargo xtask test"]
        async || DatabaseRig::new().await
    );
}

/// What nobody thought of. Few, because a server takes its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn random_histories_agree_with_the_model() {
    for seed in 0..6 {
        agrees_with_the_model(&DatabaseRig::new().await, &Op::history(seed, 60)).await;
        agrees_while_erasing(&DatabaseRig::new().await, &Op::history(seed, 60)).await;
    }
}
