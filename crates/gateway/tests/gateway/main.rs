//! The gateway between programs that know nothing of it.

#![expect(clippy::unwrap_used, reason = "all of it is a test, also what stands outside of one")]

#[path = "../common/mod.rs"]
mod common;
mod cutter;
mod plain;
mod stripe;
