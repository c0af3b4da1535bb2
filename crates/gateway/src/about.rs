//! What the program says about itself: its version, completions for shells, a page for `man`.

use std::io;

use clap::CommandFactory as _;
use clap_complete::Shell;
use serde_json::json;

use crate::args::Cli;
use crate::exit::{self, Exit};

/// The stores that this program was built with.
const STORES: &[(&str, bool)] = &[
    ("dynamodb", cfg!(feature = "dynamodb")),
    ("memory", true),
    ("mysql", cfg!(feature = "mysql")),
    ("postgres", cfg!(feature = "postgres")),
    ("redis", cfg!(feature = "redis")),
    ("sqlite", cfg!(feature = "sqlite")),
];

pub(crate) fn version(json: bool) -> Result<(), Exit> {
    let version = env!("CARGO_PKG_VERSION");
    let stores = STORES.iter().filter(|(_, built)| *built).map(|(name, _)| *name);
    let stores: Vec<&str> = stores.collect();
    crate::print(&if json {
        format!("{:#}\n", json!({ "version": version, "stores": stores }))
    } else {
        format!("oncekey {version}\nstores: {}\n", stores.join(" "))
    })
}

pub(crate) fn completions(shell: Shell) -> Result<(), Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "oncekey", &mut script);
    print(&script)
}

/// The page of the program and, after it, one of each command.
pub(crate) fn man() -> Result<(), Exit> {
    let mut pages = Vec::new();
    let mut command = Cli::command();
    command.build();
    render(&command, &mut pages)
        .map_err(|error| Exit::chain(exit::FAILURE, "cannot write the page", Some(&error)))?;
    print(&pages)
}

fn render(command: &clap::Command, pages: &mut Vec<u8>) -> io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(pages)?;
    let own = command.get_subcommands().filter(|command| command.get_name() != "help");
    own.filter(|command| !command.is_hide_set()).try_for_each(|command| render(command, pages))
}

fn print(bytes: &[u8]) -> Result<(), Exit> {
    crate::print(&String::from_utf8_lossy(bytes))
}
