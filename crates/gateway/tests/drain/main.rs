//! Changes while clients are there: a new configuration, and the end of the program.

#![expect(clippy::unwrap_used, reason = "all of it is a test, also what stands outside of one")]

#[path = "../common/mod.rs"]
mod common;
mod ending;
mod load;
mod lost;
mod reload;
mod tunnels;
