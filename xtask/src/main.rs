//! Development commands of this workspace: `cargo xtask test`, `servers`, `bench`.
//!
//! The programs that the tests need (PostgreSQL, MariaDB, Redis, a server that speaks
//! DynamoDB) are found or installed, started on free ports in one temporary folder, and
//! stopped again, whatever happens. Nothing in here ends up in the published crates.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this program talks to the person at the terminal"
)]

mod bench;
mod check;
mod clock;
mod folder;
mod libtest;
mod process;
mod programs;
mod report;
mod screen;
mod sdk;
mod servers;
mod steps;
mod stop;
mod suite;
mod tools;
mod version;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};

use crate::stop::Interrupted;

/// What the shell convention calls "ended by Ctrl-C".
const EXIT_INTERRUPTED: u8 = 130;
/// `EX_USAGE` of sysexits.h, which the gateway uses for bad input too.
const EXIT_USAGE: u8 = 64;

/// Development commands of this workspace.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run every check and every test, against real servers.
    ///
    /// Missing servers and tools are installed first (Debian or Ubuntu, as root or with
    /// passwordless sudo). To use a server of your own, set its variable: ONCEKEY_TEST_POSTGRES,
    /// ONCEKEY_TEST_MYSQL, ONCEKEY_TEST_REDIS or ONCEKEY_TEST_DYNAMODB. Tools that are built from
    /// source are kept in ONCEKEY_TOOLS, by default ~/.cache/oncekey-tools. One test needs the
    /// Python package stripe, which pip installs below target/; ONCEKEY_TEST_STRIPE_PYTHON names a
    /// Python that has it, and `none` leaves that test out.
    Test(TestOptions),
    /// The same as `test`; the name that the build server uses.
    Ci(TestOptions),
    /// Start the servers, print their addresses for your shell, and wait for Ctrl-C.
    Servers,
    /// Run a benchmark by name, in release mode.
    Bench {
        /// Which one; leave it out to see what exists.
        what: Option<String>,
        /// Arguments for the benchmark.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

#[derive(Args, Clone, Debug)]
struct TestOptions {
    /// Skip the servers, the tests that need them, and the checks of licences and documentation.
    #[arg(long)]
    quick: bool,
    /// Keep the logs of servers and steps, and say where they are.
    #[arg(long)]
    keep_logs: bool,
    /// Show the output of passing steps too.
    #[arg(short, long)]
    verbose: bool,
    /// Run only the tests whose name contains one of these, and no other checks.
    filter: Vec<String>,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let done = match cli.task {
        Task::Test(options) | Task::Ci(options) => check::run(&options),
        Task::Servers => servers::serve(),
        Task::Bench { what, arguments } => bench::run(what.as_deref(), &arguments),
    };
    done.unwrap_or_else(|error| {
        if error.is::<Interrupted>() {
            eprintln!("interrupted; everything that was started is stopped");
            return ExitCode::from(EXIT_INTERRUPTED);
        }
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The root of the repository, so that every command works from any folder below it.
fn root() -> PathBuf {
    // Cargo sets the variable when it runs us; the constant serves a binary that is run by hand.
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), PathBuf::from)
}

/// Prints what clap has to say; only a request for help counts as success.
fn usage(error: &clap::Error) -> ExitCode {
    // A closed terminal is no reason to fail differently.
    let _ = error.print();
    // The kinds are open-ended: all others are mistakes on the command line.
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_USAGE)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_misspelt_command_gets_a_suggestion() {
        let error = Cli::try_parse_from(["xtask", "tset"]).unwrap_err();
        assert!(error.to_string().contains("'test'"), "{error}");
    }

    #[test]
    fn arguments_of_a_benchmark_may_look_like_options() {
        let cli = Cli::try_parse_from(["xtask", "bench", "store", "--keys", "10"]).unwrap();
        let Task::Bench { what, arguments } = cli.task else { panic!("not a bench") };
        assert_eq!(what.as_deref(), Some("store"));
        assert_eq!(arguments, ["--keys", "10"]);
    }
}
