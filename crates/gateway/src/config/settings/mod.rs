//! The table of all settings.
//!
//! The reader, `config show`, the JSON Schema and the reference for people are all made from it:
//! a setting that stands here is read, explained and documented, and no other is.

mod route;
mod server;
mod service;
mod store;

use super::form::WORDS;
use super::kind::Kind;

/// One setting, or a table of them.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) unset: Unset,
    /// What it does, in a sentence for the reference.
    pub(crate) about: &'static str,
}

/// What holds if a setting is not set. Values are written as in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unset {
    /// This does.
    Is(&'static str),
    /// Nothing does; here is what one might set.
    Nothing { example: &'static str },
    /// It has to be set, for example like this.
    Refused { example: &'static str },
}

/// A whole file.
pub(crate) static ROOT: [Setting; 13] = [
    Setting {
        name: "version",
        kind: Kind::Count { least: 1, most: 1 },
        unset: Unset::Refused { example: "1" },
        about: "The version of this format. A newer program reads older ones.",
    },
    Setting {
        name: "include",
        kind: Kind::List(&Kind::Text(&WORDS)),
        unset: Unset::Is("[]"),
        about: "More files to read, from the folder of this one; `*` stands for any name, as in \
                `conf.d/*.toml`. A setting may stand in one file only.",
    },
    table("server", &server::SERVER, "Where requests come in and go to."),
    table("admin", &server::ADMIN, "The listener for operators: health, metrics, the admin API."),
    table("store", &store::STORE, "Where records are kept."),
    table("errors", &service::ERRORS, "What clients are told when a request is refused."),
    table("cors", &service::CORS, "What browsers may send and see."),
    table("status", &service::STATUS, "Where clients can ask what became of a key."),
    table("well_known", &service::WELL_KNOWN, "The policy document for clients."),
    table("telemetry", &service::TELEMETRY, "What the program says about itself."),
    table("jwt", &service::JWT, "How tokens are verified, for `jwt:` scopes."),
    table("defaults", &route::MEMBERS, "What holds for all routes that do not say otherwise."),
    Setting {
        name: "route",
        kind: Kind::Tables(&route::ROUTE),
        unset: Unset::Is("[]"),
        about: "Which requests are protected, and how. A request without a route passes through.",
    },
];

#[cfg(test)]
pub(crate) use self::route::MEMBERS;
pub(crate) use self::route::ROUTE;

/// A table of settings. Nothing has to be in it unless one of them says so.
const fn table(name: &'static str, settings: &'static [Setting], about: &'static str) -> Setting {
    Setting { name, kind: Kind::Table(settings), unset: Unset::Is("{}"), about }
}

impl Setting {
    /// A value that one might set, as it is written in a file.
    pub(crate) const fn example(&self) -> &'static str {
        match self.unset {
            Unset::Is(text) => text,
            Unset::Nothing { example } | Unset::Refused { example } => example,
        }
    }
}

/// The setting with this path, such as `server.timeouts.connect`.
pub(crate) fn find(path: &str) -> Option<&'static Setting> {
    let mut settings: &'static [Setting] = &ROOT;
    let mut found = None;
    for name in path.split('.') {
        let setting = settings.iter().find(|setting| setting.name == name)?;
        found = Some(setting);
        settings = setting.kind.inner().unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::node::read_value;
    use super::super::source::{Source, SourceKind};
    use super::*;

    fn each(
        settings: &'static [Setting],
        path: &str,
        look: &mut dyn FnMut(&str, &'static Setting),
    ) {
        for setting in settings {
            let path = format!("{path}{}", setting.name);
            match setting.kind.inner() {
                Some(inner) => each(inner, &format!("{path}."), look),
                None => look(&path, setting),
            }
        }
    }

    /// A default that its own setting refuses would be found by the first user.
    #[test]
    fn every_default_and_example_is_allowed() {
        each(&ROOT, "", &mut |path, setting| {
            let source = Source::new(path, SourceKind::File, setting.example());
            let node = read_value(&source).unwrap_or_else(|problem| panic!("{path}: {problem}"));
            assert!(setting.kind.read(&node).is_ok(), "{path} = {}", setting.example());
        });
    }

    #[test]
    fn every_setting_is_explained_and_found() {
        let mut count = 0;
        each(&ROOT, "", &mut |path, setting| {
            count += 1;
            assert!(setting.about.ends_with('.'), "{path} is explained in sentences");
            assert!(std::ptr::eq(find(path).unwrap(), setting), "{path}");
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(setting.name.chars().all(plain), "{path} can be written as a variable");
        });
        assert!(count > 80, "{count}");
        assert!(find("server.listn").is_none());
    }
}
