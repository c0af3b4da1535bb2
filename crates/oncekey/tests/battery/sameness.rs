//! When two requests under one key are the same request.

use oncekey::core::Policy;
use serde_json::json;

use crate::scene::{Keeper, Server, at_once, stage};
use crate::wire::{KEY, pay};

// Amounts that no id and no time in an answer has in it by chance.
const BODY: &str = r#"{"amount": 51728394, "currency": "EUR"}"#;
const DEARER: &str = r#"{"amount": 71728394, "currency": "EUR"}"#;

/// Row 3.
pub(crate) async fn the_same_key_with_another_body_is_refused(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let first = server.send(&pay(BODY)).await;
    let refused = server.send(&pay(DEARER)).await;
    refused.assert_refused(422, "idempotency_key_reused", "no");
    let problem = refused.problem();
    assert_eq!(problem["differs"], json!(["body:/amount"]), "the place, and never a value");
    assert_eq!(problem["retryable"], false);
    assert_eq!(problem["original_request"], first.line("request-id"));
    assert!(!refused.text().contains("51728394") && !refused.text().contains("71728394"));
    // The refusal has not touched the record.
    server.send(&pay(BODY)).await.assert_replays(&first);
    assert_eq!(server.runs(), 1);
}

/// Row 17: the fingerprint is judged before the lease.
pub(crate) async fn the_same_key_with_another_body_is_refused_while_the_first_runs(keeper: Keeper) {
    let (stage, mut director) = stage();
    let server = Server::start(keeper, Policy::default(), move |run, _| stage.payment(run)).await;
    let first = server.begin(&pay(BODY));
    director.reached().await;
    let refused = server.send(&pay(DEARER)).await;
    refused.assert_refused(422, "idempotency_key_reused", "no");
    director.open();
    let first = first.await.unwrap();
    assert_eq!((first.status, server.runs()), (201, 1));
    server.send(&pay(BODY)).await.assert_replays(&first);
}

/// Row 4.
pub(crate) async fn reordered_json_members_are_the_same_request(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let first = server.send(&pay(BODY)).await;
    for same in [
        r#"{"currency":"EUR","amount":51728394}"#,
        "{\n  \"currency\": \"\\u0045UR\",\n  \"amount\": 51728394\n}\n",
    ] {
        server.send(&pay(same)).await.assert_replays(&first);
    }
    assert_eq!(server.runs(), 1);
}

/// Row 5.
pub(crate) async fn the_same_key_on_another_path_is_refused(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    server.send(&pay(BODY)).await;
    let refused = server.send(&pay(BODY).path("/refunds")).await;
    refused.assert_refused(422, "idempotency_key_reused", "no");
    assert_eq!(refused.problem()["differs"], json!(["path"]));
    assert_eq!(server.runs(), 1);
}

pub(crate) async fn the_same_key_with_another_query_is_refused(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let first = server.send(&pay(BODY).path("/payments?dry_run=no")).await;
    let refused = server.send(&pay(BODY).path("/payments?dry_run=yes")).await;
    refused.assert_refused(422, "idempotency_key_reused", "no");
    server.send(&pay(BODY).path("/payments?dry_run=no")).await.assert_replays(&first);
    assert_eq!(server.runs(), 1);
}

/// Row 6.
pub(crate) async fn a_quoted_and_a_bare_key_are_one_key(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let quoted = format!("\"{KEY}\"");
    let first = server.send(&pay(BODY).key(&quoted)).await;
    for key in [KEY, &quoted, &format!("{quoted};v=1")] {
        let again = server.send(&pay(BODY).key(key)).await;
        again.assert_replays(&first);
        assert_eq!(again.line("idempotency-key"), quoted, "the key is echoed in one form");
    }
    assert_eq!(server.runs(), 1);
}

pub(crate) async fn two_tenants_with_the_same_key_do_not_meet(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let acme = server.send(&pay(BODY)).await;
    let other = |body: &str| pay(body).line("x-tenant", "globex");
    // Not even the existence of the key shows: another body is no conflict.
    let globex = server.send(&other(DEARER)).await;
    assert_eq!((acme.text(), globex.text()), (r#"{"id":"pay_1"}"#, r#"{"id":"pay_2"}"#));
    assert!(!globex.is_replay());
    server.send(&pay(BODY)).await.assert_replays(&acme);
    server.send(&other(DEARER)).await.assert_replays(&globex);
    assert_eq!(server.runs(), 2);
}
