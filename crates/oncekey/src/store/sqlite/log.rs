//! The write-ahead log: writing it back to the file, and emptying it after an erasure.
//!
//! A page that was overwritten is still in the log as it was before, until the log is emptied. So an
//! erasure is over when the log is, and not when its commit is.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::error::Failure;
use super::schema::{BUSY, CHECKPOINT_AT};

/// Whether the log was emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emptied {
    /// There is nothing in it.
    Yes,
    /// Somebody is still reading what is in it, or writing the log back at the same time.
    HeldUp,
}

/// How long emptying the log waits for readers. It keeps every writer out meanwhile, also those of
/// other processes, so it is little; a look-up takes microseconds. Whoever reads for longer is
/// waited for from one try to the next, with the door open.
const FOR_READERS: Duration = Duration::from_millis(10);

/// Whether the log is long enough to be written back.
pub(super) fn is_long(connection: &Connection) -> bool {
    checkpoint(connection, "NOOP").is_ok_and(|(_, frames)| frames >= CHECKPOINT_AT)
}

/// Writes the log back, as far as nobody reads older pages. Others may read and write meanwhile.
///
/// If it fails or is held up, it is tried again soon, and nothing depends on it: the log is as
/// durable as the file.
pub(super) fn write_back(connection: &Connection) -> rusqlite::Result<()> {
    checkpoint(connection, "PASSIVE").map(drop)
}

/// Writes the whole log back and cuts it off, so that nothing of it is left on the disk.
pub(super) fn empty(connection: &Connection, log: &Path) -> Result<Emptied, Failure> {
    // Most of the work, with everybody else at theirs.
    checkpoint(connection, "PASSIVE")?;
    connection.busy_timeout(FOR_READERS)?;
    let emptied = checkpoint(connection, "TRUNCATE");
    connection.busy_timeout(BUSY)?;
    let (is_busy, frames) = emptied?;
    if is_busy || frames > 0 {
        return Ok(Emptied::HeldUp);
    }
    // SQLite does not sync the cut: after a power cut the log could be back at its old length, with
    // its old bytes.
    sync(log).map_err(|_| Failure::Unsynced)?;
    Ok(Emptied::Yes)
}

/// Whether it was held up, and how many frames the log has.
fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<(bool, i64)> {
    let pragma = format!("PRAGMA wal_checkpoint({mode})");
    connection.prepare_cached(&pragma)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Opening and closing the log is safe: SQLite holds its locks on the other two files.
fn sync(log: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(log)?.sync_all()
}

#[cfg(test)]
mod tests {
    use oncekey_core::Timestamp;

    use super::super::schema::{self, Placement};
    use super::*;

    #[test]
    fn a_log_is_emptied_unless_somebody_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncekey.db");
        let writer = schema::open_writer(&path, Placement::Own, Timestamp::default()).unwrap();
        let log = folder.path().join("oncekey.db-wal");
        let write = || writer.execute_batch("UPDATE oncekey_clock SET fence = fence + 1").unwrap();
        let length = || log.metadata().unwrap().len();
        write();
        assert!(length() > 0, "a commit is in the log");
        assert_eq!(empty(&writer, &log).unwrap(), Emptied::Yes);
        assert_eq!(length(), 0);
        assert_eq!(empty(&writer, &log).unwrap(), Emptied::Yes, "an empty log stays empty");

        write();
        let reader = schema::open_reader(&path).unwrap();
        let snapshot = reader.unchecked_transaction().unwrap();
        let fence = "SELECT fence FROM oncekey_clock";
        let seen: i64 = snapshot.query_row(fence, [], |row| row.get(0)).unwrap();
        write();
        assert_eq!(empty(&writer, &log).unwrap(), Emptied::HeldUp);
        assert!(length() > 0);
        let still: i64 = snapshot.query_row(fence, [], |row| row.get(0)).unwrap();
        assert_eq!(still, seen, "a reader is not disturbed");
        drop(snapshot);
        assert_eq!(empty(&writer, &log).unwrap(), Emptied::Yes);
        assert_eq!(length(), 0);
    }
}
