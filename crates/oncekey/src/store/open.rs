//! One URL opens any store.
//!
//! | URL | store | settings |
//! |---|---|---|
//! | `sqlite://oncekey.db`, `sqlite:///var/lib/oncekey.db` | a SQLite file, made if it is not there | `placement` = `own` or `shared` |
//! | `memory:` | the memory of this process | |
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

use super::opened::Opened;
use super::url::{Address, Scheme};
use crate::clock::SystemClock;

/// Opens the store at `url`, and makes what it needs there if it is missing.
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

/// The statements that make the tables of the store at `url`, for people who apply them by hand.
/// Empty for a store without tables. Nothing is opened.
///
/// # Errors
/// If the URL makes no sense, or the program was built without that store.
pub fn migration_sql(url: &str) -> Result<String, StoreError> {
    match Address::parse(url)?.scheme {
        Scheme::Memory => Ok(String::new()),
        #[cfg(feature = "sqlite")]
        Scheme::Sqlite => Ok(super::sqlite::migration_sql()),
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
        Scheme::Memory => memory(address),
        #[cfg(feature = "sqlite")]
        Scheme::Sqlite => sqlite(address, intent).await,
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

#[cfg(feature = "sqlite")]
async fn sqlite(mut address: Address<'_>, intent: Intent) -> Result<Opened, StoreError> {
    use super::sqlite::{Missing, Placement, SqliteOptions};

    let placement = match address.settings.take("placement")?.as_deref() {
        None | Some("own") => Placement::Own,
        Some("shared") => Placement::Shared,
        Some(_) => {
            let message = "the setting `placement` is `own` or `shared`";
            return Err(super::url::rejected(message.to_owned()));
        }
    };
    let options = SqliteOptions::new(address.path()?).placement(placement).missing(match intent {
        Intent::Use => Missing::Make,
        Intent::Find => Missing::Refuse,
    });
    address.settings.finish(&["placement"])?;
    // Opening a file may wait for other processes, and for the disk.
    let opened = tokio::task::spawn_blocking(|| options.open()).await;
    let store = opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    Ok(Opened::waking(Scheme::Sqlite.label(), store))
}
