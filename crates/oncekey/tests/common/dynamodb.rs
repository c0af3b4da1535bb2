//! Tables for tests, and an uptime that the test moves.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use oncekey::clock::Uptime;
use oncekey::store::dynamodb::{DynamoOptions, MissingTable};

/// The name of a table of its own, which is deleted at the end.
pub(crate) struct Table(String);

/// An uptime that moves only when told to.
#[derive(Debug, Default)]
pub(crate) struct ManualUptime(Mutex<Duration>);

impl Table {
    /// A name that nobody has; the table is made by whoever opens it.
    pub(crate) async fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("oncekey-{}-{number}", std::process::id());
        // Left over from a process that had the same number: key ids come back.
        delete(&name).await;
        Self(name)
    }

    pub(crate) fn options(&self) -> DynamoOptions {
        options(&self.0).missing_table(MissingTable::Create)
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.0);
        let deleting = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(delete(&name));
        });
        // A table that stays is no reason to hide why a test failed.
        let _ = deleting.join();
    }
}

impl ManualUptime {
    pub(crate) fn advance(&self, by: Duration) {
        *self.0.lock().expect("nobody panics here") += by;
    }
}

impl Uptime for ManualUptime {
    fn elapsed(&self) -> Duration {
        *self.0.lock().expect("nobody panics here")
    }
}

/// How to open a table of the test server.
pub(crate) fn options(table: &str) -> DynamoOptions {
    DynamoOptions::new(table)
        .endpoint(endpoint())
        .region("us-east-1")
        .credentials(credentials())
        // A crowd of tests on a small machine takes longer than a table ever should.
        .timeout(Duration::from_secs(30))
}

/// Where the server is, or a panic that says how to get one.
pub(crate) fn endpoint() -> String {
    env::var("ONCEKEY_TEST_DYNAMODB").unwrap_or_else(|_| {
        panic!("ONCEKEY_TEST_DYNAMODB is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports")
    })
}

pub(crate) fn credentials() -> Credentials {
    Credentials::new("test", "test", None, None, "test")
}

/// A client beside the store.
pub(crate) fn client() -> Client {
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials())
        .endpoint_url(endpoint())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    Client::from_conf(config)
}

async fn delete(table: &str) {
    let _ = client().delete_table().table_name(table).send().await;
}
