//! The store on PostgreSQL: the default for fleets.
//!
//! What was acknowledged survives what the server's write-ahead log survives: process death and
//! power loss, and the loss of the server if a synchronous standby has it.
//!
//! - A claim costs one round trip. Claims, send marks and completions that come together share a
//!   statement and a commit: see `group.rs`.
//! - Replays write nothing, not even to the log of the server.
//! - Every statement is a transaction of its own at READ COMMITTED. No session state, so a pooler
//!   that lends connections out by the transaction may stand in between.
//! - Time is the server's clock, read at the moment of each decision.
//!
//! ```no_run
//! # async fn open() -> Result<(), oncekey::core::StoreError> {
//! use oncekey::store::postgres::PostgresOptions;
//!
//! let store = PostgresOptions::new("postgres://oncekey:secret@db.example:5432/app").open().await?;
//! # drop(store);
//! # Ok(())
//! # }
//! ```

mod batch;
mod browse;
mod claim;
mod connect;
mod erase;
mod error;
mod greeting;
mod health;
mod life;
mod line;
mod look;
mod op;
mod options;
mod pool;
mod purge;
mod renew;
mod restore;
mod row;
mod schema;
mod sql;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncekey_core::browse::{Browse, Count, Filter, Listing, Page, Summary};
use oncekey_core::health::{Inspect, StoreHealth};
use oncekey_core::record::Text;
use oncekey_core::restore::{Lineage, Restore, Restored};
use oncekey_core::store::Purged;
use oncekey_core::wake::{Feed, Hub, Wake};
use oncekey_core::{
    Claim, Claimed, Completion, Erase, Erased, KeyId, Lease, Record, Renewal, Store, StoreError,
    Write,
};
use quick_cache::sync::Cache;

pub use self::options::{Migrations, PostgresOptions, Prepared};

use self::batch::Batches;
use self::connect::Dialler;
use self::life::Guard;
use self::look::Looks;
use self::op::{Op, Reply};
use self::pool::{Effect, Pool};
use self::row::Found;
use self::sql::Sql;
use self::watch::{Herald, Watcher};
use crate::store::group::{Company, Group, Limits, Mixing};
use crate::store::parts::{CompletionParts, is_forgotten};

/// Keeps records in PostgreSQL.
#[derive(Debug)]
pub struct PostgresStore {
    schema: String,
    sql: Arc<Sql>,
    group: Group<Op>,
    /// For replays.
    looks: Looks,
    /// For reads that come alone: large bodies, lists.
    readers: Pool,
    /// For writes that come alone: takeovers, purges, erasures.
    singles: Arc<Pool>,
    /// For renewals alone, so that nothing else can make a lease lapse.
    renewals: Pool,
    /// Keys that this process has met: they are likely to have a record.
    seen: Cache<KeyId, ()>,
    hub: Arc<Hub>,
    watcher: Watcher,
    guard: Arc<Guard>,
}

/// How many keys are remembered as met. A guess that is wrong costs one read; the memory is some
/// megabytes.
const SEEN: usize = 65_536;

/// What bounds a batch. The statements for 128 claims take about two milliseconds. With 64 at most, 512
/// callers got a fifth less done; with 256 no more, and everybody in a batch waits for all of it. A
/// mebibyte of bodies takes some milliseconds to write. Behind 2 048 places a caller would wait for
/// seconds.
const BATCH: (usize, usize, usize) = (128, 1024 * 1024, 2_048);

impl PostgresStore {
    async fn open_with(options: PostgresOptions) -> Result<Self, StoreError> {
        let dialler = Arc::new(Dialler::new(&options)?);
        let mut line = dialler.line().await?;
        schema::migrate(&mut line.client, &options.schema, options.migrations).await?;
        drop(line);
        let guard = Arc::clone(&dialler.guard);
        guard.ask_by(restore::lineage_question(&options.schema));
        let sql = Arc::new(Sql::new(&options.schema));
        let pool = |size| Pool::new(Arc::clone(&dialler), size, options.call_timeout);
        let singles = Arc::new(pool(SINGLES));
        let hub = Arc::new(Hub::default());
        let herald = Herald::start(Arc::clone(&hub), Arc::clone(&singles), &options.schema);
        let ear = match &options.listen_url {
            Some(url) => {
                let direct = PostgresOptions { url: url.clone(), ..options.clone() };
                Some(Arc::new(Dialler::new(&direct)?))
            }
            None if dialler.is_plain() => None,
            None => Some(Arc::clone(&dialler)),
        };
        let watcher = Watcher::new(Arc::clone(&hub), ear, Arc::clone(&singles), &options.schema);
        let (batch, bytes, queue) = BATCH;
        let limits = Limits {
            writers: options.writers,
            batch,
            bytes,
            queue,
            // A statement and its commit cost as much as a dozen rows: half of the callers at a time.
            // Without it the faster a batch is, the smaller is the next one.
            company: Company::OneIn(2),
            mixing: Mixing::Apart,
            patience: options.call_timeout,
            connect: dialler.connect_timeout,
            run: options.call_timeout,
        };
        let (readers, renewals) = (pool(options.readers), pool(1));
        // Reads are refused, held up and given up like writes, but on connections of their own, and
        // without a commit there is nothing to save by waiting for others.
        let reads = Limits { writers: options.readers, company: Company::None, ..limits };
        let looks = Looks::start(&dialler, &sql, reads);
        let batches = Batches { dialler, sql: Arc::clone(&sql), herald };
        let store = Self {
            schema: options.schema,
            sql,
            group: Group::start(&Arc::new(batches), limits),
            looks,
            readers,
            singles,
            renewals,
            seen: Cache::new(SEEN),
            hub,
            watcher,
            guard,
        };
        store.check_server().await?;
        Ok(store)
    }

    async fn write(&self, op: Op) -> Result<Write, StoreError> {
        let Reply::Wrote(write) = self.group.ask(op).await? else { unreachable!("{WRONG}") };
        Ok(write)
    }

    /// Reads a record with its body.
    async fn read(&self, id: &KeyId) -> Result<Option<Found>, StoreError> {
        let id = id.as_bytes().as_slice();
        let rows = self.readers.ask(Effect::Harmless, &self.sql.whole, &[&id]).await?;
        Ok(rows.first().map(row::read).transpose()?)
    }
}

/// Takeovers and purges are rare. One that waits for a lock keeps its connection, so there are some
/// more than are busy at the same time.
const SINGLES: usize = 4;

#[async_trait]
impl Store for PostgresStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        claim.check()?;
        self.decide_claim(claim).await
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        self.extend(leases, span).await
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(Op::Send(*lease)).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        completion.check()?;
        let parts = CompletionParts::new(lease, completion, 0);
        self.write(Op::Complete(*lease, Box::new(parts))).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(Op::Release(*lease)).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(Op::Unknown(*lease)).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        let found = self.read(id).await?;
        let stands = found.filter(|found| !is_forgotten(&found.found.record, found.now));
        Ok(stands.map(|found| found.found.record))
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        self.purge_slices(limit).await
    }
}

#[async_trait]
impl Browse for PostgresStore {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        self.list_records(filter, page).await
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        self.count_records(filter, cap).await
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        self.find_records(key, limit).await
    }
}

/// `Ok` means that no statement sees the content any more. Its bytes stay in dead rows until a vacuum
/// has passed, and in the write-ahead log until that is recycled: see
/// `docs/explanation/postgres-store.md`.
#[async_trait]
impl Erase for PostgresStore {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        self.blank_record(id).await
    }
}

#[async_trait]
impl Wake for PostgresStore {
    async fn watch(&self) -> Result<Box<dyn Feed>, StoreError> {
        let feed = self.hub.watch();
        self.watcher.wake_up();
        Ok(feed)
    }
}

#[async_trait]
impl Inspect for PostgresStore {
    async fn inspect(&self) -> Result<StoreHealth, StoreError> {
        self.look_at_server().await
    }
}

#[async_trait]
impl Restore for PostgresStore {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        self.restore_record(record).await
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        self.read_lineage().await
    }

    async fn adopt(&self) -> Result<(), StoreError> {
        self.adopt_life();
        Ok(())
    }
}

/// Another reply would be a bug in this module.
const WRONG: &str = "a write is answered as a write";
