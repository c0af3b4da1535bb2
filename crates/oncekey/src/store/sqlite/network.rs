//! Refuses network file systems: their locks do not keep two writers apart, and a WAL file in
//! shared memory does not work across machines at all.

use std::path::Path;

use oncekey_core::StoreError;

/// The magic numbers of file systems that live on another machine, and their names. FUSE is among
/// them because what stands behind it (sshfs, s3fs, a cloud drive) cannot be told from here.
#[cfg(target_os = "linux")]
const NETWORK: [(u64, &str); 14] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9P"),
    (0x6573_5546, "FUSE"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
];

/// Checks the file system of the folder that holds, or will hold, the database file.
#[cfg(target_os = "linux")]
pub(super) fn check(path: &Path) -> Result<(), StoreError> {
    use oncekey_core::ErrorKind;

    // A folder that cannot be looked at passes: opening the file will say why in better words.
    match magic_of(path).and_then(name_of) {
        None => Ok(()),
        Some(name) => Err(StoreError::new(
            ErrorKind::Unsuitable,
            format!(
                "the database file is on a network file system ({name}), where SQLite cannot \
                 keep two writers apart: move it to a local disk, or use a server store"
            ),
        )),
    }
}

/// What a file system that is here keeps through a loss of power, as far as its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// What was synced.
    Synced(&'static str),
    /// Nothing: it is in memory.
    Nothing(&'static str),
    /// It is not known here, and no network file system.
    Perhaps,
}

/// Which file system holds the file.
#[cfg(target_os = "linux")]
pub(super) fn keeps(path: &Path) -> Keeps {
    match magic_of(path) {
        Some(0xef53) => Keeps::Synced("ext4"),
        Some(0x5846_5342) => Keeps::Synced("XFS"),
        Some(0x9123_683e) => Keeps::Synced("Btrfs"),
        Some(0x2fc1_2fc1) => Keeps::Synced("ZFS"),
        Some(0x0102_1994) => Keeps::Nothing("tmpfs"),
        Some(0x8584_58f6) => Keeps::Nothing("ramfs"),
        Some(_) | None => Keeps::Perhaps,
    }
}

/// The same where nobody can be asked.
#[cfg(not(target_os = "linux"))]
pub(super) fn keeps(_path: &Path) -> Keeps {
    Keeps::Perhaps
}

/// The number of the file system of the folder that holds, or will hold, the file.
#[cfg(target_os = "linux")]
fn magic_of(path: &Path) -> Option<u64> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let file_system = rustix::fs::statfs(folder).ok()?;
    // The kernel's number is signed and of another width on some machines; its low half is what
    // the list above holds.
    u64::try_from(i128::from(file_system.f_type) & 0xffff_ffff).ok()
}

/// Other systems have no cheap way to ask; the documentation says it instead.
#[cfg(not(target_os = "linux"))]
pub(super) fn check(_path: &Path) -> Result<(), StoreError> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn name_of(magic: u64) -> Option<&'static str> {
    NETWORK.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// F48.
    #[test]
    fn network_file_systems_are_known_by_name_and_local_ones_pass() {
        assert_eq!(name_of(0x6969), Some("NFS"));
        assert_eq!(name_of(0xfe53_4d42), Some("SMB2"));
        for local in [0xef53_u64, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(name_of(local), None, "ext4, xfs, btrfs, tmpfs, overlay, zfs");
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(check(&folder.path().join("x.db")).is_ok());
        assert!(check(Path::new("x.db")).is_ok(), "a bare file name is in the current folder");
    }
}
