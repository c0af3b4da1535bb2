//! What a person may do to a record, and what not.

use std::sync::atomic::Ordering;

use oncekey::core::{Answer, State, Store as _};
use oncekey::engine::{Refused, Reply};

use super::rig::Rig;

fn path(id: impl std::fmt::Display, verb: &str) -> String {
    format!("/api/v1/keys/{id}/{verb}")
}

fn confirm(id: impl std::fmt::Display) -> String {
    let id = id.to_string();
    format!(r#"{{"reason":"ticket 1","confirm":"{}"}}"#, &id[..8])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_knows_says_what_became_of_it() {
    let rig = Rig::new().await;
    let id = rig.unknown("order-1").await;
    let body = r#"{"reason":"in the ledger","outcome":"succeeded","answer":
        {"status":201,"headers":[["content-type","application/json"]],"body":"{\"id\":\"ch_1\"}"}}"#;
    let resolved = rig.post(&path(id, "resolve"), body).await;
    assert_eq!((resolved.status, resolved.json()["state"].as_str()), (200, Some("done")));
    let Reply::Replayed(replayed) = rig.retry("order-1").await else { panic!("it is replayed") };
    assert_eq!((replayed.saved.status, &replayed.saved.body[..]), (201, &b"{\"id\":\"ch_1\"}"[..]));

    let again = rig.post(&path(id, "resolve"), body).await;
    assert_eq!(again.code(), "admin_state_conflict");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resolution_must_make_sense() {
    let rig = Rig::new().await;
    let id = rig.unknown("order-1").await;
    for body in [
        r#"{"reason":"x","outcome":"succeeded"}"#,
        r#"{"reason":"x","outcome":"not_executed","answer":{"status":200}}"#,
        r#"{"reason":"x","outcome":"maybe"}"#,
        r#"{"outcome":"failed","answer":{"status":402}}"#,
        r#"{"reason":"","outcome":"failed","answer":{"status":402}}"#,
        r#"{"reason":"x","outcome":"failed","answer":{"status":402},"force":true}"#,
        "[]",
        "",
        "{",
    ] {
        assert_eq!(rig.post(&path(id, "resolve"), body).await.code(), "admin_request_invalid");
    }
    let unconfirmed = r#"{"reason":"x","outcome":"not_executed"}"#;
    let refused = rig.post(&path(id, "resolve"), unconfirmed).await;
    assert_eq!(refused.code(), "admin_confirmation_required");
    assert_eq!(rig.get(&format!("/api/v1/keys/{id}")).await.json()["state"], "unknown");
}

/// T22: what can make work run twice says so, and is not done by a slip of the finger.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_confirmed_and_frees_the_key() {
    let rig = Rig::new().await;
    let id = rig.unknown("order-1").await;
    for body in [r#"{"reason":"x"}"#, r#"{"reason":"x","confirm":"00000000"}"#] {
        let refused = rig.post(&path(id, "release"), body).await;
        assert_eq!(refused.code(), "admin_confirmation_required");
        let record = &refused.json()["record"];
        assert_eq!((&record["class"], &record["state"]), (&"once".into(), &"unknown".into()));
    }
    let released = rig.post(&path(id, "release"), &confirm(id)).await;
    assert_eq!(released.json()["state"], "free");
    assert!(matches!(rig.retry("order-1").await, Reply::Ran(_)), "the key is free");
    let gone = rig.post(&path("0".repeat(64), "release"), &confirm("0".repeat(64))).await;
    assert_eq!(gone.code(), "admin_record_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_alive_is_not_disturbed() {
    let rig = Rig::new().await;
    let id = rig.running("order-1", true).await;
    for verb in ["release", "expire"] {
        let refused = rig.post(&path(id, verb), &confirm(id)).await;
        assert_eq!((refused.status, refused.code().as_str()), (409, "admin_lease_alive"));
        assert_eq!(refused.json()["record"]["lease_alive"], true);
    }
    let body = r#"{"reason":"x","outcome":"failed","answer":{"status":402}}"#;
    assert_eq!(rig.post(&path(id, "resolve"), body).await.code(), "admin_lease_alive");
    assert!(matches!(rig.store.get(&id).await.unwrap().unwrap().state, State::Running { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_an_owner_that_is_gone_can_be_freed() {
    let rig = Rig::new().await;
    let id = rig.running("order-1", false).await;
    let shown = rig.get(&format!("/api/v1/keys/{id}")).await.json();
    assert_eq!((&shown["lease_alive"], &shown["sent"]), (&false.into(), &true.into()));
    assert_eq!(rig.post(&path(id, "release"), &confirm(id)).await.status, 200);
    assert!(rig.store.get(&id).await.unwrap().is_none());
}

/// Its owner may go on until then: its clock may differ by as much.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_respected_for_as_long_as_its_route_says() {
    let rig = Rig::new().await;
    let id = rig.running("order-1", false).await;
    rig.gateway.grace.store(300, Ordering::SeqCst);
    assert_eq!(rig.post(&path(id, "release"), &confirm(id)).await.code(), "admin_lease_alive");
    rig.gateway.grace.store(0, Ordering::SeqCst);
    assert_eq!(rig.post(&path(id, "release"), &confirm(id)).await.status, 200);
}

/// Nobody looks at a record twice and confirms what is then refused.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_need_not_be_confirmed_first() {
    let rig = Rig::new().await;
    let (done, lost) = (rig.done("order-1").await, rig.unknown("order-2").await);
    let alive = rig.running("order-3", true).await;
    let not_executed = r#"{"reason":"x","outcome":"not_executed"}"#;
    for (id, verb, body, code) in [
        (done, "release", r#"{"reason":"x"}"#, "admin_state_conflict"),
        (done, "resolve", not_executed, "admin_state_conflict"),
        (lost, "expire", r#"{"reason":"x"}"#, "admin_state_conflict"),
        (alive, "release", r#"{"reason":"x"}"#, "admin_lease_alive"),
    ] {
        assert_eq!(rig.post(&path(id, verb), body).await.code(), code, "{verb}");
    }
}

/// Whoever knows that it happened must not be sent to what makes it happen again.
#[tokio::test(flavor = "multi_thread")]
async fn work_of_an_owner_that_is_gone_can_be_resolved() {
    let rig = Rig::new().await;
    let id = rig.running("order-1", false).await;
    let body = r#"{"reason":"in the ledger","outcome":"succeeded","answer":{"status":201}}"#;
    let resolved = rig.post(&path(id, "resolve"), body).await;
    assert_eq!((resolved.status, resolved.json()["state"].as_str()), (200, Some("done")));
    assert!(matches!(rig.store.get(&id).await.unwrap().unwrap().state, State::Done { .. }));
    let again = rig.post(&path(id, "resolve"), body).await;
    assert_eq!(again.code(), "admin_state_conflict");
    assert!(!again.json()["detail"].as_str().unwrap().contains("release"));
    let other = rig.running("order-2", false).await;
    let id = other.to_string();
    let body = format!(r#"{{"reason":"x","outcome":"not_executed","confirm":"{}"}}"#, &id[..8]);
    assert_eq!(rig.post(&path(&id, "resolve"), &body).await.json()["state"], "free");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_expires_and_is_not_replayed_any_more() {
    let rig = Rig::new().await;
    let id = rig.done("order-1").await;
    assert!(matches!(rig.retry("order-1").await, Reply::Replayed(_)));
    assert_eq!(rig.post(&path(id, "release"), &confirm(id)).await.code(), "admin_state_conflict");
    let expired = rig.post(&path(id, "expire"), &confirm(id)).await;
    assert_eq!((expired.status, expired.json()["expired"].as_bool()), (200, Some(true)));
    // As the policy says: too late, or free again. Never the old answer.
    assert!(!matches!(rig.retry("order-1").await, Reply::Replayed(_)));
    let lost = rig.unknown("order-2").await;
    assert_eq!(
        rig.post(&path(lost, "expire"), &confirm(lost)).await.code(),
        "admin_state_conflict"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_erased_is_blank_and_does_not_run_again() {
    let rig = Rig::new().await;
    let id = rig.done("order-1").await;
    let erased = rig.post(&path(id, "erase"), r#"{"reason":"request of the customer"}"#).await;
    assert_eq!((erased.status, erased.json()["erased"].as_str()), (200, Some("blank")));
    let record = rig.store.get(&id).await.unwrap().unwrap();
    assert!(record.origin.key.as_bytes().is_empty());
    assert!(matches!(record.state, State::Done { answer: Answer::Tombstone(_), .. }));
    let retried = rig.retry("order-1").await;
    assert!(matches!(retried, Reply::Refused(Refused::NotRetained { .. })), "{retried:?}");
    let alive = rig.running("order-2", true).await;
    let erased = rig.post(&path(alive, "erase"), r#"{"reason":"x"}"#).await;
    assert_eq!(erased.json()["erased"], "unfinished");
    let nobody = rig.post(&path("1".repeat(64), "erase"), r#"{"reason":"x"}"#).await;
    assert_eq!(nobody.code(), "admin_record_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_says_what_changed_or_why_nothing_did() {
    let rig = Rig::new().await;
    let dry = rig.post("/api/v1/reload?dry_run=true", "{}").await.json();
    assert_eq!((&dry["applied"], dry["changes"].as_array().unwrap().len()), (&false.into(), 1));
    assert_eq!(rig.gateway.reloads.load(Ordering::SeqCst), 0);
    let wet = rig.post("/api/v1/reload", r#"{"reason":"new route"}"#).await.json();
    assert_eq!(wet["applied"], true);
    assert_eq!(rig.gateway.reloads.load(Ordering::SeqCst), 1);
    rig.gateway.bad_config.store(true, Ordering::SeqCst);
    let bad = rig.post("/api/v1/reload", "{}").await;
    assert_eq!(bad.code(), "admin_reload_failed");
    assert!(bad.json()["detail"].as_str().unwrap().contains("oncekey.toml:3:1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_begins_at_once() {
    let rig = Rig::new().await;
    let drained = rig.post("/api/v1/drain", "{}").await;
    assert_eq!((drained.status, drained.json()["draining"].as_bool()), (202, Some(true)));
    assert_eq!(rig.get("/readyz").await.status, 503);
    assert_eq!(rig.get("/healthz").await.status, 200);
}
