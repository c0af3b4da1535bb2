//! Every change is in the audit, and those that were refused.

use std::fs;

use serde_json::Value;

use super::rig::{Plan, Rig, TOKEN};

async fn entries(rig: &Rig) -> Vec<Value> {
    rig.get("/api/v1/audit").await.json()["entries"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_is_written_down_with_who_why_and_what_came_of_it() {
    let rig = Rig::with(Plan { token: Some(TOKEN), ..Plan::default() }).await;
    let id = rig.unknown("order-1").await.to_string();
    let confirm = format!(r#"{{"reason":"ticket 7","confirm":"{}"}}"#, &id[..8]);
    rig.post(&format!("/api/v1/keys/{id}/release"), r#"{"reason":"ticket 7"}"#).await;
    rig.post(&format!("/api/v1/keys/{id}/release"), &confirm).await;
    rig.post(&format!("/api/v1/keys/{id}/expire"), "{}").await;
    rig.post("/api/v1/reload", r#"{"reason":"new route"}"#).await;
    rig.post("/api/v1/drain", "{}").await;
    let entries = entries(&rig).await;
    let short = |entry: &Value| {
        ["action", "outcome", "code"].map(|name| entry[name].as_str().unwrap_or("-").to_owned())
    };
    let shown: Vec<[String; 3]> = entries.iter().rev().map(short).collect();
    let expected = [
        ["release", "refused", "admin_confirmation_required"],
        ["release", "done", "-"],
        ["expire", "refused", "admin_request_invalid"],
        ["reload", "done", "-"],
        ["drain", "done", "-"],
    ];
    assert_eq!(shown, expected.map(|entry| entry.map(str::to_owned)));
    let released = &entries[3];
    assert_eq!(released["target"], id);
    assert_eq!(released["reason"], "ticket 7");
    assert_eq!(released["actor"], "ada");
    assert_eq!(released["token"], "right");
    assert!(released["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(released["ts"].as_str().unwrap().ends_with('Z'));
    assert_eq!(entries[2]["target"], id, "what was refused names its record, too");
}

/// Whoever has no token cannot fill the audit, but is in it.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_noted_but_do_not_push_out_the_rest() {
    let mut rig = Rig::with(Plan { token: Some(TOKEN), ..Plan::default() }).await;
    rig.token = None;
    for _ in 0..20 {
        assert_eq!(rig.post("/api/v1/drain", "{}").await.status, 401);
    }
    rig.token = Some(TOKEN);
    let entries = entries(&rig).await;
    assert!((1..10).contains(&entries.len()), "{entries:?}");
    let first = entries.last().unwrap();
    assert_eq!(first["action"], "drain");
    assert_eq!(first["outcome"], "refused");
    assert_eq!(first["token"], "wrong");
    assert_eq!(first["code"], "admin_token_required");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_keeps_the_audit_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let plan = Plan { audit: Some(path.clone()), ..Plan::default() };
    let rig = Rig::with(plan.clone()).await;
    rig.post("/api/v1/reload", r#"{"reason":"one"}"#).await;
    drop(rig);
    // A crash in the middle of a line.
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "before, and after: {text}");
    assert_eq!((&lines[0]["outcome"], &lines[1]["outcome"]), (&"asked".into(), &"done".into()));
    assert_eq!(lines[0]["seq"], lines[1]["seq"]);
    fs::write(&path, format!("{text}{{\"seq\":2,\"ts\":\"20")).unwrap();

    let rig = Rig::with(plan).await;
    rig.post("/api/v1/reload", r#"{"reason":"two"}"#).await;
    let entries = entries(&rig).await;
    let reasons: Vec<&str> = entries.iter().filter_map(|entry| entry["reason"].as_str()).collect();
    assert_eq!(reasons, ["two", "one"]);
    let pages = rig.get(&format!("/api/v1/audit?before={}", entries[0]["seq"])).await.json();
    assert_eq!(pages["entries"][0]["reason"], "one");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

/// `/dev/full` takes nothing: so nothing is done.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_audited_is_not_done() {
    let plan = Plan { audit: Some("/dev/full".into()), ..Plan::default() };
    let rig = Rig::with(plan).await;
    let refused = rig.post("/api/v1/drain", r#"{"reason":"x"}"#).await;
    assert_eq!(refused.code(), "admin_audit_unavailable");
    assert_eq!(rig.get("/readyz").await.status, 200, "nothing was drained");
}
