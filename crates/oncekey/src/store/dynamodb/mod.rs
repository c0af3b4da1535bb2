//! The store on DynamoDB, and on what speaks like it.
//!
//! For any number of machines in one region. What was acknowledged survives the loss of a machine
//! and of a data centre, because DynamoDB keeps three copies.
//!
//! - A claim is one conditional write. If it is refused, the same answer brings the record that
//!   stands in the way: one round trip either way.
//! - There is no server clock, so leases are watched instead of compared with a clock: see
//!   [`Lapse`].
//! - A record that is gone leaves its fence behind for a week, so that fences rise for ever.
//! - Bodies over 300 kB are in pieces of their own, written before their completion.
//!
//! ```no_run
//! # async fn open() -> Result<(), oncekey::core::StoreError> {
//! use oncekey::store::dynamodb::{DynamoOptions, MissingTable};
//!
//! let store = DynamoOptions::new("oncekey").missing_table(MissingTable::Create).open().await?;
//! # drop(store);
//! # Ok(())
//! # }
//! ```

mod browse;
mod call;
mod claim;
mod erase;
mod error;
mod index;
mod inspect;
mod item;
mod options;
mod pieces;
mod purge;
mod restore;
mod schema;
mod sight;
mod write;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncekey_core::browse::{Browse, Count, Filter, Listing, Page, Summary};
use oncekey_core::record::Text;
use oncekey_core::store::Purged;
use oncekey_core::{
    Claim, Claimed, Clock, Completion, Erase, Erased, Inspect, KeyId, Lease, Lineage, Record,
    Renewal, Restore, Restored, Store, StoreError, StoreHealth, Write,
};

pub use self::options::{Clocks, DynamoOptions, MissingTable, Replicas};
pub use self::schema::table_json;
pub use self::sight::Lapse;

use self::call::Caller;
use self::error::contended;
use self::item::Slot;
use self::sight::Sight;
use self::write::TURNS;
use crate::store::parts::is_forgotten;

/// Keeps records in a DynamoDB table. Clones share everything.
///
/// Dropping a future of any method is like a crash of the caller: what was under way may still reach
/// DynamoDB, as a whole. The next call on the same key finds it there or not.
#[derive(Clone, Debug)]
pub struct DynamoStore {
    caller: Caller,
    /// For renewals alone. A connection is driven by the runtime that it was made in, and renewals come
    /// from a thread of their own: a program that blocks all of its threads loses no lease.
    renewals: Caller,
    clock: Arc<dyn Clock>,
    clocks: Clocks,
    sight: Arc<Sight>,
    lapse: Lapse,
    skew: Duration,
    replicas: Replicas,
}

#[async_trait]
impl Store for DynamoStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        claim.check()?;
        self.ask(claim).await
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        self.renew_all(leases, span).await
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.mark_sent(lease).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        completion.check()?;
        self.finish(lease, completion).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.give_back(lease).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.mark_unknown(lease).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        for _ in 0..TURNS {
            let item = self.caller.get(id, &item::RECORD_PART, None).await?;
            let Slot::Held(found) = Slot::read(item.as_ref())? else { return Ok(None) };
            let record = found.record();
            if is_forgotten(record, self.sight.judging(self.clock.now())) {
                return Ok(None);
            }
            self.sight.watch(&found);
            // `None` if its pieces were removed after it was read: then it has changed.
            if let Some(record) = self.whole(*found).await? {
                return Ok(Some(record));
            }
        }
        Err(contended())
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        self.purge_due(limit).await
    }
}

#[async_trait]
impl Browse for DynamoStore {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        self.list_page(filter, page).await
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        self.count_up_to(filter, cap).await
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        self.find_all(key, limit).await
    }
}

/// `Ok` means that the content is in no item of the table any more. DynamoDB takes it out of its
/// backups when they are over, which is five weeks later at most.
#[async_trait]
impl Erase for DynamoStore {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        self.blank_out(id).await
    }
}

#[async_trait]
impl Inspect for DynamoStore {
    async fn inspect(&self) -> Result<StoreHealth, StoreError> {
        self.look_at_it().await
    }
}

#[async_trait]
impl Restore for DynamoStore {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        self.put_back(record).await
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        self.which().await
    }
}
