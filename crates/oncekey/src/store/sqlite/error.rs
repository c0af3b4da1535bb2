//! What can go wrong with a SQLite file, and what the caller can do about it.

use oncekey_core::{ErrorKind, StoreError};
use rusqlite::ErrorCode;

use crate::store::parts::Damage;

/// A failure inside the store, before it is mapped to what the caller can do.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// SQLite said no.
    #[error("sqlite")]
    Sqlite(#[from] rusqlite::Error),
    /// A row is not what was written.
    #[error(transparent)]
    Row(#[from] Damage),
    /// The path leads to another file than the one that is open, or to none.
    #[error(
        "the database file was moved, deleted or replaced while it was open: put it back, or \
         start oncekey again"
    )]
    Moved,
    /// The log was emptied, but the disk may not know yet.
    #[error("the disk of the database file reports an error")]
    Unsynced,
}

impl Failure {
    /// A row is not what was written, in this respect.
    pub(super) const fn damaged(what: &'static str) -> Self {
        Self::Row(Damage::Damaged(what))
    }

    /// Whether the failure concerns one row alone, so that the rest of a batch may go on.
    pub(super) fn is_about_one_record(&self) -> bool {
        match self {
            Self::Row(_) => true,
            Self::Sqlite(_) | Self::Moved | Self::Unsynced => false,
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Sqlite(error) => from_sqlite(error),
            Failure::Moved | Failure::Unsynced => {
                Self::new(ErrorKind::Unavailable, failure.to_string())
            }
            Failure::Row(damage) => damage.into(),
        }
    }
}

/// Maps an error of a statement, after which nothing has changed.
pub(super) fn from_sqlite(error: rusqlite::Error) -> StoreError {
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unavailable,
            "another process holds the write lock of the database file for too long",
        ),
        Some(ErrorCode::DiskFull) => {
            (ErrorKind::Unavailable, "the disk of the database file is full: free some space")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            return read_only().with_source(error);
        }
        Some(ErrorCode::CannotOpen) => (
            ErrorKind::Unavailable,
            "the database file cannot be opened: check that its folder exists and may be written",
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Corrupt,
            "the database file is damaged: run `PRAGMA integrity_check`, restore a backup or \
             recover it with the sqlite3 program",
        ),
        // No statement of ours breaks a constraint on sound tables.
        Some(ErrorCode::ConstraintViolation) => (
            ErrorKind::Corrupt,
            "the tables of the database file contradict each other: restore a backup, or remove \
             the damaged rows by hand",
        ),
        Some(ErrorCode::NotADatabase) => (
            ErrorKind::Unsuitable,
            "the file is not a SQLite database (or is encrypted): give another path",
        ),
        Some(ErrorCode::TooBig) => (ErrorKind::Rejected, "the value is too large for SQLite"),
        Some(ErrorCode::SystemIoFailure) => {
            (ErrorKind::Unavailable, "the disk of the database file reports an error")
        }
        Some(_) | None => (ErrorKind::Unavailable, "sqlite could not do what it was asked to"),
    };
    StoreError::new(kind, message).with_source(error)
}

/// The file may not be written.
pub(super) fn read_only() -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        "the database file cannot be written: check its owner and permissions, and those of its \
         folder",
    )
}

/// A record is blank, but its bytes are still in the log.
pub(super) fn still_in_the_log(why: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Ambiguous,
        format!("the record is blank, but its bytes are still in the log ({why}): erase it again"),
    )
}

/// The writer thread is gone, because the store was closed or the thread died.
pub(super) fn closed() -> StoreError {
    StoreError::new(ErrorKind::Ambiguous, "the store was closed while the call was under way")
}
