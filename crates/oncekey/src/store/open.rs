//! One URL opens any store.
//!
//! | URL | store | settings |
//! |---|---|---|
//! | `sqlite://oncekey.db`, `sqlite:///var/lib/oncekey.db` | a SQLite file, made if it is not there | `placement` = `own` or `shared` |
//! | `postgres://user:password@host:5432/database`, `postgresql://…` | PostgreSQL | `schema`, `writers`, `readers`, `prepared` = `auto` or `off`, `migrations` = `apply` or `check`, `listen_url`, `lock_timeout`, `call_timeout` |
//! | `mysql://user:password@host:3306/database`, `mariadb://…` | MySQL or MariaDB | `prefix`, `writers`, `readers`, `migrations` = `apply` or `check`, `galera` = `refused` or `single-writer`, `timeout`, `root_certificate` |
//! | `redis://user:password@host:6379/0`, `rediss://…` with TLS | Redis or Valkey | `prefix`, `connections`, `connect_timeout`, `timeout`, `replicas`, `disks`, `within`, `accept` = `volatile`, `process` or `durable` |
//! | `redis+cluster://user:password@host:6379,host:6379`, `rediss+cluster://…` | a cluster of them | the same |
//! | `dynamodb://table` | a DynamoDB table | `region`, `endpoint`, `timeout`, `missing` = `refuse` or `create`, `replicas` = `strong` or `one-writer`, `lapse` = `observed` or `clocked`, `skew` |
//! | `memory:` | the memory of this process | |
//!
//! Settings of the driver (`sslmode`, `require_ssl`, …) may stand beside ours and are passed on as they
//! are. A span of time is `500ms`, `5s`, or a number of seconds. What each setting means is said by the
//! options of its store.
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use std::sync::Arc;
//!
//! use oncekey::engine::Engine;
//!
//! let store = Arc::new(oncekey::store::open("memory:").await?);
//! let mut builder = Engine::builder(store.clone()).store_label(store.label());
//! if let Some(wake) = store.wake() {
//!     builder = builder.wake(wake);
//! }
//! let engine = builder.build()?;
//! let sweeper = engine.sweeper(store);
//! # drop(sweeper);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```

use std::sync::Arc;

use oncekey_core::{MemoryStore, StoreError};

#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

use super::opened::Opened;
use super::url::{Address, Scheme};
use crate::clock::SystemClock;

/// Opens the store at `url`, and makes what it needs there if it is missing. Not a DynamoDB table,
/// unless the URL says `missing=create`: a wrong region or account would look like an empty store.
///
/// # Errors
/// [`Rejected`](oncekey_core::ErrorKind::Rejected) if the URL makes no sense, and whatever the store
/// itself says. No error shows a password.
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn open(url: &str) -> Result<Opened, StoreError> {
    open_with(url, Intent::Use).await
}

/// Opens the store at `url`, which must be there already: for whoever expects records in it.
///
/// # Errors
/// As [`open`], and if there is no such store.
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn open_existing(url: &str) -> Result<Opened, StoreError> {
    open_with(url, Intent::Find).await
}

/// The statements that make the tables of the store at `url`, for people who apply them by hand. For
/// DynamoDB it is the description of the table, for `aws dynamodb create-table --cli-input-json`.
/// Empty for a store without tables. Nothing is opened.
///
/// # Errors
/// If the URL makes no sense, or the program was built without that store.
pub fn migration_sql(url: &str) -> Result<String, StoreError> {
    let address = Address::parse(url)?;
    match address.scheme {
        #[cfg(feature = "dynamodb")]
        Scheme::Dynamodb => dynamodb::migration_sql(address),
        Scheme::Memory => memory(address).map(|_| String::new()),
        #[cfg(feature = "mysql")]
        Scheme::Mysql => mysql::migration_sql(address),
        #[cfg(feature = "postgres")]
        Scheme::Postgres => postgres::migration_sql(address),
        #[cfg(feature = "redis")]
        Scheme::Redis => redis::migration_sql(address),
        #[cfg(feature = "sqlite")]
        Scheme::Sqlite => sqlite::migration_sql(address),
        #[allow(unreachable_patterns, reason = "with every feature nothing is left out")]
        left_out => Err(left_out.left_out()),
    }
}

/// What the store is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    /// To be used: what is missing is made.
    Use,
    /// To find something in it: it must be there.
    Find,
}

async fn open_with(url: &str, intent: Intent) -> Result<Opened, StoreError> {
    let address = Address::parse(url)?;
    match address.scheme {
        #[cfg(feature = "dynamodb")]
        Scheme::Dynamodb => dynamodb::open(address, intent).await,
        Scheme::Memory => memory(address),
        #[cfg(feature = "mysql")]
        Scheme::Mysql => mysql::open(address, intent).await,
        #[cfg(feature = "postgres")]
        Scheme::Postgres => postgres::open(address, intent).await,
        #[cfg(feature = "redis")]
        Scheme::Redis => redis::open(address, intent).await,
        #[cfg(feature = "sqlite")]
        Scheme::Sqlite => sqlite::open(address, intent).await,
        #[allow(unreachable_patterns, reason = "with every feature nothing is left out")]
        left_out => {
            // Only some stores can tell whether they were there before.
            let _ = intent;
            Err(left_out.left_out())
        }
    }
}

fn memory(address: Address<'_>) -> Result<Opened, StoreError> {
    if !address.place.is_empty() {
        let message = "a store in memory has no place: write memory:";
        return Err(super::url::rejected(message.to_owned()));
    }
    address.settings.finish(&[])?;
    Ok(Opened::waking(Scheme::Memory.label(), MemoryStore::new(Arc::new(SystemClock))))
}
