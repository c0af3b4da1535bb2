//! What a new configuration changes that a running program cannot.
//!
//! A reload swaps routes, limits and texts. What is bound, opened or part of every key's identity
//! stays as it was until a restart: a listener cannot move without lost connections, and records
//! would not be found under another namespace, pepper or store.

use super::Config;

/// Settings that are read once, at the start.
const FIXED: [&str; 13] = [
    "server.listen",
    "server.instance",
    "server.max_connections",
    "admin.listen",
    "admin.token_file",
    "admin.audit_file",
    "admin.payload",
    "store.url",
    "store.namespace",
    "store.pepper_file",
    "store.encrypt_with_files",
    "store.journal",
    "store.ring",
];

impl Config {
    /// The settings that differ in `new` and hold only after a restart.
    pub(crate) fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let value = |config: &Self, path: &str| config.values().globals.leaf(path).value.clone();
        FIXED.into_iter().filter(|path| value(self, path) != value(new, path)).collect()
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
