//! F38, I35: a replica that lacks what its primary acknowledged last is promoted, for real.
//!
//! Each round writes through an engine with a ring, cuts the replica off, writes on, kills the primary,
//! and puts the replica in its place. Servers are started here, from `postgres`, `mariadbd` and
//! `redis-server` in the search path. `ONCEKEY_STALE_ROUNDS` says how often; the replica of one round is the primary of
//! the next.

#![cfg(all(feature = "mysql", feature = "postgres", feature = "redis"))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![expect(clippy::print_stderr, reason = "how long it took is worth knowing")]

mod forwarder;
mod log;
mod mysql;
mod postgres;
mod process;
mod redis;
mod story;
