//! One transaction of the writer: how it begins, and the ways in which it can end.

use oncekey_core::StoreError;
use rusqlite::Connection;

use super::error::Failure;
use super::op::Reply;

/// Why a transaction did not go through.
pub(super) enum Broken {
    /// It could not begin, or must not be committed, whatever was asked for: nothing has changed,
    /// and each operation alone would fail in the same way.
    ForAll(Failure),
    /// Something failed while there was still something to roll back: nothing has changed.
    BeforeCommit(Failure),
    /// The commit itself failed: anything may have changed.
    AtCommit { error: rusqlite::Error, replies: Vec<Result<Reply, StoreError>> },
}

/// Rolls back on every way out but the good one. A failed rollback means that SQLite has rolled
/// back by itself.
pub(super) struct Rollback<'c>(&'c Connection);

pub(super) fn begin(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
}

pub(super) fn commit(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("COMMIT")?.execute([]).map(drop)
}

impl<E: Into<Failure>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self::BeforeCommit(error.into())
    }
}

impl<'c> Rollback<'c> {
    /// Of a transaction that has begun.
    pub(super) const fn of(connection: &'c Connection) -> Self {
        Self(connection)
    }

    /// From here on it is up to the commit.
    pub(super) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Rollback<'_> {
    fn drop(&mut self) {
        drop(self.0.execute_batch("ROLLBACK"));
    }
}
