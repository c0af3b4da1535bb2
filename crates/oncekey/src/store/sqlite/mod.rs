//! The embedded store: one SQLite file, nothing to install.
//!
//! For one machine, with as many processes as you like on the same file. What was acknowledged
//! survives `kill -9` and a power cut (WAL, `synchronous=FULL`), as far as the disk keeps its own
//! promises. The file must be on a local disk.
//!
//! - One thread writes, in batches: see `writer.rs`. Claims cost a fraction of a disk sync each.
//! - Replays are read on read-only connections and never wait for the writer.
//! - Time is the machine's wall clock, guarded by a persisted high-water mark of the fence.
//! - Bodies over 64 KiB are written in pieces before their completion, so that a large answer does
//!   not delay the claims of other keys.
//!
//! ```no_run
//! # fn main() -> Result<(), oncekey::core::StoreError> {
//! let store = oncekey::store::sqlite::SqliteStore::open("oncekey.db")?;
//! # drop(store);
//! # Ok(())
//! # }
//! ```

mod aftermath;
mod browse;
mod erase;
mod error;
mod hope;
mod inspect;
mod job;
mod known;
mod log;
mod network;
mod op;
mod pieces;
mod place;
mod purge;
mod queue;
mod reader;
mod restore;
mod row;
mod running;
mod schema;
mod scribe;
mod settle;
mod statements;
mod transaction;
mod verbs;
mod watch;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncekey_core::browse::{Browse, Count, Filter, Listing, Page, Summary};
use oncekey_core::record::Text;
use oncekey_core::store::Purged;
use oncekey_core::wake::{Feed, Hub, Wake};
use oncekey_core::{
    Claim, Claimed, Clock, Completion, Decision, Erase, Erased, ErrorKind, Inspect, KeyId, Lease,
    Lineage, Record, Refusal, Renewal, Restore, Restored, Store, StoreError, StoreHealth, Write,
    decide,
};

pub use self::schema::{Placement, migration_sql};

use self::known::Known;
use self::op::{Op, Reply};
use self::reader::Readers;
use self::restore::PreparedRecord;
use self::row::Found;
use self::settle::Sweep;
use self::statements::Statements;
use self::verbs::PreparedClaim;
use self::watch::Watcher;
use self::writer::Writer;
use crate::clock::SystemClock;
use crate::store::parts::{Assembled, CompletionParts, is_forgotten};

/// Bodies above this size are written in pieces of this size, each in a transaction that it
/// shares with other callers' operations. Below it, a body is at most sixteen pages of the log.
const PIECE: usize = 64 * 1024;

/// The most records that one transaction purges: a few milliseconds of holding the write lock.
const PURGE_SLICE: usize = 250;

/// Keeps records in a SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    clock: Arc<dyn Clock>,
    readers: Readers,
    known: Known,
    hub: Arc<Hub>,
    watcher: Watcher,
    // Last, so that it is dropped last: dropping it waits until everything is written.
    writer: Writer,
}

/// How to open a file.
#[derive(Debug)]
#[must_use]
pub struct SqliteOptions {
    path: PathBuf,
    placement: Placement,
    missing: Missing,
    clock: Arc<dyn Clock>,
    sweep: Sweep,
}

/// What to do if there is no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Missing {
    /// Make one.
    #[default]
    Make,
    /// Say so: for whoever expects records in it.
    Refuse,
}

impl SqliteOptions {
    /// Opens `path`, which is made if it does not exist, as a file of oncekey's own.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        let (clock, sweep) = (Arc::new(SystemClock), Sweep::default());
        let (placement, missing) = (Placement::default(), Missing::default());
        Self { path, placement, missing, clock, sweep }
    }

    /// Says whose file it is.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Says what to do if there is no file.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Judges time by another clock than the machine's.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Lets keys settle once there are this many new ones, instead of a quarter of a million, so
    /// that a test can watch them do so. Any number is right; a low one only costs speed.
    #[doc(hidden)]
    pub fn small_map(mut self, keys: u32) -> Self {
        self.sweep = Sweep::above(i64::from(keys));
        self
    }

    /// Opens the file and brings its tables up to date.
    ///
    /// # Errors
    /// [`Unsuitable`](oncekey_core::ErrorKind::Unsuitable) if the file, its file system or the
    /// SQLite library cannot keep the store's promises; the message says what to change.
    pub fn open(self) -> Result<SqliteStore, StoreError> {
        let Self { path, placement, missing, clock, sweep } = self;
        // A look is not a lock, but the worst that comes of a race is an empty file.
        if missing == Missing::Refuse && matches!(path.try_exists(), Ok(false)) {
            let message = "there is no database file: check the path";
            return Err(StoreError::new(ErrorKind::Unavailable, message));
        }
        // Resolved once: a link that is turned later, or a change of the working folder, must not
        // lead a second connection to another file.
        let path = schema::resolve(&path);
        let hub = Arc::new(Hub::default());
        let (for_writer, told) = (Arc::clone(&clock), Arc::clone(&hub));
        let writer = Writer::start(path.clone(), placement, for_writer, told, sweep)?;
        let readers = Readers::open(&path)?;
        let known = Known::start(&readers)?;
        let watcher = Watcher::new(readers.clone(), Arc::clone(&hub));
        Ok(SqliteStore { clock, readers, known, hub, watcher, writer })
    }
}

impl SqliteStore {
    /// Opens `path` with the defaults of [`SqliteOptions`].
    ///
    /// # Errors
    /// As [`SqliteOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        SqliteOptions::new(path).open()
    }

    async fn write(&self, op: Op) -> Result<Write, StoreError> {
        let Reply::Wrote(write) = self.writer.ask(op).await? else { unreachable!("{WRONG}") };
        Ok(write)
    }

    /// Reads a record where the caller is. If its body is in pieces, they are left where they are.
    fn look(&self, id: &KeyId) -> Result<Option<Found>, StoreError> {
        self.readers.read(|connection| verbs::find(&Statements::of(connection), id))
    }

    /// Reads a record with its body in pieces, on a thread that may be blocked.
    async fn read_whole(&self, id: KeyId) -> Result<Option<Record>, StoreError> {
        // Looked up again there: between two reads the record may have been purged or stripped,
        // and a snapshot that spans both is held only where blocking is allowed.
        let read = move |connection: &rusqlite::Connection| {
            let snapshot = connection.unchecked_transaction()?;
            let statements = Statements::of(&snapshot);
            let found = verbs::find(&statements, &id)?;
            found.map(|found| verbs::whole(&statements, found)).transpose()
        };
        self.readers.run(read).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        claim.check()?;
        // A refusal that was true at the moment of this read is an answer: nobody needs the
        // writer to be told no. Only "you may run" must be decided under the write lock.
        let now = self.clock.now();
        if self.known.may_have(&claim.id)
            && let Some(Found { found: Assembled { record, pieces, .. }, .. }) =
                self.look(&claim.id)?
            && let Decision::Refuse(refusal) = decide(Some(&record), claim, now)
        {
            // A body of megabytes is read only if it is going to be sent.
            let is_far = refusal == Refusal::Replay && pieces > 0;
            let whole = if is_far { self.read_whole(claim.id).await? } else { Some(record) };
            // Gone or stripped in between: then it is decided anew.
            if let Some(record) = whole.map(Box::new)
                && let Decision::Refuse(refusal) = decide(Some(&record), claim, now)
            {
                return Ok(Claimed::Lost { refusal, record, now });
            }
        }
        self.known.note(&claim.id);
        let op = Op::Claim(Box::new(PreparedClaim::new(claim)));
        let Reply::Claimed(claimed) = self.writer.ask(op).await? else { unreachable!("{WRONG}") };
        Ok(claimed)
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        let op = Op::Renew(leases.to_vec(), span);
        let Reply::Renewed(renewals) = self.writer.ask(op).await? else { unreachable!("{WRONG}") };
        Ok(renewals)
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(Op::Send(*lease)).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        completion.check()?;
        loop {
            let Some(pieces) = self.write_pieces(lease, completion).await? else {
                return Ok(Write::Fenced);
            };
            let prepared = CompletionParts::new(lease, completion, pieces);
            let op = Op::Complete(*lease, Box::new(prepared));
            match self.writer.ask(op).await? {
                Reply::Wrote(write) => return Ok(write),
                // Once more for every erasure that comes in between.
                Reply::PiecesGone => {}
                Reply::Claimed(_)
                | Reply::Renewed(_)
                | Reply::Purged(_)
                | Reply::Erased(_)
                | Reply::Restored(_)
                | Reply::Inspected(_) => unreachable!("{WRONG}"),
            }
        }
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(Op::Release(*lease)).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(Op::Unknown(*lease)).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        let now = self.clock.now();
        let record = match self.look(id)? {
            Some(Found { found, .. }) if found.pieces > 0 => self.read_whole(*id).await?,
            found => found.map(|found| found.found.record),
        };
        Ok(record.filter(|record| !is_forgotten(record, now)))
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        while purged.total() < limit {
            let slice = PURGE_SLICE.min(limit - purged.total());
            let Reply::Purged(Purged { forgotten, stripped }) =
                self.writer.ask(Op::Purge(slice)).await?
            else {
                unreachable!("{WRONG}")
            };
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
impl Browse for SqliteStore {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        browse::check_cursor(page)?;
        let (filter, page, clock) = (filter.clone(), page.clone(), Arc::clone(&self.clock));
        // The clock is read when the list is, or a little earlier: whoever waited for a turn would
        // be told a time that is over.
        let list = move |connection: &_| browse::list(connection, &filter, &page, clock.now());
        self.readers.run(list).await
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        let (filter, now) = (filter.clone(), self.clock.now());
        self.readers.run(move |connection| browse::count(connection, &filter, cap, now)).await
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        let (key, now) = (key.clone(), self.clock.now());
        self.readers.run(move |connection| browse::find(connection, &key, limit, now)).await
    }
}

/// `Ok` means that the content is in none of the store's files any more: not in the database file,
/// whose pages are overwritten with zeros, and not in the write-ahead log, which is emptied. If
/// another connection goes on reading for more than five seconds, the log cannot be emptied, and the
/// call ends with [`Ambiguous`](oncekey_core::ErrorKind::Ambiguous): the record is blank, and asking
/// again empties the log. The exceptions are in `docs/explanation/sqlite-store.md`.
#[async_trait]
impl Erase for SqliteStore {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        let op = Op::Erase(*id);
        let Reply::Erased(erased) = self.writer.ask(op).await? else { unreachable!("{WRONG}") };
        Ok(erased)
    }
}

/// The lineage is drawn at random when the file is made and lies in the file: a copy of the file has
/// the same, and so has a backup of it.
#[async_trait]
impl Restore for SqliteStore {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        oncekey_core::restore::check(record)?;
        self.known.note(&record.id);
        let op = Op::Restore(Box::new(PreparedRecord::new(record)));
        let Reply::Restored(restored) = self.writer.ask(op).await? else { unreachable!("{WRONG}") };
        Ok(restored)
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        self.readers.run(restore::lineage).await
    }
}

#[async_trait]
impl Inspect for SqliteStore {
    async fn inspect(&self) -> Result<StoreHealth, StoreError> {
        let Reply::Inspected(settings) = self.writer.ask(Op::Inspect).await? else {
            unreachable!("{WRONG}")
        };
        let (readers, now) = (self.readers.clone(), self.clock.now());
        // Looking at a disk may block.
        let look = move |_: &_| Ok(inspect::health(&readers, &settings, now));
        self.readers.run(look).await
    }
}

#[async_trait]
impl Wake for SqliteStore {
    async fn watch(&self) -> Result<Box<dyn Feed>, StoreError> {
        let feed = self.hub.watch();
        self.watcher.wake_up();
        Ok(feed)
    }
}

/// Another reply would be a bug in this module.
const WRONG: &str = "the writer answers every operation in kind";
