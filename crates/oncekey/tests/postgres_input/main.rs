//! What people and servers do to the PostgreSQL store that the suite does not: wrong URLs, missing
//! rights, lost tables, a standby, answers that are lost; and what it costs the server.

#![cfg(feature = "postgres")]

mod cost;
mod frozen;
mod locked;
mod lost;
mod opening;
mod pooler;
#[allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it, and may panic")]
#[path = "../stale_replica/process.rs"]
mod process;
mod proxy;
mod scene;
