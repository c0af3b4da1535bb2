//! The same rows in the same tables, written without the store: the limit that it is held against.
//!
//! One thread, one connection, the store's pragmas and its way of writing the log back; but no
//! look-up, no decision and no hand-over between threads. Whoever calls decides how many rows
//! share a transaction.

use std::path::Path;

use oncekey::clock::SystemClock;
use oncekey::core::seal::{RECORD_FORMAT, Seal};
use oncekey::core::store::Times;
use oncekey::core::{
    Answer, Claim, Clock as _, Completion, Fence, KeyId, Lease, Outcome, StateKind, Timestamp,
};
use oncekey::store::sqlite::migration_sql;
use rusqlite::config::DbConfig;
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OpenFlags, params};

use crate::Result;

/// The settings of the store's writer, in its order; see `schema.rs` of the store.
pub(crate) const PRAGMAS: [(&str, &str); 8] = [
    ("journal_mode", "wal"),
    ("synchronous", "full"),
    ("wal_autocheckpoint", "32000"),
    ("journal_size_limit", "134217728"),
    ("cache_size", "-65536"),
    ("temp_store", "memory"),
    ("secure_delete", "on"),
    ("cell_size_check", "on"),
];

/// When the store writes its log back, and how often it looks.
const CHECKPOINT_AT: i64 = 8_000;
const LOOK_EVERY: usize = 1_000;

const CLAIM: &str = "
    INSERT INTO oncekey_records (key_id, format, state, fence, owner, class, sent, at, created,
        fingerprint_version, fingerprint, seal, places, key, scope, route, request)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";
const REMEMBER: &str = "INSERT INTO oncekey_fresh (hash, record) VALUES (?1, ?2)";
const FINISH: &str = "UPDATE oncekey_records SET state = ?2, at = ?3 WHERE id = ?1";
const ANSWER: &str = "
    INSERT INTO oncekey_answers (record, expires, forget, due, status, not_kept, outcome, seal,
        headers, pieces, body)
    VALUES (?1, ?2, ?3, ?2, ?4, 0, ?5, ?6, ?7, 0, ?8)";
const LEDGER: &str = "UPDATE oncekey_clock SET fence = ?1, fresh = ?2 WHERE id = 1";
const REPLAY: &str = "
    SELECT r.id, r.key_id, r.format, r.state, r.fence, r.owner, r.class, r.sent, r.at, r.created,
        r.fingerprint_version, r.fingerprint, r.seal, r.places, r.key, r.scope, r.route,
        r.request, a.expires, a.forget, a.status, a.not_kept, a.outcome, a.seal, a.headers,
        a.pieces, a.body
    FROM (SELECT record FROM oncekey_fresh WHERE hash = ?1
          UNION ALL SELECT record FROM oncekey_settled WHERE hash = ?1) AS m
    JOIN oncekey_records AS r ON r.id = m.record
    LEFT JOIN oncekey_answers AS a ON a.record = r.id
    WHERE r.key_id = ?2";

/// A writer without a store around it.
#[derive(Debug)]
pub(crate) struct ByHand {
    connection: Connection,
    fence: i64,
    fresh: i64,
    unlooked: usize,
}

/// A claim with everything that can be computed before the transaction begins.
#[derive(Debug)]
pub(crate) struct PreparedClaim {
    claim: Claim,
    places: Vec<u8>,
    seal: Seal,
}

/// A record that was claimed, and by whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) row: i64,
    pub(crate) lease: Lease,
}

/// A completion with everything that can be computed before the transaction begins.
#[derive(Debug)]
pub(crate) struct PreparedAnswer {
    held: Held,
    seal: Seal,
}

/// The one answer that all records get, in its stored form.
#[derive(Debug)]
pub(crate) struct StoredAnswer {
    completion: Completion,
    outcome: Outcome,
    status: u16,
    headers: Vec<u8>,
    body: Vec<u8>,
}

impl PreparedClaim {
    pub(crate) fn new(claim: Claim) -> Self {
        let Claim { id, owner, fingerprint, class, origin, places, .. } = &claim;
        let seal = Seal::of_claim(id, owner, fingerprint, *class, (origin, places));
        Self { places: places.encode(), seal, claim }
    }
}

impl StoredAnswer {
    pub(crate) fn new(completion: Completion) -> Self {
        let (status, headers, body) = match &completion.answer {
            Answer::Kept(saved) => (saved.status, saved.headers.encode(), saved.body.to_vec()),
            Answer::Tombstone(_) => (0, Vec::new(), Vec::new()),
        };
        Self { outcome: completion.answer.outcome(), completion, status, headers, body }
    }

    pub(crate) fn prepare(&self, held: Held) -> PreparedAnswer {
        let seal = Seal::of_answer(&held.lease, &self.outcome, &self.outcome);
        PreparedAnswer { held, seal }
    }
}

impl ByHand {
    /// Makes the store's tables in an empty file, or opens a file that has them.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let is_new = !path.exists();
        let connection = Connection::open(path)?;
        for (name, value) in PRAGMAS {
            connection.pragma_update(None, name, value)?;
        }
        keep_statements(&connection)?;
        if is_new {
            connection.execute_batch(&migration_sql())?;
        }
        let (fence, fresh) =
            connection.query_row("SELECT fence, fresh FROM oncekey_clock", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        Ok(Self { connection, fence, fresh, unlooked: 0 })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Claims all of them in one transaction.
    pub(crate) fn claim(&mut self, claims: &[PreparedClaim]) -> rusqlite::Result<Vec<Held>> {
        self.begin()?;
        let now = SystemClock.now();
        let mut held = Vec::with_capacity(claims.len());
        for prepared in claims {
            let one = self.insert(prepared, now, StateKind::Running)?;
            self.connection
                .prepare_cached(REMEMBER)?
                .execute([hash_of(&prepared.claim.id), one.row])?;
            self.fresh += 1;
            held.push(one);
        }
        self.write_ledger()?;
        self.commit()?;
        Ok(held)
    }

    /// Completes all of them in one transaction.
    pub(crate) fn complete(
        &mut self,
        answer: &StoredAnswer,
        prepared: &[PreparedAnswer],
    ) -> rusqlite::Result<()> {
        self.begin()?;
        let now = SystemClock.now();
        for one in prepared {
            let done = StateKind::Done.code();
            self.connection.prepare_cached(FINISH)?.execute(params![
                one.held.row,
                done,
                now.micros()
            ])?;
            self.insert_answer(answer, one, now)?;
        }
        self.commit()
    }

    /// Writes the log back when the store would. Outside of the transaction, inside of what is
    /// timed.
    pub(crate) fn checkpoint(&mut self, done: usize) -> rusqlite::Result<()> {
        self.unlooked += done;
        if self.unlooked < LOOK_EVERY {
            return Ok(());
        }
        self.unlooked = 0;
        let frames = |mode: &str| -> rusqlite::Result<i64> {
            let pragma = format!("PRAGMA wal_checkpoint({mode})");
            self.connection.prepare_cached(&pragma)?.query_row([], |row| row.get(1))
        };
        if frames("NOOP")? >= CHECKPOINT_AT {
            frames("PASSIVE")?;
        }
        Ok(())
    }

    pub(crate) fn begin(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    pub(crate) fn commit(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    /// Adds to the count of the small key map, which the caller has filled.
    pub(crate) fn add_fresh(&mut self, count: usize) -> rusqlite::Result<()> {
        self.fresh += i64::try_from(count).unwrap_or(i64::MAX);
        self.write_ledger()
    }

    /// Inserts a record, but into neither key map.
    pub(crate) fn insert(
        &mut self,
        prepared: &PreparedClaim,
        now: Timestamp,
        state: StateKind,
    ) -> rusqlite::Result<Held> {
        let PreparedClaim { claim, places, seal } = prepared;
        let fence = Fence::next(Fence::from_number(self.fence), now);
        self.fence = fence.number();
        let until = now.after(claim.lease);
        self.connection.prepare_cached(CLAIM)?.execute(params![
            claim.id.as_bytes(),
            RECORD_FORMAT,
            state.code(),
            fence.number(),
            claim.owner.as_bytes(),
            claim.class.code(),
            claim.sent.code(),
            until.micros(),
            now.micros(),
            claim.fingerprint.version(),
            claim.fingerprint.digest(),
            seal.as_bytes(),
            places,
            claim.origin.key.as_bytes(),
            claim.origin.scope.as_bytes(),
            claim.origin.route.as_bytes(),
            claim.origin.request.as_bytes(),
        ])?;
        let row = self.connection.last_insert_rowid();
        Ok(Held { row, lease: Lease { id: claim.id, fence, owner: claim.owner, until } })
    }

    /// Inserts the answer of a record that was completed at `now`.
    pub(crate) fn insert_answer(
        &self,
        answer: &StoredAnswer,
        prepared: &PreparedAnswer,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let Times { expires, forget, .. } = answer.completion.times(prepared.held.lease.fence, now);
        self.connection.prepare_cached(ANSWER)?.execute(params![
            prepared.held.row,
            expires.micros(),
            forget.micros(),
            answer.status,
            answer.outcome.as_bytes(),
            prepared.seal.as_bytes(),
            answer.headers,
            answer.body,
        ])?;
        Ok(())
    }

    fn write_ledger(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached(LEDGER)?.execute([self.fence, self.fresh]).map(drop)
    }
}

/// Opens a file as the store's readers do.
pub(crate) fn open_reader(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.pragma_update(None, "query_only", true)?;
    keep_statements(&connection)?;
    Ok(connection)
}

/// Reads every column of a record, without looking at what is in them. Returns how many bytes
/// its blobs have.
pub(crate) fn read(connection: &Connection, id: &KeyId) -> rusqlite::Result<usize> {
    let mut statement = connection.prepare_cached(REPLAY)?;
    let columns = statement.column_count();
    let mut rows = statement.query(params![hash_of(id), id.as_bytes()])?;
    let mut bytes = 0;
    if let Some(row) = rows.next()? {
        for column in 0..columns {
            bytes += row.get_ref(column)?.as_blob().map_or(0, <[u8]>::len);
        }
    }
    Ok(bytes)
}

/// Has every statement compiled once, as the store does.
fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(64);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// The number that the key maps hold for a key id: its first eight bytes.
pub(crate) fn hash_of(id: &KeyId) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *id.as_bytes();
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The settings as SQLite reports them back.
pub(crate) fn pragmas(folder: &Path) -> Result<String> {
    let path = folder.join("pragmas.db");
    let by_hand = ByHand::open(&path)?;
    let names = ["journal_mode", "synchronous", "page_size", "cache_size", "wal_autocheckpoint"];
    let mut shown = Vec::new();
    for name in names {
        let value = by_hand.connection().pragma_query_value(None, name, |row| row.get(0))?;
        shown.push(match value {
            SqlValue::Text(word) => format!("{name}={word}"),
            SqlValue::Integer(number) => format!("{name}={number}"),
            SqlValue::Null | SqlValue::Real(_) | SqlValue::Blob(_) => format!("{name}=?"),
        });
    }
    drop(by_hand);
    crate::cells::remove(&path)?;
    Ok(shown.join(" "))
}
