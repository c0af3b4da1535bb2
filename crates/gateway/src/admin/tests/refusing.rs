//! Who is refused, and that nothing happens then.

use super::rig::{Plan, Rig, TOKEN};

fn guarded() -> Plan {
    Plan { token: Some(TOKEN), ..Plan::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_token_there_is_nothing_but_probes() {
    let mut rig = Rig::with(guarded()).await;
    let id = rig.unknown("order-1").await;
    assert_eq!(rig.get("/api/v1/status").await.status, 200);
    for wrong in [None, Some("0123456789abcdef0123456789abcdee"), Some("")] {
        rig.token = wrong;
        for path in ["/api/v1/status", "/metrics", "/api/v1/keys", "/nothing", "/api/v1/drain"] {
            let refused = rig.get(path).await;
            assert_eq!((refused.status, refused.code().as_str()), (401, "admin_token_required"));
            assert!(refused.head.contains("www-authenticate: bearer"), "{refused:?}");
        }
        let drain = rig.post("/api/v1/drain", "{}").await;
        assert_eq!(drain.code(), "admin_token_required");
        let confirm = format!(r#"{{"reason":"x","confirm":"{}"}}"#, &id.to_string()[..8]);
        let release = rig.post(&format!("/api/v1/keys/{id}/release"), &confirm).await;
        assert_eq!(release.code(), "admin_token_required");
        assert_eq!(rig.get("/healthz").await.status, 200);
        let ready = rig.get("/readyz").await;
        assert_eq!(ready.status, 200);
    }
    rig.token = Some(TOKEN);
    assert_eq!(rig.get("/readyz").await.status, 200, "nothing was drained");
    assert_eq!(rig.get(&format!("/api/v1/keys/{id}")).await.json()["state"], "unknown");
}

/// T21: a page whose name points to this machine sends its own name.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebound_name_is_refused() {
    let rig = Rig::new().await;
    let ask = |host: &str| format!("GET /api/v1/keys HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
    for host in [
        "Host: evil.example\r\n",
        "Host: evil.example:8788\r\n",
        "Host: localhost.evil.example\r\n",
        "Host: 10.0.0.7\r\n",
        "Host: localhost\r\nHost: localhost\r\n",
        "Host: \r\n",
        "",
    ] {
        let refused = rig.send(&ask(host)).await;
        assert!(matches!(refused.status, 400 | 403), "{host}: {refused:?}");
        assert!(!refused.body.contains("records"), "{host}: {refused:?}");
    }
    for host in ["Host: localhost:1\r\n", "Host: [::1]\r\n", "Host: OPS.example\r\n"] {
        assert_eq!(rig.send(&ask(host)).await.status, 200, "{host}");
    }
    let line = "GET http://evil.example/api/v1/keys HTTP/1.1\r\nHost: localhost\r\n\
                Connection: close\r\n\r\n";
    assert_eq!(rig.send(line).await.code(), "admin_host_refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_is_refused() {
    let rig = Rig::new().await;
    let own = rig.address;
    let body = "Content-Type: application/json\r\nContent-Length: 2\r\n";
    for line in [
        "Origin: https://evil.example",
        "Origin: null",
        "Origin: http://localhost",
        "Origin: http://127.0.0.1:1",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ] {
        for (method, path, more) in
            [("GET", "/api/v1/keys", ""), ("GET", "/healthz", ""), ("POST", "/api/v1/drain", body)]
        {
            let request = rig.head(method, path, &format!("{line}\r\n{more}"));
            let end = if more.is_empty() { "" } else { "{}" };
            let refused = rig.send(&format!("{request}{end}")).await;
            assert_eq!(refused.code(), "admin_origin_refused", "{line} {path}");
        }
    }
    let preflight =
        format!("Origin: https://evil.example\r\n{}", "Access-Control-Request-Method: POST\r\n");
    let refused = rig.send(&rig.head("OPTIONS", "/api/v1/drain", &preflight)).await;
    assert_eq!(refused.code(), "admin_origin_refused");
    let same = format!("Origin: http://{own}\r\nSec-Fetch-Site: same-origin\r\n");
    assert_eq!(rig.send(&rig.head("GET", "/api/v1/keys", &same)).await.status, 200);
    assert_eq!(rig.get("/readyz").await.status, 200, "nothing was drained");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_cannot_change_anything() {
    let rig = Rig::new().await;
    for kind in [
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: text/plain\r\n",
        "Content-Type: multipart/form-data; boundary=x\r\n",
        "Content-Type: application/jsonp\r\n",
        "",
    ] {
        let head = rig.head("POST", "/api/v1/drain", &format!("{kind}Content-Length: 2\r\n"));
        let refused = rig.send(&format!("{head}{{}}")).await;
        assert_eq!((refused.status, refused.code().as_str()), (415, "admin_media_type_refused"));
    }
    assert_eq!(rig.get("/readyz").await.status, 200, "nothing was drained");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_is_refused_whether_it_says_so_or_not() {
    let rig = Rig::new().await;
    let large = format!(r#"{{"reason":"{}"}}"#, "x".repeat(10 * 1024 * 1024));
    assert_eq!(rig.post("/api/v1/drain", &large).await.code(), "admin_body_too_large");
    let kind = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n";
    let mut chunked = rig.head("POST", "/api/v1/drain", kind);
    for _ in 0..20 {
        chunked.push_str(&format!("10000\r\n{}\r\n", " ".repeat(0x1_0000)));
    }
    assert_eq!(rig.send(&chunked).await.code(), "admin_body_too_large");
    assert_eq!(rig.get("/readyz").await.status, 200, "nothing was drained");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_bounded_whatever_is_asked_for() {
    let rig = Rig::new().await;
    rig.unknown("order-1").await;
    for limit in ["1000000000", "18446744073709551615"] {
        let page = rig.get(&format!("/api/v1/keys?limit={limit}")).await;
        assert_eq!((page.status, page.json()["limit"].as_u64()), (200, Some(1_000)));
        assert_eq!(rig.get(&format!("/api/v1/audit?limit={limit}")).await.status, 200);
    }
    assert_eq!(rig.get("/api/v1/keys?limit=0").await.json()["limit"], 1);
    let long = "x".repeat(5_000);
    let long_cursor = format!("cursor={}", "0".repeat(5_000));
    for query in [
        "limit=-1",
        "limit=1e9",
        "limit=99999999999999999999",
        "cursor=zz",
        "cursor=",
        "cursor=00",
        &long_cursor,
        "state=done'--",
        "state=",
        "older_than=5",
        "older_than=-5m",
        "stat=done",
        "key=",
        "key=%00",
        "key=order-1&state=done",
        "key=order-1&id=1f2e3d4c",
        "id=1f2e3d4",
        "id=1f2e3d4g",
        "id=",
        &format!("route={long}"),
        &format!("scope={long}"),
    ] {
        let refused = rig.get(&format!("/api/v1/keys?{query}")).await;
        assert_eq!(refused.code(), "admin_request_invalid", "{query}: {refused:?}");
    }
}

/// A filter is a value, never a part of a statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_cannot_inject_anything() {
    let rig = Rig::new().await;
    rig.unknown("order-1").await;
    for filter in [
        "route=%27%20OR%20%271%27=%271",
        "route=%27;DROP%20TABLE%20oncekey_records;--",
        "scope=%25",
        "route=*",
        "route=create-charge%00",
        "key=%27%20OR%201=1--",
        "key=%25",
        "route=%3Cscript%3E",
    ] {
        let page = rig.get(&format!("/api/v1/keys?{filter}")).await;
        assert_eq!(page.status, 200, "{filter}: {page:?}");
        assert_eq!(page.json()["records"].as_array().map(Vec::len), Some(0), "{filter}");
    }
    assert_eq!(rig.get("/api/v1/keys").await.json()["records"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_leads_nowhere_but_to_what_there_is() {
    let rig = Rig::new().await;
    for path in ["/api/v1/keys/../../etc/passwd", "/api/v2/keys", "/ui/../Cargo.toml", "/%2e%2e/x"]
    {
        assert!(matches!(rig.get(path).await.code().as_str(), "admin_not_found"), "{path}");
    }
    for id in ["x", "%ff", "..%2f..%2fetc", "%3Cscript%3E", &"0".repeat(63), &"0".repeat(65)] {
        let refused = rig.get(&format!("/api/v1/keys/{id}")).await;
        assert_eq!(refused.code(), "admin_request_invalid", "{id}");
        assert!(!refused.body.contains("script"), "{refused:?}");
    }
    let nobody = rig.get(&format!("/api/v1/keys/{}", "0".repeat(64))).await;
    assert_eq!((nobody.status, nobody.code().as_str()), (404, "admin_record_not_found"));
}
