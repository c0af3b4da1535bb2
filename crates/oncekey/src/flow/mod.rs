//! Requests that resume instead of running again.
//!
//! A flow writes locally, calls a foreign system, writes again, and survives a crash at any instant:
//! what it has done is recorded in the same transactions in which it does it. Steps are found by
//! their names, never by their positions; the fence is part of every commit, so that an owner that
//! was replaced takes its business rows back with it; and no transaction is open during a foreign
//! call.
//!
//! [`Flows`] starts them, [`Flow`] is what their code takes its steps with, [`Completer`] brings
//! abandoned ones to their end, [`tx`](fn@tx) is for handlers that only write to their own database.
//!
//! A store without transactions for the application's rows cannot hold a flow, and that is an error of
//! the compiler:
//!
#![cfg_attr(feature = "redis", doc = "```compile_fail,E0277")]
#![cfg_attr(not(feature = "redis"), doc = "```ignore")]
//! use oncekey::flow::Flow;
//! use oncekey::store::redis::RedisStore;
//!
//! async fn charge(flow: Flow<RedisStore>) {}
//! ```
//!
#![cfg_attr(feature = "dynamodb", doc = "```compile_fail,E0277")]
#![cfg_attr(not(feature = "dynamodb"), doc = "```ignore")]
//! use oncekey::flow::Flow;
//! use oncekey::store::dynamodb::DynamoStore;
//!
//! async fn charge(flow: Flow<DynamoStore>) {}
//! ```

mod announce;
mod at_end;
mod checkpoint;
mod claim;
mod commit;
mod completer;
mod drive;
mod effect;
mod gather;
mod grip;
mod halt;
mod history;
mod intent;
mod late;
#[cfg(any(feature = "flow-rusqlite", feature = "flow-tokio-postgres"))]
mod lend;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod local;
mod machine;
mod outcome;
mod point;
mod purge;
mod reconcile;
mod registry;
mod reply;
mod resolve;
mod run;
#[cfg(feature = "flow-rusqlite")]
pub mod rusqlite;
mod saga;
mod serial;
mod sql;
pub mod sqlx;
mod store;
mod tables;
pub mod testing;
#[cfg(test)]
mod tests;
#[cfg(feature = "flow-tokio-postgres")]
pub mod tokio_postgres;
mod unwritten;

#[cfg(feature = "outbox")]
pub(crate) use self::at_end::AtEnd;
pub use self::checkpoint::Checkpoint;
pub use self::completer::{Completed, Completer};
pub use self::effect::{Ask, Asked, Effect, Failed, NoProbe, Probe, Safety};
pub use self::halt::{Drift, Halt};
pub use self::history::{History, PastEffect, PastEvent, PastStep, Rehearsed};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use self::local::{Local, Times, tx};
pub use self::machine::{Machine, Next, Turn, Turned};
pub use self::outcome::{FlowError, FlowKey, Outcome, Source};
#[cfg(feature = "outbox")]
pub(crate) use self::point::WakeAtEnd;
pub use self::point::{PhaseTx, Step};
pub use self::reconcile::{Finding, ForeignLedger, Page, Reconciled, Reconciler};
pub use self::registry::{BuildError, Builder, Definition, Flows, Options};
pub use self::reply::{Finished, Reply};
pub use self::resolve::{Listed, Resolved, Stuck};
pub use self::run::{Flow, Unvisited};
pub use self::saga::{Compensation, Did};
pub use self::store::{Cell, Open, Row, TxError, TxStore, TxTrouble, Value};
#[cfg(feature = "outbox")]
pub(crate) use self::tables::render;
pub use self::tables::{BadName, Dialect, Layout, migrate};
