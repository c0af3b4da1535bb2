//! The `oncekey` program: a gateway in front of any HTTP API, and what it takes to look after one.

mod about;
mod admin;
mod allocations;
mod args;
mod completer;
mod config;
mod dev;
mod exit;
mod keeping;
mod lettering;
mod notify;
mod observe;
mod overheard;
mod plan;
mod probe;
mod proxy;
mod rehearsal;
mod remote;
mod route;
mod run;
mod serve;
mod shelf;
mod stop;
mod store;
mod telemetry;
mod together;
mod token;
mod upstream;
mod vigil;
mod watch;
mod well_known;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use self::args::{Cli, Command};
use self::exit::Exit;

const START: &str = "\
Start here:
  oncekey dev --demo              a toy payment API, to see what it does
  oncekey dev --to :3000          watch an API of yours; nothing is changed
  oncekey run --to :3000          protect it
  oncekey run -c oncekey.toml     protect it as a configuration says";

/// How long the end waits for what nobody waits for any more.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let Cli { command } = match args::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit.end(),
    };
    let ended = match command {
        None => print(&format!("oncekey {}\n\n{START}\n", env!("CARGO_PKG_VERSION"))),
        Some(Command::Run(args)) => on_runtime(run::run(args)),
        Some(Command::Dev(args)) => on_runtime(dev::run(args)),
        Some(Command::Validate(args)) => config::validate(&args),
        Some(Command::Config { command }) => config::run_config(&command),
        Some(Command::Store { command }) => on_runtime(store::run(command)),
        Some(Command::Remote(command)) => remote::run(command),
        Some(Command::Completions { shell }) => about::completions(shell),
        Some(Command::Man) => about::man(),
        Some(Command::Version { json }) => about::version(json),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.end(),
    }
}

/// Runs a command that waits for others.
fn on_runtime(command: impl Future<Output = Result<(), Exit>>) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Exit::chain(exit::FAILURE, "cannot start the threads of this program", Some(&error))
    })?;
    let ended = runtime.block_on(command);
    // Somebody may be stuck in a file system that does not answer. Whatever had to be finished is.
    runtime.shutdown_timeout(LEFT_BEHIND);
    ended
}

/// Prints what was asked for. A script that relies on it must notice if nobody could read it.
fn print(text: &str) -> Result<(), Exit> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.map_err(|_| Exit::silent(exit::FAILURE))
}
