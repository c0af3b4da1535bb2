//! The configuration: a TOML file, environment variables and options, as typed data.
//!
//! ```text
//! files ─ node ─┐
//! env ──────────┼─ merged, expanded ─ check (table of settings) ─ flat (value + origin)
//! options ──────┘                                                  ├─ sections, routes (typed)
//!                                                                  └─ show, explain
//! ```
//!
//! Everything that is wrong is reported at once, with its place. A [`Config`] that exists is
//! consistent; it is never changed, only replaced as a whole.

mod change;
mod check;
mod command;
mod contradiction;
mod env;
mod expand;
mod explain;
mod file;
mod files;
mod flat;
mod form;
mod kind;
mod node;
mod preset;
mod problem;
#[cfg(test)]
mod reference;
mod rerun;
mod routes;
mod schema;
mod secret;
mod sections;
mod settings;
mod show;
mod similar;
mod source;
mod statuses;
mod units;
mod value;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use self::command::{refusal, run_config, validate};
pub(crate) use self::env::{Env, Options};
pub(crate) use self::problem::{ConfigProblem, Severity};
pub(crate) use self::secret::read_secret;
pub(crate) use self::sections::{
    CorsSection, Drain, ErrorFormat, Errors, HostHeader, Jwt, JwtKeys, Listen, LogFormat, LogKeys,
    ServerTls, StoreSection,
};

use self::expand::Around;
use self::flat::Flat;
use self::node::{Data, Node, Table, read_document};
use self::preset::preset;
use self::sections::{Admin, Reader, Server, Telemetry};
use self::source::{Source, SourceKind};
use crate::route::{RouteSpec, ScopePart};

/// Everything that can be configured.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) server: Server,
    pub(crate) admin: Admin,
    pub(crate) store: StoreSection,
    pub(crate) errors: Errors,
    pub(crate) cors: CorsSection,
    /// `status.path`
    pub(crate) status_path: Option<String>,
    /// `well_known.enabled`
    pub(crate) well_known: bool,
    pub(crate) telemetry: Telemetry,
    pub(crate) jwt: Option<Jwt>,
    /// `defaults.scope`: whose keys status URLs are about.
    pub(crate) scope: Vec<ScopePart>,
    /// For [`RouteTable::new`](crate::route::RouteTable::new), in the order of the file.
    pub(crate) routes: Vec<RouteSpec>,
    /// What it was read from; nothing if there is no file.
    pub(crate) files: Vec<PathBuf>,
    /// What can be lived with, and should not be.
    pub(crate) warnings: Vec<ConfigProblem>,
    /// Every value and where it comes from: those of the file, and those of each route.
    values: Values,
}

/// Every value and where it comes from.
#[derive(Clone, Debug)]
pub(super) struct Values {
    pub(super) globals: Flat,
    /// In the order of [`Config::routes`].
    pub(super) routes: Vec<Flat>,
}

/// What was read, and what was wrong with it already.
struct Written {
    table: Table,
    problems: Vec<ConfigProblem>,
    /// Where it stands, if it is a file.
    file: Option<PathBuf>,
    /// Where the paths in it begin.
    folder: PathBuf,
    name: String,
}

/// What `run --to` does without a file: everything that is not safe to repeat may have a key.
const FOR_UPSTREAM: &str = "\
version = 1
[defaults]
mode = \"optional\"
[[route]]
name = \"all\"
match = \"/{rest...}\"
";

impl Config {
    /// Reads a file and what it includes.
    ///
    /// # Errors
    /// Everything that is wrong. Nothing has been changed or started.
    pub(crate) fn load(path: &Path, env: &Env) -> Result<Self, Vec<ConfigProblem>> {
        Self::load_with(path, env, &Options::default())
    }

    /// Reads a file, and lets options go before it.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn load_with(
        path: &Path,
        env: &Env,
        options: &Options,
    ) -> Result<Self, Vec<ConfigProblem>> {
        let (table, problems) = file::read(path).map_err(|problem| vec![problem])?;
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        let name = path.display().to_string();
        let file = Some(path.to_owned());
        Self::assemble(Written { table, problems, file, folder, name }, env, options)
    }

    /// What a file names, right or wrong: whoever waits until it is put right looks at these.
    pub(crate) fn files_of(path: &Path, env: &Env, options: &Options) -> Vec<PathBuf> {
        let Ok((mut table, _)) = file::read(path) else { return vec![path.to_owned()] };
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        let mut problems = env.apply(&mut table);
        options.apply(&mut table);
        Around { env, folder: &folder }.expand(&mut table, &mut problems);
        files::files(path, &folder, &table, &Values::new(&table).globals)
    }

    /// What `run --to` does without a file; `options` names the upstream.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn for_upstream(options: &Options, env: &Env) -> Result<Self, Vec<ConfigProblem>> {
        let source = Source::new("run --to", SourceKind::Preset, FOR_UPSTREAM);
        Self::assemble(Written::new(&source), env, options)
    }

    /// Reads a text, for tests.
    #[cfg(test)]
    pub(crate) fn from_text(name: &str, text: &str, env: &Env) -> Result<Self, Vec<ConfigProblem>> {
        let source = Source::new(name, SourceKind::File, text);
        Self::assemble(Written::new(&source), env, &Options::default())
    }

    fn assemble(
        written: Written,
        env: &Env,
        options: &Options,
    ) -> Result<Self, Vec<ConfigProblem>> {
        let Written { table: mut file, mut problems, file: path, folder, name } = written;
        let folder = folder.as_path();
        // After a mistake of grammar the rest may not mean what it says.
        if problems.iter().any(|problem| problem.code == "syntax") {
            return Err(sorted(problems));
        }
        problems.extend(env.apply(&mut file));
        options.apply(&mut file);
        Around { env, folder }.expand(&mut file, &mut problems);
        problems.extend(check::check(&file, &name));
        let values = Values::new(&file);
        let reader = Reader { flat: &values.globals, folder };
        let mut config = Self {
            server: reader.server(),
            admin: reader.admin(),
            store: reader.store(),
            errors: reader.errors(),
            cors: reader.cors(),
            status_path: reader.owned("status.path"),
            well_known: values.globals.flag("well_known.enabled"),
            telemetry: reader.telemetry(),
            jwt: reader.jwt(),
            scope: routes::parsed(&values.globals, "defaults.scope"),
            routes: Vec::new(),
            files: Vec::new(),
            warnings: Vec::new(),
            values: Values { globals: Flat::default(), routes: Vec::new() },
        };
        if let Some(path) = path {
            config.files = files::files(&path, folder, &file, &values.globals);
        }
        for flat in &values.routes {
            config.routes.extend(routes::read_route(flat, &values.globals));
        }
        problems.extend(contradiction::find(&config, &values));
        problems.extend(secret::check_files(&values.globals, folder));
        let (errors, warnings): (Vec<_>, Vec<_>) =
            problems.into_iter().partition(|problem| problem.severity == Severity::Error);
        if !errors.is_empty() {
            return Err(sorted(errors));
        }
        Ok(Self { warnings: sorted(warnings), values, ..config })
    }

    pub(super) const fn values(&self) -> &Values {
        &self.values
    }
}

impl Written {
    fn new(source: &Arc<Source>) -> Self {
        let (table, problems) = read_document(source);
        Self { table, problems, file: None, folder: PathBuf::new(), name: source.name.clone() }
    }
}

impl Values {
    /// A route's own settings go first, then its preset, then the defaults, then their preset.
    fn new(file: &Table) -> Self {
        let nothing = Table::new();
        let defaults = file.get("defaults").and_then(Node::as_table).unwrap_or(&nothing);
        let base = preset(preset_of(defaults));
        let routes = match file.get("route").map(|node| &node.data) {
            Some(Data::List(nodes)) => nodes.iter().filter_map(Node::as_table).collect(),
            _ => Vec::new(),
        };
        let route = |own: &Table| {
            let known = preset(preset_of(own));
            Flat::new(&settings::ROUTE, &[own, &known, defaults, &base])
        };
        let routes = routes.into_iter().map(route).collect();
        Self { globals: Flat::new(&settings::ROOT, &[file]), routes }
    }
}

fn preset_of(table: &Table) -> Option<&str> {
    let Data::Text(text) = &table.get("preset")?.data else { return None };
    Some(&text.value)
}

/// In the order of reading. What was made of nothing is not judged a second time.
fn sorted(mut problems: Vec<ConfigProblem>) -> Vec<ConfigProblem> {
    let nothing = problems.iter().filter(|problem| problem.code == "unresolved");
    let nothing: Vec<_> = nothing.map(|problem| problem.excerpt.clone()).collect();
    problems.retain(|problem| problem.code == "unresolved" || !nothing.contains(&problem.excerpt));
    problems.sort_by_key(ConfigProblem::order);
    problems.dedup();
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::RouteMode;

    const HEAD: &str = "version = 1\n[server]\nupstream = 'http://127.0.0.1:3000'\n";

    fn load(text: &str) -> Config {
        Config::from_text("a.toml", &format!("{HEAD}{text}"), &Env::default()).unwrap()
    }

    #[test]
    fn an_upstream_is_enough() {
        let options = Options { upstream: Some(":3000".to_owned()), ..Options::default() };
        let config = Config::for_upstream(&options, &Env::default()).unwrap();
        assert_eq!(config.server.upstream, ":3000");
        assert_eq!(config.routes.len(), 1);
        assert_eq!(config.routes[0].mode, RouteMode::Optional);
        let methods = config.routes[0].methods.to_string();
        assert_eq!(methods, "POST,PATCH");
        let options = Options { mode: Some("required".to_owned()), ..options };
        let config = Config::for_upstream(&options, &Env::default()).unwrap();
        assert_eq!(config.routes[0].mode, RouteMode::Required);
        let options = Options { upstream: None, ..options };
        assert!(Config::for_upstream(&options, &Env::default()).is_err());
    }

    #[test]
    fn a_route_inherits_in_order() {
        let config = load(
            "[defaults]\nttl = '2h'\nmode = 'optional'\npreset = 'square'\n\
             [[route]]\nmatch = 'POST /a'\n\
             [[route]]\nmatch = 'POST /b'\npreset = 'oasis'\nmode = 'required'\n",
        );
        let [a, b] = &config.routes[..] else { panic!("two routes") };
        assert_eq!(a.policy.retention.as_secs(), 7_200, "the defaults go before their preset");
        assert_eq!(a.key_headers(), [] as [http::HeaderName; 0]);
        assert_eq!(
            b.policy.retention.as_secs(),
            300,
            "the route's preset goes before the defaults"
        );
        assert_eq!(b.mode, RouteMode::Required);
        let origin = |path: &str| config.values.routes[1].leaf(path).origin.to_string();
        assert_eq!(origin("ttl"), "preset oasis");
        assert_eq!(origin("mode"), "a.toml:13");
        assert_eq!(origin("class"), "default");
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let config = load("[[route]]\nmatch = '/a'\n");
        let policy = oncekey::core::Policy::default();
        assert_eq!(*config.routes[0].policy, policy);
    }

    #[test]
    fn the_environment_goes_before_the_file_and_options_before_both() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, format!("{HEAD}listen = '127.0.0.1:1'\n[[route]]\nmatch='/a'\n"))
            .unwrap();
        let env = Env::from([("ONCEKEY__SERVER__LISTEN", "'127.0.0.1:2'")]);
        let port = |config: &Config| config.server.listen.address().unwrap().port();
        assert_eq!(port(&Config::load(&path, &Env::default()).unwrap()), 1);
        assert_eq!(port(&Config::load(&path, &env).unwrap()), 2);
        let options = Options { listen: Some("127.0.0.1:3".to_owned()), ..Options::default() };
        assert_eq!(port(&Config::load_with(&path, &env, &options).unwrap()), 3);
    }

    /// A file that an editor has written half of is refused or read, and never breaks the program.
    #[test]
    fn a_file_may_be_cut_anywhere() {
        let whole = include_str!("../../tests/config/good/everything.toml");
        let env = Env::default();
        for end in (0..whole.len()).step_by(3) {
            if let Err(problems) = Config::from_text("a.toml", &whole[..end], &env) {
                assert!(!problems.is_empty(), "cut at {end}");
                assert!(problems.iter().all(|problem| !problem.to_string().is_empty()));
            }
        }
    }

    proptest::proptest! {
        /// Whatever is in a file, something can be said about it.
        #[test]
        fn a_file_may_hold_anything(at in 0_usize..2_000, text in "\\PC{0,12}|[\\[\\]{}=\"'.\n\r\t#,]{1,6}") {
            let mut whole = include_str!("../../tests/config/good/everything.toml").to_owned();
            whole.insert_str(at.min(whole.len()), &text);
            if let Err(problems) = Config::from_text("a.toml", &whole, &Env::default()) {
                proptest::prop_assert!(problems.iter().all(|problem| !problem.to_string().is_empty()));
            }
        }
    }

    /// I52: what came from elsewhere is not shown, whatever is wrong with it.
    #[test]
    fn a_secret_from_elsewhere_is_not_shown() {
        let env = Env::from([("PW", "hunter2")]);
        for url in ["mongo://app:${env:PW}@db", "${env:PW}"] {
            let text = format!("{HEAD}[store]\nurl = '{url}'\n");
            let problems = Config::from_text("a.toml", &text, &env).unwrap_err();
            let said: String = problems.iter().map(ToString::to_string).collect();
            assert!(!said.contains("hunter2"), "{said}");
        }
        let text = format!("{HEAD}[store]\nurl = 'postgres://app:${{env:PW}}@db/x'\n");
        let config = Config::from_text("a.toml", &text, &env).unwrap();
        assert!(config.store.url.expose().contains("hunter2"));
        assert!(!format!("{config:?}").contains("hunter2"));
        assert!(!show::text(&config).contains("hunter2"));
    }
}
