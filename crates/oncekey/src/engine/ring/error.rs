//! Why there is no ring, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::engine::journal::JournalError;

/// Why a ring cannot be opened or written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// Somebody else has the folder open.
    #[error(
        "the ring folder {} is in use: give every process a folder of its own, or stop the other \
         one first", folder.display()
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The disk refuses.
    #[error("the ring cannot be {doing}: check its disk, its owner and its permissions")]
    Disk {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The file was written by another version.
    #[error(
        "the ring has version {version}, which this version does not know: upgrade, or delete its \
         folder, and what is in it is not restored after a failover"
    )]
    Version {
        /// The version of the file.
        version: u32,
    },
    /// There is no thread for it.
    #[error("the system gives the ring no thread")]
    Thread(#[source] Arc<io::Error>),
    /// The thread that writes is gone.
    #[error("the ring was closed")]
    Closed,
}

impl RingError {
    /// An error of the disk while `doing`.
    pub(super) fn disk(doing: &'static str, source: io::Error) -> Self {
        Self::Disk { doing, source: Arc::new(source) }
    }

    /// Why a folder could not be taken. The lock is the journal's, its words are not.
    pub(super) fn of_lock(error: JournalError) -> Self {
        match error {
            JournalError::InUse { folder, .. } => Self::InUse { folder },
            JournalError::Full { .. }
            | JournalError::DiskFull(_)
            | JournalError::Disk { .. }
            | JournalError::Version { .. }
            | JournalError::NoJournal
            | JournalError::Moved
            | JournalError::Thread(_)
            | JournalError::Closed => Self::disk("opened", io::Error::other(error)),
        }
    }
}
