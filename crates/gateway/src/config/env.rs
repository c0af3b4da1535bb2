//! Settings from environment variables and from options of the command line.
//!
//! One rule: `ONCEKEY__SERVER__LISTEN` is `server.listen`, and the value is TOML, so strings have
//! quotes. Two underscores stand between levels, because one may be part of a name.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::node::{Clash, Data, Node, Table, merge, read_value};
use super::problem::ConfigProblem;
use super::settings::{ROOT, Setting, find};
use super::similar::closest;
use super::source::{Place, Source, SourceKind};

/// The environment of the program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Env(BTreeMap<String, OsString>);

/// What the command line sets, whatever file and environment say. Each is the plain value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// `--to`
    pub(crate) upstream: Option<String>,
    pub(crate) listen: Option<String>,
    pub(crate) admin: Option<String>,
    pub(crate) store: Option<String>,
    pub(crate) mode: Option<String>,
}

const PREFIX: &str = "ONCEKEY__";

impl Env {
    pub(crate) fn of_process() -> Self {
        let variables = std::env::vars_os();
        // No name that we look for has anything but ASCII in it.
        Self(
            variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect(),
        )
    }

    pub(crate) fn get(&self, name: &str) -> Option<&OsString> {
        self.0.get(name)
    }

    /// Puts every variable that is a setting into `file`.
    pub(super) fn apply(&self, file: &mut Table) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        for (variable, value) in &self.0 {
            let Some(path) = variable.strip_prefix(PREFIX) else { continue };
            match read(variable, path, value) {
                Ok((path, node)) => set(file, &path, node),
                Err(problem) => problems.push(problem),
            }
        }
        problems
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Env {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self(variables.map(|(name, value)| (name.to_owned(), value.into())).into())
    }
}

impl Options {
    /// Puts every option that is given into `file`.
    pub(super) fn apply(&self, file: &mut Table) {
        let options = [
            ("--to", "server.upstream", &self.upstream),
            ("--listen", "server.listen", &self.listen),
            ("--admin", "admin.listen", &self.admin),
            ("--store", "store.url", &self.store),
            ("--mode", "defaults.mode", &self.mode),
        ];
        for (option, path, value) in options {
            let Some(value) = value else { continue };
            let source = Source::new(option, SourceKind::Option, value.as_str());
            set(file, path, Node::text(value, &source));
        }
    }
}

fn read(variable: &str, path: &str, value: &OsString) -> Result<(String, Node), ConfigProblem> {
    let path = path.to_ascii_lowercase().replace("__", ".");
    if find(&path).is_none() {
        return Err(unknown(variable, &path));
    }
    let Some(text) = value.to_str() else {
        let message = format!("the value of {variable} is not UTF-8");
        return Err(ConfigProblem::error("not-utf8", message).about(&path));
    };
    let source = Source::new(variable, SourceKind::Variable, text);
    match read_value(&source) {
        Ok(node) => Ok((path, node)),
        Err(_) => {
            let message = format!("the value of {variable} is not TOML");
            let place = Place { span: 0..text.len(), source };
            let problem = ConfigProblem::error("syntax", message).at(&place);
            Err(problem.note(format!("a string has quotes: {variable}='\"…\"'")).about(&path))
        }
    }
}

fn unknown(variable: &str, path: &str) -> ConfigProblem {
    let mut known = Vec::new();
    collect(&ROOT, "", &mut known);
    let meant = closest(path, known.iter().map(String::as_str));
    let meant = meant.map(|path| format!("{PREFIX}{}", path.to_uppercase().replace('.', "__")));
    let message = format!("{variable} is not the name of a setting");
    ConfigProblem::error("unknown-field", message).suggest(meant.as_deref())
}

fn collect(settings: &'static [Setting], prefix: &str, paths: &mut Vec<String>) {
    for setting in settings {
        let path = format!("{prefix}{}", setting.name);
        if let super::kind::Kind::Table(inner) = setting.kind {
            collect(inner, &format!("{path}."), paths);
        }
        paths.push(path);
    }
}

/// Sets a value, making the tables on the way to it.
fn set(file: &mut Table, path: &str, node: Node) {
    let mut names = path.rsplit('.');
    let last = names.next().unwrap_or_default().to_owned();
    let inner = names.fold(Table::from([(last, node)]), |table, name| {
        let at = table.values().next().map(|node| node.at.clone());
        let wrapped = at.map(|at| Node { data: Data::Table(table), name_at: at.clone(), at });
        wrapped.map(|node| Table::from([(name.to_owned(), node)])).unwrap_or_default()
    });
    merge(file, inner, &mut |_, _, _| Clash::Replace);
}

#[cfg(test)]
mod tests {
    use super::super::flat::Flat;
    use super::*;

    #[test]
    fn a_variable_is_a_setting() {
        let env = Env::from([
            ("ONCEKEY__SERVER__TIMEOUTS__CONNECT", "\"1s\""),
            ("ONCEKEY__SERVER__MAX_CONNECTIONS", "7"),
            ("ONCEKEY_STORE", "not ours"),
            ("PATH", "/bin"),
        ]);
        let mut file = Table::new();
        assert_eq!(env.apply(&mut file), []);
        let flat = Flat::new(&ROOT, &[&file]);
        assert_eq!(flat.time("server.timeouts.connect").as_secs(), 1);
        assert_eq!(flat.count::<usize>("server.max_connections"), 7);
        let origin = flat.leaf("server.max_connections").origin.to_string();
        assert_eq!(origin, "ONCEKEY__SERVER__MAX_CONNECTIONS");
    }

    #[test]
    fn what_is_wrong_with_a_variable_is_said_by_its_name() {
        for (name, value, said) in [
            ("ONCEKEY__SERVR__LISTEN", "1", "did you mean `ONCEKEY__SERVER__LISTEN`"),
            ("ONCEKEY__SERVER__LISTEN", "0.0.0.0:1", "a string has quotes"),
            ("ONCEKEY__", "1", "ONCEKEY__ is not the name"),
        ] {
            let problems = Env::from([(name, value)]).apply(&mut Table::new());
            assert_eq!(problems.len(), 1);
            assert!(problems[0].to_string().contains(said), "{}", problems[0]);
        }
    }
}
