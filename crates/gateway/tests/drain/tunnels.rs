//! Connections that have become something else, such as WebSockets.

use std::time::Duration;

use oncekey::clock::{SystemUptime, Uptime as _};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::common::gateway::{Gateway, Home};
use crate::common::stub::{Reply, Stub, Then};
use crate::common::{until, within};
use crate::load::ROUTES;

/// A gateway in front of an upstream that switches whenever somebody asks for `/chat`.
async fn scene(variables: &[(&str, &str)]) -> (Home, Gateway) {
    let upstream = Stub::start(|arrived| match arrived.path() {
        "/chat" => {
            let agreed =
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: Upgrade\r\n\r\n";
            Reply::new(agreed, Then::Echo)
        }
        _ => Reply::ok("done"),
    })
    .await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let gateway = home.run_in(&["-c", home.config().to_str().unwrap()], variables);
    (home, gateway)
}

/// A conversation that has begun.
async fn chat(gateway: &Gateway) -> TcpStream {
    let mut socket = TcpStream::connect(gateway.address).await.unwrap();
    let ask = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n";
    socket.write_all(ask.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\n") {
        let count = within("an answer", socket.read_buf(&mut heard)).await.unwrap();
        assert!(count > 0, "{}", heard.escape_ascii());
    }
    assert!(heard.starts_with(b"HTTP/1.1 101 "), "{}", heard.escape_ascii());
    talk(&mut socket).await;
    socket
}

/// A word, and the same word back.
async fn talk(socket: &mut TcpStream) {
    socket.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    within("an echo", socket.read_exact(&mut heard)).await.unwrap();
    assert_eq!(&heard, b"hello");
}

/// Waits until the other side has ended it, with or without a word.
async fn until_cut(mut socket: TcpStream) {
    drop(within("its end", socket.read(&mut [0])).await);
}

/// It has the time that everything has, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_goes_on_until_the_drain_is_over() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let (_home, mut gateway) = scene(&[("ONCEKEY__SERVER__DRAIN__TIMEOUT", "\"3s\"")]).await;
    let mut socket = chat(&gateway).await;
    let began = SystemUptime.elapsed();
    gateway.tell(Signal::TERM);
    gateway.says("draining").await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        talk(&mut socket).await;
    }
    until_cut(socket).await;
    assert!(SystemUptime.elapsed() - began >= TIMEOUT, "cut without need");
    assert!(gateway.ended().await.success(), "{}", gateway.log());
    let took = SystemUptime.elapsed() - began;
    assert!(took < TIMEOUT * 3, "the drain is kept up: {took:?}");
}

/// Nobody waits for the rest of the time when the last of them has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_with_the_last_conversation() {
    let (_home, mut gateway) = scene(&[]).await;
    let mut socket = chat(&gateway).await;
    let began = SystemUptime.elapsed();
    gateway.tell(Signal::TERM);
    gateway.says("draining").await;
    talk(&mut socket).await;
    drop(socket);
    assert!(gateway.ended().await.success(), "{}", gateway.log());
    let took = SystemUptime.elapsed() - began;
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// Whoever comes while others have their time is told at once that nobody listens, and does not wait
/// behind an open socket for the end. Until the delay is over, it is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_during_the_drain_is_refused_at_once() {
    let (_home, mut gateway) = scene(&[("ONCEKEY__SERVER__DRAIN__DELAY", "\"1s\"")]).await;
    let mut socket = chat(&gateway).await;
    gateway.tell(Signal::TERM);
    gateway.says("draining").await;
    let late = chat(&gateway).await;
    let nobody = async || TcpStream::connect(gateway.address).await.is_err();
    until("nobody listens", nobody).await;
    let refused = TcpStream::connect(gateway.address).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    talk(&mut socket).await;
    // A successor need not wait for whoever is still connected.
    drop(tokio::net::TcpListener::bind(gateway.address).await.unwrap());
    drop((socket, late));
    assert!(gateway.ended().await.success(), "{}", gateway.log());
}

/// T12: one side may have gone without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_in_which_nothing_is_said_ends() {
    let (_home, gateway) = scene(&[("ONCEKEY__SERVER__TIMEOUTS__IDLE", "\"1s\"")]).await;
    let mut socket = chat(&gateway).await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        talk(&mut socket).await;
    }
    until_cut(socket).await;
}

/// T12: else a client could have any number of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_takes_a_place_among_the_clients() {
    let (_home, gateway) = scene(&[("ONCEKEY__SERVER__MAX_CONNECTIONS", "1")]).await;
    let socket = chat(&gateway).await;
    let mut second = TcpStream::connect(gateway.address).await.unwrap();
    second.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut heard = [0; 12];
    let early = tokio::time::timeout(Duration::from_millis(500), second.read_exact(&mut heard));
    assert!(early.await.is_err(), "the only place is taken");
    drop(socket);
    within("an answer", second.read_exact(&mut heard)).await.unwrap();
    assert_eq!(&heard, b"HTTP/1.1 200");
}
