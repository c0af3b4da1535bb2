//! The suite that certifies a store.
//!
//! A case is a promise of [`Store`](crate::store::Store), named as a sentence. The macros list
//! every case once and make each a test of its own, so that none can be forgotten and a failure
//! names the promise that broke. Each case is proved in turn by a store with a planted bug that it
//! must catch (`tests/suite_has_teeth.rs`).
//!
//! # How to certify a store
//!
//! Depend on this crate with the feature `conformance`, and on tokio with `macros` and
//! `rt-multi-thread`, for tests alone. Write a [`Rig`]: how your store is made, closed and opened
//! again, and how its clock is moved. Then one file in `tests/` is all it takes:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use oncekey_core::conformance::Rig;
//! use oncekey_core::{Clock, ManualClock, MemoryStore as MyStore, Timestamp};
//!
//! struct MyRig {
//!     clock: Arc<ManualClock>,
//!     store: Arc<MyStore>,
//! }
//!
//! impl MyRig {
//!     // Each test makes a rig of its own: a fresh folder, schema or key prefix.
//!     async fn new() -> Self {
//!         let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_000_000)));
//!         let store = Arc::new(MyStore::new(clock.clone()));
//!         Self { clock, store }
//!     }
//! }
//!
//! impl Rig for MyRig {
//!     type Store = MyStore;
//!
//!     fn store(&self) -> Arc<MyStore> {
//!         self.store.clone()
//!     }
//!
//!     // A durable store closes everything here and opens it again.
//!     async fn reopen(&self) -> Arc<MyStore> {
//!         self.store.clone()
//!     }
//!
//!     async fn advance(&self, by: Duration) {
//!         self.clock.advance(by);
//!     }
//!
//!     async fn step_back(&self, by: Duration) {
//!         self.clock.step_back(by);
//!     }
//!
//!     // Only if the store judges by this clock. Leave it out for a server with its own.
//!     fn clock(&self) -> Option<Arc<dyn Clock>> {
//!         Some(self.clock.clone())
//!     }
//! }
//!
//! // What every store promises.
//! oncekey_core::conformance!(async || MyRig::new().await);
//! // To the microsecond, if the rig has a clock that can be read.
//! oncekey_core::clock_conformance!(async || MyRig::new().await);
//! // What only some stores can do. Attributes are passed on to every test.
//! oncekey_core::browse_conformance!(#[ignore = "needs a server"] async || MyRig::new().await);
//! oncekey_core::erase_conformance!(#[ignore = "needs a server"] async || MyRig::new().await);
//! oncekey_core::erase_browse_conformance!(async || MyRig::new().await);
//! oncekey_core::restore_conformance!(#[ignore = "needs a server"] async || MyRig::new().await);
//! oncekey_core::restore_browse_conformance!(async || MyRig::new().await);
//! oncekey_core::wake_conformance!(#[ignore = "needs a server"] async || MyRig::new().await);
//!
//! // And what nobody thought of: random histories, compared with the decision tables step by step.
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use oncekey_core::conformance::model::{Op, agrees_with_the_model, agrees_while_erasing};
//! for seed in 0..10 {
//!     agrees_with_the_model(&MyRig::new().await, &Op::history(seed, 60)).await;
//!     agrees_while_erasing(&MyRig::new().await, &Op::history(seed, 60)).await;
//! }
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The cases are also there as data ([`cases`] and its relatives), for those who have a test
//! runner of their own. A case stays a minute away from every boundary in time, so it may run
//! against a server whose clock goes on by itself, as long as it does not take that minute.
//!
//! What the suite cannot see: whether `Ok` survives the loss of power, what two processes do to
//! one database, and what a connection that breaks in the middle of a call leaves behind. Those
//! need a test of the store's own.

mod foreign;
mod history;
mod lists;
mod rig;
mod scene;

pub mod browse;
pub mod claims;
pub mod clocks;
pub mod durability;
pub mod erase;
pub mod fences;
pub mod leases;
pub mod limits;
pub mod model;
pub mod outcomes;
pub mod races;
pub mod restore;
pub mod retention;
pub mod wake;

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

pub use self::rig::Rig;
use crate::browse::Browse;
use crate::erase::Erase;
use crate::restore::Restore;
use crate::wake::Wake;

/// One promise, as data: for those who want to run the suite in their own way.
pub struct Case<R> {
    /// The promise.
    pub name: &'static str,
    /// Runs the case; it panics if the promise is broken.
    pub run: for<'r> fn(&'r R) -> Running<'r>,
}

/// A case under way.
pub type Running<'r> = Pin<Box<dyn Future<Output = ()> + Send + 'r>>;

/// No case takes this long, even on a slow server: past it, something hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The cases that every store must pass.
#[must_use]
pub fn cases<R: Rig>() -> Vec<Case<R>> {
    crate::conformance_cases!(conformance_list())
}

/// The cases for a store that can be browsed.
#[must_use]
pub fn browse_cases<R: Rig<Store: Browse>>() -> Vec<Case<R>> {
    crate::browse_conformance_cases!(conformance_list())
}

/// The cases for a store that can erase.
#[must_use]
pub fn erase_cases<R: Rig<Store: Erase>>() -> Vec<Case<R>> {
    crate::erase_conformance_cases!(conformance_list())
}

/// The cases for a store that can erase and be browsed.
#[must_use]
pub fn erase_browse_cases<R: Rig<Store: Browse + Erase>>() -> Vec<Case<R>> {
    crate::erase_browse_conformance_cases!(conformance_list())
}

/// The cases for a store that takes records from elsewhere.
#[must_use]
pub fn restore_cases<R: Rig<Store: Restore>>() -> Vec<Case<R>> {
    crate::restore_conformance_cases!(conformance_list())
}

/// The cases for a store that takes records from elsewhere and can be browsed.
#[must_use]
pub fn restore_browse_cases<R: Rig<Store: Browse + Restore>>() -> Vec<Case<R>> {
    crate::restore_browse_conformance_cases!(conformance_list())
}

/// The cases for a store that wakes those who wait.
#[must_use]
pub fn wake_cases<R: Rig<Store: Wake>>() -> Vec<Case<R>> {
    crate::wake_conformance_cases!(conformance_list())
}

/// The cases for a rig with a clock that can be read and really moves.
#[must_use]
pub fn clock_cases<R: Rig>() -> Vec<Case<R>> {
    crate::clock_conformance_cases!(conformance_list())
}

/// Runs a case and fails if it hangs.
///
/// # Panics
/// If the promise is broken or the case does not end.
pub async fn bounded(name: &str, case: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(PATIENCE, case).await;
    assert!(ended.is_ok(), "{name}: still not over after {PATIENCE:?}");
}

impl<R> fmt::Debug for Case<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Case").field(&self.name).finish()
    }
}

/// Makes every case that all stores must pass a test: see [`conformance`](mod@crate::conformance).
#[macro_export]
macro_rules! conformance {
    ($(#[$attribute:meta])* async || $rig:expr) => {
        $crate::conformance_cases! { conformance_tests([$(#[$attribute])*] $rig) }
    };
}

/// Makes every case of [`Browse`](crate::browse::Browse) a test, like
/// [`conformance!`](macro@crate::conformance).
#[macro_export]
macro_rules! browse_conformance {
    ($(#[$attribute:meta])* async || $rig:expr) => {
        $crate::browse_conformance_cases! { conformance_tests([$(#[$attribute])*] $rig) }
    };
}

/// Makes every case of [`Erase`](crate::erase::Erase) a test, like
/// [`conformance!`](macro@crate::conformance).
#[macro_export]
macro_rules! erase_conformance {
    ($(#[$attribute:meta])* async || $rig:expr) => {
        $crate::erase_conformance_cases! { conformance_tests([$(#[$attribute])*] $rig) }
    };
}

/// Makes every case of a store that has both [`Erase`](crate::erase::Erase) and
/// [`Browse`](crate::browse::Browse) a test, like [`conformance!`](macro@crate::conformance).
#[macro_export]
macro_rules! erase_browse_conformance {
    ($(#[$attribute:meta])* async || $rig:expr) => {
        $crate::erase_browse_conformance_cases! { conformance_tests([$(#[$attribute])*] $rig) }
    };
}

/// Makes every case of [`Restore`](crate::restore::Restore) a test, like
/// [`conformance!`](macro@crate::conformance).
#[macro_export]
macro_rules! restore_conformance {
    ($(#[$attribute:meta])* async || $rig:expr) => {
        $crate::restore_conformance_cases! { conformance_tests([$(#[$attribute])*] $rig) }
    };
}

/// Makes every case of a store that has both [`Restore`](crate::restore::Restore) and
/// [`Browse`](crate::browse::Browse) a test, like [`conformance!`](macro@crate::conformance).
#[macro_export]
macro_rules! restore_browse_conformance {
    ($(#[$attribute:meta])* async || $rig:expr) => {
        $crate::restore_browse_conformance_cases! { conformance_tests([$(#[$attribute])*] $rig) }
    };
}

/// Makes every case of [`Wake`](crate::wake::Wake) a test, like
/// [`conformance!`](macro@crate::conformance).
#[macro_export]
macro_rules! wake_conformance {
    ($(#[$attribute:meta])* async || $rig:expr) => {
        $crate::wake_conformance_cases! { conformance_tests([$(#[$attribute])*] $rig) }
    };
}

/// Makes every case that needs [`Rig::clock`](crate::conformance::Rig::clock) a test, like
/// [`conformance!`](macro@crate::conformance).
#[macro_export]
macro_rules! clock_conformance {
    ($(#[$attribute:meta])* async || $rig:expr) => {
        $crate::clock_conformance_cases! { conformance_tests([$(#[$attribute])*] $rig) }
    };
}

/// Makes the cases tests.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    (([$(#[$attribute:meta])*] $rig:expr) $($theme:ident::$case:ident)*) => {
        $crate::conformance_tests! { @each [$(#[$attribute])*] ($rig) $($theme::$case)* }
    };
    (@each $attributes:tt $rig:tt $($theme:ident::$case:ident)*) => { $(
        $crate::conformance_tests! { @one $attributes $rig $theme::$case }
    )* };
    (@one [$(#[$attribute:meta])*] ($rig:expr) $theme:ident::$case:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        $(#[$attribute])*
        async fn $case() {
            let rig = $rig;
            let case = $crate::conformance::$theme::$case(&rig);
            $crate::conformance::bounded(stringify!($case), case).await;
        }
    };
}

/// Makes the cases a list.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    (() $($theme:ident::$case:ident)*) => {
        vec![$($crate::conformance::Case {
            name: stringify!($case),
            run: |rig| Box::pin($crate::conformance::$theme::$case(rig)),
        }),*]
    };
}
