//! The acceptance battery of the gateway: the rows of the layer's battery, through `oncekey run` in
//! front of an API in another language.
//!
//! All rows of a pair of upstream and store run one after the other on one gateway, each for a
//! tenant of its own. Where two gateways share a store, every request goes to the other one than
//! the request before.

#![expect(clippy::unwrap_used, reason = "all of it is a test, also what stands outside of one")]

mod bodies;
#[path = "../common/mod.rs"]
mod common;
mod endings;
mod leaving;
mod parallel;
mod sameness;
mod scene;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;

use crate::common::gateway::Home;
use crate::common::script::Language;
use crate::common::within;
use crate::scene::{Scene, Stage};

type Row = (&'static str, fn(Scene) -> Pin<Box<dyn Future<Output = ()>>>);

/// Lists rows. One that is not listed is unused code, and the compiler says so.
macro_rules! rows {
    ($($module:ident: $($row:ident),+ $(,)?;)+) => {
        const ROWS: &[Row] = &[
            $($((stringify!($row), |scene| Box::pin($module::$row(scene))),)+)+
        ];
    };
}

rows! {
    parallel:
        twenty_parallel_duplicates_run_once_and_get_one_answer,
        nineteen_of_twenty_are_told_to_come_back_where_nobody_waits,
        twenty_parallel_duplicates_run_once_though_the_answer_sets_a_cookie,
        a_duplicate_waits_and_gets_the_answer;
    sameness:
        the_same_key_with_another_body_is_refused,
        the_same_key_with_another_body_is_refused_while_the_first_runs,
        reordered_json_members_are_the_same_request,
        the_same_key_on_another_path_is_refused,
        a_quoted_and_a_bare_key_are_one_key,
        two_tenants_with_the_same_key_do_not_meet,
        a_key_of_three_hundred_characters_is_refused,
        a_request_without_a_key_is_refused_where_one_is_required;
    endings:
        a_declined_payment_is_replayed,
        a_refused_body_is_replayed,
        a_failure_of_the_service_is_replayed,
        a_service_that_says_not_so_fast_runs_again,
        a_service_that_says_not_now_runs_again,
        a_bad_gateway_is_an_unknown_outcome_or_runs_again_by_class,
        a_service_that_hangs_up_is_an_unknown_outcome_or_runs_again_by_class,
        an_answer_that_breaks_off_is_an_unknown_outcome_or_runs_again_by_class;
    leaving:
        a_client_that_closes_its_connection_stops_nothing,
        a_client_that_resets_its_connection_stops_nothing,
        a_client_that_closes_its_sending_side_gets_its_answer,
        a_client_that_leaves_in_the_middle_of_its_body_claims_nothing;
    bodies:
        a_body_of_three_megabytes_is_refused_and_claims_nothing,
        a_binary_body_is_replayed_byte_for_byte,
        an_answer_too_large_to_keep_reaches_its_client_and_never_runs_again,
        location_and_repeated_lines_are_replayed_and_cookies_are_not,
        an_answer_without_content_is_replayed_without_content,
        the_upstream_gets_the_same_derived_key_on_every_attempt;
}

/// Runs every row, and tells of all that fail.
async fn run(language: Language, home: Home, gateways: usize) {
    let stage = Arc::new(Stage::set(language, &home, gateways));
    let mut failed = Vec::new();
    for (name, row) in ROWS {
        let scene = Scene { stage: Arc::clone(&stage), tenant: name };
        let ended = AssertUnwindSafe(within(name, row(scene))).catch_unwind().await;
        if ended.is_err() {
            failed.push(*name);
        }
    }
    assert!(failed.is_empty(), "{} of {} rows failed: {failed:#?}", failed.len(), ROWS.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_behind_the_gateway_on_sqlite() {
    run(Language::Python, Home::on_sqlite(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_behind_the_gateway_on_sqlite() {
    run(Language::Node, Home::on_sqlite(), 1).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn python_behind_the_gateway_on_postgres() {
    run(Language::Python, Home::on_postgres("one"), 1).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn node_behind_two_gateways_on_one_postgres() {
    run(Language::Node, Home::on_postgres("two"), 2).await;
}
