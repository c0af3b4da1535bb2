//! The `oncekey` program. The gateway itself is not built yet, and the program says so.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

/// `EX_USAGE` of sysexits.h: the command line is wrong, and running it again will not help.
const EXIT_USAGE: u8 = 64;

const NAME_AND_VERSION: &str = concat!("oncekey ", env!("CARGO_PKG_VERSION"));

const STATUS: &str = "The gateway is not built yet: this program only tells its version. \
                      The library works; see README.md.";

const USAGE: &str = "\
Usage: oncekey [OPTION]

Options:
  -h, --help     Print this text
  -V, --version  Print name and version";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (printed, code) = match answer(&arguments) {
        Ok(text) => (writeln!(io::stdout(), "{text}"), ExitCode::SUCCESS),
        Err(text) => (writeln!(io::stderr(), "{text}"), ExitCode::from(EXIT_USAGE)),
    };
    // Nobody has read the answer: a script that relies on it must notice.
    if printed.is_err() { ExitCode::FAILURE } else { code }
}

/// What to print, or why the command line makes no sense.
fn answer(arguments: &[OsString]) -> Result<String, String> {
    let known = |argument: &OsString| match argument.to_str() {
        Some("-h" | "--help") => Some(format!("{NAME_AND_VERSION}\n{STATUS}\n\n{USAGE}")),
        Some("-V" | "--version") => Some(NAME_AND_VERSION.to_owned()),
        Some(_) | None => None,
    };
    if let Some(unknown) = arguments.iter().find(|argument| known(argument).is_none()) {
        return Err(format!("error: unknown argument {unknown:?}\n{STATUS}\n\n{USAGE}"));
    }
    let answer = arguments.first().and_then(known);
    Ok(answer.unwrap_or_else(|| format!("{NAME_AND_VERSION}\n{STATUS}")))
}
