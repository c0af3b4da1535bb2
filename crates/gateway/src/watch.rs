//! Notices that a file has changed.
//!
//! By looking at it twice a second. The system could tell (inotify, kqueue), and whoever wants to be
//! told has to watch folders instead of files, because editors replace files; every folder on the
//! way, because Kubernetes swaps a link to a folder; and has to look again anyway, because
//! network file systems tell nothing and queues run over. Looking at a dozen files costs a few
//! microseconds, needs no library, and is never wrong about any of these.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Files and how they looked.
#[derive(Debug)]
pub(crate) struct Watch {
    files: Vec<PathBuf>,
    seen: Vec<Option<Stamp>>,
}

/// What changes when the content of a file does, whether it was written anew, replaced by another
/// file, or is another one behind a link. The time of the last change of the inode is in it because
/// nobody can set it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A person who has saved a file and looks at the log does not notice half a second.
const EVERY: Duration = Duration::from_millis(500);

impl Watch {
    /// Looks at the files as they are now.
    pub(crate) async fn new(files: Vec<PathBuf>) -> Self {
        let (files, seen) = looked_at(files).await;
        Self { files, seen }
    }

    /// Waits until a file has changed, and then until none has changed between two looks: whoever
    /// writes several files, or one in several steps, is given the time.
    ///
    /// # Cancellation
    /// Nothing is lost: what has changed is still another than it was when this began.
    pub(crate) async fn changed(&mut self) {
        let mut last = self.seen.clone();
        loop {
            sleep(EVERY).await;
            let (_, now) = looked_at(self.files.clone()).await;
            if now == last && now != self.seen {
                self.seen = now;
                return;
            }
            last = now;
        }
    }

    /// Looks at other files from now on. Those that were there before keep what was seen of them,
    /// so that a change in the meantime is noticed.
    pub(crate) async fn instead(&mut self, files: Vec<PathBuf>) {
        let (files, mut seen) = looked_at(files).await;
        for (file, now) in files.iter().zip(&mut seen) {
            if let Some(at) = self.files.iter().position(|known| known == file) {
                *now = self.seen[at];
            }
        }
        *self = Self { files, seen };
    }
}

/// On a thread where it may take long: a network file system that is away blocks.
async fn looked_at(files: Vec<PathBuf>) -> (Vec<PathBuf>, Vec<Option<Stamp>>) {
    let look = move || {
        let seen = files.iter().map(|file| fs::metadata(file).ok().map(|about| stamp(&about)));
        let seen = seen.collect();
        (files, seen)
    };
    // It fails only if the program ends.
    spawn_blocking(look).await.unwrap_or_default()
}

fn stamp(about: &fs::Metadata) -> Stamp {
    Stamp {
        device: about.dev(),
        inode: about.ino(),
        size: about.size(),
        modified: (about.mtime(), about.mtime_nsec()),
        changed: (about.ctime(), about.ctime_nsec()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use tokio::time::timeout;

    use super::*;

    async fn notices(watch: &mut Watch) -> bool {
        timeout(EVERY * 6, watch.changed()).await.is_ok()
    }

    async fn of(path: &Path) -> Watch {
        Watch::new(vec![path.to_owned()]).await
    }

    #[tokio::test]
    async fn every_way_to_change_a_file_is_noticed_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "1").unwrap();
        let mut watch = of(&at("a")).await;
        assert!(!notices(&mut watch).await, "nothing happened");
        fs::write(at("a"), "2").unwrap();
        assert!(notices(&mut watch).await, "written in place");
        assert!(!notices(&mut watch).await, "and noticed once");
        fs::write(at("b"), "2").unwrap();
        fs::rename(at("b"), at("a")).unwrap();
        assert!(notices(&mut watch).await, "replaced");
        fs::remove_file(at("a")).unwrap();
        assert!(notices(&mut watch).await, "removed");
    }

    /// As Kubernetes mounts a config map: the file is a link into a folder that is a link itself.
    #[tokio::test]
    async fn a_link_that_is_swapped_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for version in ["one", "two"] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("a"), "same").unwrap();
        }
        symlink("one", at("data")).unwrap();
        symlink("data/a", at("a")).unwrap();
        let mut watch = of(&at("a")).await;
        symlink("two", at("data.new")).unwrap();
        fs::rename(at("data.new"), at("data")).unwrap();
        assert!(notices(&mut watch).await);
    }
}
