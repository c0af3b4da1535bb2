//! The command line of everything that asks a running gateway.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum RemoteCommand {
    /// Show a running gateway on one screen
    Status(StatusArgs),
    /// Show what observe mode has seen, on all gateways of the store
    Observed(ObservedArgs),
    /// Ask whether a gateway lives or is ready: for probes of containers
    Health(HealthArgs),
    /// Have a gateway read its configuration again
    Reload(ReloadArgs),
    /// Have a gateway finish what is running, and end
    Drain(DrainArgs),
    /// Look at records, and say what became of them
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
}

/// Which gateway.
#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    /// The admin listener of the gateway
    #[arg(
        long,
        value_name = "URL",
        env = "ONCEKEY_ADMIN",
        default_value = "http://127.0.0.1:8788"
    )]
    pub(crate) admin: String,
    /// A file with the token of the admin listener; or give it in ONCEKEY_ADMIN_TOKEN
    #[arg(long, value_name = "FILE", env = "ONCEKEY_ADMIN_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Show it again every two seconds
    #[arg(long)]
    pub(crate) watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ObservedArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Since so long ago: 90s, 5m, 12h, 7d
    #[arg(long, value_name = "SPAN", default_value = "24h")]
    pub(crate) last: String,
    /// Only this route, by its name
    #[arg(long)]
    pub(crate) route: Option<String>,
    /// One line for each caller instead of each route
    #[arg(long)]
    pub(crate) callers: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Only whether the process lives
    #[arg(long, conflicts_with = "ready")]
    pub(crate) live: bool,
    /// Whether it should get requests; this is what is asked if nothing is said
    #[arg(long)]
    pub(crate) ready: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Say what would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List records, newest first
    List(ListArgs),
    /// Show one record
    Show(ShowArgs),
    /// Say what became of work of which nobody knew
    #[command(after_help = RESOLVE_HELP)]
    Resolve(ResolveArgs),
    /// Free a key whose work did not happen: the next request with it runs
    Release(DangerArgs),
    /// End the retention of a finished record now
    Expire(DangerArgs),
    /// Blank key, scope and answer; that the work was done stays
    Erase(EraseArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Only this state: running, done, unknown or parked
    #[arg(long)]
    pub(crate) state: Option<String>,
    /// Only this route, by its name
    #[arg(long)]
    pub(crate) route: Option<String>,
    /// Only this scope
    #[arg(long)]
    pub(crate) scope: Option<String>,
    /// Only this key, as the client sent it
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Only ids that begin with these digits, 8 at least: what log lines show
    #[arg(long, value_name = "DIGITS")]
    pub(crate) id: Option<String>,
    /// Only what was created so long ago: 90s, 5m, 12h, 7d
    #[arg(long, value_name = "SPAN")]
    pub(crate) older_than: Option<String>,
    /// How many at most, 1 to 1000
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: u64,
    /// Go on where the last list ended
    #[arg(long)]
    pub(crate) cursor: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The key id, or its first 8 digits or more, as log lines show them
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) target: Target,
    /// With key, scope and answer. The audit notes it
    #[arg(long)]
    pub(crate) payload: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ResolveArgs {
    /// The key id, or its first 8 digits or more, as log lines show them
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) target: Target,
    /// What became of the work
    #[arg(long, value_enum)]
    pub(crate) outcome: ResolvedAs,
    /// How that is known, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// The status that clients get from now on
    #[arg(long)]
    pub(crate) status: Option<u16>,
    /// A header line that they get, such as "content-type: application/json"; may be repeated
    #[arg(long, value_name = "LINE")]
    pub(crate) header: Vec<String>,
    /// A file with the body that they get
    #[arg(long, value_name = "FILE")]
    pub(crate) body: Option<PathBuf>,
    /// The first 8 digits of the id: needed for not-executed
    #[arg(long, value_name = "DIGITS")]
    pub(crate) confirm: Option<String>,
}

/// What became of work of which nobody knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResolvedAs {
    /// It happened
    Succeeded,
    /// It failed for good
    Failed,
    /// It did not happen, and will not
    NotExecuted,
}

#[derive(Debug, Args)]
pub(crate) struct DangerArgs {
    /// The key id, or its first 8 digits or more, as log lines show them
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// The first 8 digits of the id. Without it the record is shown, and nothing is done
    #[arg(long, value_name = "DIGITS")]
    pub(crate) confirm: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct EraseArgs {
    /// The key id, or its first 8 digits or more, as log lines show them
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

const RESOLVE_HELP: &str = "\
Examples:
  oncekey keys resolve $ID --outcome succeeded --status 201 --body charge.json \\
      --header 'content-type: application/json' --reason 'in the ledger, ticket 4711'
  oncekey keys resolve $ID --outcome not-executed --reason 'not in the ledger' --confirm 1f2e3d4c";
