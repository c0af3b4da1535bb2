//! pgbouncer in transaction mode, in front of a PostgreSQL of its own: every statement of a client
//! may run on another connection to the server. It refuses to run as root, too.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::daemon::{Launch, listens, tethered};
use super::{Place, Started, postgres};
use crate::tools::Tool;

pub(crate) fn start(place: &Place) -> Result<Started> {
    let (behind, url) = postgres::start(place, "pgbouncer-postgres")?;
    let port = url.rsplit([':', '/']).nth(1).context("the server's URL has a port")?.to_owned();
    let base = tethered(place, Some(postgres::USER), place.tools.path(Tool::PgBouncer)?)?;
    let settings = place.folder.join("pgbouncer.ini");
    let launch = Launch {
        name: "pgbouncer",
        ask: Signal::INT,
        command: &|own| {
            // Few connections behind many clients, so that clients really share them. What cannot
            // be written makes the program fail, and its log says why.
            let _ = fs::write(
                &settings,
                format!(
                    "[databases]\n* = host=127.0.0.1 port={port} user=oncekey\n\
                     [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {own}\n\
                     unix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
                     default_pool_size = 8\nmax_client_conn = 1000\n"
                ),
            );
            let mut command = Command::new(base.get_program());
            command.args(base.get_args()).arg(&settings).current_dir(&place.folder);
            command
        },
        probe: &listens,
    };
    let (daemon, port) = launch.start(place)?;
    let url = format!("postgres://oncekey@127.0.0.1:{port}/postgres");
    Ok(Started { daemons: vec![daemon, behind], url })
}
