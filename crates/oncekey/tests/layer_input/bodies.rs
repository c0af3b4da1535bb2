//! 3.3 of the study of bad inputs: request bodies, and what counts as the same request.

use axum::body::Body;
use http::{HeaderName, Method, Request, Version};
use http_body_util::BodyExt as _;
use oncekey::core::fingerprint::JsonBodies;
use oncekey::core::policy::Limits;
use oncekey::core::{FingerprintRules, Policy};

use crate::rig::{KEY, Rig, data, frames, layer, pieces, post, required};

/// A small limit, so that rows need no megabytes.
const CAP: usize = 1_000;

fn capped() -> Rig {
    let limits = Limits { request_body: CAP, ..Limits::default() };
    Rig::under(Policy { limits, ..Policy::default() })
}

#[tokio::test]
async fn bodies_up_to_the_limit_are_read_and_larger_ones_claim_nothing() {
    for (length, fits) in [(0, true), (1, true), (CAP, true), (CAP + 1, false), (9 * CAP, false)] {
        let rig = capped();
        // With a declared length, and in frames of a byte without one.
        for body in [Body::from("x".repeat(length)), pieces(std::iter::repeat_n("x", length))] {
            let seen = rig.send(post(KEY, body)).await;
            if fits {
                assert_eq!(seen.status, 201, "{length}");
            } else {
                seen.assert_refused(413, "idempotency_body_too_large", "no");
                assert_eq!(seen.header("connection"), "close");
            }
        }
        assert_eq!(rig.runs(), usize::from(fits), "both bodies are the same request: {length}");
        // Nothing was claimed: the key is free for a request that fits.
        let seen = rig.send(post(KEY, "x".repeat(length.min(CAP)))).await;
        assert_eq!((seen.status.as_u16(), seen.is_replay()), (201, fits), "{length}");
    }
}

/// I38: HTTP/2 ends the stream, and forbids the field that closes a connection.
#[tokio::test]
async fn only_http_1_is_told_to_close() {
    for (version, closes) in [(Version::HTTP_10, true), (Version::HTTP_2, false)] {
        let rig = capped();
        let mut request = post(KEY, "x".repeat(CAP + 1));
        *request.version_mut() = version;
        let seen = rig.send(request).await;
        seen.assert_refused(413, "idempotency_body_too_large", "no");
        assert_eq!(seen.headers.contains_key("connection"), closes);
    }
}

#[tokio::test]
async fn a_million_frames_of_one_byte_are_one_body() {
    let rig = Rig::counting(layer().rule(required()));
    let seen = rig.send(post(KEY, pieces(std::iter::repeat_n("x", 1_000_000)))).await;
    assert_eq!(seen.status, 201);
    assert!(rig.send(post(KEY, "x".repeat(1_000_000))).await.is_replay());
}

#[tokio::test]
async fn a_body_that_breaks_off_claims_nothing() {
    let rig = Rig::counting(layer().rule(required()));
    let broken = || frames([Ok(data("{\"amount\"")), Err("reset")]);
    let seen = rig.send(post(KEY, broken())).await;
    seen.assert_refused(400, "idempotency_body_incomplete", "no");
    assert_eq!(rig.runs(), 0);
    assert_eq!(rig.send(post(KEY, "{}")).await.status, 201);
}

/// The service gets the body that was read, whole, and the head as it came.
#[tokio::test]
async fn the_service_gets_the_request_as_it_came() {
    let rig = Rig::new(layer().rule(required()), |_, request: Request<Body>| {
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            assert_eq!(head.uri, "/charges");
            assert_eq!(head.headers["idempotency-key"], KEY);
            assert_eq!(head.headers["content-type"], "application/json");
            Ok(http::Response::new(Body::from(body)))
        })
    });
    let seen = rig.send(post(KEY, pieces(["{\"a\":", "", "1}"]))).await;
    assert_eq!(seen.text(), "{\"a\":1}");
}

/// I23 and I24: whatever the service could act on makes another request.
#[tokio::test]
async fn any_difference_that_the_service_could_see_is_another_request() {
    type Change = fn(&mut Request<Body>);
    let rows: &[(&str, Change, &str)] = &[
        ("method", |request| *request.method_mut() = Method::PATCH, "method"),
        ("path", |request| *request.uri_mut() = "/refunds".parse().unwrap(), "path"),
        ("slash", |request| *request.uri_mut() = "/charges/".parse().unwrap(), "path"),
        ("query", |request| *request.uri_mut() = "/charges?a=1".parse().unwrap(), "query"),
        ("empty query", |request| *request.uri_mut() = "/charges?".parse().unwrap(), "query"),
        (
            "type",
            |request| {
                drop(request.headers_mut().insert("content-type", "text/plain".parse().unwrap()))
            },
            "content-type",
        ),
        (
            "second type",
            |request| {
                request.headers_mut().append("content-type", "text/plain".parse().unwrap());
            },
            "content-type",
        ),
        (
            "encoding",
            |request| drop(request.headers_mut().insert("content-encoding", "br".parse().unwrap())),
            "header:content-encoding",
        ),
        (
            "counted header",
            |request| drop(request.headers_mut().insert("x-api-version", "2".parse().unwrap())),
            "header:x-api-version",
        ),
        ("body", |request| *request.body_mut() = Body::from("{\"amount\":2}"), "body:/amount"),
    ];
    for (row, change, place) in rows {
        let counted = [HeaderName::from_static("x-api-version")];
        let rig = Rig::counting(layer().rule(required().count_headers(counted)));
        let original = rig.send(post(KEY, "{\"amount\":1}")).await;
        let mut other = post(KEY, "{\"amount\":1}");
        change(&mut other);
        let seen = rig.send(other).await;
        seen.assert_refused(422, "idempotency_key_reused", "no");
        let problem = seen.problem();
        let differs = problem["differs"].as_array().unwrap();
        assert!(differs.iter().any(|named| named == place), "{row}: {differs:?}");
        assert_eq!(problem["original_request"], original.header("request-id"));
        assert_eq!(seen.header("original-request"), original.header("request-id"));
        // The original is untouched by the refusal.
        assert!(rig.send(post(KEY, "{\"amount\":1}")).await.is_replay(), "{row}");
        assert_eq!(rig.runs(), 1, "{row}");
    }
}

/// What changes between honest attempts does not count.
#[tokio::test]
async fn credentials_traces_and_other_headers_do_not_count() {
    let rig = Rig::counting(layer().rule(required()));
    rig.send(post(KEY, "{}")).await;
    for (name, value) in [
        ("authorization", "Bearer fresh"),
        ("cookie", "a=b"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("user-agent", "curl"),
        ("accept-encoding", "br"),
        ("idempotency-attempt", "2"),
        ("x-forwarded-for", "203.0.113.7"),
    ] {
        let mut request = post(KEY, "{}");
        request.headers_mut().insert(name, value.parse().unwrap());
        assert!(rig.send(request).await.is_replay(), "{name}");
    }
    assert_eq!(rig.runs(), 1);
}

/// I23: another request under a running key is told so at once, and does not wait.
#[tokio::test]
async fn another_request_is_refused_even_while_the_first_is_running() {
    let (release, wait) = tokio::sync::watch::channel(());
    let (started, mut running) = tokio::sync::mpsc::channel(1);
    let rig = Rig::new(layer().rule(required()), move |_, _| {
        let (mut wait, started) = (wait.clone(), started.clone());
        Box::pin(async move {
            started.send(()).await?;
            wait.changed().await?;
            Ok(http::Response::new(Body::empty()))
        })
    });
    let first = tokio::spawn({
        let rig = rig.clone();
        async move { rig.send(post(KEY, "{\"amount\":1}")).await }
    });
    running.recv().await.unwrap();
    let seen = rig.send(post(KEY, "{\"amount\":2}")).await;
    seen.assert_refused(422, "idempotency_key_reused", "no");
    release.send(()).unwrap();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(rig.runs(), 1);
}

#[tokio::test]
async fn a_raw_rule_compares_byte_by_byte() {
    let rules = FingerprintRules { json: JsonBodies::Raw, ..FingerprintRules::default() };
    let rig = Rig::counting(layer().rule(required().fingerprint(rules)));
    rig.send(post(KEY, "{\"a\":1,\"b\":2}")).await;
    let seen = rig.send(post(KEY, "{\"b\":2,\"a\":1}")).await;
    seen.assert_refused(422, "idempotency_key_reused", "no");
    assert!(rig.send(post(KEY, "{\"a\":1,\"b\":2}")).await.is_replay());
}
