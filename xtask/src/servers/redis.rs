//! Redis, as durable as it gets: every write reaches the disk before its answer.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::Place;
use super::daemon::{Daemon, Launch, answers, tethered};
use crate::tools::Tool;

pub(crate) fn start(place: &Place) -> Result<(Daemon, String)> {
    fs::create_dir(&place.folder).context("cannot create the data folder")?;
    let base = tethered(place, None, place.tools.path(Tool::Redis)?)?;
    let launch = Launch {
        name: "redis",
        ask: Signal::TERM,
        command: &|port| {
            let mut command = Command::new(base.get_program());
            command.args(base.get_args()).current_dir(&place.folder);
            command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
            command.args(["--appendonly", "yes", "--appendfsync", "always"]);
            command
        },
        probe: &|port| answers(port, "PING\r\n", "+PONG\r\n"),
    };
    let (daemon, port) = launch.start(place)?;
    Ok((daemon, format!("redis://127.0.0.1:{port}/")))
}
