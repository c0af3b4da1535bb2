//! Requests that nobody finishes, and the gateway that does so by itself.
//!
//! The clients of these tests never retry before the completer is done, unless a test says so.

#![expect(clippy::unwrap_used, reason = "all of it is a test, also what stands outside of one")]

#[path = "../common/mod.rs"]
mod common;
mod finished;
mod kept;
mod left_alone;
mod scene;
