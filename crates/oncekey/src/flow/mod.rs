//! Requests that resume instead of running again.
//!
//! A flow writes locally, calls a foreign system, writes again, and survives a crash at any instant:
//! what it has done is recorded in the same transactions in which it does it. Steps are found by
//! their names, never by their positions; the fence is part of every commit, so that an owner that
//! was replaced takes its business rows back with it; and no transaction is open during a foreign
//! call.

#[allow(dead_code, reason = "flows are built on it")]
mod claim;
#[allow(dead_code, reason = "flows are built on it")]
mod point;
#[allow(dead_code, reason = "flows are built on it")]
mod sql;
#[allow(dead_code, reason = "flows are built on it")]
pub mod sqlx;
mod store;
mod tables;
#[cfg(test)]
mod tests;

pub use self::point::{PhaseTx, Step};
pub use self::store::{Cell, Open, Row, TxError, TxStore, TxTrouble, Value};
pub use self::tables::{BadName, Dialect, Layout, migrate};
