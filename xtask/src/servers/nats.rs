//! NATS with JetStream, which keeps its streams in the server's folder.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::Place;
use super::daemon::{Daemon, Launch, answers, tethered};
use crate::tools::Tool;

pub(crate) fn start(place: &Place) -> Result<(Daemon, String)> {
    fs::create_dir(&place.folder).context("cannot create the data folder")?;
    let base = tethered(place, None, place.tools.path(Tool::Nats)?)?;
    let launch = Launch {
        name: "nats",
        ask: Signal::TERM,
        command: &|port| {
            let mut command = Command::new(base.get_program());
            command.args(base.get_args()).current_dir(&place.folder);
            command.args(["--addr", "127.0.0.1", "--port", &port.to_string()]);
            command.arg("--jetstream").arg("--store_dir").arg(&place.folder);
            command
        },
        // It speaks first.
        probe: &|port| answers(port, "", "INFO "),
    };
    let (daemon, port) = launch.start(place)?;
    Ok((daemon, format!("nats://127.0.0.1:{port}")))
}
