//! Flows on the application's own pool of sqlx.
//!
//! One file per database, with the same items in the same order. Nothing outside of them names a
//! type of the driver.
//!
//! `begin` always runs in a task of its own. In sqlx 0.9.0, a `begin` on PostgreSQL or MySQL that is
//! dropped while the server answers leaves a connection in the pool with an open transaction: what is
//! later written on it succeeds and is lost. A task that nobody drops ends its `begin`, and the
//! transaction that nobody wants rolls back.

use std::future::Future;

#[cfg(any(
    feature = "flow-mysql",
    feature = "mysql",
    feature = "flow-postgres",
    feature = "postgres"
))]
mod line;
#[cfg(any(feature = "flow-mysql", feature = "mysql"))]
mod mysql;
#[cfg(any(feature = "flow-postgres", feature = "postgres"))]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(any(feature = "flow-mysql", feature = "mysql"))]
pub use self::mysql::SqlxMysql;
#[cfg(any(feature = "flow-postgres", feature = "postgres"))]
pub use self::postgres::SqlxPostgres;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqlxSqlite;
use super::store::{TxError, TxTrouble};

/// Runs to the end what must not be dropped half-way.
#[allow(dead_code, reason = "the databases may be left out")]
async fn begun<T: Send + 'static>(
    begin: impl Future<Output = T> + Send + 'static,
) -> Result<T, TxError> {
    tokio::spawn(begin).await.map_err(|error| TxError::new(TxTrouble::Unavailable, error))
}

/// What can be done about an error of the driver, whichever database it is.
#[allow(clippy::wildcard_enum_match_arm, reason = "the driver adds kinds of errors as it likes")]
pub(crate) fn common_trouble(error: &sqlx::Error) -> TxTrouble {
    match error {
        sqlx::Error::Database(found) if found.is_unique_violation() => TxTrouble::Duplicate,
        sqlx::Error::Database(found) => {
            found.code().as_deref().map_or(TxTrouble::Refused, TxTrouble::of_state)
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => TxTrouble::Unavailable,
        _ => TxTrouble::Refused,
    }
}

/// What can be done about an error that the application's own statements met, whichever database it
/// is.
pub(crate) fn trouble_of(error: sqlx::Error) -> TxError {
    #[cfg(any(feature = "flow-mysql", feature = "mysql"))]
    if mysql::is_conflict(&error) {
        return TxError::new(TxTrouble::Conflict, error);
    }
    #[cfg(feature = "sqlite")]
    if matches!(&error, sqlx::Error::Database(found)
        if found.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some())
    {
        return sqlite::trouble(error);
    }
    TxError::new(common_trouble(&error), error)
}
