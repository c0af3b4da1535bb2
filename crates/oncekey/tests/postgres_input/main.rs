//! What people and servers do to the PostgreSQL store that the suite does not: wrong URLs, missing
//! rights, lost tables, a standby, answers that are lost; and what it costs the server.

#![cfg(feature = "postgres")]

mod cost;
mod lost;
mod opening;
mod proxy;
mod scene;
