//! The command line.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};

use crate::exit::{self, Exit};
use crate::remote::args::RemoteCommand;

/// Makes any HTTP API safe to retry.
#[derive(Debug, Parser)]
#[command(name = "oncekey", version, about, long_about = None)]
#[command(after_help = crate::START)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put the gateway in front of an API
    Run(RunArgs),
    /// Try the gateway on this machine, and watch what it does
    #[command(after_help = DEV_HELP)]
    Dev(DevArgs),
    /// Check a configuration, and say everything that is wrong with it
    Validate(ValidateArgs),
    /// Show and explain a configuration
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    #[command(flatten)]
    Remote(RemoteCommand),
    /// Look after stores: copy, check, migrate, adopt
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Print a script that completes commands in a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual, for `man -l -`
    Man,
    /// Print the version, and the stores that this program was built with
    Version {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["config", "to"]))]
pub(crate) struct RunArgs {
    /// The configuration; without it, --to is needed and everything else has its default
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The API to protect, such as http://127.0.0.1:3000 or unix:/run/app.sock
    #[arg(long, value_name = "URL")]
    pub(crate) to: Option<String>,
    /// Where clients connect [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Where operators connect [default: 127.0.0.1:8788]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<String>,
    /// Where keys and answers are kept [default: sqlite://oncekey.db]
    #[arg(long, value_name = "URL", env = "ONCEKEY_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// What routes do that do not say it themselves: off, observe, optional or required
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
    /// Reload when the configuration changes, or a file that it names
    #[arg(long, requires = "config")]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("behind").required(true).args(["to", "demo"]))]
pub(crate) struct DevArgs {
    /// The API to watch, such as :3000
    #[arg(long, value_name = "URL")]
    pub(crate) to: Option<String>,
    /// Bring a toy payment API along, and requests to try
    #[arg(long)]
    pub(crate) demo: bool,
    /// Where clients connect on this machine; 0 is any free port
    #[arg(long, value_name = "PORT", default_value_t = 8787)]
    pub(crate) port: u16,
    /// What the gateway does: off, observe, optional or required [default: observe with --to,
    /// optional with --demo]
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
}

const DEV_HELP: &str = "\
Examples:
  oncekey dev --demo
  oncekey dev --demo --mode observe
  oncekey dev --to :3000

Records lie in a temporary folder. Ctrl-C removes it.";

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// The file
    #[arg(short, long, value_name = "FILE", default_value = "oncekey.toml")]
    pub(crate) config: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// End with code 6 if there are warnings
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting, its value and where it comes from
    Show {
        /// The file
        #[arg(short, long, value_name = "FILE", default_value = "oncekey.toml")]
        config: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say which route a request takes, and why
    #[command(after_help = EXPLAIN_HELP)]
    Explain {
        /// A method and a path
        #[arg(value_name = "REQUEST")]
        request: String,
        /// The file
        #[arg(short, long, value_name = "FILE", default_value = "oncekey.toml")]
        config: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON Schema of the file, for editors
    Schema,
}

const EXPLAIN_HELP: &str = "\
Example:
  oncekey config explain \"POST /v1/charges/9/capture\"";

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy every record from one store to another
    #[command(after_help = COPY_HELP)]
    Copy(CopyArgs),
    /// Say how a store is set up, and what is wrong with it
    Check {
        /// The store, such as sqlite://oncekey.db or postgres://user@host/database
        #[arg(env = "ONCEKEY_STORE", hide_env_values = true)]
        url: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Bring the tables of a store up to date
    Migrate {
        /// The store, such as sqlite://oncekey.db or postgres://user@host/database
        #[arg(env = "ONCEKEY_STORE", hide_env_values = true)]
        url: String,
        /// Print what makes the tables, and change nothing
        #[arg(long)]
        print: bool,
    },
    /// Let a store that has lost something grant again
    #[command(after_help = ADOPT_HELP)]
    Adopt {
        /// The store, such as redis://host:6379/0
        #[arg(env = "ONCEKEY_STORE", hide_env_values = true)]
        url: String,
        /// Say that what was under way before the loss has ended, and that what was lost may run again
        #[arg(long)]
        confirm: bool,
    },
}

const ADOPT_HELP: &str = "\
A store that notices that it may have lost records grants no key until somebody has seen to it.
A gateway with `store.ring` does that by itself. Otherwise: wait for the longest lease, find out what was
under way, then run this, and start the gateways again.";

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// The store to copy from; it must be there
    #[arg(long, value_name = "URL", env = "ONCEKEY_COPY_FROM", hide_env_values = true)]
    pub(crate) from: String,
    /// The store to copy to; it is made if it is not there
    #[arg(long, value_name = "URL", env = "ONCEKEY_COPY_TO", hide_env_values = true)]
    pub(crate) to: String,
    /// Read every record back and compare it, instead of one in sixty-four
    #[arg(long)]
    pub(crate) verify: bool,
    /// The last copy before the switch: everything, and only if nobody uses the store that is
    /// copied from. Without it only what has ended is copied
    #[arg(long = "final")]
    pub(crate) is_final: bool,
    /// Keep the place in this file, and go on there if it exists
    #[arg(long, value_name = "FILE")]
    pub(crate) resume: Option<PathBuf>,
    /// How many records to copy at once
    #[arg(long, value_name = "RECORDS", default_value_t = 32,
          value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub(crate) at_once: u16,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const COPY_HELP: &str = "\
Examples:
  oncekey store copy --from sqlite://oncekey.db --to sqlite:///mnt/big/oncekey.db
  oncekey store copy --from sqlite://oncekey.db --to postgres://app@db/app --resume copy.json
  oncekey store copy --from sqlite://oncekey.db --to postgres://app@db/app --final --verify

A copy may be stopped, killed and run again: what the target holds and is newer stays. The
environment variables keep passwords off the command line, where everybody on the machine can
read them.";

/// Reads the command line. Help and version are ends, too.
pub(crate) fn parse() -> Result<Cli, Exit> {
    Cli::try_parse().map_err(|error| {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            // Nobody has read the answer: a script that relies on it must notice.
            return Exit::silent(if error.print().is_err() { exit::FAILURE } else { 0 });
        }
        Exit::verbatim(exit::USAGE, without_urls(error.render().to_string()))
    })
}

/// The text without the passwords of the command line, which clap repeats when it complains.
fn without_urls(mut text: String) -> String {
    for argument in std::env::args().filter(|argument| argument.contains('@')) {
        let url = argument.split_once('=').map_or(argument.as_str(), |(option, value)| {
            if option.starts_with('-') { value } else { argument.as_str() }
        });
        text = text.replace(url, &oncekey::store::shown(url));
    }
    text
}
