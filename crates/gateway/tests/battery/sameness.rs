//! When two requests under one key are the same request, and which keys are none.

use serde_json::json;

use crate::common::wire::KEY;
use crate::scene::Scene;

// Amounts that no id and no time in an answer has in it by chance.
const BODY: &str = r#"{"amount": 51728394, "currency": "EUR"}"#;
const DEARER: &str = r#"{"amount": 71728394, "currency": "EUR"}"#;

/// Row 3.
pub(crate) async fn the_same_key_with_another_body_is_refused(scene: Scene) {
    let first = scene.send(&scene.pay(BODY)).await;
    let refused = scene.send(&scene.pay(DEARER)).await;
    refused.assert_refused(422, "idempotency_key_reused", "no");
    assert_eq!(refused.problem()["differs"], json!(["body:/amount"]), "the place, never a value");
    assert!(!refused.text().contains("51728394") && !refused.text().contains("71728394"));
    scene.send(&scene.pay(BODY)).await.assert_replays(&first);
    assert_eq!(scene.runs().await, 1);
}

/// Row 17: the fingerprint is judged before the lease.
pub(crate) async fn the_same_key_with_another_body_is_refused_while_the_first_runs(scene: Scene) {
    let first = scene.begin(&scene.pay(BODY).line("x-do", "hold"));
    scene.until_begun(1).await;
    let refused = scene.send(&scene.pay(DEARER)).await;
    refused.assert_refused(422, "idempotency_key_reused", "no");
    scene.release().await;
    scene.send(&scene.pay(BODY)).await.assert_replays(&first.await.unwrap());
    assert_eq!(scene.runs().await, 1);
}

/// Row 4.
pub(crate) async fn reordered_json_members_are_the_same_request(scene: Scene) {
    let first = scene.send(&scene.pay(BODY)).await;
    for same in [
        r#"{"currency":"EUR","amount":51728394}"#,
        "{\n  \"currency\": \"\\u0045UR\",\n  \"amount\": 51728394\n}\n",
    ] {
        scene.send(&scene.pay(same)).await.assert_replays(&first);
    }
    assert_eq!(scene.runs().await, 1);
}

/// Row 5.
pub(crate) async fn the_same_key_on_another_path_is_refused(scene: Scene) {
    scene.send(&scene.pay(BODY)).await;
    for (path, differs) in [("/refunds", "path"), ("/payments?dry_run=yes", "query")] {
        let refused = scene.send(&scene.pay(BODY).path(path)).await;
        refused.assert_refused(422, "idempotency_key_reused", "no");
        assert_eq!(refused.problem()["differs"], json!([differs]));
    }
    assert_eq!(scene.runs().await, 1);
}

/// Row 6.
pub(crate) async fn a_quoted_and_a_bare_key_are_one_key(scene: Scene) {
    let quoted = format!("\"{KEY}\"");
    let first = scene.send(&scene.pay(BODY).key(&quoted)).await;
    for key in [KEY, &quoted, &format!("{quoted};v=1")] {
        let again = scene.send(&scene.pay(BODY).key(key)).await;
        again.assert_replays(&first);
        assert_eq!(again.line("idempotency-key"), quoted, "the key is echoed in one form");
    }
    assert_eq!(scene.runs().await, 1);
}

pub(crate) async fn two_tenants_with_the_same_key_do_not_meet(scene: Scene) {
    let mine = scene.send(&scene.pay(BODY)).await;
    let other = |body: &str| scene.pay(body).line("x-tenant", "globex");
    let theirs = scene.send(&other(DEARER)).await;
    assert_eq!((mine.status, theirs.status, theirs.is_replay()), (201, 201, false));
    scene.send(&scene.pay(BODY)).await.assert_replays(&mine);
    scene.send(&other(DEARER)).await.assert_replays(&theirs);
    assert_eq!(scene.runs().await, 1);
}

/// Row 14, and its border: 255 characters are a key.
pub(crate) async fn a_key_of_three_hundred_characters_is_refused(scene: Scene) {
    for length in [256, 300] {
        let refused = scene.send(&scene.pay(BODY).key(&"k".repeat(length))).await;
        refused.assert_refused(400, "idempotency_key_invalid", "no");
    }
    for ask in [
        scene.pay(BODY).and_line("idempotency-key", "another"),
        scene.pay(BODY).key("one, two"),
        scene.pay(BODY).key("\"\""),
    ] {
        scene.send(&ask).await.assert_refused(400, "idempotency_key_invalid", "no");
    }
    assert_eq!(scene.runs().await, 0);
    assert_eq!(scene.send(&scene.pay(BODY).key(&"k".repeat(255))).await.status, 201);
}

pub(crate) async fn a_request_without_a_key_is_refused_where_one_is_required(scene: Scene) {
    let refused = scene.send(&scene.pay(BODY).without("idempotency-key")).await;
    refused.assert_refused(400, "idempotency_key_missing", "no");
    let nobody = scene.send(&scene.pay(BODY).without("x-tenant")).await;
    nobody.assert_refused(403, "idempotency_scope_missing", "no");
    assert_eq!(scene.runs().await, 0);
}
