//! What would have happened.

use crate::OBSERVED;
use crate::common::gateway::Home;
use crate::common::stub::{Reply, Stub};
use crate::common::wire::{Client, pay};

const DUPLICATES: &str = "oncekey_duplicates_observed_total";
const REQUESTS: &str = "oncekey_requests_total";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_hollow_keys_keyless_repeats_and_mismatches_are_counted() {
    let upstream = Stub::start(|_| Reply::ok("{}")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), OBSERVED);
    let gateway = home.run();
    let mut client = Client::open(gateway.address).await;
    let keyless = |body: &str| pay(body).without("idempotency-key");
    let asks = [
        // Two of the same: the second would have been a replay.
        pay("1").key("same"),
        pay("1").key("same"),
        // Another body under that key.
        pay("2").key("same"),
        // A new key for each attempt.
        pay("3").key("one"),
        pay("3").key("two"),
        // The same thing twice without a key.
        keyless("4"),
        keyless("4"),
        // What is no key.
        pay("5").key("a, b"),
    ];
    for ask in &asks {
        let seen = client.ask(ask).await;
        assert_eq!((seen.status, seen.text()), (200, "{}"));
        // Events are told after the answer, and their order is what is compared.
        let done = upstream.whole().len();
        gateway
            .until_metric(REQUESTS, &["mode=\"observe\""], f64::from(u32::try_from(done).unwrap()))
            .await;
    }
    assert_eq!(upstream.whole().len(), asks.len(), "every one of them ran");
    for (kind, count) in [("keyed", 1.0), ("hollow", 1.0), ("keyless_suspected", 1.0)] {
        let label = format!("kind=\"{kind}\"");
        gateway.until_metric(DUPLICATES, &[&label, "route=\"all\""], count).await;
    }
    for (outcome, count) in [
        ("would_executed", 3.0),
        ("would_replayed", 1.0),
        ("would_mismatch", 1.0),
        ("would_missing_key", 2.0),
        ("would_invalid_key", 1.0),
    ] {
        let label = format!("outcome=\"{outcome}\"");
        gateway.until_metric(REQUESTS, &[&label, "method=\"POST\""], count).await;
    }
    gateway.says("duplicate observed").await;
    assert!(!gateway.log().contains("\"same\""), "no key stands in a log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_its_client_did_not_wait_for_is_counted() {
    let upstream = Stub::start(|_| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n";
        Reply::new(head.to_owned() + &"x".repeat(50_000_000), crate::common::stub::Then::Close)
    })
    .await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), OBSERVED);
    let gateway = home.run();
    let mut client = Client::open(gateway.address).await;
    client.write(&pay("1").bytes()).await;
    assert_eq!(client.read_head().await.0, 200);
    drop(client);
    gateway.until_metric("oncekey_client_aborts_total", &["stage=\"after_answer\""], 1.0).await;
}
