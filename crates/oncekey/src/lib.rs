//! Makes any API safe to retry.
//!
//! This crate holds the stores; the decisions that they share are in [`core`].
//!
//! | feature | what it adds |
//! |---|---|
//! | `sqlite` | [`store::sqlite`]: the embedded store, one file, durable |

pub mod clock;
pub mod store;

pub use oncekey_core as core;
