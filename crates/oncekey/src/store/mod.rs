//! Where records are kept. One file or folder per store, the same order of items in each.

#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
mod parts;

#[cfg(any(feature = "mysql", feature = "postgres"))]
#[allow(dead_code, reason = "neither store uses all of it, and one may be left out")]
mod group;

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
