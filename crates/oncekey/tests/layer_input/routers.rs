//! The layer in the places where people put it: axum's routers, plain hyper, a stack.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::routing::{get, post};
use http::{Request, Uri};
use oncekey::core::Policy;
use oncekey::layer::{IdempotencyContext, IdempotencyLayer, Rule, ScopeFrom};
use tower::ServiceExt as _;

use crate::rig::{KEY, Seen, engine, layer, required};

async fn send(app: &Router, request: Request<Body>) -> Seen {
    Seen::of(app.clone().oneshot(request).await.unwrap()).await
}

fn to(path: &str) -> Request<Body> {
    Request::post(path).header("idempotency-key", KEY).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn a_whole_router_or_a_single_route_may_have_a_layer() {
    let whole = Router::new().route("/a", post(async || "a")).layer(layer().build());
    let single = Router::new()
        .route("/a", post(async || "a"))
        .route_layer(layer().build())
        .route("/b", post(async || "b"));
    let method = Router::new().route("/a", post(async || "a").layer(layer().build()));
    for app in [whole, single.clone(), method] {
        assert_eq!(send(&app, to("/a")).await.text(), "a");
        assert!(send(&app, to("/a")).await.is_replay());
    }
    send(&single, to("/b")).await;
    assert!(!send(&single, to("/b")).await.is_replay(), "added behind the layer");
}

/// Rules by the template of the route, which a client cannot vary.
#[tokio::test]
async fn rules_are_chosen_by_request() {
    let week = Policy { retention: Duration::from_secs(7 * 86_400), ..Policy::default() };
    let charges = Arc::new(Rule::new("POST /charges/{id}").required().policy(week).unwrap());
    let layer = layer().rules(move |parts| {
        let path = parts.extensions.get::<MatchedPath>()?;
        (path.as_str() == "/charges/{id}").then(|| Arc::clone(&charges))
    });
    let app = Router::new()
        .route("/charges/{id}", post(async || "charged"))
        .route("/other", post(async || "other"))
        .layer(layer.build());
    assert_eq!(
        send(&app, to("/charges/1")).await.header("idempotency-policy"),
        "required; ttl=604800"
    );
    assert!(send(&app, to("/charges/1")).await.is_replay());
    send(&app, to("/charges/2")).await.assert_refused(422, "idempotency_key_reused", "no");
    send(&app, to("/other")).await;
    assert!(!send(&app, to("/other")).await.is_replay());
}

#[tokio::test]
async fn a_handler_of_axum_may_ask_for_its_attempt() {
    async fn handler(context: Option<axum::Extension<IdempotencyContext>>) -> String {
        context.map_or("none".to_owned(), |context| context.derived_key("charge"))
    }
    let app = Router::new().route("/a", post(handler)).layer(layer().build());
    assert!(send(&app, to("/a")).await.text().starts_with("ok1_"));
    let keyless = Request::post("/a").body(Body::empty()).unwrap();
    assert_eq!(send(&app, keyless).await.text(), "none");
}

/// A router answers status URLs although it has no route for them.
#[tokio::test]
async fn a_router_answers_status_urls() {
    let layer = layer().status_path("/.idempotency/keys/").unwrap().build();
    let app = Router::new().route("/a", post(async || "a")).layer(layer);
    send(&app, to("/a")).await;
    let ask = Request::get(format!("/.idempotency/keys/{KEY}")).body(Body::empty()).unwrap();
    assert_eq!(send(&app, ask).await.text(), "a");
}

/// Inside of `nest` the path is shortened: the fingerprint needs the whole one.
#[tokio::test]
async fn nested_routers_need_the_original_uri() {
    #[derive(Clone)]
    struct Whole(Uri);
    let layer =
        layer().original_uri(|extensions| extensions.get::<Whole>().map(|whole| &whole.0)).build();
    let nested = |text: &'static str| {
        Router::new().route("/pay", post(async move || text)).layer(layer.clone())
    };
    let app = Router::new().nest("/a", nested("a")).nest("/b", nested("b"));
    let note = axum::middleware::map_request(async |mut request: Request<Body>| {
        let whole = Whole(request.uri().clone());
        request.extensions_mut().insert(whole);
        request
    });
    let app = app.layer(note);
    assert_eq!(send(&app, to("/a/pay")).await.text(), "a");
    send(&app, to("/b/pay")).await.assert_refused(422, "idempotency_key_reused", "no");
}

#[tokio::test]
async fn the_layer_may_stand_under_other_layers() {
    let stack = tower::ServiceBuilder::new()
        .concurrency_limit(1)
        .layer(layer().rule(required()).build())
        .concurrency_limit(1);
    // A function and not an async closure, over which rustc 1.95 stumbles in incremental builds.
    async fn answer(_: Request<Body>) -> Result<http::Response<Body>, std::convert::Infallible> {
        Ok(http::Response::new(Body::from("a")))
    }
    let app = stack.service_fn(answer);
    // The permit of a service that is not called is given back, or the third would hang.
    for replay in [false, true, true] {
        let response = app.clone().oneshot(to("/a")).await.unwrap();
        assert_eq!(Seen::of(response.map(Body::new)).await.is_replay(), replay);
    }
}

/// An id that a proxy made is used; one that could not be sent is not.
#[tokio::test]
async fn request_ids_may_come_from_outside() {
    let layer = IdempotencyLayer::builder(engine())
        .scope(ScopeFrom::shared())
        .request_id_header(http::HeaderName::from_static("x-request-id"));
    let app = Router::new().route("/a", post(async || "a")).layer(layer.build());
    let mut request = to("/a");
    request.headers_mut().insert("x-request-id", "proxy-1".parse().unwrap());
    assert_eq!(send(&app, request).await.header("request-id"), "proxy-1");
    let replay = send(&app, to("/a")).await;
    assert_eq!(replay.header("original-request"), "proxy-1");
    assert!(replay.header("request-id").starts_with("req_"));
}

#[tokio::test]
async fn safe_methods_pass_without_a_trace() {
    let app = Router::new().route("/a", get(async || "a")).layer(layer().rule(required()).build());
    let seen = send(&app, Request::get("/a").body(Body::empty()).unwrap()).await;
    let names: Vec<_> = seen.headers.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["content-type", "content-length"]);
}
