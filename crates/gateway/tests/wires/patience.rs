//! How long a client of HTTP/2 may do nothing (T12).

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::clients::ROUTES;
use crate::common::gateway::{Gateway, Home};
use crate::common::within;
use crate::upstream::{Speaks, Upstream};

const HURRY: &str = "[server.timeouts]\nbody = \"300ms\"\nidle = \"500ms\"\nheader = \"500ms\"\n";

async fn scene() -> (Home, Upstream, Gateway) {
    scene_with(Speaks::Plain).await
}

async fn scene_with(speaks: Speaks) -> (Home, Upstream, Gateway) {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(speaks, home.path()).await;
    home.configure(&upstream.url, &format!("{HURRY}{ROUTES}"));
    let gateway = home.run();
    (home, upstream, gateway)
}

/// One stream that stands still is told so, whatever the others on its connection do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_stream_is_told_so_and_claims_nothing() {
    for speaks in [Speaks::Plain, Speaks::PriorKnowledge] {
        is_told_that_it_is_slow(speaks).await;
    }
}

async fn is_told_that_it_is_slow(speaks: Speaks) {
    let (_home, upstream, gateway) = scene_with(speaks).await;
    for (path, kind) in [
        ("/payments", "application/json"),
        // Read as a whole before anything is done, so it has to come to its end.
        ("/payments", "application/grpc"),
        ("/unprotected", "application/json"),
    ] {
        let answer = slow(&gateway, path, kind).await;
        assert_eq!(answer.status(), 408, "{path} {kind} {speaks:?}");
        let body = within("its body", answer.collect()).await.unwrap().to_bytes();
        assert!(crate::common::contains(&body, b"\"slow_body\""), "{}", body.escape_ascii());
    }
    assert_eq!(upstream.runs().len(), 0);
}

/// A call of gRPC may be silent for as long as it likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_may_be_silent() {
    let (_home, upstream, gateway) = scene().await;
    let answer = slow(&gateway, "/unprotected", "application/grpc+proto").await;
    assert_eq!(answer.status(), 200);
    assert_eq!(upstream.runs()[0].length, 2);
}

/// The upstream has all its time from the last byte on: how long an upload takes that keeps its pace is no
/// fault of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_may_take_longer_than_an_answer() {
    for speaks in [Speaks::Plain, Speaks::PriorKnowledge] {
        let home = Home::on_sqlite();
        let upstream = Upstream::start(speaks, home.path()).await;
        let hurry = "[server.timeouts]\nanswer = \"2s\"\n";
        home.configure(&upstream.url, &format!("{hurry}{ROUTES}"));
        let gateway = home.run();
        let pause = Duration::from_millis(400);
        let answer = send(&gateway, ("/unprotected", "application/json"), (7, pause)).await;
        assert_eq!(answer.status(), 200, "{speaks:?}");
        assert_eq!(upstream.runs()[0].length, 7, "{speaks:?}");
    }
}

/// Sends a byte, waits for three times as long as a body may stand still, and sends another.
async fn slow(gateway: &Gateway, path: &str, kind: &str) -> Response<Incoming> {
    send(gateway, (path, kind), (2, Duration::from_millis(900))).await
}

/// Sends so many bytes, with a pause between each two.
async fn send(
    gateway: &Gateway,
    (path, kind): (&str, &str),
    (count, pause): (usize, Duration),
) -> Response<Incoming> {
    let socket = TcpStream::connect(gateway.address).await.unwrap();
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(socket));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let bytes = futures_util::stream::unfold(0, move |sent| async move {
        if sent > 0 && sent < count {
            tokio::time::sleep(pause).await;
        }
        (sent < count).then(|| (Ok::<_, hyper::Error>(Frame::data(Bytes::from("1"))), sent + 1))
    });
    let request = Request::post(format!("http://api.example{path}"))
        .header("idempotency-key", "key-1")
        .header("content-type", kind)
        .body(StreamBody::new(bytes).boxed_unsync())
        .unwrap();
    within("an answer", sender.send_request(request)).await.unwrap()
}

/// A connection without requests is ended in peace, and one that never says what it is as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_ends() {
    let (_home, _upstream, gateway) = scene().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // All of it, half of it, and the first word.
    for said in [&preface[..], &preface[..20], &preface[..4]] {
        let mut socket = TcpStream::connect(gateway.address).await.unwrap();
        socket.write_all(said).await.unwrap();
        let mut heard = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), socket.read_to_end(&mut heard));
        assert!(ended.await.is_ok(), "{}", said.escape_ascii());
    }
}

/// T12: a client that asks for something large and takes none of it loses its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_nothing_loses_its_place() {
    /// More than the buffers of two connections hold.
    const LARGE: usize = 64 << 20;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let home = Home::on_sqlite();
    home.configure(
        &format!("http://{}", listener.local_addr().unwrap()),
        &format!("{HURRY}{ROUTES}"),
    );
    let gateway = home.run();
    let upstream = tokio::spawn(async move {
        // The gateway may look first whether anybody is there.
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut head = [0; 1024];
            if socket.read(&mut head).await.unwrap() > 0 {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n");
                socket.write_all(head.as_bytes()).await.unwrap();
                return socket.write_all(&vec![0; LARGE]).await;
            }
        }
    });
    let mut socket = TcpStream::connect(gateway.address).await.unwrap();
    socket.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let cut = within("the end of the upstream's answer", upstream).await.unwrap();
    assert!(cut.is_err(), "the gateway has let go of it");
    drop(socket);
}
