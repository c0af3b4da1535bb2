//! MySQL and MariaDB: for teams that run one already.
//!
//! For as many programs on as many machines as the server takes. What was acknowledged survives what
//! the server's redo log and binary log survive: with `innodb_flush_log_at_trx_commit=1` and
//! `sync_binlog=1` that is `kill -9` and a power cut. The store looks at the server when it is opened,
//! refuses one that cannot keep the promises, and says so if it keeps less.
//!
//! - Keys are 32 bytes in a binary column; no collation ever compares them.
//! - Claims and everything that ends an attempt are committed in groups: see `claims.rs`, `ends.rs`.
//! - Time is the server's clock, `SYSDATE(6)`.
//! - Bodies over 64 KiB are written in pieces before their completion.
//!
//! ```no_run
//! # async fn open() -> Result<(), oncekey::core::StoreError> {
//! use oncekey::store::mysql::MysqlOptions;
//!
//! let store = MysqlOptions::new("mysql://oncekey:secret@127.0.0.1:3306/oncekey").open().await?;
//! # drop(store);
//! # Ok(())
//! # }
//! ```

mod answer;
mod browse;
mod claims;
mod ends;
mod erase;
mod error;
mod insert;
mod inspect;
mod large;
mod life;
mod op;
mod options;
mod purge;
mod remove;
mod renew;
mod restore;
mod rights;
mod row;
mod schema;
mod session;
mod sql;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncekey_core::browse::{Browse, Count, Filter, Listing, Page, Summary};
use oncekey_core::health::{Inspect, StoreHealth};
use oncekey_core::record::Text;
use oncekey_core::restore::{self as core_restore, Lineage, Restore, Restored};
use oncekey_core::store::Purged;
use oncekey_core::{
    Claim, Claimed, Completion, Decision, Erase, Erased, KeyId, Lease, Record, Renewal, Store,
    StoreError, Timestamp, Write, decide,
};
use quick_cache::sync::Cache;

pub use self::inspect::Galera;
pub use self::options::MysqlOptions;
pub use self::schema::{Migrate, migration_sql};

use self::claims::{Came, Likely, PreparedClaim};
use self::ends::{End, Writing};
use self::error::{DUPLICATE, Trouble};
use self::life::Guard;
use self::op::{Op, Reply};
use self::session::{Pool, Session};
use self::sql::Tables;
use crate::store::group::Group;
use crate::store::parts::{CompletionParts, is_forgotten};

/// The most records that one transaction purges: some milliseconds of holding their locks.
const PURGE_SLICE: usize = 250;

/// How often something that is not batched is tried when locks are not to be had.
const ATTEMPTS: u32 = 5;

/// Keeps records in MySQL or MariaDB.
#[derive(Debug)]
pub struct MysqlStore {
    group: Group<Op>,
    pool: Pool,
    /// For renewals alone: however long everything else waits for connections or locks, leases last.
    renewals: Pool,
    tables: Tables,
    guard: Arc<Guard>,
    /// Keys that this process has met: they are likely to have a record.
    seen: Cache<KeyId, ()>,
}

/// How many keys are remembered as met. A guess that is wrong costs a look or a second try; the memory
/// is some megabytes.
const SEEN: usize = 65_536;

impl MysqlStore {
    /// Opens the store with the defaults of [`MysqlOptions`].
    ///
    /// # Errors
    /// As [`MysqlOptions::open`].
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        MysqlOptions::new(url).open().await
    }

    async fn write(&self, lease: &Lease, end: End) -> Result<Write, StoreError> {
        match self.group.ask(Op::Write(Writing { lease: *lease, end })).await? {
            Reply::Wrote(write) => Ok(write),
            Reply::Claimed(_) => unreachable!("{WRONG}"),
        }
    }
}

/// Does something on a connection of the pool, again if locks were not to be had, or if the server takes no
/// writes any more: then it has taken it back as a whole. A macro, because the compiler cannot tell yet that an asynchronous closure
/// over borrowed values may move between threads.
macro_rules! pooled {
    ($pool:expr, |$session:ident| $work:expr) => {{
        let mut attempt = 1;
        loop {
            let ended = match $pool.hold().await {
                Ok(mut held) => {
                    let $session: &mut Session = &mut held;
                    $work.await
                }
                Err(trouble) => Err(trouble),
            };
            match ended {
                Err(trouble)
                    if (trouble.is_contention() || trouble.is_read_only())
                        && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                ended => break ended,
            }
        }
    }};
}

#[async_trait]
impl Store for MysqlStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        claim.check()?;
        loop {
            let likely = match self.seen.get(&claim.id) {
                Some(()) => Likely::Known,
                None => Likely::New,
            };
            self.seen.insert(claim.id, ());
            let op = Op::Claim(Box::new(PreparedClaim::new(claim, likely)));
            match self.group.ask(op).await? {
                Reply::Claimed(Came::Decided(claimed)) => return Ok(claimed),
                Reply::Claimed(Came::Far) => {}
                Reply::Wrote(_) => unreachable!("{WRONG}"),
            }
            let read = pooled!(self.pool, |session| large::read(session, &self.tables, &claim.id));
            let (record, now) = read.map_err(Trouble::of_read)?;
            // Gone or stripped in between: then it is decided anew.
            if let Some(record) = record.map(Box::new)
                && let Decision::Refuse(refusal) = decide(Some(&record), claim, now)
            {
                return Ok(Claimed::Lost { refusal, record, now });
            }
        }
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        // Each once: a second renewal would tell another time than the first.
        let unique: HashSet<_> = leases.iter().map(proof).collect();
        let unique: Vec<_> = unique.into_iter().collect();
        let (mut renewals, mut failed) = (HashMap::new(), None);
        for some in unique.chunks(renew::MOST) {
            let renewed =
                pooled!(self.renewals, |session| renew::renew(session, &self.tables, some, span));
            match renewed {
                Ok(renewed) => renewals.extend(some.iter().copied().zip(renewed)),
                Err(trouble) => failed = Some(trouble.of_write()),
            }
        }
        match failed {
            // What was renewed counts, whatever became of the others.
            Some(error) if renewals.is_empty() => return Err(error),
            Some(error) => tracing::debug!(%error, "some leases could not be renewed"),
            None => {}
        }
        let answer = |lease| renewals.get(&proof(lease)).copied().unwrap_or(Renewal::Failed);
        Ok(leases.iter().map(answer).collect())
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(lease, End::Send).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        completion.check()?;
        if let Some(body) = large::body_of(completion) {
            let (tables, answer) = (&self.tables, (completion, body));
            let ended = pooled!(self.pool, |session| large::record(session, tables, lease, answer));
            return ended.map_err(Trouble::of_write);
        }
        let parts = CompletionParts::new(lease, completion, 0);
        self.write(lease, End::Complete(Box::new(parts))).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(lease, End::Release).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(lease, End::Unknown).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        let read = pooled!(self.pool, |session| large::read(session, &self.tables, id));
        let (record, now) = read.map_err(Trouble::of_read)?;
        Ok(record.filter(|record| !is_forgotten(record, now)))
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        while purged.total() < limit {
            let slice = PURGE_SLICE.min(limit - purged.total());
            let some = pooled!(self.pool, |session| purge::purge(session, &self.tables, slice));
            let Purged { forgotten, stripped } = some.map_err(Trouble::of_write)?;
            purged.forgotten += forgotten;
            purged.stripped += stripped;
            if forgotten + stripped < slice {
                break;
            }
        }
        Ok(purged)
    }
}

#[async_trait]
impl Browse for MysqlStore {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        browse::check_cursor(page)?;
        pooled!(self.pool, |session| browse::list(session, &self.tables, filter, page))
            .map_err(Trouble::of_read)
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        pooled!(self.pool, |session| browse::count(session, &self.tables, filter, cap))
            .map_err(Trouble::of_read)
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        pooled!(self.pool, |session| browse::find(session, &self.tables, key, limit))
            .map_err(Trouble::of_read)
    }
}

/// `Ok` means that the content is in no row of the tables any more. InnoDB keeps older versions of a row
/// until no transaction can see them, and the logs of the server keep what was written to them until
/// they are overwritten or removed: see `docs/explanation/mysql-store.md`.
#[async_trait]
impl Erase for MysqlStore {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        pooled!(self.pool, |session| erase::erase(session, &self.tables, id))
            .map_err(Trouble::of_write)
    }
}

#[async_trait]
impl Inspect for MysqlStore {
    async fn inspect(&self) -> Result<StoreHealth, StoreError> {
        // On a connection of its own, because the others are refused if something is wrong.
        let server = self.pool.server();
        let mut session = server.connect_unchecked().await?;
        let mut health = inspect::inspect(&mut session, &self.tables, server.galera).await?;
        health.findings.push(self.guard.lives.finding());
        Ok(health)
    }
}

#[async_trait]
impl Restore for MysqlStore {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        core_restore::check(record)?;
        for attempt in 1.. {
            match pooled!(self.pool, |session| restore::restore(session, &self.tables, record)) {
                // Somebody has made the record meanwhile: then it is compared with that.
                Err(trouble) if trouble.code() == Some(DUPLICATE) && attempt < ATTEMPTS => {}
                ended => return ended.map_err(Trouble::of_write),
            }
        }
        unreachable!("the last attempt returns")
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        let life = pooled!(self.pool, |session| restore::life(session, &self.tables));
        let life = life.map_err(Trouble::of_read)?;
        self.guard.lives.told(&life);
        Ok(Lineage::new(life))
    }

    async fn adopt(&self) -> Result<(), StoreError> {
        self.guard.lives.adopt();
        Ok(())
    }
}

/// A lease without its time: what a store compares.
fn proof(lease: &Lease) -> Lease {
    Lease { until: Timestamp::default(), ..*lease }
}

/// Another reply would be a bug in this module.
const WRONG: &str = "every operation is answered in kind";
