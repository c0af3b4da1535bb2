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
//! oncekey_core::wake_conformance!(#[ignore = "needs a server"] async || MyRig::new().await);
//!
//! // And what nobody thought of: random histories, compared with the decision tables step by step.
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use oncekey_core::conformance::model::{Op, agrees_with_the_model};
//! for seed in 0..10 {
//!     agrees_with_the_model(&MyRig::new().await, &Op::history(seed, 60)).await;
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

mod history;
mod rig;
mod scene;

pub mod browse;
pub mod claims;
pub mod clocks;
pub mod durability;
pub mod fences;
pub mod leases;
pub mod limits;
pub mod model;
pub mod outcomes;
pub mod races;
pub mod retention;
pub mod wake;

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

pub use self::rig::Rig;
use crate::browse::Browse;
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

/// The list. Calls `$then` with the arguments given and all cases.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            claims::an_absent_key_has_no_record
            claims::a_fresh_key_is_granted_with_a_lease_from_now
            claims::a_claim_writes_what_it_was_given
            claims::key_ids_are_told_apart_by_every_byte
            claims::owners_are_told_apart_by_every_bit
            claims::an_owner_that_asks_again_keeps_its_fence
            claims::asking_again_changes_nothing_but_the_lease
            claims::asking_again_does_not_reopen_what_has_ended
            claims::a_loser_sees_the_record_and_the_clock_of_the_store
            claims::another_fingerprint_version_is_another_request
            claims::half_a_proof_is_no_proof
            races::one_of_many_concurrent_claims_wins
            races::many_tasks_on_many_keys_give_each_key_one_owner
            races::of_two_requests_one_wins_and_the_other_is_a_mismatch
            races::one_of_many_takes_over_a_lapsed_lease
            races::an_owner_that_races_itself_gets_one_fence
            races::overlapping_completions_of_one_owner_all_succeed
            races::of_different_answers_exactly_one_is_recorded
            races::completion_and_takeover_cannot_both_win
            races::renewal_and_takeover_cannot_both_win
            races::claims_that_race_a_release_get_one_owner
            races::purges_that_race_claims_never_give_two_owners
            leases::a_live_lease_is_not_taken_over
            leases::a_lapsed_lease_is_respected_for_the_claimants_grace
            leases::takeover_follows_the_effect_class
            leases::a_takeover_writes_the_new_claim
            leases::a_takeover_does_not_forget_that_something_may_have_happened
            leases::a_claim_that_announced_its_send_is_held_when_its_owner_is_lost
            leases::a_send_mark_stays
            leases::a_renewal_counts_from_now
            leases::renewals_answer_each_for_itself_and_in_order
            leases::a_renewal_never_revives
            leases::a_late_owner_that_was_not_replaced_may_still_write
            leases::a_replaced_owner_can_change_nothing
            leases::an_owner_that_gave_its_key_back_can_change_nothing
            fences::fences_rise_across_takeover
            fences::fences_rise_across_release
            fences::fences_rise_across_purge
            fences::fences_rise_though_the_clock_steps_back
            fences::fences_rise_across_reopening
            fences::a_clock_that_steps_back_takes_no_live_lease
            fences::a_clock_that_steps_back_loses_no_answer
            fences::a_clock_that_stepped_back_still_grants
            outcomes::a_replay_equals_what_was_saved
            outcomes::every_tombstone_comes_back_as_it_was_written
            outcomes::a_repeated_completion_is_applied_and_changes_nothing
            outcomes::another_answer_never_replaces_the_one_that_stands
            outcomes::a_recorded_answer_never_changes
            outcomes::a_released_key_is_free
            outcomes::an_unknown_outcome_is_held_unless_it_may_be_repeated
            outcomes::an_unknown_outcome_is_resolved_by_completion
            outcomes::an_unknown_outcome_is_resolved_by_release
            outcomes::an_unknown_outcome_is_not_running
            retention::retention_counts_from_completion
            retention::a_finished_record_tells_its_times
            retention::a_lingering_record_says_that_it_is_too_late
            retention::a_forgotten_record_is_absent_before_it_is_removed
            retention::running_and_unknown_records_never_expire
            retention::a_purge_removes_only_what_is_due
            retention::a_purge_keeps_to_its_limit
            retention::a_purge_strips_lingering_records
            retention::a_stripped_record_still_recognises_its_completion
            retention::a_new_generation_owes_nothing_to_the_old
            retention::endless_spans_do_not_overflow
            retention::another_request_is_a_mismatch_in_every_state
            limits::the_longest_texts_are_kept
            limits::a_text_that_is_too_long_is_rejected
            limits::the_largest_answer_is_kept
            limits::an_answer_that_is_too_large_is_rejected
            durability::every_state_survives_reopening
            durability::a_lease_outlives_a_restart
            durability::a_send_mark_survives_a_restart
            durability::what_is_gone_stays_gone_after_a_restart
        }
    };
}

/// The list for stores that can be browsed.
#[doc(hidden)]
#[macro_export]
macro_rules! browse_conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            browse::summaries_say_what_the_records_say
            browse::filters_select_what_they_say
            browse::paging_visits_every_record_once
            browse::paging_is_not_disturbed_by_others
            browse::pages_are_bounded
            browse::counting_stops_at_its_cap
            browse::a_key_is_found_in_every_scope
            browse::forgotten_records_are_not_shown
        }
    };
}

/// The list for stores that wake.
#[doc(hidden)]
#[macro_export]
macro_rules! wake_conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            wake::a_completion_wakes_a_watcher
            wake::a_release_wakes_a_watcher
            wake::an_unknown_outcome_wakes_a_watcher
            wake::every_waiting_watcher_is_woken
            wake::a_watcher_hears_of_every_key
            wake::giving_up_on_a_wake_up_loses_nothing
        }
    };
}

/// The list for rigs with a clock that can be read.
#[doc(hidden)]
#[macro_export]
macro_rules! clock_conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            clocks::every_time_is_read_from_the_stores_clock
            clocks::a_lease_ends_at_its_moment
            clocks::retention_ends_at_its_moment
            clocks::a_step_back_costs_no_retention
            clocks::a_clock_that_was_far_ahead_makes_no_record_immortal
        }
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
