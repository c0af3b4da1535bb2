//! The acceptance battery of the layer: what a client sees over a real socket.
//!
//! Each row is one promise, named after it, and counts how often the handler ran. Most rows are
//! the probes with which we compared eight other implementations, none of which passed them all;
//! the rest are what the comparison taught us to ask. Every row runs on the store in memory and on
//! SQLite, behind axum's own server; `plain` and `grpc` have servers of plain hyper.
//!
//! Nothing in here waits for a time. Handlers stop where a row wants them to stop, and a row goes
//! on when something has happened.

#![cfg(all(feature = "tower", feature = "sqlite"))]
#![expect(clippy::unwrap_used, reason = "all of it is a test, also what stands outside of one")]

mod aborts;
mod bodies;
#[path = "../common/mod.rs"]
mod common;
mod endings;
mod flight;
mod framing;
mod grpc;
mod keys;
mod killed;
mod leaving;
mod lines;
mod parallel;
mod plain;
mod restart;
mod sameness;
mod scene;
mod wire;

use std::time::Duration;

/// A row that takes longer hangs. The slowest needs less than a second on a busy machine.
const LONGEST: Duration = Duration::from_secs(60);

/// Runs a row, and says so if it hangs instead of hanging with it.
async fn row(row: impl Future<Output = ()>) {
    tokio::time::timeout(LONGEST, row).await.expect("the row hangs");
}

/// Not a test: the server that [`killed`] starts and kills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    if let Some(orders) = common::child::orders() {
        killed::serve(&orders).await;
    }
}

/// Makes a test of every row, on every store. A row that is not listed is unused code, and the
/// compiler says so.
macro_rules! battery {
    ($($module:ident: $($row:ident),+ $(,)?;)+) => {
        battery!(@on memory, Memory; $($($module::$row),+),+);
        battery!(@on sqlite, Sqlite; $($($module::$row),+),+);
    };
    (@on $store:ident, $keeper:ident; $($module:ident::$row:ident),+) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $row() {
                    crate::row(crate::$module::$row(crate::scene::Keeper::$keeper)).await;
                }
            )+
        }
    };
}

battery! {
    parallel:
        twenty_parallel_duplicates_run_once,
        nineteen_of_twenty_get_the_first_ones_answer,
        nineteen_of_twenty_are_told_to_come_back_where_nobody_waits,
        twenty_parallel_duplicates_run_once_though_the_answer_sets_a_cookie,
        twenty_parallel_duplicates_on_two_servers_run_once;
    sameness:
        the_same_key_with_another_body_is_refused,
        the_same_key_with_another_body_is_refused_while_the_first_runs,
        reordered_json_members_are_the_same_request,
        the_same_key_on_another_path_is_refused,
        the_same_key_with_another_query_is_refused,
        a_quoted_and_a_bare_key_are_one_key,
        two_tenants_with_the_same_key_do_not_meet;
    endings:
        a_declined_payment_is_replayed,
        a_refused_body_is_replayed,
        a_failure_of_the_service_is_replayed,
        a_service_that_says_not_so_fast_runs_again,
        a_service_that_says_not_now_runs_again,
        a_bad_gateway_is_an_unknown_outcome_or_runs_again_by_class,
        a_panic_is_told_and_not_run_again_under_once,
        a_panic_runs_again_under_retry_and_keyed,
        a_panic_is_an_answer_where_the_policy_says_so;
    leaving:
        a_client_that_closes_its_connection_stops_nothing,
        a_client_that_resets_its_connection_stops_nothing,
        a_client_that_closes_its_sending_side_stops_nothing,
        a_client_that_leaves_in_the_middle_of_its_body_claims_nothing;
    bodies:
        a_body_of_three_megabytes_is_refused_and_claims_nothing,
        a_chunked_body_of_three_megabytes_is_refused_and_claims_nothing,
        a_binary_body_is_replayed_byte_for_byte,
        a_compressed_body_is_replayed_compressed,
        an_answer_too_large_to_keep_reaches_its_client_and_never_runs_again,
        an_answer_too_large_to_keep_is_passed_on_while_it_is_written,
        a_stream_of_events_reaches_its_client_at_once_and_never_runs_again;
    lines:
        location_and_repeated_lines_are_replayed_in_order,
        cookies_and_lines_of_one_exchange_are_not_replayed,
        every_answer_says_what_it_is;
    framing:
        an_answer_without_content_is_replayed_without_content,
        an_answer_that_is_not_modified_is_replayed_without_a_body,
        a_head_request_is_never_protected_and_never_has_a_body,
        one_connection_carries_first_answer_replay_and_refusals;
    keys:
        a_key_of_three_hundred_characters_is_refused,
        a_request_without_a_key_is_refused_where_one_is_required,
        a_request_with_two_keys_is_refused,
        a_request_without_a_scope_is_refused;
    flight:
        a_duplicate_waits_and_gets_the_answer,
        a_duplicate_that_has_waited_long_enough_is_told_to_come_back,
        a_duplicate_is_told_to_come_back_at_once_where_nobody_waits,
        a_duplicate_is_told_where_its_answer_will_be;
    plain:
        a_service_of_plain_hyper_runs_once,
        an_error_of_the_service_is_an_unknown_outcome_under_once,
        an_error_of_the_service_runs_again_under_retry_and_keyed,
        a_server_that_allows_half_closed_connections_answers_on_them;
    grpc:
        trailers_are_replayed_as_trailers,
        a_client_that_resets_its_stream_stops_nothing;
    aborts:
        a_request_dropped_at_any_poll_runs_once_at_most;
}
