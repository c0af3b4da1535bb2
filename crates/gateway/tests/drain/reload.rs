//! A new configuration under load.

use std::fs;
use std::process::Command;
use std::time::Duration;

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

/// What is wrong is shown as `validate` shows it, and to programs as a document.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_shows_what_is_wrong_as_validate_does() {
    let upstream = Stub::start(|_| Reply::ok("")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let gateway = home.run();
    home.configure(&upstream.url(), "[[route]]\nmatch = \"/a\"\nmodee = \"required\"\n");
    let config = home.config();
    let mut validate = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    validate.args(["validate", "-c", config.to_str().unwrap()]);
    let expected = String::from_utf8(validate.output().unwrap().stderr).unwrap();
    assert!(expected.contains("did you mean `mode`?"), "{expected}");
    let refused = reload(&gateway);
    assert_eq!(refused.status.code(), Some(3));
    assert_eq!(String::from_utf8(refused.stderr).unwrap(), expected);
    let mut reload = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    reload.args(["reload", "--json", "--admin", &format!("http://{}", gateway.admin)]);
    let refused = reload.output().unwrap();
    assert_eq!(refused.status.code(), Some(3));
    let document: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(document["code"], "admin_reload_failed");
    assert_eq!(document["detail"], expected);
}

/// The next start would fail, and nobody would be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_refuses_what_the_next_start_would_refuse() {
    let upstream = Stub::start(|_| Reply::ok("")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let gateway = home.run();
    for (missing, named) in [
        ("[store]\nencrypt_with_files = [\"no.key\"]\n", "no.key"),
        ("[store]\npepper_file = \"no.pepper\"\n", "no.pepper"),
    ] {
        home.configure(&upstream.url(), &format!("{missing}{ROUTES}"));
        let refused = reload(&gateway);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(3), "{said}");
        assert!(said.contains("cannot read") && said.contains(named), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_says_what_changed_in_routes_too() {
    let upstream = Stub::start(|_| Reply::ok("")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let gateway = home.run();
    let said = || String::from_utf8(reload(&gateway).stdout).unwrap();
    assert_eq!(said(), "nothing changed\n");
    home.configure(&upstream.url(), &format!("{ROUTES}ttl = \"7h\"\n"));
    let changed = said();
    assert!(changed.contains("ttl: \"1d\" → \"7h\""), "{changed}");
    gateway.says("ttl: ").await;
}

/// A script that reloads only if something would change goes by the list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_without_a_change_says_that_nothing_would_change() {
    let upstream = Stub::start(|_| Reply::ok("")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let gateway = home.run();
    let dry = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
        command.args(["reload", "--dry-run", "--admin", &format!("http://{}", gateway.admin)]);
        String::from_utf8(command.args(more).output().unwrap().stdout).unwrap()
    };
    assert_eq!(dry(&[]), "nothing would change\n");
    let document: serde_json::Value = serde_json::from_str(&dry(&["--json"])).unwrap();
    assert_eq!(
        (&document["applied"], &document["changes"]),
        (&false.into(), &Vec::<String>::new().into())
    );
    home.configure(&upstream.url(), &format!("{ROUTES}ttl = \"7h\"\n"));
    let changes = dry(&[]);
    assert!(changes.starts_with("would change:\n") && changes.lines().count() == 2, "{changes}");
}

/// Somebody puts it right without touching the file that names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_only_a_refused_configuration_names_is_watched() {
    let (old, new) =
        (Stub::start(|_| Reply::ok("old")).await, Stub::start(|_| Reply::ok("new")).await);
    let home = Home::on_sqlite();
    home.configure(&old.url(), ROUTES);
    let config = home.config();
    let gateway = home.run_with(&["-c", config.to_str().unwrap(), "--watch"]);
    let who = async || Client::open(gateway.address).await.ask(&ask("GET", "/")).await;
    home.configure("http://${file:place}", ROUTES);
    gateway.says("the old configuration stays in force").await;
    assert_eq!(who().await.text(), "old");
    fs::write(home.path().join("place"), new.address.to_string()).unwrap();
    crate::common::until("the new upstream", async || who().await.text() == "new").await;
}

/// As with a network file system that is away: reading never ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_read_to_its_end_delays_no_signal() {
    let upstream = Stub::start(|_| Reply::ok("")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let mut gateway = home.run();
    let made = Command::new("mkfifo").arg(home.path().join("place")).status().unwrap();
    assert!(made.success());
    home.configure("http://${file:place}", ROUTES);
    gateway.tell(Signal::HUP);
    // It still serves, and somebody else's reload waits for the first.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(Client::open(gateway.address).await.ask(&ask("GET", "/")).await.status, 200);
    assert!(!gateway.log().contains("the old configuration stays in force"), "it is being read");
    gateway.tell(Signal::TERM);
    let ended = tokio::time::timeout(Duration::from_secs(20), gateway.ended()).await;
    assert!(ended.expect("it ends soon").success());
}
