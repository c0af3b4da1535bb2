//! What a new configuration changes that a running program cannot.
//!
//! A reload swaps routes, limits and texts. What is bound, opened or part of every key's identity
//! stays as it was until a restart: a listener cannot move without lost connections, and records
//! would not be found under another namespace, pepper or store.

use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use super::Config;

/// Settings that are read once, at the start.
const FIXED: [&str; 20] = [
    "server.listen",
    "server.instance",
    "server.max_connections",
    "admin.listen",
    "admin.audit_file",
    "admin.payload",
    "store.url",
    "store.namespace",
    "store.pepper_file",
    "store.encrypt_with_files",
    "store.journal",
    "store.ring",
    "store.cache",
    "store.sweep.every",
    "store.sweep.batch",
    "telemetry.log.format",
    "telemetry.log.level",
    "telemetry.otlp",
    "telemetry.observed.every",
    "telemetry.observed.ttl",
];

/// Files of such settings: what stands in them is read once, too.
const FIXED_FILES: [&str; 2] = ["store.pepper_file", "store.encrypt_with_files"];

impl Config {
    /// The settings that differ in `new` and hold only after a restart.
    pub(crate) fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let value = |config: &Self, path: &str| config.values().globals.leaf(path).value.clone();
        FIXED.into_iter().filter(|path| value(self, path) != value(new, path)).collect()
    }

    /// A digest of what stands in the files that are read once. `None` for one that cannot be read.
    pub(crate) fn fixed_files(&self) -> Vec<(&'static str, Option<[u8; 32]>)> {
        let store = &self.store;
        FIXED_FILES
            .into_iter()
            .zip([store.pepper_file.iter().collect(), store.encrypt_with_files.iter().collect()])
            .map(|(name, files): (_, Vec<&PathBuf>)| (name, digest(&files)))
            .collect()
    }

    /// The routes whose keys belong to others in `new`. A retry that straddles the change is not
    /// recognised and runs again, so whoever reloads should say so.
    pub(crate) fn rescoped<'n>(&self, new: &'n Self) -> Vec<&'n str> {
        let known = |name: &str| self.routes.iter().find(|route| *route.name == *name);
        let changed = new
            .routes
            .iter()
            .filter(|route| known(&route.name).is_some_and(|old| old.scope != route.scope));
        changed.map(|route| &*route.name).collect()
    }
}

fn digest(files: &[&PathBuf]) -> Option<[u8; 32]> {
    let mut whole = Sha256::new();
    for file in files {
        let content = std::fs::read(file).ok()?;
        // Of fixed length, so that nothing can move from one file to the next unnoticed.
        whole.update(Sha256::digest(content));
    }
    Some(whole.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::super::Env;
    use super::*;

    fn load(more: &str) -> Config {
        let text = format!("version = 1\n[server]\nupstream = ':3000'\n{more}");
        Config::from_text("a.toml", &text, &Env::default()).unwrap()
    }

    #[test]
    fn what_cannot_be_changed_in_flight_is_named() {
        let old = load("");
        assert_eq!(old.needs_restart(&load("timeouts.idle = '9s'\n")), [] as [&str; 0]);
        let new = load("listen = '127.0.0.1:1'\n[store]\nnamespace = 'x'\n");
        assert_eq!(old.needs_restart(&new), ["server.listen", "store.namespace"]);
    }

    #[test]
    fn a_route_whose_keys_belong_to_others_is_named() {
        let with = |scope: &str| {
            load(&format!(
                "[[route]]\nmatch = '/a'\nscope = ['{scope}']\n[[route]]\nmatch = '/b'\n"
            ))
        };
        let old = with("shared");
        assert_eq!(old.rescoped(&with("credential")), ["/a"]);
        assert_eq!(old.rescoped(&with("shared")), [] as [&str; 0]);
    }
}
