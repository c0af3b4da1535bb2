//! Handlers that break, and handlers that ask about their attempt.

use axum::body::Body;
use http::{Request, Response};
use oncekey::core::policy::Panicked;
use oncekey::core::{Class, Policy};
use oncekey::layer::{IdempotencyContext, Mode, Outcome, Outcomes};
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};

use crate::rig::{KEY, Rig, Seen, layer, post, required};

#[tokio::test]
async fn an_error_of_the_service_is_no_answer() {
    let rig = Rig::new(layer().rule(required()), |_, _| Box::pin(async { Err("broken".into()) }));
    let error = rig.try_send(post(KEY, "{}")).await.unwrap_err();
    assert_eq!(error.to_string(), "broken", "the caller gets the service's own error");
    let second = rig.send(post(KEY, "{}")).await;
    second.assert_refused(409, "idempotency_outcome_unknown", "unknown");
    assert_eq!(rig.runs(), 1);
}

fn panicking(policy: Policy) -> Rig {
    Rig::new(layer().rule(required().policy(policy).unwrap()), |run, _| {
        Box::pin(async move {
            assert_ne!(run, 1, "the first run panics");
            Ok(Response::new(Body::from("second run")))
        })
    })
}

#[tokio::test]
async fn a_panic_is_an_unknown_outcome() {
    let rig = panicking(Policy::default());
    let first = rig.send(post(KEY, "{}")).await;
    first.assert_refused(500, "idempotency_outcome_unknown", "unknown");
    assert_eq!(first.problem()["retryable"], false);
    let second = rig.send(post(KEY, "{}")).await;
    second.assert_refused(409, "idempotency_outcome_unknown", "unknown");
    assert_eq!(rig.runs(), 1);
}

#[tokio::test]
async fn a_panic_of_work_that_may_run_again_may_be_retried() {
    for class in [Class::Keyed, Class::Retry] {
        let rig = panicking(Policy { class, ..Policy::default() });
        let first = rig.send(post(KEY, "{}")).await;
        first.assert_refused(500, "idempotency_outcome_unknown", "unknown");
        assert_eq!(first.problem()["retryable"], true);
        assert_eq!(rig.send(post(KEY, "{}")).await.text(), "second run");
        assert!(rig.send(post(KEY, "{}")).await.is_replay());
    }
}

#[tokio::test]
async fn a_panic_of_a_transaction_did_nothing() {
    let rig = panicking(Policy { class: Class::Tx, ..Policy::default() });
    let first = rig.send(post(KEY, "{}")).await;
    first.assert_refused(500, "idempotency_work_failed", "no");
    assert_eq!(first.problem()["retryable"], true);
    assert_eq!(rig.send(post(KEY, "{}")).await.text(), "second run");
}

/// I13: where a panic counts as an answer, everybody gets the same one.
#[tokio::test]
async fn a_panic_that_counts_as_an_answer_is_the_same_for_everybody() {
    let rig = panicking(Policy { panic: Panicked::Answer500, ..Policy::default() });
    let first = rig.send(post(KEY, "{}")).await;
    let second = rig.send(post(KEY, "{}")).await;
    for seen in [&first, &second] {
        assert_eq!((seen.status.as_u16(), seen.text()), (500, ""));
    }
    assert!(!first.is_replay() && second.is_replay());
    assert_eq!(rig.runs(), 1);
}

/// The handler learns about its attempt, and derived keys stay the same when it runs again.
#[tokio::test]
async fn a_handler_finds_its_attempt_in_the_extensions() {
    let policy = Policy { class: Class::Keyed, ..Policy::default() };
    let rig = Rig::new(layer().rule(required().policy(policy).unwrap()), |run, request| {
        Box::pin(async move {
            let context: &IdempotencyContext = request.extensions().get().unwrap();
            assert_eq!(context.key().as_str(), KEY);
            assert_eq!(context.is_retry(), run == 2);
            let derived = context.derived_key("charge");
            assert_ne!(derived, context.derived_key("refund"));
            let fence = context.fence().unwrap().number();
            let status = if run == 1 { 502 } else { 200 };
            let body = format!("{derived} {fence}");
            Ok(Response::builder().status(status).body(Body::from(body))?)
        })
    });
    let first = rig.send(post(KEY, "{}")).await;
    let second = rig.send(post(KEY, "{}")).await;
    let parts = |seen: &Seen| {
        let (derived, fence) = seen.text().split_once(' ').unwrap();
        (derived.to_owned(), fence.parse::<i64>().unwrap())
    };
    let ((one, earlier), (two, later)) = (parts(&first), parts(&second));
    assert_eq!(one, two);
    assert!(earlier < later);
}

#[tokio::test]
async fn a_request_that_passes_through_has_no_attempt() {
    let optional = required().mode(Mode::Optional);
    let rig = Rig::new(layer().rule(optional), |_, request| {
        Box::pin(async move {
            assert!(request.extensions().get::<IdempotencyContext>().is_none());
            Ok(Response::new(Body::empty()))
        })
    });
    assert_eq!(rig.send(Request::post("/").body(Body::empty()).unwrap()).await.status, 200);
    assert_eq!(rig.runs(), 1);
}

async fn empty(_: Request<Body>) -> Result<Response<Body>, BoxError> {
    Ok(Response::new(Body::empty()))
}

/// Whoever stands outside learns how a request ended, if the layer is told to say so, and only then.
#[tokio::test]
async fn a_response_tells_its_outcome_to_those_outside_if_asked_to() {
    let told = [None, Some(Outcome::Executed), Some(Outcome::Replayed)];
    for (outcomes, expected) in
        [(Outcomes::Untold, [told[0], told[0]]), (Outcomes::InExtensions, [told[1], told[2]])]
    {
        let layer = layer().rule(required()).outcomes(outcomes).build();
        let service = layer.layer(service_fn(empty));
        for expected in expected {
            let response = service.clone().oneshot(post(KEY, "{}")).await.unwrap();
            assert_eq!(response.extensions().get::<Outcome>().copied(), expected, "{outcomes:?}");
        }
    }
}
