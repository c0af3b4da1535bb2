//! Records in Redis or Valkey, on one server or on a cluster.
//!
//! Fast, shared by a fleet, and honest about what it is: efficient, not for money. One server keeps
//! every promise of a store, and what it acknowledged survives what its settings say
//! ([`StoreHealth`] tells). A failover may lose the last writes. That
//! cannot be prevented from here; it is noticed, and then no key is granted until somebody has
//! seen to it: see [`Restore::adopt`].
//!
//! - One script per verb, one round trip, decided and written in one step by the server's clock.
//! - Everything that belongs to a key is in one slot: see `place.rs`.
//! - Redis 7.0 or newer, or any Valkey, with `maxmemory-policy noeviction`.
//!
//! ```no_run
//! # async fn open() -> Result<(), oncekey::core::StoreError> {
//! use oncekey::store::redis::RedisOptions;
//! let store = RedisOptions::new("redis://127.0.0.1:6379").open().await?;
//! # drop(store);
//! # Ok(())
//! # }
//! ```
//!
//! The long version is in `docs/explanation/redis-store.md`.

mod browse;
mod confirm;
mod epoch;
mod erase;
mod error;
mod health;
mod info;
mod layout;
mod life;
mod link;
mod options;
mod place;
mod purge;
mod reach;
mod restore;
mod script;
mod servers;
mod slots;
mod verbs;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncekey_core::browse::{Browse, Count, Filter, Listing, Page, Summary};
use oncekey_core::health::{StoreHealth, Tier};
use oncekey_core::record::Text;
use oncekey_core::restore as core_restore;
use oncekey_core::store::Purged;
use oncekey_core::wake::{Feed, Wake};
use oncekey_core::{
    Claim, Claimed, Completion, Erase, Erased, Inspect, KeyId, Lease, Lineage, Record, Renewal,
    Restore, Restored, Store, StoreError, Write,
};

pub use self::options::{Missing, RedisOptions};

use self::confirm::Confirmer;
use self::error::Failure;
use self::life::Witness;
use self::place::shard_of;
use self::reach::Reach;
use self::verbs::Completed;
use self::watch::Watcher;

/// Keeps records in Redis or Valkey.
#[derive(Debug)]
pub struct RedisStore {
    reach: Arc<Reach>,
    confirmer: Option<Confirmer>,
    watcher: Watcher,
    accepted: Tier,
}

impl RedisStore {
    /// Opens the server at `url` with the defaults of [`RedisOptions`].
    ///
    /// # Errors
    /// As [`RedisOptions::open`].
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        RedisOptions::new(url).open().await
    }

    /// A write took effect on the primary that is its witness: waits until it has where the options
    /// say.
    async fn confirm(&self, id: &KeyId, by: &Witness) -> Result<(), StoreError> {
        if let Some(confirmer) = &self.confirmer {
            confirmer.confirm(&self.reach, shard_of(id), by).await?;
        }
        Ok(())
    }

    async fn confirmed(&self, id: &KeyId, write: Write, by: &Witness) -> Result<Write, StoreError> {
        if write == Write::Applied {
            self.confirm(id, by).await?;
        }
        Ok(write)
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        claim.check()?;
        let (claimed, by) = self.reach.claim(claim).await?;
        if let Claimed::Won { .. } = claimed {
            self.confirm(&claim.id, &by).await?;
        }
        Ok(claimed)
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        Ok(self.reach.renew(leases, span).await?)
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        let (write, by) = self.reach.send(lease).await?;
        self.confirmed(&lease.id, write, &by).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        completion.check()?;
        loop {
            let Some(pieces) = self.reach.write_pieces(lease, completion).await? else {
                return Ok(Write::Fenced);
            };
            match self.reach.complete(lease, completion, pieces).await? {
                Completed::Wrote(write, by) => return self.confirmed(&lease.id, write, &by).await,
                // Once more for every erasure that comes in between.
                Completed::PiecesGone => {}
            }
        }
    }

    /// Not confirmed by replicas: a release that is lost leaves the key taken, which is safe.
    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        Ok(self.reach.release(lease).await?.0)
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        let (write, by) = self.reach.unknown(lease).await?;
        self.confirmed(&lease.id, write, &by).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        self.reach.get(id).await.map_err(Failure::of_read)
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        Ok(self.reach.purge(limit).await?)
    }
}

#[async_trait]
impl Browse for RedisStore {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        browse::check_cursor(page)?;
        self.reach.list(filter, page).await.map_err(Failure::of_read)
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        self.reach.count(filter, cap).await.map_err(Failure::of_read)
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        self.reach.find_key(key, limit).await.map_err(Failure::of_read)
    }
}

/// `Ok` means that the content is gone from the server's memory. Its append-only file and its
/// snapshots hold it until they are written anew: `BGREWRITEAOF` and `BGSAVE` do that.
#[async_trait]
impl Erase for RedisStore {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        let (erased, by) = self.reach.erase(id).await?;
        // Also if there was nothing left to erase: a call before may have been ambiguous.
        self.confirm(id, &by).await?;
        Ok(erased)
    }
}

#[async_trait]
impl Wake for RedisStore {
    async fn watch(&self) -> Result<Box<dyn Feed>, StoreError> {
        Ok(self.watcher.hub(&self.reach).await?.watch())
    }
}

#[async_trait]
impl Inspect for RedisStore {
    async fn inspect(&self) -> Result<StoreHealth, StoreError> {
        Ok(self.reach.inspect(self.accepted).await?)
    }
}

/// Restoring works on a store that has lost its data, too: that is when it is needed.
#[async_trait]
impl Restore for RedisStore {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        core_restore::check(record)?;
        let (restored, by) = self.reach.restore(record).await?;
        // Also if it was there already: a call before may have been ambiguous.
        self.confirm(&record.id, &by).await?;
        Ok(restored)
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        Ok(self.reach.lineage().await?)
    }

    /// To be called when everything that is still known of the lost records has been restored, and
    /// when nobody who held a lease before can still be sending. Until then no process grants a key;
    /// each process that was running before must call it for itself. Fences go on rising.
    ///
    /// A crash half-way leaves a store that grants nothing. After that, and after any error, call it
    /// again.
    async fn adopt(&self) -> Result<(), StoreError> {
        Ok(self.reach.adopt().await?)
    }
}
