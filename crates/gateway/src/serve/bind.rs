//! Where clients and operators come in.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::config::Listen;
use crate::exit::{self, Exit};
use crate::proxy::Listener;

/// What a person can make of an error, where that is known.
const REASONS: [(ErrorKind, &str); 3] = [
    (ErrorKind::AddrInUse, "; is another program there?"),
    (ErrorKind::AddrNotAvailable, ": this machine does not have that address"),
    (
        ErrorKind::PermissionDenied,
        ": it is not allowed; ports below 1024 are for root, and a socket needs a folder that can be \
         written to",
    ),
];

/// By which options somebody says where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    /// `run`: two addresses, each of which has a setting, too.
    Addresses,
    /// `dev`: one port, and the one beside it.
    One,
}

/// Who comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guests {
    Clients,
    Operators,
}

pub(super) async fn bind(listen: &Listen, ports: Ports) -> Result<Listener, Exit> {
    let listener = Listener::bind(listen).await;
    listener.map_err(|error| cannot_listen(listen, Guests::Clients, ports, &error))
}

pub(super) async fn bind_admin(address: SocketAddr, ports: Ports) -> Result<TcpListener, Exit> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| cannot_listen(&address, Guests::Operators, ports, &error))
}

fn cannot_listen(
    address: &dyn fmt::Display,
    guests: Guests,
    ports: Ports,
    error: &std::io::Error,
) -> Exit {
    let known = REASONS.iter().find(|(kind, _)| *kind == error.kind());
    let why = known.map_or("", |(_, why)| why);
    let who = match guests {
        Guests::Clients => "for clients",
        Guests::Operators => "for operators, which is the admin listener",
    };
    let instead = match (ports, guests) {
        (Ports::Addresses, Guests::Clients) => {
            "another address is given with --listen or server.listen"
        }
        (Ports::Addresses, Guests::Operators) => {
            "another address is given with --admin or admin.listen"
        }
        (Ports::One, Guests::Clients) => "another port is given with --port",
        (Ports::One, Guests::Operators) => {
            "another port is given with --port: this is the one beside it"
        }
    };
    let what = format!("cannot listen on {address} {who}{why}\n  {instead}");
    Exit::chain(exit::FAILURE, &what, Some(error))
}

pub(super) fn local(listener: &TcpListener) -> Result<SocketAddr, Exit> {
    listener.local_addr().map_err(|error| {
        Exit::chain(exit::FAILURE, "the admin listener has no address", Some(&error))
    })
}
