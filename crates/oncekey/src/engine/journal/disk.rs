//! What the journal asks of a disk, and the lock on its folder.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, fstat, stat};

use super::error::JournalError;

/// Everything that changes a disk. A trait, so that tests can make each step fail, and cut the
/// power after it.
pub(super) trait Disk: Send + 'static {
    /// An empty file, in the place of another one if need be.
    fn create(&mut self, path: &Path) -> io::Result<File>;
    fn write(&mut self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()>;
    fn cut(&mut self, file: &File, length: u64) -> io::Result<()>;
    /// Returns once the content of the file survives a power cut.
    fn sync(&mut self, file: &File) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Returns once the names in the folder survive a power cut.
    fn sync_folder(&mut self, folder: &Path) -> io::Result<()>;
}

/// The disk of the machine.
#[derive(Debug)]
pub(super) struct RealDisk;

/// The right to use a folder, until it is dropped or the process is gone.
#[derive(Debug)]
pub(in crate::engine) struct FolderLock {
    file: File,
    path: PathBuf,
}

/// Answers are nobody else's business.
const OWN_FILE: u32 = 0o600;
const OWN_FOLDER: u32 = 0o700;

impl Disk for RealDisk {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(OWN_FILE).open(path)
    }

    fn write(&mut self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    fn cut(&mut self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_folder(&mut self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

impl FolderLock {
    /// Makes the folder if it is missing, and takes it.
    ///
    /// The system lets go when the process ends, however it ends. Two journals of one process
    /// keep each other out too.
    pub(in crate::engine) fn take(folder: &Path) -> Result<Self, JournalError> {
        let opening = |error| JournalError::disk("opened", error);
        make_folder(folder).map_err(opening)?;
        let path = folder.join("lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(OWN_FILE);
        let mut file = options.open(&path).map_err(opening)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // Who it is helps, but whether it is in use does not depend on it.
                let process =
                    file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(JournalError::InUse { folder: folder.to_owned(), process });
            }
            Err(error) => return Err(opening(error.into())),
        }
        // For the message above, and so of no importance on a full disk.
        drop(file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())));
        Ok(Self { file, path })
    }

    /// Whether the folder is still the one that was taken.
    pub(super) fn is_held(&self) -> bool {
        is_at(&self.path, &self.file)
    }
}

impl Drop for FolderLock {
    /// Lets go by hand. Closing the file is not enough: if another thread is just starting a
    /// process, that one has a copy of the open file until it runs its own program.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Whether this open file is the one of this name, or was deleted, moved or replaced meanwhile.
pub(super) fn is_at(path: &Path, file: &File) -> bool {
    match (stat(path), fstat(file)) {
        (Ok(named), Ok(open)) => (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// Makes a folder and whatever is missing above it, so that it survives a power cut.
fn make_folder(folder: &Path) -> io::Result<()> {
    let above = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        Some(_) | None => PathBuf::from("."),
    };
    let missing = folder.ancestors().take_while(|path| !path.as_os_str().is_empty());
    let missing: Vec<_> = missing.take_while(|path| !path.exists()).map(above).collect();
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(OWN_FOLDER).create(folder)?;
    // A folder that was just made is a name in the one above.
    missing.iter().try_for_each(|parent| File::open(parent)?.sync_all())
}
