//! What can be looked at.

use std::collections::BTreeSet;

use super::rig::{Plan, Rig};
use crate::admin::Payload;
use crate::admin::endpoint::{ENDPOINTS, Verb};
use crate::admin::openapi::describe;

#[tokio::test(flavor = "multi_thread")]
async fn the_status_is_one_screen_about_everything() {
    let rig = Rig::new().await;
    rig.unknown("lost").await;
    let status = rig.get("/api/v1/status").await;
    assert_eq!(status.status, 200);
    let status = status.json();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["instance"], "node-1");
    assert_eq!(status["draining"], false);
    assert_eq!(status["unknown"]["count"], 1);
    assert_eq!(status["unknown"]["exact"], true);
    assert_eq!(status["in_flight"], 0);
    assert_eq!(status["routes"]["required"], 1);
    assert_eq!(status["store"]["reachable"], true);
    assert!(status["store"]["name"].as_str().unwrap().contains("SQLite"), "{status}");
    assert!(status["store"]["findings"].as_array().unwrap().len() > 3);
    assert!(status["uptime_seconds"].is_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_text_with_help_and_type() {
    let rig = Rig::new().await;
    let metrics = rig.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{metrics:?}");
    for line in ["# HELP oncekey_build_info", "# TYPE oncekey_abandoned_total counter"] {
        assert!(metrics.body.contains(line), "{line}: {metrics:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_found_by_state_route_scope_age_and_key() {
    let rig = Rig::new().await;
    let done = rig.done("order-1").await.to_string();
    let lost = rig.unknown("order-2").await.to_string();
    let ids = async |query: &str| -> BTreeSet<String> {
        let page = rig.get(&format!("/api/v1/keys{query}")).await.json();
        let records = page["records"].as_array().unwrap().clone();
        records.iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect()
    };
    let both = BTreeSet::from([done.clone(), lost.clone()]);
    assert_eq!(ids("").await, both);
    assert_eq!(ids("?route=create-charge&scope=tenant-7").await, both);
    assert_eq!(ids("?state=unknown").await, BTreeSet::from([lost.clone()]));
    assert_eq!(ids("?state=done").await, BTreeSet::from([done.clone()]));
    assert_eq!(ids("?older_than=5m").await, BTreeSet::from([lost]));
    assert_eq!(ids("?key=order-1").await, BTreeSet::from([done.clone()]));
    assert_eq!(ids("?key=order-1&scope=tenant-7").await, BTreeSet::from([done.clone()]));
    assert_eq!(ids(&format!("?id={}", &done[..8])).await, BTreeSet::from([done.clone()]));
    assert_eq!(ids(&format!("?id={}&state=unknown", &done[..9])).await, BTreeSet::new());
    for nobody in ["?route=other", "?scope=tenant-8", "?key=order-3", "?key=order-1&scope=x"] {
        assert_eq!(ids(nobody).await, BTreeSet::new(), "{nobody}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_follow_each_other_to_the_end() {
    let rig = Rig::new().await;
    let mut expected = BTreeSet::new();
    for number in 0..7 {
        expected.insert(rig.unknown(&format!("order-{number}")).await.to_string());
    }
    let (mut seen, mut query, mut pages) = (BTreeSet::new(), String::from("?limit=3"), 0);
    loop {
        let page = rig.get(&format!("/api/v1/keys{query}")).await.json();
        for record in page["records"].as_array().unwrap() {
            assert!(seen.insert(record["id"].as_str().unwrap().to_owned()), "twice");
        }
        pages += 1;
        match page["next"].as_str() {
            Some(next) => query = format!("?limit=3&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((seen, pages), (expected, 3));
}

/// Keys, scopes and answers are shown to whoever asks for them by name, and to nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_personal_is_shown_only_on_request() {
    let rig = Rig::new().await;
    let id = rig.done("secret-key-1").await;
    for path in ["/api/v1/keys".to_owned(), format!("/api/v1/keys/{id}")] {
        let answer = rig.get(&path).await;
        assert_eq!(answer.status, 200);
        for secret in ["secret-key-1", "tenant-7", "alert(1)"] {
            assert!(!answer.body.contains(secret), "{path}: {answer:?}");
        }
    }
    let shown = rig.get(&format!("/api/v1/keys/{id}?show=payload")).await.json();
    assert_eq!(shown["payload"]["key"], "secret-key-1");
    assert_eq!(shown["payload"]["scope"], "tenant-7");
    assert_eq!(shown["payload"]["answer"]["body"], "<script>alert(1)</script>");
    assert_eq!(shown["state"], "done");
    let audit = rig.get("/api/v1/audit").await.json();
    assert_eq!(audit["entries"][0]["action"], "show_payload");
    assert_eq!(audit["entries"][0]["outcome"], "done");

    let strict = Rig::with(Plan { payload: Payload::Never, ..Plan::default() }).await;
    let id = strict.done("secret-key-1").await;
    let refused = strict.get(&format!("/api/v1/keys/{id}?show=payload")).await;
    assert_eq!(refused.code(), "admin_payload_refused");
    assert!(!refused.body.contains("secret-key-1"));
    let audit = strict.get("/api/v1/audit").await.json();
    assert_eq!(audit["entries"][0]["outcome"], "refused");
}

/// T20: markup in a field is data, in a document that no browser takes for a page.
#[tokio::test(flavor = "multi_thread")]
async fn markup_comes_back_as_json_that_no_browser_runs() {
    let rig = Rig::new().await;
    let routes = rig.get("/api/v1/routes").await;
    assert_eq!(routes.json()["routes"][1]["name"], "<script>alert(1)</script>");
    let missing = rig.get("/%3Cscript%3Ealert(1)%3C/script%3E").await;
    assert_eq!(missing.code(), "admin_not_found");
    let id = rig.done("x").await;
    let shown = rig.get(&format!("/api/v1/keys/{id}?show=payload")).await;
    for answer in [routes, missing, shown] {
        assert!(answer.head.contains("json\r\n") || answer.head.ends_with("json"), "{answer:?}");
        for line in [
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "content-security-policy: default-src 'none'",
            "x-frame-options: deny",
        ] {
            assert!(answer.head.contains(line), "{line}: {answer:?}");
        }
        assert!(!answer.head.contains("access-control-"), "{answer:?}");
    }
}

/// The document and the router follow the same table, and every path in it leads somewhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_openapi_document_is_the_router() {
    let rig = Rig::new().await;
    let document = rig.get("/api/v1/openapi.json").await.json();
    assert_eq!(document, describe());
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), ENDPOINTS.len());
    for (path, operations) in paths {
        let (method, operation) = operations.as_object().unwrap().iter().next().unwrap();
        assert!(operation["summary"].as_str().is_some_and(|summary| !summary.is_empty()));
        if path == "/api/v1/events" {
            continue;
        }
        let path = path.replace("{id}", &"0".repeat(64));
        let answer = match method.as_str() {
            "get" => rig.get(&path).await,
            _ => rig.post(&path, "{}").await,
        };
        let nowhere = answer.body.contains("admin_not_found") || answer.status == 405;
        assert!(!nowhere, "{method} {path}: {answer:?}");
        let other = if method == "get" { "DELETE" } else { "GET" };
        let wrong = rig.send(&rig.head(other, &path, "")).await;
        assert_eq!(wrong.code(), "admin_method_not_allowed", "{other} {path}");
    }
}

/// What the document promises is what the endpoints take: no parameter and no member of it is
/// unknown to whoever answers.
#[tokio::test(flavor = "multi_thread")]
async fn every_parameter_and_member_of_the_document_is_known() {
    let rig = Rig::new().await;
    for endpoint in ENDPOINTS {
        let path = endpoint.path.replace("{id}", &"0".repeat(64));
        for param in endpoint.query {
            let asked = format!("{path}?{}=true", param.name);
            let answer = match endpoint.verb {
                Verb::Get => rig.get(&asked).await,
                Verb::Post => rig.post(&asked, "{}").await,
            };
            assert!(!answer.body.contains("unknown field"), "{asked}: {answer:?}");
        }
        if !endpoint.query.is_empty() && endpoint.verb == Verb::Get {
            let answer = rig.get(&format!("{path}?made_up=1")).await;
            assert_eq!(answer.code(), "admin_request_invalid", "{path}");
        }
    }
    let document = describe();
    for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.verb == Verb::Post) {
        let schema = &document["paths"][endpoint.path]["post"]["requestBody"]["content"]["application/json"]
            ["schema"];
        let path = endpoint.path.replace("{id}", &"0".repeat(64));
        for name in schema["properties"].as_object().unwrap().keys() {
            let answer = rig.post(&path, &format!("{{\"{name}\": []}}")).await;
            assert!(!answer.body.contains("unknown field"), "{path} {name}: {answer:?}");
        }
        for name in schema["required"].as_array().unwrap() {
            assert!(schema["properties"].get(name.as_str().unwrap()).is_some(), "{path} {name}");
        }
        let answer = rig.post(&path, "{\"made_up\": 1}").await;
        assert_eq!(answer.code(), "admin_request_invalid", "{path}");
    }
}
