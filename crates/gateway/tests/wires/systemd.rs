//! What systemd is told.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::process::Signal;

use crate::clients::ROUTES;
use crate::common::gateway::Home;
use crate::upstream::{Speaks, Upstream};

/// A manager that listens.
struct Manager(UnixDatagram);

impl Manager {
    fn new(socket: UnixDatagram) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(socket)
    }

    /// The next datagram that is no sign of life.
    fn next(&self) -> String {
        loop {
            let said = self.any();
            if said != "WATCHDOG=1" {
                return said;
            }
        }
    }

    fn any(&self) -> String {
        let mut buffer = [0; 4_096];
        let length = self.0.recv(&mut buffer).expect("the gateway says something");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }
}

fn micros(said: &str) -> u64 {
    let field = said.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    field.unwrap_or_else(|| panic!("{said}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn systemd_is_told_what_happens() {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(Speaks::Plain, home.path()).await;
    home.configure(&upstream.url, ROUTES);
    let path = home.path().join("notify");
    let manager = Manager::new(UnixDatagram::bind(&path).unwrap());
    let config = home.config();
    let mut gateway = home.run_in(
        &["-c", config.to_str().unwrap()],
        &[("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")],
    );
    let ready = manager.next();
    assert!(ready.starts_with("READY=1\nSTATUS=serves 127.0.0.1:"), "{ready}");
    gateway.tell(Signal::HUP);
    let reloading = manager.next();
    assert!(reloading.starts_with("RELOADING=1\n"), "{reloading}");
    assert!(manager.next().starts_with("READY=1\nSTATUS=serves "));
    std::fs::write(&config, "version = 1\n[server").unwrap();
    gateway.tell(Signal::HUP);
    assert!(micros(&manager.next()) > micros(&reloading), "time goes on");
    let kept = manager.next();
    assert!(kept.starts_with("READY=1\nSTATUS=the old configuration stays in force"), "{kept}");
    assert_eq!(kept.lines().count(), 2, "a status is one line: {kept}");
    for _ in 0..3 {
        assert_eq!(manager.any(), "WATCHDOG=1");
    }
    gateway.tell(Signal::TERM);
    assert!(manager.next().starts_with("STOPPING=1\n"));
    assert!(gateway.ended().await.success());
}

/// A socket may have no place in the file system. A watchdog that is for another process is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_may_be_nameless_and_a_watchdog_for_somebody_else() {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(Speaks::Plain, home.path()).await;
    home.configure(&upstream.url, ROUTES);
    let name = format!("oncekey-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = Manager::new(UnixDatagram::bind_addr(&address).unwrap());
    let config = home.config();
    let gateway = home.run_in(
        &["-c", config.to_str().unwrap()],
        &[
            ("NOTIFY_SOCKET", &format!("@{name}")),
            ("WATCHDOG_USEC", "20000"),
            ("WATCHDOG_PID", "1"),
        ],
    );
    assert!(manager.any().starts_with("READY=1\n"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    gateway.tell(Signal::HUP);
    assert!(manager.any().starts_with("RELOADING=1\n"), "nothing came in between");
}
