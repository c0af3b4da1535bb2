//! The one temporary folder of a run: data of the servers, and logs.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// What happens to the logs at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logs {
    Keep,
    Remove,
}

/// A folder that is removed when this value goes away.
#[derive(Debug)]
pub(crate) struct Folder {
    // Empty only while the destructor runs.
    dir: Option<TempDir>,
    path: PathBuf,
    logs: Logs,
}

impl Folder {
    pub(crate) fn create(logs: Logs) -> Result<Self> {
        let parent = [env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")]
            .into_iter()
            .find(|parent| open_to_others(parent))
            .context("no temporary folder can be entered by other users; set TMPDIR to one")?;
        let dir = tempfile::Builder::new()
            .prefix("oncekey-")
            .tempdir_in(&parent)
            .with_context(|| format!("cannot create a folder in {}", parent.display()))?;
        let path = dir.path().to_path_buf();
        let folder = Self { dir: Some(dir), path, logs };
        // The database servers run as users of their own and must get to their data in here.
        fs::set_permissions(&folder.path, Permissions::from_mode(0o755))?;
        fs::create_dir(folder.logs())?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else { return };
        if self.logs == Logs::Remove {
            if let Err(error) = dir.close() {
                eprintln!("cannot remove {}: {error}", self.path.display());
            }
            return;
        }
        let kept = dir.keep();
        let logs = kept.join("logs");
        for entry in fs::read_dir(&kept).into_iter().flatten().flatten() {
            if entry.path() != logs {
                // What cannot be removed stays next to the logs, where it is easily seen.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        eprintln!("logs: {}", logs.display());
    }
}

/// Whether every folder on the way can be entered by everybody.
fn open_to_others(folder: &Path) -> bool {
    folder.ancestors().all(|part| {
        part.metadata().is_ok_and(|data| data.is_dir() && data.permissions().mode() & 0o001 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_vanishes_with_its_value() {
        let folder = Folder::create(Logs::Remove).unwrap();
        let path = folder.path().to_path_buf();
        assert!(folder.logs().is_dir());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn kept_logs_outlive_the_data_beside_them() {
        let folder = Folder::create(Logs::Keep).unwrap();
        let path = folder.path().to_path_buf();
        fs::create_dir(path.join("data")).unwrap();
        fs::write(folder.logs().join("server.log"), "started").unwrap();
        drop(folder);
        assert!(!path.join("data").exists());
        assert!(path.join("logs/server.log").exists());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_private_folder_is_not_open_to_others() {
        let private = tempfile::tempdir().unwrap();
        fs::set_permissions(private.path(), Permissions::from_mode(0o700)).unwrap();
        assert!(!open_to_others(private.path()));
    }
}
