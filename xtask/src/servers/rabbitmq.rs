//! RabbitMQ, with a directory of Erlang nodes of its own.
//!
//! Left to itself it would use the directory of the machine, or start one that nobody stops.

use std::process::Command;

use anyhow::Result;
use rustix::process::Signal;

use super::daemon::{Daemon, Launch, answers, create_folder, free_port, listens, tethered};
use super::{Place, Started};
use crate::tools::{Tool, companion};

const USER: &str = "rabbitmq";

pub(crate) fn start(place: &Place) -> Result<Started> {
    create_folder(place, USER)?;
    let (nodes, nodes_port) = start_nodes(place)?;
    let base = tethered(place, Some(USER), place.tools.path(Tool::RabbitMq)?)?;
    let between_nodes = free_port()?;
    let launch = Launch {
        name: "rabbitmq",
        ask: Signal::TERM,
        command: &|port| {
            let mut command = Command::new(base.get_program());
            command.args(base.get_args());
            among_nodes(&mut command, place, nodes_port);
            for (name, value) in [
                ("NODENAME", "oncekey@localhost"),
                ("NODE_IP_ADDRESS", "127.0.0.1"),
                ("NODE_PORT", &port.to_string()),
                ("DIST_PORT", &between_nodes.to_string()),
                // To its output.
                ("LOGS", "-"),
                ("CONF_ENV_FILE", "/dev/null"),
                // Otherwise the server is the child of a shell, which dies without it. The other
                // effect of this setting, to read the input, is taken back.
                ("ALLOW_INPUT", "1"),
                (
                    "SERVER_ADDITIONAL_ERL_ARGS",
                    "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
                ),
            ] {
                command.env(format!("RABBITMQ_{name}"), value);
            }
            // The settings of the machine, if it has any, are not ours.
            for (name, file) in [
                ("MNESIA_BASE", "data"),
                ("LOG_BASE", "log"),
                ("ENABLED_PLUGINS_FILE", "plugins"),
                ("CONFIG_FILE", "settings"),
            ] {
                command.env(format!("RABBITMQ_{name}"), place.folder.join(file));
            }
            command
        },
        // The header of the protocol, and the beginning of the first frame.
        probe: &|port| answers(port, "AMQP\0\0\u{9}\u{1}", "\u{1}\0\0"),
    };
    let (daemon, port) = launch.start(place)?;
    let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
    Ok(Started { daemons: vec![daemon, nodes], url })
}

/// Starts the directory of nodes.
fn start_nodes(place: &Place) -> Result<(Daemon, u16)> {
    let program = companion(place.tools.path(Tool::RabbitMq)?, "epmd");
    let base = tethered(place, Some(USER), &program)?;
    let launch = Launch {
        name: "rabbitmq-nodes",
        ask: Signal::TERM,
        command: &|port| {
            let mut command = Command::new(base.get_program());
            command.args(base.get_args());
            among_nodes(&mut command, place, port);
            command
        },
        probe: &listens,
    };
    launch.start(place)
}

/// Where Erlang finds the directory of nodes, and the secret that nodes share.
fn among_nodes(command: &mut Command, place: &Place, port: u16) {
    command.current_dir(&place.folder).env("HOME", &place.folder);
    command.env("ERL_EPMD_PORT", port.to_string()).env("ERL_EPMD_ADDRESS", "127.0.0.1");
}
