//! Commands that ask a running gateway. They speak its admin API and nothing else, so whatever they
//! can do, a script can do with curl.

pub(crate) mod args;
mod client;
mod control;
mod health;
mod keys;
mod observed;
mod status;
mod table;
#[cfg(test)]
#[cfg(feature = "sqlite")]
mod tests;
mod text;

use self::args::RemoteCommand;
use self::client::Client;
use crate::exit::{self, Exit};

/// Runs a command to its end.
pub(crate) fn run(command: RemoteCommand) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Exit::chain(exit::FAILURE, "cannot start the threads of this program", Some(&error))
    })?;
    runtime.block_on(answer(command))
}

async fn answer(command: RemoteCommand) -> Result<(), Exit> {
    match command {
        RemoteCommand::Status(args) => status::run(&args).await,
        RemoteCommand::Observed(args) => crate::print(&observed::ask(&args).await?),
        RemoteCommand::Health(args) => crate::print(&health::ask(&args).await?),
        RemoteCommand::Reload(args) => crate::print(&control::reload(&args).await?),
        RemoteCommand::Drain(args) => crate::print(&control::drain(&args).await?),
        RemoteCommand::Keys { command } => crate::print(&keys::run(command).await?),
    }
}

/// A document as JSON, for scripts, or in words, for people.
fn shown(json: bool, document: &serde_json::Value, words: impl FnOnce() -> String) -> String {
    if json { format!("{document:#}\n") } else { words() }
}
