//! Events as they happen, and connections that say nothing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use oncekey::clock::SystemClock;
use oncekey::core::{Clock as _, KeyId};
use serde_json::Value;

use super::rig::Rig;
use crate::admin::{Event, Mark};

fn event(status: u16) -> Event {
    Event {
        ts: SystemClock.now(),
        method: "POST",
        route: "create\ncharge".into(),
        path: "/v1/charges/of-ann".into(),
        status,
        outcome: "replayed",
        duration: Duration::from_micros(1_500),
        key_hash: Some(KeyId::from_bytes([0xab; 32])),
        mark: Some(Mark::Replayed),
    }
}

/// The lines of a stream, as they come.
fn listen(rig: &Rig) -> mpsc::Receiver<String> {
    let mut stream = TcpStream::connect(rig.address).unwrap();
    stream.write_all(rig.head("GET", "/api/v1/events", "").as_bytes()).unwrap();
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn until(lines: &mpsc::Receiver<String>, start: &str) -> String {
    loop {
        let line = lines.recv_timeout(Duration::from_secs(10)).expect("a line");
        if let Some(rest) = line.strip_prefix(start) {
            return rest.to_owned();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_listens_hears_of_every_request() {
    let rig = Rig::new().await;
    rig.events.publish(|| panic!("nobody listens, so nothing is made"));
    let lines = listen(&rig);
    until(&lines, "content-type: text/event-stream");
    for status in [201, 409] {
        // The head is written before the first event can be missed.
        rig.events.publish(|| event(status));
        assert_eq!(until(&lines, "event: "), "request");
        let data = until(&lines, "data: ");
        assert!(!data.contains("of-ann"), "a path left the process: {data}");
        let data: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(data["status"], status);
        assert_eq!(data["route"], "create\ncharge");
        assert_eq!(data["key_hash"], "abababab");
        assert_eq!(data["duration_ms"], 1.5);
        assert_eq!(data["mark"], "replayed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_may_listen() {
    let rig = Rig::new().await;
    let mut listeners: Vec<_> = (0..16).map(|_| listen(&rig)).collect();
    for lines in &listeners {
        until(lines, "content-type: text/event-stream");
    }
    assert_eq!(rig.get("/api/v1/events").await.code(), "admin_busy");
    assert_eq!(rig.get("/healthz").await.status, 200);
    listeners.clear();
}

/// A client that never ends its head holds a connection for ten seconds, not for ever. A silent one
/// as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_says_nothing_is_closed() {
    let rig = Rig::new().await;
    let address = rig.address;
    let wait = |text: &'static str| {
        tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.read_to_end(&mut Vec::new()).expect("closed by the other side");
        })
    };
    let (half, silent) = tokio::join!(wait("GET /healthz HTTP/1.1\r\nHost:"), wait(""));
    half.unwrap();
    silent.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_large_is_refused() {
    let rig = Rig::new().await;
    let cookie = format!("Cookie: {}\r\n", "x".repeat(64 * 1024));
    let refused = rig.send(&rig.head("GET", "/healthz", &cookie)).await;
    assert!(matches!(refused.status, 0 | 431), "{refused:?}");
    assert_eq!(rig.get("/healthz").await.status, 200);
}
