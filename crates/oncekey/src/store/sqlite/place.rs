//! Notices that the file at the path is not the one that was opened.
//!
//! A file that was deleted or replaced goes on working for whoever has it open, and everything
//! that is acknowledged from then on is gone with the process. So the writer looks before every
//! commit: two questions to the kernel, less than a microsecond each, beside a sync of the disk.

use std::path::{Path, PathBuf};

use super::error::Failure;

/// The file and its write-ahead log, as they were when they were opened.
#[derive(Clone, Debug)]
pub(super) struct Place {
    file: PathBuf,
    log: PathBuf,
    file_id: Option<FileId>,
    log_id: Option<FileId>,
}

/// Device and number of a file: what stays the same as long as it is the same file.
type FileId = (u64, u64);

impl Place {
    /// The place of a file that has just been opened.
    pub(super) fn of(path: &Path) -> Self {
        // SQLite follows links too, and puts the log beside the file itself.
        let file = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut log = file.clone().into_os_string();
        log.push("-wal");
        let log = PathBuf::from(log);
        let (file_id, log_id) = (id_of(&file), id_of(&log));
        Self { file, log, file_id, log_id }
    }

    /// The write-ahead log.
    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// Checks that file and log are the ones that were opened.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.check_file()?;
        if id_of(&self.log) == self.log_id { Ok(()) } else { Err(Failure::Moved) }
    }

    /// Checks the file alone. Its log is another one after all connections were closed.
    pub(super) fn check_file(&self) -> Result<(), Failure> {
        if id_of(&self.file) == self.file_id { Ok(()) } else { Err(Failure::Moved) }
    }
}

/// Asks for the number and nothing else. Whoever asks for times makes Linux give the next write a time of
/// its own (since 6.13, so that no change goes unseen), which changes the inode; and a file system without a
/// journal then writes the inode with every sync: one more wait for the disk in every commit.
#[cfg(target_os = "linux")]
fn id_of(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt as _;

    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    use rustix::io::Errno;

    match statx(CWD, path, AtFlags::empty(), StatxFlags::INO) {
        Ok(about) => {
            let device = u64::from(about.stx_dev_major) << 32 | u64::from(about.stx_dev_minor);
            Some((device, about.stx_ino))
        }
        // Old kernels, and sandboxes that do not know the call. Without an answer every file would be the
        // same as every other.
        Err(Errno::NOSYS | Errno::PERM) => {
            let about = std::fs::metadata(path).ok()?;
            Some((about.dev(), about.ino()))
        }
        Err(_) => None,
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn id_of(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt as _;

    let about = std::fs::metadata(path).ok()?;
    Some((about.dev(), about.ino()))
}

/// Other systems do not let go of a file that is open.
#[cfg(not(unix))]
fn id_of(_path: &Path) -> Option<FileId> {
    None
}
