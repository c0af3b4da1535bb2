//! `oncekey store`: looks after stores, without a gateway.

mod bar;
mod check;
mod copy;
mod migrate;

use crate::args::StoreCommand;
use crate::exit::{self, Exit};

/// Runs a command to its end.
pub(crate) fn run(command: StoreCommand) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Exit::chain(exit::FAILURE, "cannot start the threads of this program", Some(&error))
    })?;
    runtime.block_on(async {
        match command {
            StoreCommand::Copy(args) => copy::run(args).await,
            StoreCommand::Check { url, json } => check::run(&url, json).await,
            StoreCommand::Migrate { url, print } => migrate::run(&url, print).await,
        }
    })
}
