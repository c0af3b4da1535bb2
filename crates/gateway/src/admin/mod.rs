//! The admin listener: health, metrics, and an API for operators.
//!
//! | who asks | meets, in this order |
//! |---|---|
//! | anybody | `serve`: few connections, headers within a deadline |
//! | | `guard`: Host, Origin, token; what is refused here learns nothing |
//! | | `endpoint`: the one table of what there is |
//! | operators | `keys`, `status`, `control`, `audit`, `events` |
//! | probes | `health`: whether the process lives, whether it should get requests |
//!
//! The dashboard and the command line speak this API and nothing else. It is plain HTTP for the
//! same machine; another address needs a token. Every change is written to the audit before it is
//! made. `docs/reference/admin-api.md` is the reference, and tests compare it with the table.

mod access;
mod audit;
mod body;
mod control;
mod endpoint;
mod events;
mod gateway;
mod guard;
mod health;
mod keys;
mod observed;
mod openapi;
mod page;
mod problem;
mod serve;
mod span;
mod state;
mod status;
#[cfg(test)]
#[cfg(feature = "sqlite")]
pub(crate) mod tests;

pub(crate) use self::access::{Access, Payload, Token};
pub(crate) use self::audit::Audit;
pub(crate) use self::events::{Event, Events, Mark};
pub(crate) use self::gateway::{Gateway, Reload, RouteView};
pub(crate) use self::guard::{ACTOR, IDENTITY};
pub(crate) use self::serve::serve;
pub(crate) use self::state::{Admin, Written};
