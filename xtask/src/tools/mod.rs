//! Finds the programs that the tests need, and has the missing ones installed.
//!
//! Servers come from the distribution's packages, Rust's own tools from rustup. Two programs
//! exist only as crates; they are built once and kept in a cache folder. A program that is
//! installed already is used as it is, provided that its version fits.

mod install;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process::{self, Event};
use crate::programs;
use crate::screen::Screen;
use crate::stop::Stop;
use crate::version::Version;

/// How often a waiting run looks whether the other one is done.
const LOCK_POLL: Duration = Duration::from_millis(200);

/// A program, or a family of programs that is installed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    Setpriv,
    Postgres,
    PgBouncer,
    MariaDb,
    Redis,
    Dynoxide,
    Nats,
    RabbitMq,
    CargoDeny,
    Curl,
    Nginx,
    Wrk,
    Python,
    /// Python with what makes environments for packages.
    Venv,
    Node,
    Rustfmt,
    Clippy,
}

/// Where a missing tool comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// A package of Debian and Ubuntu.
    Package(&'static str),
    /// A crate, its version, and further arguments of `cargo install`.
    Crate(&'static str, &'static str, &'static [&'static str]),
    /// A component of the Rust toolchain.
    Component(&'static str),
}

/// The tools of this run, by the path of their main program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools(BTreeMap<Tool, PathBuf>);

impl Tools {
    /// Finds all `wanted` tools and installs those that are missing.
    pub(crate) fn prepare(wanted: &[Tool], screen: Screen, stop: &Stop) -> Result<Self> {
        let cache = cache()?;
        let found = Self::find(wanted, &cache, stop)?;
        if found.0.len() == wanted.len() {
            return Ok(found);
        }
        fs::create_dir_all(&cache)
            .with_context(|| format!("cannot create {}; set ONCEKEY_TOOLS", cache.display()))?;
        // Only one run installs at a time. The others wait here, and then find everything done.
        let lock = File::create(cache.join("lock")).context("cannot create the lock file")?;
        wait_for(&lock, screen, stop)?;
        let found = Self::find(wanted, &cache, stop)?;
        let missing = found.missing(wanted);
        install::all(&missing, &cache, screen, stop)?;
        let found = Self::find(wanted, &cache, stop)?;
        let missing = found.missing(wanted);
        if !missing.is_empty() {
            bail!("these are installed, but too old or not in a usual place:{}", advice(&missing));
        }
        Ok(found)
    }

    /// Adds tools that were prepared apart.
    pub(crate) fn add(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// The main program of a tool that was asked for.
    pub(crate) fn path(&self, tool: Tool) -> Result<&Path> {
        let path = self.0.get(&tool).map(PathBuf::as_path);
        path.with_context(|| format!("{} was not prepared", tool.label()))
    }

    fn find(wanted: &[Tool], cache: &Path, stop: &Stop) -> Result<Self> {
        let mut found = BTreeMap::new();
        for tool in wanted {
            stop.check()?;
            let candidates = tool.candidates(cache);
            if let Some(path) = candidates.into_iter().find(|path| tool.fits(path, stop)) {
                found.insert(*tool, path);
            }
        }
        Ok(Self(found))
    }

    fn missing(&self, wanted: &[Tool]) -> Vec<Tool> {
        wanted.iter().copied().filter(|tool| !self.0.contains_key(tool)).collect()
    }
}

impl Tool {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Setpriv => "setpriv",
            Self::Postgres => "PostgreSQL",
            Self::PgBouncer => "pgbouncer",
            Self::MariaDb => "MariaDB",
            Self::Redis => "Redis",
            Self::Dynoxide => "dynoxide",
            Self::Nats => "NATS",
            Self::RabbitMq => "RabbitMQ",
            Self::CargoDeny => "cargo-deny",
            Self::Curl => "curl",
            Self::Nginx => "nginx",
            Self::Wrk => "wrk",
            Self::Python => "Python",
            Self::Venv => "Python's venv",
            Self::Node => "Node.js",
            Self::Rustfmt => "rustfmt",
            Self::Clippy => "clippy",
        }
    }

    /// The main program first; the tool counts as present only if the others are there too.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Setpriv => &["setpriv"],
            Self::Postgres => &["postgres", "initdb", "pg_isready"],
            Self::PgBouncer => &["pgbouncer"],
            Self::MariaDb => &["mariadbd", "mariadb-install-db", "mariadb-admin"],
            Self::Redis => &["redis-server", "redis-cli"],
            Self::Dynoxide => &["dynoxide"],
            Self::Nats => &["nats-server"],
            Self::RabbitMq => &["rabbitmq-server", "epmd"],
            Self::CargoDeny => &["cargo-deny"],
            Self::Curl => &["curl"],
            Self::Nginx => &["nginx"],
            Self::Wrk => &["wrk"],
            Self::Python | Self::Venv => &["python3"],
            Self::Node => &["node"],
            Self::Rustfmt => &["cargo-fmt"],
            Self::Clippy => &["cargo-clippy"],
        }
    }

    fn source(self) -> Source {
        match self {
            Self::Setpriv => Source::Package("util-linux"),
            Self::Postgres => Source::Package("postgresql"),
            Self::PgBouncer => Source::Package("pgbouncer"),
            Self::MariaDb => Source::Package("mariadb-server"),
            Self::Redis => Source::Package("redis-server"),
            // Only the server: its imports and its interface for agents need many more crates.
            Self::Dynoxide => Source::Crate(
                "dynoxide-rs",
                "3.2.0",
                &["--no-default-features", "--features", "native-sqlite,http-server,cli"],
            ),
            Self::Nats => Source::Package("nats-server"),
            Self::RabbitMq => Source::Package("rabbitmq-server"),
            Self::CargoDeny => Source::Crate("cargo-deny", "0.20.2", &[]),
            Self::Curl => Source::Package("curl"),
            Self::Nginx => Source::Package("nginx"),
            Self::Wrk => Source::Package("wrk"),
            Self::Python => Source::Package("python3"),
            Self::Venv => Source::Package("python3-venv"),
            Self::Node => Source::Package("nodejs"),
            Self::Rustfmt => Source::Component("rustfmt"),
            Self::Clippy => Source::Component("clippy"),
        }
    }

    /// The oldest version that will do.
    fn minimum(self) -> Version {
        match self {
            // The first with `--pdeathsig`.
            Self::Setpriv => Version(2, 33, 0),
            // The oldest that its makers still look after.
            Self::Postgres => Version(14, 0, 0),
            // The first with `SKIP LOCKED`.
            Self::MariaDb => Version(10, 6, 0),
            // The oldest in a supported distribution. It cannot keep prepared statements apart.
            Self::PgBouncer => Version(1, 16, 0),
            // The first with `--cluster-port` and the oldest that the store works with.
            Self::Redis => Version(7, 0, 0),
            // The program counts its versions apart from its crate: this is crate 3.2.0.
            Self::Dynoxide => Version(1, 5, 0),
            // The first with JetStream's headers for repetitions; older ones are not looked after.
            Self::Nats => Version(2, 9, 0),
            // The oldest in a supported distribution.
            Self::RabbitMq => Version(3, 9, 0),
            Self::CargoDeny => Version(0, 20, 2),
            // The oldest in a supported distribution.
            Self::Curl => Version(7, 68, 0),
            // The first that lets a connection to the upstream live as long as it likes.
            Self::Nginx => Version(1, 15, 3),
            // The first whose scripts can wait between requests.
            Self::Wrk => Version(4, 0, 0),
            // The oldest in a supported distribution; upstreams in tests use nothing newer.
            Self::Python => Version(3, 8, 0),
            // Of the pip that it brings: any.
            Self::Venv => Version(0, 1, 0),
            Self::Node => Version(12, 0, 0),
            // These come with the compiler, whose version Cargo checks.
            Self::Rustfmt | Self::Clippy => Version(0, 1, 0),
        }
    }

    /// What makes the main program say its version.
    fn version_options(self) -> &'static [&'static str] {
        match self {
            Self::Nginx | Self::Wrk => &["-v"],
            // Debian leaves it out of Python itself.
            Self::Venv => &["-m", "ensurepip", "--version"],
            Self::Setpriv
            | Self::Postgres
            | Self::PgBouncer
            | Self::MariaDb
            | Self::Redis
            | Self::Dynoxide
            | Self::Nats
            | Self::RabbitMq
            | Self::CargoDeny
            | Self::Curl
            | Self::Python
            | Self::Node
            | Self::Rustfmt
            | Self::Clippy => &["--version"],
        }
    }

    /// The variable that makes the tool unnecessary.
    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Postgres => Some("ONCEKEY_TEST_POSTGRES=postgres://…"),
            Self::PgBouncer => Some("ONCEKEY_TEST_PGBOUNCER=postgres://…"),
            Self::MariaDb => Some("ONCEKEY_TEST_MYSQL=mysql://…"),
            Self::Redis => Some("ONCEKEY_TEST_REDIS=redis://…"),
            Self::Dynoxide => Some("ONCEKEY_TEST_DYNAMODB=http://…"),
            Self::Nats => Some("ONCEKEY_TEST_NATS=nats://…"),
            Self::RabbitMq => Some("ONCEKEY_TEST_RABBITMQ=amqp://…"),
            Self::Setpriv
            | Self::CargoDeny
            | Self::Curl
            | Self::Nginx
            | Self::Wrk
            | Self::Python
            | Self::Venv
            | Self::Node
            | Self::Rustfmt
            | Self::Clippy => None,
        }
    }

    /// Where the main program may be, best place first.
    fn candidates(self, cache: &Path) -> Vec<PathBuf> {
        let main = self.programs()[0];
        let mut paths = match self.source() {
            Source::Package(_) if self == Self::Postgres => {
                postgres_folders().into_iter().map(|folder| folder.join(main)).collect()
            }
            // What is in the path changes the user, and its output goes to the machine's log.
            Source::Package(_) if self == Self::RabbitMq => {
                vec![Path::new("/usr/lib/rabbitmq/bin").join(main)]
            }
            Source::Package(_) | Source::Component(_) => Vec::new(),
            Source::Crate(..) => vec![cache.join("bin").join(main)],
        };
        paths.extend(programs::find(main));
        paths
    }

    /// The version that the main program says.
    fn said(self, main: &Path, stop: &Stop) -> Option<Version> {
        let mut command = Command::new(main);
        command.args(self.version_options());
        // wrk says its version and ends as if it had failed.
        let said = process::run(command, stop, |_| {}).ok();
        let said = said.filter(|said| said.status.success() || self == Self::Wrk);
        said.and_then(|said| Version::find(&said.output))
    }

    fn fits(self, main: &Path, stop: &Stop) -> bool {
        let beside = |name: &str| main.with_file_name(name);
        let complete = self
            .programs()
            .iter()
            .all(|name| programs::is_program(&beside(name)) || programs::find(name).is_some());
        if !complete || !programs::is_program(main) {
            return false;
        }
        let found = if self == Self::RabbitMq {
            // It would start, and what could be asked instead starts services. Its folder says it.
            main.canonicalize().ok().and_then(|path| Version::find(path.to_str()?))
        } else {
            self.said(main, stop)
        };
        found.is_some_and(|version| match self.source() {
            Source::Package(_) | Source::Component(_) => version >= self.minimum(),
            Source::Crate(..) => version.replaces(self.minimum()),
        })
    }
}

/// A program that comes with a tool's main program.
pub(crate) fn companion(main: &Path, name: &str) -> PathBuf {
    let beside = main.with_file_name(name);
    if programs::is_program(&beside) {
        return beside;
    }
    programs::find(name).unwrap_or(beside)
}

/// One line per tool: what to install by hand, or which variable to set instead.
fn advice(missing: &[Tool]) -> String {
    let mut text = String::new();
    for tool in missing {
        let how = match tool.source() {
            Source::Package(name) => format!("package {name}"),
            Source::Crate(name, version, arguments) => {
                let command = ["cargo", "install", name, "--version", version, "--locked"];
                [&command[..], arguments].concat().join(" ")
            }
            Source::Component(name) => format!("rustup component add {name}"),
        };
        text.push_str(&format!("\n  {} {} or newer: {how}", tool.label(), tool.minimum()));
        if let Some(variable) = tool.variable() {
            text.push_str(&format!(", or set {variable}"));
        }
    }
    text
}

/// Takes the lock, or waits for the run that holds it. Closing the file gives it back.
fn wait_for(lock: &File, screen: Screen, stop: &Stop) -> Result<()> {
    let mut task = None;
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => {
                let task =
                    task.get_or_insert_with(|| screen.begin("wait for another installation"));
                task.show(Event::Tick);
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).context("cannot lock the tools folder");
            }
        }
        stop.check()?;
        thread::sleep(LOCK_POLL);
    }
    if let Some(task) = task {
        task.end("done");
    }
    Ok(())
}

/// Where programs that were built from crates are kept.
fn cache() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("ONCEKEY_TOOLS")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("oncekey-tools")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache/oncekey-tools")))
        .context("there is no home folder; set ONCEKEY_TOOLS to a folder for built programs")
}

/// The program folders of Debian's PostgreSQL packages, newest version first.
fn postgres_folders() -> Vec<PathBuf> {
    let mut versions: Vec<u32> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    let folder = |version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"));
    versions.into_iter().map(folder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_package_and_the_variable() {
        let text = advice(&[Tool::MariaDb, Tool::CargoDeny]);
        assert!(text.contains("MariaDB 10.6.0 or newer: package mariadb-server"), "{text}");
        assert!(text.contains("ONCEKEY_TEST_MYSQL="), "{text}");
        assert!(text.contains("cargo install cargo-deny --version 0.20.2 --locked"), "{text}");
    }

    #[test]
    fn a_shell_is_not_a_database() {
        assert!(!Tool::Redis.fits(Path::new("/bin/sh"), &Stop::default()));
    }
}
