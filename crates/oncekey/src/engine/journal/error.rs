//! Why something is not in the journal, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a journal cannot be opened, or an end cannot be journalled.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Somebody else has the folder open.
    #[error(
        "the journal folder {} is in use{}: give every process a folder of its own, or stop the \
         other one first", folder.display(), by(*process)
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The process that uses it, if it could be found out.
        process: Option<u32>,
    },
    /// As much waits for the store as may.
    #[error(
        "the journal is full: {limit} bytes wait for the store to come back, so this end is not \
         kept across a crash"
    )]
    Full {
        /// How many bytes may wait.
        limit: u64,
    },
    /// The disk is full.
    #[error("the disk of the journal is full: free some space")]
    DiskFull(#[source] Arc<io::Error>),
    /// The disk refuses something else.
    #[error("the journal cannot be {doing}: check its disk, its owner and its permissions")]
    Disk {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The file was written by another version.
    #[error(
        "the journal has version {version}, which this version does not know: start the newer \
         oncekey until its journal is empty, or upgrade"
    )]
    Version {
        /// The version of the file.
        version: u32,
    },
    /// The file has no sound header.
    #[error(
        "the file `journal` in the journal folder is damaged or not a journal: restore it, or move \
         it away; the ends in it are then lost, and their records become unknown or run again as \
         their class says"
    )]
    NoJournal,
    /// The folder is not where it was.
    #[error("the journal folder was deleted or replaced while it was open: start oncekey again")]
    Moved,
    /// There is no thread for it.
    #[error("the system gives the journal no thread")]
    Thread(#[source] Arc<io::Error>),
    /// The thread that writes is gone.
    #[error("the journal was closed")]
    Closed,
}

impl JournalError {
    /// An error of the disk while `doing`.
    pub(super) fn disk(doing: &'static str, source: io::Error) -> Self {
        let is_full = matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        let source = Arc::new(source);
        if is_full { Self::DiskFull(source) } else { Self::Disk { doing, source } }
    }
}

fn by(process: Option<u32>) -> String {
    process.map(|process| format!(" by process {process}")).unwrap_or_default()
}
