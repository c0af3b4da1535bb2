//! The end of the program under load.

use std::collections::HashSet;
use std::time::Duration;

use oncekey::clock::{SystemUptime, Uptime as _};
use rustix::process::Signal;

use crate::common::gateway::Home;
use crate::common::script::{Language, Script};
use crate::common::stub::Stub;
use crate::common::wire::{Client, pay};
use crate::load::{Load, ROUTES, receipt};

/// More than are answered before the end comes.
const ENDLESS: usize = 1_000_000;

/// Whatever was accepted is answered, whatever was answered ran once, and nothing else ran.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_that_was_accepted_is_answered_before_the_end() {
    let upstream = Stub::start(receipt).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    for _ in 0..3 {
        let mut gateway = home.run();
        let before = upstream.count("/payments");
        let load = Load::start(gateway.address, 16, ENDLESS);
        load.until_done(500).await;
        gateway.tell(Signal::TERM);
        let ended = gateway.ended().await;
        load.stop();
        let got = load.end().await;
        assert!(ended.success(), "{ended:?}\n{}", gateway.log());
        let ran = upstream.whole().split_off(before);
        let bodies: HashSet<Vec<u8>> = ran.iter().map(|run| run.body.clone()).collect();
        assert_eq!(bodies.len(), ran.len(), "nothing ran twice");
        assert_eq!(got.keys.len(), ran.len(), "nothing ran without an answer");
        // The next round uses the same keys, and must not be answered from the store.
        home.forget();
    }
}

/// A request that takes long is answered; new clients are not taken meanwhile; then it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_takes_long_is_finished_before_the_end() {
    let upstream = Script::start(Language::Python);
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let mut gateway = home.run();
    let mut client = Client::open(gateway.address).await;
    let held = pay("{}").line("x-do", "hold");
    client.write(&held.bytes()).await;
    // A client that has left in the meantime has its work finished, too.
    let mut gone = Client::open(gateway.address).await;
    gone.write(&pay("{}").key("gone").line("x-do", "hold").bytes()).await;
    upstream.until_begun("acme", 2).await;
    drop(gone);
    gateway.tell(Signal::TERM);
    gateway.says("draining").await;
    let ready = gateway.look("/readyz").await;
    assert_eq!(ready.status, 503, "{ready:?}");
    upstream.release("acme").await;
    let seen = client.read("POST").await;
    assert_eq!((seen.status, seen.is_replay()), (201, false));
    assert!(client.is_at_its_end().await);
    assert!(gateway.ended().await.success());
    let gateway = home.run();
    for key in [crate::common::wire::KEY, "gone"] {
        let again = Client::open(gateway.address).await.ask(&pay("{}").key(key)).await;
        assert!(again.is_replay(), "{again:?}");
    }
    assert_eq!(upstream.runs("acme").await.len(), 2);
}

/// Clients and work share the time that an end may take, and whoever is cut off is told what is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_never_ends_is_stopped_once_and_its_client_is_told() {
    let upstream = Script::start(Language::Python);
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let drain = [("ONCEKEY__SERVER__DRAIN__TIMEOUT", "\"4s\"")];
    let mut gateway = home.run_in(&["-c", home.config().to_str().unwrap()], &drain);
    let mut client = Client::open(gateway.address).await;
    client.write(&pay("{}").line("x-do", "hold").bytes()).await;
    upstream.until_begun("acme", 1).await;
    let began = SystemUptime.elapsed();
    gateway.tell(Signal::TERM);
    let seen = client.read("POST").await;
    seen.assert_refused(500, "idempotency_outcome_unknown", "unknown");
    assert_eq!(seen.line("idempotency-status"), "oncekey; unknown; executed=unknown; retry=?0");
    assert_eq!(seen.line("original-request"), seen.line("request-id"));
    assert!(gateway.ended().await.success());
    let took = SystemUptime.elapsed() - began;
    assert!(took < Duration::from_secs(7), "twice the time: {took:?}");
    assert!(gateway.log().contains("outcome unknown"), "{}", gateway.log());
    upstream.release("acme").await;
}

/// Somebody at a terminal who presses Ctrl-C again does not want to wait for slow work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_ctrl_c_ends_it_at_once() {
    let upstream = Script::start(Language::Python);
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let mut gateway = home.run();
    let mut client = Client::open(gateway.address).await;
    client.write(&pay("{}").line("x-do", "hold").bytes()).await;
    upstream.until_begun("acme", 1).await;
    gateway.tell(Signal::INT);
    gateway.says("draining").await;
    gateway.tell(Signal::INT);
    let ended = gateway.ended().await;
    assert_eq!(ended.code(), Some(1), "{}", gateway.log());
    gateway.says("ended at once by a second signal").await;
}
