//! What the Redis store does with wrong settings, wrong input and servers that change under it.
//!
//! Servers with settings of their own are started here, from `redis-server` in the search path.

#![cfg(feature = "redis")]

mod copies;
mod damage;
mod losses;
mod races;
mod restarts;
mod server;
mod settings;
