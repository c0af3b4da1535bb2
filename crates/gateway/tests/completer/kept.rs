//! Requests while they are kept.

use crate::common::gateway::Gateway;
use crate::common::wire::{Client, Seen};
use crate::scene::{KEPT, SECRET, Scene, listed, payment, retry, routes};

/// Sends a payment that is answered with this status.
async fn pay(gateway: &Gateway, status: &str) -> Seen {
    let payment = payment().line("x-do", &format!("status={status}"));
    Client::open(gateway.address).await.ask(&payment).await
}

async fn ids(gateway: &Gateway, path: &str) -> Vec<String> {
    let page: serde_json::Value = serde_json::from_slice(&gateway.look(path).await.body).unwrap();
    let records = page["records"].as_array().unwrap();
    records.iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_request_is_no_key_of_a_client_and_is_erased_with_its_key() {
    let scene = Scene::set();
    let gateway = scene.run(&routes(""));
    assert_eq!(retry(&gateway).await.status, 201);
    assert!(!scene.is_on_disk(SECRET), "a credential is on the disk");
    assert_eq!(listed(&gateway, KEPT).await, 1);
    let shown = ids(&gateway, "/api/v1/keys?limit=1").await;
    assert_eq!(shown.len(), 1, "the page is filled with what is shown");
    assert_eq!(ids(&gateway, "/api/v1/keys").await, shown);
    assert!(!ids(&gateway, KEPT).await.contains(&shown[0]));
    let kept = ids(&gateway, KEPT).await;
    let seen = gateway.look(&format!("/api/v1/keys/{}?show=payload", kept[0])).await;
    assert_eq!((seen.status, seen.text().contains("s3cret")), (403, false), "{seen:?}");
    let erase = crate::common::wire::pay(r#"{"reason":"asked to"}"#)
        .path(&format!("/api/v1/keys/{}/erase", shown[0]));
    let seen = Client::open(gateway.admin).await.ask(&erase).await;
    assert_eq!(seen.status, 200, "{seen:?}");
    assert_eq!(listed(&gateway, KEPT).await, 0);
    assert_eq!(ids(&gateway, "/api/v1/keys").await, shown, "that it ran stays");
}

/// The key is free after a 503, and may be used for another request: that one is kept then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_is_the_request_that_was_sent_last() {
    let scene = Scene::set();
    let gateway = scene.run(&routes(""));
    assert_eq!(pay(&gateway, "503").await.status, 503);
    let mut client = Client::open(gateway.address).await;
    let other = crate::common::wire::pay(r#"{"amount": 700}"#).line("x-do", "hold");
    client.write(&other.bytes()).await;
    scene.upstream.until_begun("acme", 2).await;
    gateway.kill();
    scene.upstream.release("acme").await;
    let gateway = scene.run(&routes(""));
    scene.upstream.until_begun("acme", 3).await;
    let runs = scene.upstream.runs("acme").await;
    assert_eq!(runs[2].body, r#"{"amount": 700}"#);
    crate::scene::until_ended(&gateway, "finished").await;
    assert_eq!(listed(&gateway, KEPT).await, 0);
}

/// Where it cannot be kept, it is not sent, and the key is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_cannot_be_kept_is_not_sent() {
    let scene = Scene::set();
    let gateway = scene.run(&routes(""));
    assert_eq!(pay(&gateway, "503").await.status, 503);
    assert_eq!(listed(&gateway, KEPT).await, 1);
    gateway.kill();
    let file = rusqlite::Connection::open(scene.home.path().join("keys.db")).unwrap();
    // The key is free, so this is the answer of nothing but the kept request.
    let damaged = file.execute("UPDATE oncekey_answers SET body = X'00'", []);
    assert_eq!(damaged.unwrap(), 1);
    drop(file);
    let gateway = scene.run(&routes(""));
    let seen = pay(&gateway, "201").await;
    seen.assert_refused(503, "idempotency_store_unavailable", "no");
    assert_eq!(scene.runs().await.len(), 1);
    assert!(gateway.metric("oncekey_completer_not_kept_total", &["route=\"pay\""]).await > 0.5);
    assert_eq!(listed(&gateway, "/api/v1/keys").await, 0, "the key is free");
}
