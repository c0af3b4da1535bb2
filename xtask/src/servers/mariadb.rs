//! MariaDB, with an empty database for the tests.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::Place;
use super::daemon::{Daemon, Launch, create_folder, tethered};
use crate::process;
use crate::tools::{Tool, companion};

const USER: &str = "mysql";
const DATABASE: &str = "oncekey";
/// Where temporary tables go. Not to the shared place: a server that starts removes what it finds
/// there, and with it what another one is using.
const SCRATCH: &str = "TMPDIR";

/// Creates the system tables, starts the server with its default durability, and creates the
/// database.
pub(crate) fn start(place: &Place) -> Result<(Daemon, String)> {
    create_folder(place, USER)?;
    let server = place.tools.path(Tool::MariaDb)?;
    let data = format!("--datadir={}", place.folder.join("data").display());

    let mut create = tethered(place, Some(USER), &companion(server, "mariadb-install-db"))?;
    create.args(["--no-defaults", &data, "--auth-root-authentication-method=normal"]);
    create.arg("--skip-test-db").current_dir(&place.folder).env(SCRATCH, &place.folder);
    process::output(create, &place.stop)?;

    let base = tethered(place, Some(USER), server).context("cannot build the command")?;
    let admin = companion(server, "mariadb-admin");
    let launch = Launch {
        name: "mariadb",
        ask: Signal::TERM,
        command: &|port| {
            let mut command = Command::new(base.get_program());
            command.args(base.get_args()).args(["--no-defaults", &data]);
            command.current_dir(&place.folder).env(SCRATCH, &place.folder);
            command.args(["--bind-address=127.0.0.1", &format!("--port={port}")]);
            // Relative to the data folder: a socket's path must be short.
            command.args(["--socket=socket", "--pid-file=pid", "--max-connections=400"]);
            command
        },
        probe: &|port| {
            let mut probe = administer(&admin, port, &["ping"]);
            probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            probe.status().is_ok_and(|status| status.success())
        },
    };
    let (daemon, port) = launch.start(place)?;
    process::output(administer(&admin, port, &["create", DATABASE]), &place.stop)?;
    Ok((daemon, format!("mysql://root@127.0.0.1:{port}/{DATABASE}")))
}

fn administer(admin: &Path, port: u16, arguments: &[&str]) -> Command {
    let mut command = Command::new(admin);
    command.args(["--no-defaults", "--protocol=tcp", "-h127.0.0.1", "-uroot"]);
    command.arg(format!("-P{port}")).args(arguments);
    command
}
