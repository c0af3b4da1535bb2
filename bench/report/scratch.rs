//! Peers, which are measured in scratch projects outside of this repository: what only they need is
//! never part of ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

/// Our lock file, which a scratch project begins with: both sides use the same versions of everything
/// that they share.
const LOCK_FILE: &str = include_str!("../../Cargo.lock");

/// Writes a project if it is not there or has changed, compiles it, and says where its programs are.
///
/// # Errors
/// If it cannot be compiled, for example without a network: then there are no figures of the peer, and
/// the report says why.
#[allow(clippy::print_stderr, reason = "a build of minutes says that it is one")]
pub fn build(name: &str, files: &[(&str, &str)]) -> Result<PathBuf> {
    let folder = cache()?.join(name);
    fs::create_dir_all(folder.join("src"))?;
    for (file, text) in files {
        write_if_new(&folder.join(file), text)?;
    }
    // Cargo adds to the lock file what only the peer needs, so it is not compared with ours.
    if write_if_new(&folder.join("ours.lock"), LOCK_FILE)? == Written::Yes {
        fs::write(folder.join("Cargo.lock"), LOCK_FILE)?;
    }
    let target = folder.join("target");
    eprintln!("compiling the peer in {}", folder.display());
    let mut build = cargo();
    // Peers may ask for a newer compiler than they need.
    build.args(["build", "--release", "--quiet", "--ignore-rust-version", "--target-dir"]);
    let output = build.arg(&target).current_dir(&folder).env_remove("RUSTFLAGS").output()?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        let reason = reason.lines().find(|line| line.starts_with("error"));
        return Err(reason.unwrap_or("it does not compile").to_owned().into());
    }
    Ok(target.join("release"))
}

/// The Cargo that runs us.
#[must_use]
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Whether a file was changed. Cargo compiles again what is newer than its program.
#[derive(Debug, PartialEq, Eq)]
enum Written {
    Yes,
    No,
}

fn write_if_new(path: &Path, text: &str) -> Result<Written> {
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(Written::No);
    }
    fs::write(path, text)?;
    Ok(Written::Yes)
}

/// Where `cargo xtask` keeps what it builds.
fn cache() -> Result<PathBuf> {
    let set =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("ONCEKEY_TOOLS")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("oncekey-tools")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache/oncekey-tools")))
        .ok_or_else(|| "there is no home folder; set ONCEKEY_TOOLS".into())
}
