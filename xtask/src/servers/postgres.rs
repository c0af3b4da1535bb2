//! PostgreSQL. It refuses to run as root, so root runs it as Debian's user for it.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::Place;
use super::daemon::{Daemon, Launch, create_folder, tethered};
use crate::process;
use crate::tools::{Tool, companion};

pub(super) const USER: &str = "postgres";

/// Creates an empty cluster and starts it with the default durability.
///
/// `name` names its log file.
pub(crate) fn start(place: &Place, name: &str) -> Result<(Daemon, String)> {
    create_folder(place, USER)?;
    let server = place.tools.path(Tool::Postgres)?;
    let data = place.folder.join("data");

    let mut create = tethered(place, Some(USER), &companion(server, "initdb"))?;
    create.arg("-D").arg(&data).args(["-U", "oncekey", "--auth=trust", "--no-sync"]);
    create.args(["-E", "UTF8", "--locale=C"]).current_dir(&place.folder);
    process::output(create, &place.stop)?;

    let base = tethered(place, Some(USER), server).context("cannot build the command")?;
    let is_ready = companion(server, "pg_isready");
    let launch = Launch {
        name,
        // "Fast shutdown": it does not wait for clients to leave.
        ask: Signal::INT,
        command: &|port| {
            let mut command = Command::new(base.get_program());
            command.args(base.get_args()).arg("-D").arg(&data).current_dir(&place.folder);
            command.args(["-c", "listen_addresses=127.0.0.1", "-c", &format!("port={port}")]);
            // A socket's path must be short, which that of a temporary folder may not be.
            command.args(["-c", "unix_socket_directories=", "-c", "max_connections=200"]);
            command
        },
        probe: &|port| {
            let mut probe = Command::new(&is_ready);
            probe.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
            probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            probe.status().is_ok_and(|status| status.success())
        },
    };
    let (daemon, port) = launch.start(place)?;
    Ok((daemon, format!("postgres://oncekey@127.0.0.1:{port}/postgres")))
}
