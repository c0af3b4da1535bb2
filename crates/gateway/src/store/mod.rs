//! `oncekey store`: looks after stores, without a gateway.

mod adopt;
mod bar;
mod check;
mod copy;
mod migrate;

use crate::args::StoreCommand;
use crate::exit::Exit;

/// Runs a command to its end.
pub(crate) async fn run(command: StoreCommand) -> Result<(), Exit> {
    match command {
        StoreCommand::Copy(args) => copy::run(args).await,
        StoreCommand::Check { url, json } => check::run(&url, json).await,
        StoreCommand::Migrate { url, print } => migrate::run(&url, print).await,
        StoreCommand::Adopt { url, confirm } => adopt::run(&url, confirm).await,
    }
}
