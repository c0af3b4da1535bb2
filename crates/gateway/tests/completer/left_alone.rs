//! What the completer does not touch.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::wire::Client;
use crate::scene::{A_LOOK, Scene, ended, payment, retry, routes, until_ended};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_its_time_a_payment_is_left_to_its_client() {
    let scene = Scene::set();
    let short = routes("complete_for = \"4s\"\n");
    scene.abandon(&short).await;
    scene.upstream.release("acme").await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    let gateway = scene.run(&short);
    tokio::time::sleep(A_LOOK).await;
    assert_eq!(scene.runs().await.len(), 1);
    let seen = retry(&gateway).await;
    assert_eq!((seen.status, seen.is_replay()), (201, false));
    assert_eq!(scene.runs().await.len(), 2);
}

/// The request was sent before anybody said that it is to be completed, so it was not kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_was_not_kept_is_left_to_its_client() {
    let scene = Scene::set();
    scene.abandon(&routes("").replace("complete = true", "complete = false")).await;
    scene.upstream.release("acme").await;
    let gateway = scene.run(&routes(""));
    until_ended(&gateway, "no_request").await;
    tokio::time::sleep(A_LOOK).await;
    assert!(ended(&gateway, "no_request").await < 1.5, "it is looked at once");
    assert_eq!(scene.runs().await.len(), 1);
    assert!(!retry(&gateway).await.is_replay());
}

/// The same key would belong to somebody else, and its work would be done twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_whose_key_is_read_elsewhere_now_is_left_to_its_client() {
    let scene = Scene::set();
    scene.abandon(&routes("")).await;
    scene.upstream.release("acme").await;
    let elsewhere = routes("mode = \"optional\"\nkey = { sources = [\"header:X-Key\"] }\n");
    let gateway = scene.run(&elsewhere);
    until_ended(&gateway, "changed").await;
    assert_eq!(scene.runs().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_drains_begins_nothing() {
    let scene = Scene::set();
    scene.abandon(&routes("")).await;
    scene.home.configure(&scene.upstream.url(), &routes(""));
    let config = fs::read_to_string(scene.home.config()).unwrap();
    // Long enough for a look.
    fs::write(scene.home.config(), config.replace("delay = \"0s\"", "delay = \"7s\"")).unwrap();
    let mut gateway = scene.home.run();
    gateway.tell(Signal::TERM);
    let ended = crate::common::within("the end", gateway.ended()).await;
    assert!(ended.success());
    assert_eq!(scene.runs().await.len(), 1);
}

/// Encryption holds only after a restart: a reload that brings both would keep requests in plain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_cannot_keep_requests_where_nothing_is_encrypted() {
    let scene = Scene::set();
    let plain = routes("").replace("encrypt_with_files = [\"ring.keys\"]", "");
    let gateway = scene.run(&plain.replace("complete = true", "complete = false"));
    scene.home.configure(&scene.upstream.url(), &routes(""));
    let admin = format!("http://{}", gateway.admin);
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    let reloaded = command.args(["reload", "--admin", &admin]).output().unwrap();
    assert!(!reloaded.status.success(), "{reloaded:?}");
    let said = String::from_utf8(reloaded.stderr).unwrap();
    assert!(said.contains("set store.encrypt_with_files and restart"), "{said}");
    let seen = Client::open(gateway.address).await.ask(&payment()).await;
    assert_eq!(seen.status, 201, "the old configuration is in force");
    assert!(!scene.is_on_disk(crate::scene::SECRET), "a credential is on the disk");
}
