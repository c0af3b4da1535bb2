//! The pure core of oncekey: what a key is, what a store keeps for it, and who may act.
//!
//! There is no I/O, no clock, no randomness and no HTTP in here. Time and random bits arrive as
//! arguments, so everything can be tested by table and replayed from a seed.
//!
//! | module | what it holds |
//! |---|---|
//! | [`key`], [`key_id`] | the client's key, whom it belongs to, and the digest of both |
//! | [`mod@fingerprint`] | what must not change between two attempts |
//! | [`record`], [`saved`] | what a store keeps |
//! | [`mod@decide`] | the decision tables: who may run, and what an owner may still write |
//! | [`policy`] | what a route promises |
//! | [`store`] | the contract of a store; [`browse`], [`erase`], [`health`], [`restore`] and [`wake`] are what only some can do |
//! | [`memory`] | the reference store |
//! | `conformance` | the suite that certifies a store (feature `conformance`) |
//!
//! To write a store, read [`store::Store`], look at [`memory`], and run the suite.

pub mod browse;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod decide;
pub mod erase;
pub mod fingerprint;
pub mod health;
pub mod key;
pub mod key_id;
pub mod memory;
pub mod policy;
mod preimage;
pub mod record;
pub mod restore;
pub mod saved;
pub mod seal;
pub mod store;
pub mod wake;

pub use crate::browse::Browse;
pub use crate::clock::{Clock, ManualClock, Timestamp};
pub use crate::decide::{Decision, Grant, Refusal, decide, judge};
pub use crate::erase::{Erase, Erased};
pub use crate::fingerprint::{Fingerprint, FingerprintRules, Places, Subject};
pub use crate::health::{Inspect, StoreHealth};
pub use crate::key::{Key, KeyError, Pepper, Scope};
pub use crate::key_id::{KeyId, KeyIdHash, chained_key, derived_key};
pub use crate::memory::MemoryStore;
pub use crate::policy::{Class, Policy};
pub use crate::record::{Fence, Lease, Origin, Owner, Record, Sent, State, StateKind};
pub use crate::restore::{Lineage, Restore, Restored};
pub use crate::saved::{Answer, Headers, Outcome, Saved, Tombstone};
pub use crate::store::{Claim, Claimed, Completion, ErrorKind, Renewal, Store, StoreError, Write};
pub use crate::wake::Wake;
