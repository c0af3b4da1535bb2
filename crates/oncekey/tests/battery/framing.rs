//! Answers without a body, and connections that are used again: a replay leaves no byte behind
//! that the client would take for the next answer.

use axum::body::Body;
use http::Response;
use oncekey::core::Policy;

use crate::scene::{Keeper, Server, at_once};
use crate::wire::{Client, KEY, ask, pay};

const BODY: &str = r#"{"amount": 500}"#;

/// First answer and replay on one connection, and a third answer to show that it is in step.
async fn bodiless(keeper: Keeper, status: u16) {
    let server = Server::start(keeper, Policy::default(), move |_, _| {
        Box::pin(async move {
            let response = Response::builder().status(status).header("etag", "\"1\"");
            response.body(Body::empty()).unwrap()
        })
    })
    .await;
    let mut client = Client::open(server.address).await;
    let first = client.ask(&pay(BODY)).await;
    let again = client.ask(&pay(BODY)).await;
    again.assert_replays(&first);
    for seen in [&first, &again] {
        assert_eq!((seen.status, seen.line("etag")), (status, "\"1\""));
        assert!(!seen.has("transfer-encoding") && !seen.has("content-length"), "{seen:?}");
    }
    client.ask(&pay("{}")).await.assert_refused(422, "idempotency_key_reused", "no");
    assert_eq!(server.runs(), 1);
}

/// I42.
pub(crate) async fn an_answer_without_content_is_replayed_without_content(keeper: Keeper) {
    bodiless(keeper, 204).await;
}

/// I42.
pub(crate) async fn an_answer_that_is_not_modified_is_replayed_without_a_body(keeper: Keeper) {
    bodiless(keeper, 304).await;
}

/// HEAD is safe: a key on it means nothing. On a status URL it gets the head of the answer.
pub(crate) async fn a_head_request_is_never_protected_and_never_has_a_body(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let mut client = Client::open(server.address).await;
    for run in 1..=2 {
        let seen = client.ask(&ask("HEAD", "/payments").key(KEY)).await;
        assert_eq!((seen.status, seen.is_replay(), server.runs()), (201, false, run));
    }
    let first = client.ask(&pay(BODY)).await;
    assert_eq!((first.status, first.is_replay(), server.runs()), (201, false, 3));
    let status = format!("/.idempotency/keys/{KEY}");
    let head = client.ask(&ask("HEAD", &status)).await;
    assert_eq!((head.status, head.is_replay()), (201, true));
    assert_eq!(head.line("content-length"), first.body.len().to_string());
    let get = client.ask(&ask("GET", &status)).await;
    get.assert_replays(&first);
    assert_eq!(server.runs(), 3);
}

/// I38: everything that the layer can answer, one after the other.
pub(crate) async fn one_connection_carries_first_answer_replay_and_refusals(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let mut client = Client::open(server.address).await;
    for _ in 0..3 {
        let seen = client.ask(&pay(BODY)).await;
        assert_eq!((seen.status, seen.text()), (201, r#"{"id":"pay_1"}"#));
        let missing = client.ask(&pay(BODY).without("idempotency-key")).await;
        missing.assert_refused(400, "idempotency_key_missing", "no");
        let invalid = client.ask(&pay(BODY).key("a, b")).await;
        invalid.assert_refused(400, "idempotency_key_invalid", "no");
        let reused = client.ask(&pay("{}")).await;
        reused.assert_refused(422, "idempotency_key_reused", "no");
        let unknown = client.ask(&ask("GET", "/.idempotency/keys/nobody")).await;
        unknown.assert_refused(404, "idempotency_key_not_found", "unknown");
    }
    assert_eq!(server.runs(), 1);
}
