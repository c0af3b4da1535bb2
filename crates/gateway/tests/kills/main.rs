//! `kill -9` of the gateway at each point of a payment, and the retries that come after it.
//!
//! The points are found from outside. Nothing in the program knows that it will be killed.

#![expect(clippy::unwrap_used, reason = "all of it is a test, also what stands outside of one")]

#[path = "../common/mod.rs"]
mod common;
mod points;
mod scene;
