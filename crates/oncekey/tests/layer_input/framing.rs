//! 3.2 of the study of bad inputs, as far as a service behind hyper can see it: real sockets.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use oncekey::core::Policy;
use oncekey::core::policy::Limits;
use oncekey::layer::{Idempotency, RequestBody};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceBuilder;

use crate::rig::{layer, required};

/// A plain hyper server whose service counts the POST requests that reach it and answers each
/// with its body.
struct Server {
    address: SocketAddr,
    posts: Arc<AtomicUsize>,
}

const CAP: usize = 64;

impl Server {
    async fn start() -> Self {
        let posts = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&posts);
        let echo = tower::service_fn(move |request: Request<RequestBody<Incoming>>| {
            let count = Arc::clone(&count);
            async move {
                if request.method() == "GET" {
                    return Ok::<_, Infallible>(Response::new(Full::from("probe")));
                }
                count.fetch_add(1, Ordering::SeqCst);
                let body = request
                    .into_body()
                    .collect()
                    .await
                    .map_or_else(|_| Bytes::from_static(b"broken"), |body| body.to_bytes());
                Ok(Response::new(Full::from(body)))
            }
        });
        let limits = Limits { request_body: CAP, ..Limits::default() };
        let rule = required().policy(Policy { limits, ..Policy::default() }).unwrap();
        let idempotent: Idempotency<_> = tower::Layer::layer(&layer().rule(rule).build(), echo);
        let service = ServiceBuilder::new()
            .map_request(|request: Request<Incoming>| request.map(RequestBody::new))
            .service(idempotent);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = TowerToHyperService::new(service.clone());
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(socket), service));
            }
        });
        Self { address, posts }
    }

    /// Writes these bytes, ends the sending side, and reads everything that comes back.
    async fn talk(&self, bytes: &[u8]) -> String {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        // A server that has seen enough may close before everything is written.
        let _ = socket.write_all(bytes).await;
        let _ = socket.shutdown().await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn posts(&self) -> usize {
        self.posts.load(Ordering::SeqCst)
    }
}

fn statuses(answer: &str) -> Vec<&str> {
    let lines = answer.split("HTTP/1.1 ").skip(1);
    lines.map(|line| line.get(..3).unwrap_or_default()).collect()
}

const HEAD: &str = "POST /charges HTTP/1.1\r\nhost: localhost\r\nidempotency-key: k\r\n";

#[tokio::test]
async fn plain_hyper_is_protected_too() {
    let server = Server::start().await;
    let request = format!("{HEAD}content-length: 5\r\n\r\nhello");
    let first = server.talk(request.as_bytes()).await;
    assert!(
        first.starts_with("HTTP/1.1 200 OK\r\n") && first.ends_with("\r\n\r\nhello"),
        "{first}"
    );
    let second = server.talk(request.as_bytes()).await;
    assert!(second.contains("idempotent-replayed: true\r\n") && second.ends_with("hello"));
    assert!(second.contains("content-length: 5\r\n"), "{second}");
    assert_eq!(server.posts(), 1);
}

/// I37: a request whose two ends could be told apart differently never reaches the service.
#[tokio::test]
async fn ambiguous_framing_never_reaches_the_service() {
    let server = Server::start().await;
    for lines in [
        "content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "content-length: +5\r\n\r\nhello",
        "content-length: -5\r\n\r\nhello",
        "content-length: 0x5\r\n\r\nhello",
        "content-length: 5e0\r\n\r\nhello",
        "content-length: 5,6\r\n\r\nhello",
        "content-length: 18446744073709551616\r\n\r\nhello",
        "content-length: 9999999999999999999999999999999999999999\r\n\r\nhello",
        "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n folded\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF1\r\nhello\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
        "x-null: a\0b\r\n\r\n",
        "x bad: a\r\n\r\n",
    ] {
        let request = format!("{HEAD}{lines}GET /probe HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let answer = server.talk(request.as_bytes()).await;
        for status in statuses(&answer) {
            assert!(matches!(status, "400" | "413" | "431" | "501"), "{lines:?}: {answer}");
        }
        assert_eq!(server.posts(), 0, "{lines:?}: {answer}");
    }
}

/// I37: of a length and a chunked body together only the chunks count, and nothing is left over
/// that a second request could hide in.
#[tokio::test]
async fn chunks_win_over_a_length_and_nothing_hides_between_them() {
    for lines in [
        "content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
    ] {
        let server = Server::start().await;
        let smuggled = "0\r\n\r\nPOST /x HTTP/1.1\r\nhost: localhost\r\nidempotency-key: s\r\n\r\n";
        let answer = server.talk(format!("{HEAD}{lines}{smuggled}").as_bytes()).await;
        let seen = statuses(&answer);
        // Either the pair is refused, or each request is answered as what it is.
        assert!(matches!(seen[..], ["400"] | ["200"] | ["200", "200"]), "{answer}");
        assert!(server.posts() <= seen.iter().filter(|status| **status == "200").count());
    }
}

/// The key as it stands in real messages: any case, folded, with bytes that no key may have.
#[tokio::test]
async fn odd_key_lines_meet_their_fate() {
    for (line, expected) in [
        ("Idempotency-Key: k", "200"),
        ("IDEMPOTENCY-KEY: k", "200"),
        ("iDeMpOtEnCy-kEy:\t k \t", "200"),
        ("idempotency-key:", "400"),
        ("idempotency-key: \t ", "400"),
        ("idempotency-key: a\0b", "400"),
        ("idempotency-key: a\x7fb", "400"),
        ("idempotency-key: a\x1b[31mb", "400"),
        ("idempotency-key: a\r\n b", "400"),
        ("idempotency-key: a\rb", "400"),
        ("idempotency_key: a", "400"),
        ("idempotency-key: a\r\nIdempotency-Key: a", "400"),
    ] {
        let server = Server::start().await;
        let request = format!("POST / HTTP/1.1\r\nhost: a\r\n{line}\r\ncontent-length: 0\r\n\r\n");
        let answer = server.talk(request.as_bytes()).await;
        assert_eq!(statuses(&answer), [expected], "{line:?}: {answer}");
        assert_eq!(server.posts(), usize::from(expected == "200"), "{line:?}");
    }
}

/// A key in a trailer comes too late to be one.
#[tokio::test]
async fn a_key_in_a_trailer_is_no_key() {
    let server = Server::start().await;
    let request = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\
                   trailer: idempotency-key\r\n\r\n1\r\nx\r\n0\r\nidempotency-key: k\r\n\r\n";
    let answer = server.talk(request.as_bytes()).await;
    assert!(answer.contains("idempotency_key_missing"), "{answer}");
    assert_eq!(server.posts(), 0);
}

/// I38: on every path the body is consumed or the connection closed: what follows it is read as
/// the next request, or not at all.
#[tokio::test]
async fn a_request_behind_a_refused_one_is_itself() {
    let hidden = "GET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let length = hidden.len();
    let large = "x".repeat(CAP + 1);
    let rows = [
        (
            "missing",
            format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{hidden}"),
            "400",
        ),
        (
            "invalid",
            format!(
                "POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: a,b\r\ncontent-length: {length}\r\n\r\n{hidden}"
            ),
            "400",
        ),
        ("reused", format!("{HEAD}content-length: {length}\r\n\r\n{hidden}"), "422"),
        ("replay", format!("{HEAD}content-length: 5\r\n\r\nhello"), "200"),
        ("declared", format!("{HEAD}content-length: {}\r\n\r\n{large}", large.len()), "413"),
        (
            "chunked",
            format!(
                "{HEAD}transfer-encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
                large.len()
            ),
            "413",
        ),
    ];
    for (row, request, expected) in rows {
        let server = Server::start().await;
        server.talk(format!("{HEAD}content-length: 5\r\n\r\nhello").as_bytes()).await;
        let probe = "GET /probe HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let answer = server.talk(format!("{request}{probe}").as_bytes()).await;
        let seen = statuses(&answer);
        assert_eq!(seen[0], expected, "{row}: {answer}");
        assert!(
            seen.len() <= 2 && seen[1..].iter().all(|status| *status == "200"),
            "{row}: {answer}"
        );
        assert_eq!(answer.matches("probe").count(), seen.len() - 1, "{row}: {answer}");
        if expected == "413" {
            assert!(answer.contains("connection: close\r\n") && seen.len() == 1, "{row}: {answer}");
        }
        assert_eq!(server.posts(), 1, "{row}");
    }
}

/// A client that stops in the middle of its body has claimed nothing.
#[tokio::test]
async fn a_client_that_stops_mid_body_claims_nothing() {
    let server = Server::start().await;
    for part in ["content-length: 5\r\n\r\nhel", "transfer-encoding: chunked\r\n\r\n5\r\nhel"] {
        let answer = server.talk(format!("{HEAD}{part}").as_bytes()).await;
        assert!(answer.is_empty() || statuses(&answer) == ["400"], "{answer}");
        assert_eq!(server.posts(), 0, "{part}");
    }
    let answer = server.talk(format!("{HEAD}content-length: 5\r\n\r\nhello").as_bytes()).await;
    assert!(answer.ends_with("hello"), "{answer}");
    assert_eq!(server.posts(), 1);
}

/// I38: a client that asks before it sends a large body is told without sending it.
#[tokio::test]
async fn an_expectation_is_not_met_by_a_body_that_is_too_large() {
    let server = Server::start().await;
    let large = format!("{HEAD}expect: 100-continue\r\ncontent-length: {}\r\n\r\n", CAP + 1);
    assert_eq!(statuses(&server.talk(large.as_bytes()).await), ["413"]);
    let fits = format!("{HEAD}expect: 100-continue\r\ncontent-length: 5\r\n\r\nhello");
    assert_eq!(statuses(&server.talk(fits.as_bytes()).await), ["100", "200"]);
}

/// A pipeline of duplicates is answered in order, and runs once.
#[tokio::test]
async fn a_pipeline_of_duplicates_runs_once() {
    let server = Server::start().await;
    let request = format!("{HEAD}content-length: 5\r\n\r\nhello");
    let answer = server.talk(request.repeat(20).as_bytes()).await;
    assert_eq!(statuses(&answer), ["200"; 20]);
    assert_eq!(answer.matches("idempotent-replayed: true").count(), 19);
    assert_eq!(server.posts(), 1);
}

/// axum's own server, with the layer on its router.
#[tokio::test]
async fn the_server_of_axum_is_protected_too() {
    let app = axum::Router::new()
        .route("/charges", axum::routing::post(async |body: Body| body))
        .layer(layer().rule(required()).build());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let server = Server { address, posts: Arc::default() };
    let request = format!("{HEAD}connection: close\r\ncontent-length: 5\r\n\r\nhello");
    for replay in [false, true] {
        let answer = server.talk(request.as_bytes()).await;
        assert!(answer.ends_with("hello"), "{answer}");
        assert_eq!(answer.contains("idempotent-replayed: true"), replay, "{answer}");
    }
}
