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

pub(super) async fn bind(listen: &Listen) -> Result<Listener, Exit> {
    Listener::bind(listen).await.map_err(|error| cannot_listen(listen, &error))
}

pub(super) async fn bind_admin(address: SocketAddr) -> Result<TcpListener, Exit> {
    TcpListener::bind(address).await.map_err(|error| cannot_listen(&address, &error))
}

fn cannot_listen(address: &dyn fmt::Display, error: &std::io::Error) -> Exit {
    let known = REASONS.iter().find(|(kind, _)| *kind == error.kind());
    let why = known.map_or("", |(_, why)| why);
    let what = format!("cannot listen on {address}{why}");
    Exit::chain(exit::FAILURE, &what, Some(error))
}

pub(super) fn local(listener: &TcpListener) -> Result<SocketAddr, Exit> {
    listener.local_addr().map_err(|error| {
        Exit::chain(exit::FAILURE, "the admin listener has no address", Some(&error))
    })
}
