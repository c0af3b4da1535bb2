//! The admin API over a real socket, on a real store and engine.

mod auditing;
mod changing;
mod probing;
mod reading;
mod refusing;
pub(crate) mod rig;
mod watching;
