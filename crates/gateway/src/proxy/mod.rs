//! The proxy: connections of clients, and what becomes of each request on them.
//!
//! ```text
//!  listen ──► connection (strict, sieve) ──► front ──► layer (routes with a rule) ──► forward ──► upstream
//! ```

mod attendance;
mod certificate;
mod connection;
mod cors;
mod dialect;
mod exchange;
mod forward;
mod front;
mod headers;
mod listen;
mod outlet;
mod paced;
mod presence;
mod sieve;
mod streams;
mod strict;
mod template;
mod tls;
mod tunnel;
mod watched;

pub(crate) use self::connection::Deadlines;
pub(crate) use self::cors::Cors;
pub(crate) use self::dialect::ErrorDialect;
pub(crate) use self::forward::{Forward, STEP, Settings};
pub(crate) use self::front::Front;
pub(crate) use self::listen::{Listener, Terms};
pub(crate) use self::paced::{BodyError, Paced};
pub(crate) use self::tls::server as tls_for_clients;
