//! Framing over real sockets: what clients send, and what upstreams answer.
//!
//! Every vector goes to a running gateway. Each client has an address of its own on the loopback
//! network, and the gateway says it to the upstream, so hundreds of vectors run at the same time and
//! everything that arrives is known by its sender.

#![expect(clippy::unwrap_used, reason = "all of it is a test, also what stands outside of one")]

mod answers;
#[path = "../common/mod.rs"]
mod common;
mod requests;
#[path = "vectors.rs"]
mod vectors;
