//! Records that come from elsewhere: a copy from another store, or what a node still knows after
//! its store has lost it.
//!
//! A restored record is written as it is, with its fence, its owner and its times. It never takes
//! anything back: what the store holds already and is at least as new stays.

use std::fmt;

use async_trait::async_trait;

use crate::decide::{Phase, Standing};
use crate::record::Record;
use crate::store::{Store, StoreError};

/// A store that takes records that were made elsewhere, and knows which store it is.
#[async_trait]
pub trait Restore: Store {
    /// Writes `record` as it is, unless the store holds one that is at least as new: then nothing
    /// changes. The decision is exactly [`supersedes`], in the same atomic step as the write.
    ///
    /// Afterwards every fence that is granted for this key is higher than the record's. Repeating
    /// it is harmless.
    ///
    /// # Errors
    /// As for every write of a store. A record that breaks a limit of the store is
    /// [`Rejected`](crate::ErrorKind::Rejected).
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError>;

    /// Which store this is, and which life of it. As long as nobody restored a backup, promoted a
    /// replica or emptied it, the answer stays the same.
    async fn lineage(&self) -> Result<Lineage, StoreError>;
}

/// What came of a restoration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Restored {
    /// The record stands as it was given.
    Written,
    /// The store holds one that is at least as new.
    Kept,
}

/// Which store it is, and which life of it. Only equality means anything.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Lineage(String);

/// Whether `record` is newer than what was found under its key id.
///
/// A higher fence is newer. Under the same fence an end is newer than an unknown outcome, and that
/// is newer than an attempt under way: no record ever goes back.
#[must_use]
pub fn supersedes(record: &Record, found: Option<Standing>) -> bool {
    let Some(found) = found else { return true };
    let given = Standing::from(record);
    (given.fence, progress(given.phase)) > (found.fence, progress(found.phase))
}

const fn progress(phase: Phase) -> u8 {
    match phase {
        Phase::Running(_) => 0,
        Phase::Parked | Phase::Unknown => 1,
        Phase::Done(_) => 2,
    }
}

impl Lineage {
    /// A lineage by its text. The text holds no secret: it is logged when it changes.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Lineage({})", self.0)
    }
}
