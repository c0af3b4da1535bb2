//! Keys and scopes that are none.

use oncekey::core::Policy;

use crate::scene::{Keeper, Server, at_once};
use crate::wire::{KEY, pay};

const BODY: &str = r#"{"amount": 500}"#;

/// Row 14, and its border: 255 characters are a key.
pub(crate) async fn a_key_of_three_hundred_characters_is_refused(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    for length in [256, 300] {
        let refused = server.send(&pay(BODY).key(&"k".repeat(length))).await;
        refused.assert_refused(400, "idempotency_key_invalid", "no");
        assert_eq!(refused.problem()["retryable"], false);
        assert!(!refused.has("idempotency-key"), "what is no key is not echoed");
    }
    assert_eq!(server.runs(), 0);
    assert_eq!(server.send(&pay(BODY).key(&"k".repeat(255))).await.status, 201);
}

pub(crate) async fn a_request_without_a_key_is_refused_where_one_is_required(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let refused = server.send(&pay(BODY).without("idempotency-key")).await;
    refused.assert_refused(400, "idempotency_key_missing", "no");
    assert!(refused.problem()["hint"].as_str().unwrap().contains("same key on every retry"));
    assert_eq!(server.runs(), 0);
}

pub(crate) async fn a_request_with_two_keys_is_refused(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    for ask in [
        pay(BODY).and_line("idempotency-key", KEY),
        pay(BODY).and_line("Idempotency-Key", "another"),
        pay(BODY).key("one, two"),
        pay(BODY).key("\"one\", \"two\""),
        pay(BODY).key(""),
        pay(BODY).key("\"\""),
    ] {
        server.send(&ask).await.assert_refused(400, "idempotency_key_invalid", "no");
    }
    assert_eq!(server.runs(), 0);
}

/// T1: in doubt about whose key it is, nothing runs.
pub(crate) async fn a_request_without_a_scope_is_refused(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let nobody = server.send(&pay(BODY).without("x-tenant")).await;
    nobody.assert_refused(403, "idempotency_scope_missing", "no");
    let both = server.send(&pay(BODY).and_line("x-tenant", "globex")).await;
    both.assert_refused(403, "idempotency_scope_missing", "no");
    assert_eq!(server.runs(), 0);
}
