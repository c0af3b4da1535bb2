//! Status URLs: what became of a key.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response};
use oncekey::core::saved::Saved;
use oncekey::core::{Fingerprint, Headers, Key, Places, Policy, Scope};
use oncekey::engine::{Call, Engine, Finish, RequestId};
use oncekey::layer::{IdempotencyLayer, LayerBuilder, Rule, ScopeFrom};

use crate::rig::{KEY, Rig, Seen, engine, layer, post, required};

const PREFIX: &str = "/.idempotency/keys/";

fn with_status(layer: LayerBuilder) -> LayerBuilder {
    layer.rule(required()).status_path(PREFIX).unwrap()
}

async fn ask(rig: &Rig, key: &str) -> Seen {
    rig.send(Request::get(format!("{PREFIX}{key}")).body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn a_status_url_gives_the_answer() {
    let rig = Rig::counting(with_status(layer()));
    ask(&rig, KEY).await.assert_refused(404, "idempotency_key_not_found", "unknown");
    let first = rig.send(post(KEY, "{}")).await;
    let seen = ask(&rig, KEY).await;
    assert_eq!((seen.status, seen.text(), seen.is_replay()), (first.status, "run 1", true));
    assert_eq!(seen.header("original-request"), first.header("request-id"));
    assert_eq!(seen.header("idempotency-key"), format!("\"{KEY}\""));
    assert_eq!(seen.header("cache-control"), "no-store");
    assert_eq!(rig.runs(), 1);
}

/// A rule may put its callers into a scope of its own, and a request for a status does not say which rule
/// its key came under.
#[tokio::test]
async fn a_status_url_finds_keys_of_rules_with_scopes_of_their_own() {
    let tenant = || ScopeFrom::header(HeaderName::from_static("x-tenant"));
    let rule = || required().scope(tenant());
    let one = IdempotencyLayer::builder(engine()).scope(ScopeFrom::credential()).rule(rule());
    let chosen = std::sync::Arc::new(rule());
    let choosing = IdempotencyLayer::builder(engine())
        .scope(ScopeFrom::credential())
        .rules(move |_| Some(std::sync::Arc::clone(&chosen)))
        .status_scopes([tenant()]);
    for layer in [one, choosing] {
        let rig = Rig::counting(layer.status_path(PREFIX).unwrap());
        let with = |mut request: Request<Body>, tenant: &'static str| {
            request.headers_mut().insert("x-tenant", HeaderValue::from_static(tenant));
            request
        };
        rig.send(with(post(KEY, "{}"), "a")).await;
        let status = || Request::get(format!("{PREFIX}{KEY}")).body(Body::empty()).unwrap();
        assert_eq!(rig.send(with(status(), "a")).await.text(), "run 1");
        for other in [rig.send(with(status(), "b")).await, rig.send(status()).await] {
            other.assert_refused(404, "idempotency_key_not_found", "unknown");
        }
    }
}

/// T1: one value may be a user under one rule and an organisation under another.
#[tokio::test]
async fn a_status_url_gives_no_answer_of_a_rule_that_puts_the_caller_elsewhere() {
    let header = |name| ScopeFrom::header(HeaderName::from_static(name));
    let chosen = std::sync::Arc::new(required().scope(header("x-org")));
    let name = chosen.name().to_owned();
    let scope_of = move |rule: &str| (*rule == *name).then(|| header("x-org"));
    let layer = IdempotencyLayer::builder(engine())
        .scope(header("x-user"))
        .rules(move |_| Some(std::sync::Arc::clone(&chosen)))
        .status_scopes([header("x-org")])
        .rule_scopes(scope_of);
    let rig = Rig::counting(layer.status_path(PREFIX).unwrap());
    let with = |mut request: Request<Body>, lines: &[(&'static str, &'static str)]| {
        for (name, value) in lines {
            request.headers_mut().insert(*name, HeaderValue::from_static(value));
        }
        request
    };
    rig.send(with(post(KEY, "{}"), &[("x-org", "42")])).await;
    let status = || Request::get(format!("{PREFIX}{KEY}")).body(Body::empty()).unwrap();
    let stranger = rig.send(with(status(), &[("x-user", "42"), ("x-org", "7")])).await;
    stranger.assert_refused(404, "idempotency_key_not_found", "unknown");
    let member = rig.send(with(status(), &[("x-user", "1"), ("x-org", "42")])).await;
    assert_eq!(member.text(), "run 1");
}

#[tokio::test]
async fn a_head_request_for_a_status_has_no_body() {
    let rig = Rig::counting(with_status(layer()));
    rig.send(post(KEY, "{}")).await;
    let head = Request::head(format!("{PREFIX}{KEY}")).body(Body::empty()).unwrap();
    let seen = rig.send(head).await;
    assert_eq!((seen.status.as_u16(), seen.text(), seen.header("content-length")), (201, "", "5"));
}

#[tokio::test]
async fn keys_are_percent_encoded_in_status_urls() {
    let rig = Rig::counting(with_status(layer()));
    rig.send(post("\"a/b?c, d\"", "{}")).await;
    assert_eq!(ask(&rig, "a%2Fb%3Fc%2C%20d").await.text(), "run 1");
    for (key, status, code) in [
        ("", 400, "idempotency_key_invalid"),
        ("%zz", 400, "idempotency_key_invalid"),
        ("%0a", 400, "idempotency_key_invalid"),
        ("%C3%A9", 400, "idempotency_key_invalid"),
        ("a%2Fb", 404, "idempotency_key_not_found"),
    ] {
        let seen = ask(&rig, key).await;
        assert_eq!((seen.status.as_u16(), seen.refusal().1.as_str()), (status, code), "{key}");
    }
}

#[tokio::test]
async fn a_status_url_tells_about_answers_that_are_not_there() {
    for (status, expected) in [
        (502, (409, "idempotency_outcome_unknown", "unknown")),
        (101, (409, "idempotency_response_not_retained", "yes")),
        (429, (404, "idempotency_key_not_found", "unknown")),
    ] {
        let rig = Rig::new(with_status(layer()), move |_, _| {
            Box::pin(async move { Ok(Response::builder().status(status).body(Body::empty())?) })
        });
        rig.send(post(KEY, "{}")).await;
        ask(&rig, KEY).await.assert_refused(expected.0, expected.1, expected.2);
    }
}

/// I21: a key of another scope is not found, and looks like one that was never used.
#[tokio::test]
async fn a_key_of_another_scope_is_not_found() {
    let tenant = ScopeFrom::header(HeaderName::from_static("x-tenant"));
    let rig = Rig::counting(with_status(IdempotencyLayer::builder(engine()).scope(tenant)));
    let by = |request: Request<Body>, tenant: &'static str| {
        let (mut head, body) = request.into_parts();
        head.headers.insert("x-tenant", tenant.parse().unwrap());
        Request::from_parts(head, body)
    };
    rig.send(by(post(KEY, "{}"), "ann")).await;
    let ask = |key| Request::get(format!("{PREFIX}{key}")).body(Body::empty()).unwrap();
    assert_eq!(rig.send(by(ask(KEY), "ann")).await.text(), "run 1");
    let other = rig.send(by(ask(KEY), "bob")).await;
    let unused = rig.send(by(ask("never"), "bob")).await;
    other.assert_refused(404, "idempotency_key_not_found", "unknown");
    assert_eq!(other.refusal(), unused.refusal());
    rig.send(ask(KEY)).await.assert_refused(403, "idempotency_scope_missing", "no");
}

#[tokio::test]
async fn nothing_but_get_and_head_asks_for_a_status() {
    let rig = Rig::counting(with_status(layer()));
    for (method, passes) in [(Method::OPTIONS, true), (Method::PUT, true), (Method::GET, false)] {
        let before = rig.runs();
        let request = Request::builder().method(&method).uri(format!("{PREFIX}{KEY}"));
        rig.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(rig.runs() - before, usize::from(passes), "{method}");
    }
    // Off unless it was asked for.
    let rig = Rig::counting(layer().rule(required()));
    ask(&rig, KEY).await;
    assert_eq!(rig.runs(), 1, "the service answers");
}

/// Finishes a key with an answer that the layer would never have saved.
async fn plant(engine: &Engine, saved: Saved) {
    let (key, scope) = (Key::new(KEY.as_bytes()).unwrap(), Scope::shared());
    let call = Call {
        exact: None,
        id: engine.key_id(&scope, &key),
        key,
        scope,
        fingerprint: Fingerprint::from_parts(1, [7; 32]),
        places: Places::default(),
        route: "planted".into(),
        request: RequestId::from_outside(b"planted").unwrap(),
        policy: Policy::default().into(),
    };
    engine
        .answer(call, async move |attempt| {
            attempt.send().await.unwrap();
            Finish::answered(saved, ())
        })
        .await;
}

/// I40: an answer that no server may send is not sent, nor is another one in its place.
#[tokio::test]
async fn a_damaged_answer_is_not_replayed() {
    let engine = engine();
    let builder = IdempotencyLayer::builder(engine.clone()).scope(ScopeFrom::shared());
    let rig = Rig::counting(builder.rule(Rule::new("r")).status_path(PREFIX).unwrap());
    plant(&engine, Saved { status: 100, headers: Headers::new(), body: Bytes::new() }).await;
    ask(&rig, KEY).await.assert_refused(500, "idempotency_record_damaged", "unknown");
}

/// I40: a record of another version does not bring back what this one would not save.
#[tokio::test]
async fn a_planted_cookie_is_not_replayed() {
    let engine = engine();
    let builder = IdempotencyLayer::builder(engine.clone()).scope(ScopeFrom::shared());
    let rig = Rig::counting(builder.rule(Rule::new("r")).status_path(PREFIX).unwrap());
    let mut headers = Headers::new();
    headers.push(b"Set-Cookie", b"session=1").unwrap();
    headers.push(b"Transfer-Encoding", b"chunked").unwrap();
    headers.push(b"X-Fine", b"1").unwrap();
    plant(&engine, Saved { status: 200, headers, body: Bytes::from_static(b"body") }).await;
    let seen = ask(&rig, KEY).await;
    assert_eq!((seen.header("x-fine"), seen.text()), ("1", "body"));
    assert!(!seen.headers.contains_key("set-cookie"));
    assert!(!seen.headers.contains_key("transfer-encoding"));
}
