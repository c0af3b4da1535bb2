//! The proxy: connections of clients, and what becomes of each request on them.
//!
//! ```text
//!  listen ──► connection ──► front ──► layer (routes with a rule) ──► forward ──► upstream
//! ```

mod connection;
mod forward;
mod front;
mod headers;
mod listen;
mod tunnel;

pub(crate) use self::connection::Deadlines;
pub(crate) use self::forward::{Forward, Settings};
pub(crate) use self::front::Front;
pub(crate) use self::listen::{Listener, Terms};
