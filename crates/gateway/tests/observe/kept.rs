//! What was observed is in the store: for all gateways on it, and after a restart.

use rustix::process::Signal;
use serde_json::Value;

use crate::OBSERVED;
use crate::common::gateway::{Gateway, Home};
use crate::common::stub::{Reply, Stub, Then};
use crate::common::until;
use crate::common::wire::{Ask, Client, pay};

const REQUESTS: &str = "oncekey_requests_total";

fn observed(every: &str) -> String {
    format!("[telemetry.observed]\nevery = \"{every}\"\n{OBSERVED}")
}

impl Gateway {
    async fn observed(&self, query: &str) -> Value {
        let seen = self.look(&format!("/api/v1/observed{query}")).await;
        assert_eq!(seen.status, 200, "{}", seen.text());
        serde_json::from_slice(&seen.body).unwrap()
    }

    /// Sends requests one after the other: their order is what is compared.
    async fn see(&self, asks: &[Ask]) {
        let mut client = Client::open(self.address).await;
        let before = self.metric(REQUESTS, &["mode=\"observe\""]).await;
        for (ask, done) in asks.iter().zip(1_u32..) {
            assert_eq!(client.ask(ask).await.status, 200);
            let all = before + f64::from(done);
            self.until_metric(REQUESTS, &["mode=\"observe\""], all).await;
        }
    }
}

fn numbers(row: &Value) -> [u64; 8] {
    [
        "requests",
        "keyed",
        "duplicates",
        "mismatches",
        "hollow_keys",
        "keyless_repeats",
        "invalid_keys",
        "client_aborts",
    ]
    .map(|name| row[name].as_u64().unwrap_or_else(|| panic!("no {name} in {row}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_a_store_and_their_successors_know_all_numbers() {
    sums_up(Home::on_sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn two_gateways_on_postgres_and_their_successors_know_all_numbers() {
    sums_up(Home::on_postgres("observed")).await;
}

async fn sums_up(home: Home) {
    let upstream = Stub::start(|_| Reply::ok("{}")).await;
    home.configure(&upstream.url(), &observed("1h"));
    let config = home.config();
    let config = config.to_str().unwrap();
    let named = |name| home.run_in(&["-c", config], &[("ONCEKEY__SERVER__INSTANCE", name)]);
    let (mut one, mut two) = (named("'one'"), named("'two'"));
    let keyless = |body: &str| pay(body).without("idempotency-key");
    one.see(&[
        pay("1").key("a"),
        pay("1").key("a"),
        pay("2").key("a"),
        pay("3").key("b"),
        pay("3").key("c"),
    ])
    .await;
    two.see(&[keyless("4"), keyless("4"), pay("5").key("x, y"), pay("6").key("d")]).await;
    let own = one.observed("").await;
    assert_eq!(numbers(&own["total"]), [5, 5, 1, 1, 1, 0, 0, 0], "its own, before any is written");
    for gateway in [&mut one, &mut two] {
        gateway.tell(Signal::TERM);
        assert!(gateway.ended().await.success());
    }
    let after = named("'three'");
    after.see(&[pay("7").key("e")]).await;
    let seen = after.observed("?intervals=true").await;
    assert_eq!(numbers(&seen["total"]), [10, 7, 1, 1, 1, 1, 1, 0]);
    assert_eq!(seen["nodes"], serde_json::json!(["one", "three", "two"]));
    assert_eq!(seen["total"]["keyed_share"], 0.7);
    let [route] = &seen["routes"].as_array().unwrap()[..] else { panic!("{seen}") };
    assert_eq!(numbers(route), numbers(&seen["total"]));
    assert_eq!(route["route"], "all");
    let [caller] = &route["callers"].as_array().unwrap()[..] else { panic!("{route}") };
    assert_eq!(caller["caller"].as_str().unwrap().len(), 16);
    assert_eq!(seen["intervals"].as_array().unwrap().len(), 3);
    assert_eq!(numbers(&after.observed("?route=none").await["total"]), [0; 8]);
    assert_eq!(after.look("/api/v1/observed?last=x").await.status, 400);
    // They are no keys of clients.
    let keys = after.look("/api/v1/keys").await;
    let keys: Value = serde_json::from_slice(&keys.body).unwrap();
    assert_eq!(keys["records"], serde_json::json!([]));
    let own = after.look("/api/v1/keys?route=oncekey%3A%20observed").await;
    let own: Value = serde_json::from_slice(&own.body).unwrap();
    assert_eq!(own["records"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_written_now_and_then_and_survives_a_kill() {
    let upstream = Stub::start(|_| Reply::ok("{}")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), &observed("1s"));
    let gateway = home.run();
    gateway.see(&[pay("1").key("a"), pay("1").key("a")]).await;
    let written = "/api/v1/keys?route=oncekey%3A%20observed";
    until("a written tally", async || {
        let seen = gateway.look(written).await;
        seen.text().contains("\"state\":\"done\"")
    })
    .await;
    // Both may have come to an end in two different seconds.
    until("both are written", async || {
        let seen = gateway.observed("").await;
        numbers(&seen["total"])[..3] == [2, 2, 1]
            && gateway.metric("oncekey_observed_not_kept_total", &[]).await == 0.0
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
    gateway.kill();
    let after = home.run();
    assert_eq!(numbers(&after.observed("?last=1h").await["total"])[..3], [2, 2, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_gone_harms_no_observed_request() {
    let upstream = Stub::start(|_| Reply::ok("{}")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), &observed("1s"));
    let gateway = home.run();
    let file = rusqlite::Connection::open(home.path().join("keys.db")).unwrap();
    file.execute_batch("BEGIN EXCLUSIVE").unwrap();
    gateway.see(&[pay("1").key("a")]).await;
    gateway.until_metric("oncekey_observed_not_kept_total", &[], 1.0).await;
    gateway.see(&[pay("1").key("a")]).await;
    file.execute_batch("ROLLBACK").unwrap();
    until("the numbers of before", async || {
        let seen = gateway.look("/api/v1/observed").await;
        let Ok(seen) = serde_json::from_slice::<Value>(&seen.body) else { return false };
        seen["total"]["requests"] == 2 && seen["total"]["duplicates"] == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_left_are_counted() {
    let upstream = Stub::start(|_| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n";
        Reply::new(head.to_owned() + &"x".repeat(50_000_000), Then::Close)
    })
    .await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), &observed("1h"));
    let gateway = home.run();
    let mut client = Client::open(gateway.address).await;
    client.write(&pay("1").bytes()).await;
    assert_eq!(client.read_head().await.0, 200);
    drop(client);
    until("a client that left", async || {
        numbers(&gateway.observed("").await["total"]) == [1, 1, 0, 0, 0, 0, 0, 1]
    })
    .await;
}
