//! The gateway over every kind of wire: HTTP/1.1 and HTTP/2, with TLS and without, TCP and unix
//! sockets, on both sides of it. What it promises has nothing to do with what it speaks.

#![expect(clippy::unwrap_used, reason = "all of it is a test, also what stands outside of one")]

mod certificates;
mod client;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod frames;
mod patience;
mod places;
mod refused;
mod resets;
mod rotation;
mod systemd;
mod upstream;
mod upstreams;
mod windows;
