//! `sqlite://file`

use oncekey_core::StoreError;

use super::Intent;
use crate::store::opened::Opened;
use crate::store::sqlite::{self, Missing, Placement, SqliteOptions};
use crate::store::url::{Address, Scheme};

const OURS: [&str; 1] = ["placement"];

pub(super) async fn open(address: Address<'_>, intent: Intent) -> Result<Opened, StoreError> {
    let options = options(address)?.missing(match intent {
        Intent::Use => Missing::Make,
        Intent::Find => Missing::Refuse,
    });
    // Opening a file may wait for other processes, and for the disk.
    let opened = tokio::task::spawn_blocking(|| options.open()).await;
    let store = opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    Ok(Opened::waking(Scheme::Sqlite.label(), store))
}

pub(super) fn migration_sql(address: Address<'_>) -> Result<String, StoreError> {
    options(address).map(|_| sqlite::migration_sql())
}

fn options(mut address: Address<'_>) -> Result<SqliteOptions, StoreError> {
    let mut options = SqliteOptions::new(address.path()?);
    let placements = [("own", Placement::Own), ("shared", Placement::Shared)];
    if let Some(placement) = address.settings.take_word("placement", &placements)? {
        options = options.placement(placement);
    }
    address.settings.finish(&OURS)?;
    Ok(options)
}
