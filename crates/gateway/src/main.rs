//! The `oncekey` program. It looks after stores; the gateway itself is not built yet, and the
//! program says so.

mod about;
#[allow(dead_code, unused_imports, reason = "`oncekey run` starts it, and is not built yet")]
mod admin;
mod args;
mod exit;
mod remote;
mod store;
#[allow(dead_code, reason = "`oncekey run` starts it, and is not built yet")]
mod telemetry;

use std::io::{self, Write};
use std::process::ExitCode;

use self::args::{Cli, Command};
use self::exit::Exit;

const STATUS: &str = "The gateway is not built yet: this program looks after stores, see \
                      `oncekey store --help`. The library works; see README.md.";

fn main() -> ExitCode {
    let Cli { command } = match args::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit.end(),
    };
    let ended = match command {
        None => print(&format!("oncekey {}\n{STATUS}\n", env!("CARGO_PKG_VERSION"))),
        Some(Command::Remote(command)) => remote::run(command),
        Some(Command::Store { command }) => store::run(command),
        Some(Command::Completions { shell }) => about::completions(shell),
        Some(Command::Man) => about::man(),
        Some(Command::Version { json }) => about::version(json),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.end(),
    }
}

/// Prints what was asked for. A script that relies on it must notice if nobody could read it.
fn print(text: &str) -> Result<(), Exit> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.map_err(|_| Exit::silent(exit::FAILURE))
}
