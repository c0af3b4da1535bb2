//! What a new configuration changes that a running program cannot.
//!
//! A reload swaps routes, limits and texts. What is bound, opened or part of every key's identity
//! stays as it was until a restart: a listener cannot move without lost connections, and records
//! would not be found under another namespace, pepper or store.

use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use super::Config;
use super::flat::Flat;

/// Settings that are read once, at the start.
const FIXED: [&str; 21] = [
    "server.listen",
    "server.instance",
    "server.max_connections",
    "admin.listen",
    "admin.names",
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

    /// What else differs in `new`, a line each: it holds from now on.
    pub(crate) fn differs(&self, new: &Self) -> Vec<String> {
        let (old_values, new_values) = (self.values(), new.values());
        // What `[defaults]` says is told of the routes where it holds.
        let told = |path: &str| !path.starts_with("defaults.") && !FIXED.contains(&path);
        let mut said: Vec<String> =
            differing(&old_values.globals, &new_values.globals, told).collect();
        let of = |config: &Self, name: &str| {
            let at = config.routes.iter().position(|route| *route.name == *name)?;
            config.values().routes.get(at).cloned()
        };
        for (route, values) in new.routes.iter().zip(&new_values.routes) {
            match of(self, &route.name) {
                None => said.push(format!("route {} is new", route.name)),
                Some(old) => said.extend(
                    differing(&old, values, |_| true)
                        .map(|change| format!("route {}: {change}", route.name)),
                ),
            }
        }
        let gone = self.routes.iter().filter(|route| of(new, &route.name).is_none());
        said.extend(gone.map(|route| format!("route {} is gone", route.name)));
        said
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
}

/// Settings whose values differ, with both of them as `config show` shows them: without secrets.
fn differing<'v>(
    old: &'v Flat,
    new: &'v Flat,
    told: impl Fn(&str) -> bool + 'v,
) -> impl Iterator<Item = String> + 'v {
    let pairs = old.leaves().zip(new.leaves());
    let pairs = pairs.filter(move |((path, old), (_, new))| told(path) && old.value != new.value);
    pairs.map(|((path, old), (_, new))| match (old.value.to_string(), new.value.to_string()) {
        // Secrets all look the same.
        (old, new) if old == new => format!("{path} has changed"),
        (old, new) => format!("{path}: {old} → {new}"),
    })
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
    fn what_is_changed_in_flight_is_told_with_its_values() {
        let with = |more: &str, route: &str| {
            load(&format!("{more}[defaults]\nttl = '2h'\n[[route]]\nmatch = '/a'\n{route}"))
        };
        let old = with("", "");
        assert_eq!(old.differs(&with("", "")), [] as [&str; 0]);
        let new = with("timeouts.idle = '9s'\n", "mode = 'required'\n[[route]]\nmatch = '/b'\n");
        let said = old.differs(&new);
        assert_eq!(said[1..], ["route /a: mode: \"observe\" → \"required\"", "route /b is new"]);
        assert!(said[0].starts_with("server.timeouts.idle: "), "{said:?}");
        assert!(said[0].ends_with(" → \"9s\""), "{said:?}");
        assert!(new.differs(&old).contains(&"route /b is gone".to_owned()));
        let elsewhere = with("listen = '127.0.0.1:1'\n", "");
        assert_eq!(old.differs(&elsewhere), [] as [&str; 0], "it does not hold yet");
    }
}
