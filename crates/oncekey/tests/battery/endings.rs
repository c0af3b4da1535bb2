//! How the work ended, and what a retry then meets.

use axum::body::Body;
use http::Response;
use oncekey::core::policy::Panicked;
use oncekey::core::{Class, Policy};

use crate::scene::{Keeper, Server, created};
use crate::wire::{Seen, pay};

const BODY: &str = r#"{"amount": 500}"#;

/// A service that answers its first run with `status`, and makes the payment in every later one.
async fn first_with(keeper: Keeper, policy: Policy, status: u16) -> Server {
    Server::start(keeper, policy, move |run, _| {
        Box::pin(async move {
            if run > 1 {
                return created(run);
            }
            let response = Response::builder().status(status).header("retry-after", "7");
            response.body(Body::from("the first answer")).unwrap()
        })
    })
    .await
}

async fn assert_replayed(keeper: Keeper, status: u16) {
    let server = first_with(keeper, Policy::default(), status).await;
    let first = server.send(&pay(BODY)).await;
    assert_eq!((first.status, first.text()), (status, "the first answer"));
    let again = server.send(&pay(BODY)).await;
    again.assert_replays(&first);
    assert_eq!(again.line("retry-after"), "7");
    assert_eq!(server.runs(), 1);
}

/// Row 15: a decline is an outcome.
pub(crate) async fn a_declined_payment_is_replayed(keeper: Keeper) {
    assert_replayed(keeper, 402).await;
}

/// Row 8.
pub(crate) async fn a_refused_body_is_replayed(keeper: Keeper) {
    assert_replayed(keeper, 400).await;
}

/// Row 7: the charge may have been made before the service failed.
pub(crate) async fn a_failure_of_the_service_is_replayed(keeper: Keeper) {
    assert_replayed(keeper, 500).await;
}

async fn assert_runs_again(keeper: Keeper, status: u16) {
    let server = first_with(keeper, Policy::default(), status).await;
    let first = server.send(&pay(BODY)).await;
    assert_eq!((first.status, first.text()), (status, "the first answer"));
    assert_eq!(first.line("idempotency-status"), "oncekey; executed; recorded=released");
    let second = server.send(&pay(BODY)).await;
    assert_eq!((second.status, second.is_replay(), server.runs()), (201, false, 2));
    server.send(&pay(BODY)).await.assert_replays(&second);
    assert_eq!(server.runs(), 2);
}

/// Row 16.
pub(crate) async fn a_service_that_says_not_so_fast_runs_again(keeper: Keeper) {
    assert_runs_again(keeper, 429).await;
}

pub(crate) async fn a_service_that_says_not_now_runs_again(keeper: Keeper) {
    assert_runs_again(keeper, 503).await;
}

/// Row 18, as an answer: something behind the service gave up, and nobody knows what it had done.
pub(crate) async fn a_bad_gateway_is_an_unknown_outcome_or_runs_again_by_class(keeper: Keeper) {
    for class in [Class::Once, Class::Keyed, Class::Retry] {
        let server = first_with(keeper, Policy { class, ..Policy::default() }, 502).await;
        let first = server.send(&pay(BODY)).await;
        assert_eq!((first.status, first.text()), (502, "the first answer"));
        assert_eq!(first.line("idempotency-status"), "oncekey; executed; recorded=unknown");
        let second = server.send(&pay(BODY)).await;
        match class {
            Class::Once | Class::Tx => {
                second.assert_refused(409, "idempotency_outcome_unknown", "unknown");
                assert_eq!(second.problem()["original_request"], first.line("request-id"));
                assert_eq!(server.runs(), 1);
            }
            Class::Keyed | Class::Retry => assert_ran_second(&server, &second).await,
        }
    }
}

async fn assert_ran_second(server: &Server, second: &Seen) {
    assert_eq!((second.status, second.is_replay(), server.runs()), (201, false, 2));
    server.send(&pay(BODY)).await.assert_replays(second);
    assert_eq!(server.runs(), 2);
}

async fn first_panics(keeper: Keeper, policy: Policy) -> Server {
    Server::start(keeper, policy, |run, _| {
        Box::pin(async move {
            assert_ne!(run, 1, "the first run panics, and its message is expected");
            created(run)
        })
    })
    .await
}

/// Row 9: an answer that says what is known, and a key that is not stuck in "running".
pub(crate) async fn a_panic_is_told_and_not_run_again_under_once(keeper: Keeper) {
    let server = first_panics(keeper, Policy::default()).await;
    let first = server.send(&pay(BODY)).await;
    first.assert_refused(500, "idempotency_outcome_unknown", "unknown");
    assert_eq!(first.problem()["retryable"], false);
    let second = server.send(&pay(BODY)).await;
    second.assert_refused(409, "idempotency_outcome_unknown", "unknown");
    assert_eq!(second.problem()["original_request"], first.line("request-id"));
    assert_eq!(server.runs(), 1);
}

/// Row 9, where the work may be done again: the retry does it at once.
pub(crate) async fn a_panic_runs_again_under_retry_and_keyed(keeper: Keeper) {
    for class in [Class::Keyed, Class::Retry] {
        let server = first_panics(keeper, Policy { class, ..Policy::default() }).await;
        let first = server.send(&pay(BODY)).await;
        first.assert_refused(500, "idempotency_outcome_unknown", "unknown");
        assert_eq!(first.problem()["retryable"], true, "{class:?}");
        let second = server.send(&pay(BODY)).await;
        assert_ran_second(&server, &second).await;
    }
}

/// Row 9, where a panic counts as an answer: everybody gets the same one.
pub(crate) async fn a_panic_is_an_answer_where_the_policy_says_so(keeper: Keeper) {
    let policy = Policy { panic: Panicked::Answer500, ..Policy::default() };
    let server = first_panics(keeper, policy).await;
    let first = server.send(&pay(BODY)).await;
    assert_eq!((first.status, first.text()), (500, ""));
    server.send(&pay(BODY)).await.assert_replays(&first);
    assert_eq!(server.runs(), 1);
}
