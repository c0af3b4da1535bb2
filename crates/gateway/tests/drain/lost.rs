//! A store that goes away while clients are served.

use std::fs;

use crate::common::gateway::Home;
use crate::common::stub::{Reply, Stub};
use crate::common::wire::{Client, pay};
use crate::load::ROUTES;

/// Every request says that the store is away; why it is stands in the log once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_once_why_the_store_is_away_and_that_it_is_back() {
    let upstream = Stub::start(|_| Reply::ok("")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let gateway = home.run();
    let pay =
        async |key: &str| Client::open(gateway.address).await.ask(&pay("{}").key(key)).await.status;
    assert_eq!(pay("before").await, 200);
    let (here, away) = (home.path().join("keys.db"), home.path().join("moved.db"));
    fs::rename(&here, &away).unwrap();
    gateway.says("the store is away").await;
    for key in ["a", "b", "c"] {
        assert_eq!(pay(key).await, 503);
    }
    fs::rename(&away, &here).unwrap();
    gateway.says("the store is back").await;
    let log = gateway.log();
    let of = |words: &str| log.lines().filter(|line| line.contains(words)).collect::<Vec<_>>();
    let [line] = of("the store is away")[..] else { panic!("{log}") };
    assert!(line.contains("\"level\":\"error\"") && line.contains("moved"), "{line}");
    assert_eq!(of("the store is back").len(), 1, "{log}");
}
