//! New certificates, tokens and timeouts while clients are connected.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Output};

use rustix::process::Signal;

use crate::certificates;
use crate::client::{Line, pay, tls};
use crate::clients::{ROUTES, with_tls};
use crate::common::gateway::{Gateway, Home};
use crate::common::until;
use crate::upstream::{Speaks, Upstream};

/// `oncekey reload`, as an operator types it.
fn reload(gateway: &Gateway, options: &[&str]) -> Output {
    let admin = format!("http://{}", gateway.admin);
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    command.args(["reload", "--admin", &admin]).args(options).output().unwrap()
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

/// The end of the certificate that a new client sees, which tells it from others.
async fn shown(gateway: &Gateway) -> Vec<u8> {
    let stream = tls(gateway, certificates::client(None, &[b"h2"])).await.unwrap();
    let certificate = &stream.get_ref().1.peer_certificates().unwrap()[0];
    certificate[certificate.len() - 8..].to_vec()
}

async fn scene(more: &str) -> (Home, Upstream, Gateway) {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(Speaks::Plain, home.path()).await;
    home.configure(&upstream.url, &format!("{}{more}{ROUTES}", with_tls(&home, "server", "")));
    let gateway = home.run();
    (home, upstream, gateway)
}

/// A renewed certificate is shown to new clients, and those who are connected notice nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_is_shown_after_a_reload() {
    let (home, upstream, gateway) = scene("").await;
    let mut connected = Line::tls(&gateway, certificates::client(None, &[b"h2"])).await;
    assert_eq!(connected.ask(pay("/payments", "key-1", "1")).await.status, 200);
    let old = shown(&gateway).await;
    let nothing = reload(&gateway, &[]);
    assert!(said(&nothing).contains("nothing changed"), "{nothing:?}");
    certificates::install("server2", &home.path().join("server.pem"));
    assert_eq!(shown(&gateway).await, old, "nobody has reloaded");
    let dry = reload(&gateway, &["--dry-run"]);
    assert!(said(&dry).contains("see the new certificate"), "{dry:?}");
    assert_eq!(shown(&gateway).await, old, "it was a dry run");
    let reloaded = reload(&gateway, &[]);
    assert!(said(&reloaded).contains("see the new certificate"), "{reloaded:?}");
    assert_ne!(shown(&gateway).await, old);
    let replay = connected.ask(pay("/payments", "key-1", "1")).await;
    assert!(replay.is_replay(), "the connection is still there: {replay:?}");
    assert_eq!(upstream.count("/payments"), 1);
}

/// A certificate that cannot be used changes nothing, and whoever reloads is told why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_certificate_keeps_the_old_one_and_says_why() {
    let (home, upstream, gateway) = scene("").await;
    let old = shown(&gateway).await;
    let path = home.path().join("server.pem");
    let write = |text: &str| {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    };
    let routes = || format!("{}ttl = \"1h\"\n", ROUTES);
    for (text, why) in [("", "holds no certificate"), ("-----BEGIN CERTIFICATE-----", "server.pem")]
    {
        home.configure(&upstream.url, &format!("{}{}", with_tls(&home, "server", ""), routes()));
        write(text);
        let refused = reload(&gateway, &[]);
        assert!(!refused.status.success() && said(&refused).contains(why), "{refused:?}");
        gateway.tell(Signal::HUP);
        gateway.says(why).await;
        assert_eq!(shown(&gateway).await, old);
        let shown = gateway.look("/api/v1/routes").await;
        assert!(!shown.text().replace(' ', "").contains(":3600"), "nothing else changed either");
    }
    certificates::install("server2", &path);
    assert!(reload(&gateway, &[]).status.success());
    assert_ne!(shown(&gateway).await, old);
}

/// What cannot change in flight is named, again and again until somebody restarts; timeouts and
/// the token of operators do change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_holds_after_a_restart_is_named_every_time() {
    let (home, upstream, gateway) = scene("").await;
    let tls = with_tls(&home, "server", "");
    let more = "[server.timeouts]\nidle = \"300ms\"\n[store]\ncache = \"1MiB\"\n";
    home.configure(&upstream.url, &format!("{tls}{more}{ROUTES}"));
    let first = reload(&gateway, &[]);
    assert!(said(&first).contains("store.cache has changed and holds only after"), "{first:?}");
    assert!(said(&first).contains("the new timeouts hold for clients"), "{first:?}");
    let again = reload(&gateway, &[]);
    assert!(said(&again).contains("store.cache has changed"), "{again:?}");
    assert!(!said(&again).contains("timeouts"), "{again:?}");
    let mut idle = crate::client::tls(&gateway, certificates::client(None, &[b"http/1.1"])).await;
    let ended = tokio::io::AsyncReadExt::read_u8(idle.as_mut().unwrap());
    assert!(crate::common::within("the end", ended).await.is_err(), "300 ms are over");
}

/// A token that was changed in its file counts after a reload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_of_operators_can_be_changed() {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(Speaks::Plain, home.path()).await;
    let file = home.path().join("token");
    let write = |token: &str| {
        fs::write(&file, token).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    };
    let (old, new) = ("0123456789abcdef-old", "0123456789abcdef-new");
    write(old);
    // Behind `[admin]`, with which the rest of the file begins.
    home.configure(&upstream.url, &format!("token_file = \"token\"\n{ROUTES}"));
    let gateway = home.run();
    let asked = async |token: &str| {
        let ask = crate::common::wire::ask("GET", "/api/v1/status")
            .line("connection", "close")
            .line("authorization", &format!("Bearer {token}"));
        crate::common::wire::Client::open(gateway.admin).await.ask(&ask).await.status
    };
    assert_eq!((asked(old).await, asked(new).await), (200, 401));
    write(new);
    gateway.tell(Signal::HUP);
    until("the new token", async || asked(new).await == 200).await;
    assert_eq!(asked(old).await, 401);
}

/// `--watch`: a file that is written, replaced, or behind a link that is swapped is read again by
/// itself, and so are the files that it names. A wrong one changes nothing and is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_watched() {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(Speaks::Plain, home.path()).await;
    let tls = with_tls(&home, "server", "");
    home.configure(&upstream.url, &format!("{tls}{ROUTES}"));
    // As Kubernetes mounts it: the file is a link into a folder that is a link.
    let at = |name: &str| home.path().join(name);
    let text = fs::read_to_string(home.config()).unwrap();
    let absolute = text.replace("\"server.pem\"", &format!("\"{}\"", at("server.pem").display()));
    for (folder, hours) in [("one", 1), ("two", 2)] {
        fs::create_dir(at(folder)).unwrap();
        let defaults = format!("[defaults]\nttl = \"{hours}h\"");
        let text = absolute.replace("[defaults]", &defaults);
        fs::write(at(folder).join("oncekey.toml"), text).unwrap();
    }
    symlink("one", at("data")).unwrap();
    symlink("data/oncekey.toml", at("live.toml")).unwrap();
    let gateway = home.run_with(&["-c", at("live.toml").to_str().unwrap(), "--watch"]);
    let holds = async |hours: u64| {
        let routes = gateway.look("/api/v1/routes").await.text().replace(' ', "");
        routes.contains(&format!("\"retention_seconds\":{}", hours * 3_600))
    };
    assert!(holds(1).await);
    symlink("two", at("data.new")).unwrap();
    fs::rename(at("data.new"), at("data")).unwrap();
    until("the link was swapped", async || holds(2).await).await;
    // Written in place, and wrong.
    let live = at("two").join("oncekey.toml");
    let good = fs::read_to_string(&live).unwrap();
    fs::write(&live, "version = 1\n[server").unwrap();
    gateway.says("the old configuration stays in force").await;
    assert!(holds(2).await);
    fs::write(&live, good.replace("\"2h\"", "\"3h\"")).unwrap();
    until("the file was repaired", async || holds(3).await).await;
    let old = shown(&gateway).await;
    certificates::install("server2", &at("server.pem"));
    until("the new certificate", async || shown(&gateway).await != old).await;
}
