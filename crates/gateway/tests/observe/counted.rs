//! What would have happened.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::OBSERVED;
use crate::common::gateway::Home;
use crate::common::stub::{Reply, Stub};
use crate::common::until;
use crate::common::wire::{Client, pay};

const ABORTS: &str = "oncekey_client_aborts_total";
const DUPLICATES: &str = "oncekey_duplicates_observed_total";
const REQUESTS: &str = "oncekey_requests_total";

/// Longer than it takes to notice that somebody has left.
const SLOW: Duration = Duration::from_millis(500);

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
    gateway.until_metric(ABORTS, &["stage=\"after_answer\""], 1.0).await;
}

/// A client of HTTP/1.1 that gives up closes its connection, long before there is an answer that could
/// fail to reach it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_its_answer_is_counted() {
    for mode in ["observe", "optional"] {
        let upstream = Stub::start(|_| Reply::ok("{}").after(SLOW)).await;
        let home = Home::on_sqlite();
        home.configure(&upstream.url(), &OBSERVED.replace("observe", mode));
        let gateway = home.run();
        // Those who wait are not counted, not even with the next request behind the first.
        let mut patient = Client::open(gateway.address).await;
        let two = [pay("1").key("patient-one").bytes(), pay("2").key("patient-two").bytes()];
        patient.write(&two.concat()).await;
        assert_eq!(patient.read("POST").await.status, 200, "{mode}");
        assert_eq!(patient.read("POST").await.status, 200, "{mode}");
        assert_eq!(gateway.metric(ABORTS, &[]).await, 0.0, "{mode}");
        let mut gone = Client::open(gateway.address).await;
        gone.write(&pay("3").key("impatient").bytes()).await;
        until("the third request", async || upstream.whole().len() == 3).await;
        drop(gone);
        let labels = ["stage=\"before_answer\"", "route=\"all\""];
        gateway.until_metric(ABORTS, &labels, 1.0).await;
        // Some ask for another protocol each time, and are content without it.
        let mut gone = Client::open(gateway.address).await;
        let upgrading = pay("4").key("another").line("connection", "upgrade, http2-settings");
        gone.write(&upgrading.line("upgrade", "h2c").bytes()).await;
        until("the fourth request", async || upstream.whole().len() == 4).await;
        drop(gone);
        gateway.until_metric(ABORTS, &labels, 2.0).await;
        assert_eq!(gateway.metric(ABORTS, &[]).await, 2.0, "{mode}: nothing else is counted");
    }
}

/// A client may say that it has no more requests, and wait for its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_connection_is_enough_for_an_answer() {
    let upstream = Stub::start(|_| Reply::ok("{}").after(SLOW)).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), OBSERVED);
    let gateway = home.run();
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    client.write_all(&pay("1").bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{}"), "{answer}");
}

/// The next request may come while the first is under way, in any pieces: the connection looks whether
/// its client is there, and finds something to read. What is wrong with it is said after the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_behind_a_request_waits_for_its_turn() {
    let upstream = Stub::start(|_| Reply::ok("{}").after(SLOW / 5)).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), OBSERVED);
    let gateway = home.run();
    let next = pay("2").key("next").bytes();
    let long = pay("2").key("long").line("x-long", &"x".repeat(6_000)).bytes();
    for (number, (early, late)) in [
        (&next[..], &b""[..]),
        (&next[..20], &next[20..]),
        (&long[..], b""),
        (b"G@T /\r\n\r\n", b""),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = Client::open(gateway.address).await;
        let before = upstream.whole().len();
        client.write(&pay("1").key(&format!("first-{number}")).bytes()).await;
        until("the first request", async || upstream.whole().len() == before + 1).await;
        client.write(early).await;
        assert_eq!(client.read("POST").await.text(), "{}", "the first of pair {number}");
        client.write(late).await;
        let second = client.read("POST").await.status;
        assert_eq!(second, if early.starts_with(b"G@T") { 400 } else { 200 }, "pair {number}");
    }
    assert_eq!(upstream.whole().len(), 7);
    assert_eq!(gateway.metric(ABORTS, &[]).await, 0.0);
}
