//! Where records are kept. One file or folder per store, the same order of items in each.

pub mod copy;
mod open;
mod opened;
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
#[allow(dead_code, reason = "no store uses all of it, and any may be left out")]
pub(crate) mod parts;
#[allow(dead_code, reason = "what only some stores need is unused when they are left out")]
mod url;

#[cfg(any(feature = "flow", feature = "mysql", feature = "postgres"))]
#[allow(dead_code, reason = "nobody uses all of it, and some may be left out")]
pub(crate) mod group;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod life;

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use self::open::{migration_sql, open, open_existing};
pub use self::opened::Opened;
pub use self::url::shown;
