//! A new configuration under load.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use crate::common::gateway::{Gateway, Home};
use crate::common::stub::{Reply, Stub};
use crate::common::wire::{Client, ask};
use crate::load::{Load, ROUTES, receipt};

/// Enough to be in the middle of many of them whenever something changes.
const REQUESTS: usize = 10_000;
const CLIENTS: usize = 50;

/// `oncekey reload`, as an operator types it.
fn reload(gateway: &Gateway) -> std::process::Output {
    let admin = format!("http://{}", gateway.admin);
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    command.args(["reload", "--admin", &admin]).output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_while_the_configuration_changes() {
    let upstream = Stub::start(receipt).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let gateway = home.run();
    let load = Load::start(gateway.address, CLIENTS, REQUESTS);
    for step in 1..=8 {
        load.until_done(REQUESTS / 10 * step).await;
        home.configure(&upstream.url(), &format!("{ROUTES}ttl = \"{step}h\"\n"));
        if step % 2 == 0 {
            gateway.tell(Signal::HUP);
        } else {
            let reloaded = reload(&gateway);
            assert!(reloaded.status.success(), "{reloaded:?}");
        }
        crate::common::until("the new configuration", async || {
            let routes = gateway.look("/api/v1/routes").await;
            let seconds = format!("\"retention_seconds\":{}", step * 3_600);
            routes.text().replace(' ', "").contains(&seconds)
        })
        .await;
    }
    let got = load.end().await;
    assert_eq!(got.keys.len(), REQUESTS, "every request was answered");
    assert_eq!(upstream.count("/payments"), REQUESTS, "and ran once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_file_changes_nothing_and_says_why() {
    let (old, new) =
        (Stub::start(|_| Reply::ok("old")).await, Stub::start(|_| Reply::ok("new")).await);
    let home = Home::on_sqlite();
    home.configure(&old.url(), ROUTES);
    let gateway = home.run();
    let who = async || Client::open(gateway.address).await.ask(&ask("GET", "/")).await;
    for broken in ["[server", "version = 1\n[server]\nupstream = \"ftp://x\"\n", ""] {
        fs::write(home.config(), broken).unwrap();
        let reloaded = reload(&gateway);
        assert!(!reloaded.status.success(), "{broken:?}: {reloaded:?}");
        gateway.tell(Signal::HUP);
        gateway.says("the old configuration stays in force").await;
        assert_eq!(who().await.text(), "old");
    }
    home.configure(&new.url(), ROUTES);
    gateway.tell(Signal::HUP);
    crate::common::until("the new upstream", async || who().await.text() == "new").await;
}
