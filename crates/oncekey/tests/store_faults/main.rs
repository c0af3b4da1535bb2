//! What the stores make of broken ways to their servers, of servers that die, and of crowds.
//!
//! - `way`: the proxy that breaks the ways does what it says.
//! - `cuts`: the connection ends at every byte of every question and answer.
//! - `silence`: questions or answers are lost, or come late.
//! - `kills`: `kill -9` of the server under load, and in the middle of a claim.
//! - `crowded`: the server takes no more connections.
//! - `history`: random calls with random faults, every one of them written down and checked.
//!
//! Not here: a full disk under a server. A disk that is small enough to fill takes root to make, and
//! a test that only pretends is worse than none.

#![cfg(all(
    feature = "dynamodb",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]

#[path = "../common/mod.rs"]
mod common;

mod crowded;
mod cuts;
mod frames;
mod history;
mod kills;
mod place;
mod server;
mod silence;
mod verbs;
mod way;
