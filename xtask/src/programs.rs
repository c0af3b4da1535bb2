//! Where programs are, and what this process may do.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders that Debian leaves out of an ordinary user's search path, although servers live there.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Finds a program on the search path or among the system's servers.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| is_program(file))
}

/// Whether this is a file that can be run.
pub(crate) fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The Cargo that runs us, or the one on the search path.
pub(crate) fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    // The output is read by this program first: colours and progress bars would be in the way.
    command.env("CARGO_TERM_COLOR", "never").env("CARGO_TERM_PROGRESS_WHEN", "never");
    command
}

/// The same command, with what all others leave of the processors.
pub(crate) fn gently(command: &Command) -> Command {
    let mut gentle = Command::new("nice");
    gentle.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => gentle.env(name, value),
            None => gentle.env_remove(name),
        };
    }
    gentle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_and_a_missing_one_is_not() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-program-has-this-name"), None);
    }

    #[test]
    fn a_folder_is_not_a_program() {
        assert!(!is_program(Path::new("/")));
    }

    #[test]
    fn a_gentle_command_is_the_same_command() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $GENTLE $(nice)"]).env("GENTLE", "yes");
        let output = gently(&command).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "yes 19\n");
    }
}
