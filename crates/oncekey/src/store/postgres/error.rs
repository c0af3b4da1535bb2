//! What can go wrong with a PostgreSQL server, and what the caller can do about it.

use oncekey_core::{ErrorKind, StoreError};
use tokio_postgres::Error;
use tokio_postgres::error::{Severity, SqlState};

/// What is known after a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aftermath {
    /// The server refused the statement. Nothing has changed and the connection is good.
    Refused,
    /// Nothing has changed, but this connection will not do: another may.
    Elsewhere,
    /// Nobody knows, and the connection is gone or not to be trusted.
    Unknown,
}

/// What is known after `error`.
///
/// A statement is a transaction of its own. An ERROR ends it before its commit; after a FATAL one
/// the commit may have happened, as when the server is shut down while it waits for a standby.
pub(super) fn aftermath(error: &Error) -> Aftermath {
    let Some(said) = error.as_db_error() else { return Aftermath::Unknown };
    if !matches!(said.parsed_severity(), None | Some(Severity::Error)) {
        return Aftermath::Unknown;
    }
    match said.code() {
        &SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN => Aftermath::Unknown,
        // A standby now, or a statement that this connection does not know any more, or values that
        // met another statement than theirs, which is what a division by zero says.
        &SqlState::READ_ONLY_SQL_TRANSACTION
        | &SqlState::DIVISION_BY_ZERO
        | &SqlState::PROTOCOL_VIOLATION
        | &SqlState::INVALID_SQL_STATEMENT_NAME
        | &SqlState::DUPLICATE_PSTATEMENT
        | &SqlState::FEATURE_NOT_SUPPORTED => Aftermath::Elsewhere,
        _ => Aftermath::Refused,
    }
}

/// Whether `error` says that prepared statements do not survive on this connection, or are those of
/// somebody else, as behind a pooler that lends it out by the transaction.
pub(super) fn is_about_prepared_statements(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(
            &SqlState::INVALID_SQL_STATEMENT_NAME
                | &SqlState::DUPLICATE_PSTATEMENT
                | &SqlState::PROTOCOL_VIOLATION
                | &SqlState::DIVISION_BY_ZERO
        )
    )
}

/// Whether `error` is what poolers say to settings that they do not know how to keep apart: pgbouncer the
/// first. The second is the plain word for it, and costs another attempt at most.
pub(super) fn refuses_settings(error: &Error) -> bool {
    matches!(error.code(), Some(&SqlState::PROTOCOL_VIOLATION | &SqlState::FEATURE_NOT_SUPPORTED))
}

/// Says what went wrong and what to do. The kind is that of a call after which nothing has changed;
/// whoever does not know makes it [`ambiguous`].
pub(super) fn from_postgres(error: Error) -> StoreError {
    let (kind, message) = match error.code() {
        Some(code) => explain(code),
        None if shows(&error, "does not allow writes") => READ_ONLY,
        None if shows(&error, "TLS") => (
            ErrorKind::Unsuitable,
            "no encrypted connection to PostgreSQL: check its certificate, give `sslrootcert`, or \
             say `sslmode=disable` on a network that you trust",
        ),
        None => (
            ErrorKind::Unavailable,
            "PostgreSQL cannot be reached or does not answer: check host, port and network",
        ),
    };
    StoreError::new(kind, message).with_source(error)
}

/// The same error for a call of which nobody knows whether it took effect.
pub(super) fn ambiguous(error: StoreError) -> StoreError {
    StoreError::new(
        ErrorKind::Ambiguous,
        format!("the call may or may not have taken effect: {error}"),
    )
    .with_source(error)
}

/// The server did not answer in time.
pub(super) fn too_slow(kind: ErrorKind) -> StoreError {
    StoreError::new(
        kind,
        "PostgreSQL did not answer in time: look for locks, load or a broken network",
    )
}

/// The store is set up in a way in which it cannot work.
pub(super) fn unsuitable(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Unsuitable, message)
}

/// A connection was closed before anything was sent over it.
pub(super) fn gone() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "the connection to PostgreSQL was closed")
}

/// Others were quicker too often. Never seen without thousands of rivals for one key.
pub(super) fn contested() -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        "too many others change this key at the same time: ask again later",
    )
}

const READ_ONLY: (ErrorKind, &str) = (
    ErrorKind::Unavailable,
    "PostgreSQL is read-only (a standby, or default_transaction_read_only): name the primary in the \
     URL",
);

fn explain(code: &SqlState) -> (ErrorKind, &'static str) {
    use ErrorKind::{Corrupt, Rejected, Unavailable, Unsuitable};
    match code {
        &SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION => (
            Unsuitable,
            "PostgreSQL refuses the user or the password: check both in the URL, and pg_hba.conf",
        ),
        &SqlState::INVALID_CATALOG_NAME => {
            (Unsuitable, "the database does not exist: create it, or name another in the URL")
        }
        &SqlState::INSUFFICIENT_PRIVILEGE => (
            Unsuitable,
            "the user lacks rights: grant SELECT, INSERT, UPDATE and DELETE on all tables of \
             oncekey's schema and USAGE on the schema, or apply `migration_sql()` as its owner",
        ),
        &SqlState::UNDEFINED_TABLE
        | &SqlState::UNDEFINED_COLUMN
        | &SqlState::INVALID_SCHEMA_NAME => (
            Unsuitable,
            "the tables of oncekey are gone or were changed: restore them, or open the store anew \
             and have them made",
        ),
        &SqlState::READ_ONLY_SQL_TRANSACTION => READ_ONLY,
        &SqlState::DISK_FULL => (Unavailable, "the disk of PostgreSQL is full: free some space"),
        &SqlState::TOO_MANY_CONNECTIONS => (
            Unavailable,
            "PostgreSQL has no connection left: raise max_connections, put a pooler in front, or \
             open the store with fewer connections",
        ),
        &SqlState::LOCK_NOT_AVAILABLE => (
            Unavailable,
            "somebody holds a lock on oncekey's rows for too long: look for long transactions",
        ),
        &SqlState::CANNOT_CONNECT_NOW | &SqlState::ADMIN_SHUTDOWN | &SqlState::CRASH_SHUTDOWN => {
            (Unavailable, "PostgreSQL is starting or stopping: ask again later")
        }
        &SqlState::QUERY_CANCELED => (
            Unavailable,
            "PostgreSQL cancelled the statement: raise statement_timeout for this user",
        ),
        &SqlState::T_R_SERIALIZATION_FAILURE => (
            Unavailable,
            "PostgreSQL does not run at READ COMMITTED: set default_transaction_isolation to \
             `read committed` for this user",
        ),
        &SqlState::T_R_DEADLOCK_DETECTED => {
            (Unavailable, "PostgreSQL ended a deadlock: ask again later")
        }
        &SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED => {
            (Corrupt, "PostgreSQL reports damaged data: check it with amcheck, restore a backup")
        }
        &SqlState::PROGRAM_LIMIT_EXCEEDED => (Rejected, "the value is too large for PostgreSQL"),
        _ => (Unavailable, "PostgreSQL could not do what it was asked to"),
    }
}

/// Whether the driver says so, for what has no code of its own.
fn shows(error: &Error, words: &str) -> bool {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    error.to_string().contains(words) || cause.contains(words)
}
