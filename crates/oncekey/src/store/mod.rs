//! Where records are kept. One file or folder per store, the same order of items in each.

#[cfg(feature = "sqlite")]
pub mod sqlite;
