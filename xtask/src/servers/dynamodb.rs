//! DynamoDB's interface, spoken by dynoxide. Amazon's own local server cannot be had without a
//! download from outside the package registries.

use std::process::Command;

use anyhow::Result;
use rustix::process::Signal;

use super::Place;
use super::daemon::{Daemon, Launch, answers, tethered};
use crate::tools::Tool;

pub(crate) fn start(place: &Place) -> Result<(Daemon, String)> {
    let base = tethered(place, None, place.tools.path(Tool::Dynoxide)?)?;
    let launch = Launch {
        name: "dynamodb",
        ask: Signal::TERM,
        command: &|port| {
            // Without a path for its database it keeps everything in memory.
            let mut command = Command::new(base.get_program());
            command.args(base.get_args()).args(["serve", "--host", "127.0.0.1"]);
            command.args(["--port", &port.to_string()]);
            command
        },
        probe: &|port| answers(port, "GET / HTTP/1.0\r\n\r\n", "HTTP/1."),
    };
    let (daemon, port) = launch.start(place)?;
    Ok((daemon, format!("http://127.0.0.1:{port}")))
}
