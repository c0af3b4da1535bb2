//! Two oncekeys in a row: the layer twice, or a gateway in front of a service that has the layer. And
//! attempts that follow others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::routing::post as on_post;
use axum::{Extension, Router};
use http::{Request, Response, StatusCode};
use oncekey::core::Policy;
use oncekey::core::policy::Class;
use oncekey::layer::{IdempotencyContext, IdempotencyLayer, Rule, ScopeFrom, Undelivered};
use oncekey::problem::{Code, Problem};
use tower::ServiceExt as _;

use crate::rig::{KEY, Rig, Seen, engine, layer, post, required};

/// A layer around everything and one around a route, on one engine: the request would wait for itself, and
/// below a nested path it would not even look the same.
#[tokio::test]
async fn a_layer_within_a_layer_of_the_same_engine_lets_its_work_through() {
    let engine = engine();
    let layer = || {
        let builder = IdempotencyLayer::builder(engine.clone()).scope(ScopeFrom::shared());
        builder.rule(Rule::new("POST /charges").required()).build()
    };
    let inner = || Router::new().route("/charges", on_post(async || "done")).route_layer(layer());
    for (path, service) in [
        ("/charges", inner().layer(layer())),
        ("/v1/charges", Router::new().nest("/v1", inner()).layer(layer())),
    ] {
        for replay in [false, true] {
            let request = Request::post(path).header("idempotency-key", format!("{KEY}{path}"));
            let request = request.body(Body::empty()).unwrap();
            let seen = Seen::of(service.clone().oneshot(request).await.unwrap()).await;
            assert_eq!((seen.status.as_u16(), seen.text()), (200, "done"), "{path}");
            assert_eq!(seen.is_replay(), replay, "{path}");
        }
    }
}

/// I4: an attempt that is over protects nothing: a request that a handler left behind, with what it had learned,
/// is a request like any other.
#[tokio::test]
async fn a_request_that_outlives_its_attempt_is_protected_like_any_other() {
    let (left, runs) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
    let (kept, counted) = (Arc::clone(&left), Arc::clone(&runs));
    let handler = async move |Extension(attempt): Extension<IdempotencyContext>| {
        kept.lock().unwrap().get_or_insert(attempt);
        match counted.fetch_add(1, Ordering::SeqCst) {
            0 => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::OK,
        }
    };
    let layer = IdempotencyLayer::builder(engine()).scope(ScopeFrom::shared());
    let layer = layer.rule(Rule::new("POST /charges").required()).build();
    let service = Router::new().route("/charges", on_post(handler)).layer(layer);
    let ask = async |left_behind: Option<IdempotencyContext>| {
        let request = Request::post("/charges").header("idempotency-key", KEY);
        let mut request = request.body(Body::empty()).unwrap();
        if let Some(attempt) = left_behind {
            request.extensions_mut().insert(attempt);
        }
        Seen::of(service.clone().oneshot(request).await.unwrap()).await
    };
    assert_eq!(ask(None).await.status, 429);
    let attempt = left.lock().unwrap().clone().expect("the handler ran");
    assert_eq!(ask(Some(attempt)).await.status, 200);
    assert!(ask(None).await.is_replay(), "it was recorded");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// I20: what another oncekey says of work that broke behind it is not the answer of the service. It does not
/// decide anything else: a service may have acted before it passes on what somebody refused to it.
#[tokio::test]
async fn the_doubt_of_another_oncekey_is_never_kept_as_an_answer() {
    const DOUBT: &str = "oncekey; unknown; executed=unknown; retry=?0";
    for (status, said, runs, replayed) in [
        (500, DOUBT, 1, false),
        // It holds a record, and says another time what became of it.
        (409, DOUBT, 2, false),
        (409, "oncekey; in-progress; executed=unknown; retry=?1", 2, false),
        // By their status, as if nothing were said.
        (422, "oncekey; mismatch; executed=no; retry=?0", 1, true),
        (504, "oncekey; unknown; executed=unknown; retry=?1", 1, false),
        (201, "oncekey; executed; ttl=86400", 1, true),
        (500, "somebody; unknown; executed=unknown; retry=?0", 1, true),
    ] {
        let rig = Rig::answering(move || {
            let answer = Response::builder().status(status).header("idempotency-status", said);
            answer.body(Body::from("theirs")).unwrap()
        });
        let first = rig.send(post(KEY, "{}")).await;
        assert_eq!((first.status.as_u16(), first.text()), (status, "theirs"), "{said}");
        let second = rig.send(post(KEY, "{}")).await;
        assert_eq!((rig.runs(), second.is_replay()), (runs, replayed), "{status} {said}");
        if runs == 1 && !replayed {
            second.assert_refused(409, "idempotency_outcome_unknown", "unknown");
        }
    }
}

/// I13: an attempt that reached nobody does not speak for the one before it, which may have acted.
#[tokio::test]
async fn nothing_was_executed_is_not_said_after_an_attempt_that_may_have_acted() {
    let policy = Policy { class: Class::Keyed, ..Policy::default() };
    let rule = || layer().rule(required().policy(policy.clone()).unwrap());
    for (first, executed) in [(Undelivered::NoAnswer, "unknown"), (Undelivered::NeverSent, "no")] {
        let rig = Rig::new(rule(), move |run, _| {
            let undelivered = if run == 1 { first } else { Undelivered::NeverSent };
            let mut answer = Response::builder().status(502).body(Body::empty()).unwrap();
            answer.extensions_mut().insert(undelivered);
            let problem = Problem::new(Code::UpstreamUnreachable, "Nothing was executed.");
            answer.extensions_mut().insert(problem);
            Box::pin(async move { Ok(answer) })
        });
        rig.send(post(KEY, "{}")).await;
        let second = rig.send(post(KEY, "{}")).await;
        assert_eq!(rig.runs(), 2);
        let status = second.header("idempotency-status");
        assert!(status.contains(&format!("not-delivered; executed={executed}")), "{status}");
    }
}
