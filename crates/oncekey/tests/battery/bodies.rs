//! Bodies that are large, binary, compressed or endless.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use oncekey::core::Policy;
use oncekey::core::policy::Limits;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

use crate::scene::{Answer, Keeper, Server, at_once, stage};
use crate::wire::{Client, pay};

const BODY: &str = r#"{"amount": 500}"#;
const THREE_MEGABYTES: usize = 3 * 1024 * 1024;

/// Row 11: refused by its declared length, before a byte of it is read.
pub(crate) async fn a_body_of_three_megabytes_is_refused_and_claims_nothing(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let mut client = Client::open(server.address).await;
    client.write(&pay("").head(&format!("content-length: {THREE_MEGABYTES}\r\n"))).await;
    let refused = client.read("POST").await;
    refused.assert_refused(413, "idempotency_body_too_large", "no");
    assert_eq!(refused.line("connection"), "close", "the rest of the body is no request");
    assert!(client.is_at_its_end().await);

    // A client that does not listen before it has said everything.
    let mut client = Client::open(server.address).await;
    let _ = client.socket.write_all(&pay(vec![b'x'; THREE_MEGABYTES]).bytes()).await;
    client.read("POST").await.assert_refused(413, "idempotency_body_too_large", "no");
    assert_claimed_nothing(&server).await;
}

/// Row 11, where only reading tells how long it is.
pub(crate) async fn a_chunked_body_of_three_megabytes_is_refused_and_claims_nothing(
    keeper: Keeper,
) {
    const CHUNK: usize = 64 * 1024;
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let mut client = Client::open(server.address).await;
    client.write(&pay("").head("transfer-encoding: chunked\r\n")).await;
    let chunk = [format!("{CHUNK:x}\r\n").into_bytes(), vec![b'x'; CHUNK], b"\r\n".to_vec()];
    let (chunk, limit) = (chunk.concat(), Limits::default().request_body);
    // Everything that fits, and one chunk more: then the server has an answer.
    assert!(limit + CHUNK < THREE_MEGABYTES);
    for _ in 0..=limit / CHUNK {
        client.write(&chunk).await;
    }
    let refused = client.read("POST").await;
    refused.assert_refused(413, "idempotency_body_too_large", "no");
    assert_eq!(refused.line("connection"), "close");
    assert_claimed_nothing(&server).await;
}

async fn assert_claimed_nothing(server: &Server) {
    assert_eq!(server.runs(), 0);
    let small = server.send(&pay(BODY)).await;
    assert_eq!((small.status, small.is_replay(), server.runs()), (201, false, 1));
}

/// Gives back what it gets, byte for byte.
fn echo(_: usize, request: Request<Body>) -> Answer {
    Box::pin(async move {
        let kind = request.headers()["content-type"].clone();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::builder().header("content-type", kind).body(Body::from(body)).unwrap()
    })
}

/// Row 13: all 256 values of a byte, in all their neighbourhoods, in the request and the answer.
pub(crate) async fn a_binary_body_is_replayed_byte_for_byte(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), echo).await;
    let body: Vec<u8> =
        (0..=u8::MAX).flat_map(|high| (0..=u8::MAX).flat_map(move |low| [high, low])).collect();
    let binary = || pay(body.clone()).line("content-type", "application/octet-stream");
    let first = server.send(&binary()).await;
    assert!(first.body == body, "the first answer is the body that was sent");
    let again = server.send(&binary()).await;
    assert!(again.is_replay());
    assert!(again.body == body, "and so is the replay");
    let mut other = body.clone();
    other[40_000] ^= 1;
    let other = pay(other).line("content-type", "application/octet-stream");
    server.send(&other).await.assert_refused(422, "idempotency_key_reused", "no");
    assert_eq!(server.runs(), 1);
}

/// What `printf '{"id":"pay_1"}' | gzip -n` prints.
const COMPRESSED: [u8; 34] = [
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0xab, 0x56, 0xca, 0x4c, 0x51, 0xb2,
    0x52, 0x2a, 0x48, 0xac, 0x8c, 0x37, 0x54, 0xaa, 0x05, 0x00, 0xe0, 0x15, 0x1f, 0x5d, 0x0e, 0x00,
    0x00, 0x00,
];

/// Row 13: nothing is transcoded, and the line that says how it is encoded comes along.
pub(crate) async fn a_compressed_body_is_replayed_compressed(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), |_, _| {
        Box::pin(async {
            Response::builder()
                .header("content-type", "application/json")
                .header("content-encoding", "gzip")
                .header("vary", "accept-encoding")
                .body(Body::from(COMPRESSED.to_vec()))
                .unwrap()
        })
    })
    .await;
    for replay in [false, true] {
        let seen = server.send(&pay(BODY).line("accept-encoding", "gzip")).await;
        assert_eq!((seen.is_replay(), seen.line("content-encoding")), (replay, "gzip"));
        assert_eq!((seen.line("vary"), &seen.body[..]), ("accept-encoding", &COMPRESSED[..]));
    }
    assert_eq!(server.runs(), 1);
}

/// I18: a tombstone says that it ran, with which status, and that its answer is not here.
pub(crate) async fn an_answer_too_large_to_keep_reaches_its_client_and_never_runs_again(
    keeper: Keeper,
) {
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    let sent = Bytes::from(large.clone());
    let server = Server::start(keeper, Policy::default(), move |_, _| {
        let sent = sent.clone();
        Box::pin(async move { Response::builder().status(201).body(Body::from(sent)).unwrap() })
    })
    .await;
    let first = server.send(&pay(BODY)).await;
    assert_eq!(first.status, 201);
    assert!(first.body == large, "the first client gets all of it");
    assert_eq!(first.line("idempotency-status"), "oncekey; executed; recorded=tombstone");
    for _ in 0..2 {
        let again = server.send(&pay(BODY)).await;
        again.assert_refused(409, "idempotency_response_not_retained", "yes");
        assert_eq!(again.problem()["original_status"], 201);
        assert_eq!(again.problem()["original_request"], first.line("request-id"));
    }
    assert_eq!(server.runs(), 1);
}

/// I43: once it is clear that an answer cannot be kept, nobody holds it in memory any longer.
pub(crate) async fn an_answer_too_large_to_keep_is_passed_on_while_it_is_written(keeper: Keeper) {
    let limit = Limits::default().saved_body;
    let (stage, director) = stage();
    let server = Server::start(keeper, Policy::default(), move |_, _| {
        let mut stage = stage.clone();
        let (pieces, body) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            pieces.send(Bytes::from(vec![b'a'; limit + 1])).unwrap();
            stage.opened().await;
            pieces.send(Bytes::from_static(b"the end")).unwrap();
        });
        Box::pin(async move { Response::new(Body::new(Pieces(body))) })
    })
    .await;
    let mut client = Client::open(server.address).await;
    client.write(&pay(BODY).bytes()).await;
    assert_eq!(client.read_head().await.0, 200);
    assert_eq!(client.read_chunk().await.len(), limit + 1, "it comes before the end is written");
    director.open();
    assert_eq!(&client.read_chunk().await[..], b"the end");
    let again = server.send(&pay(BODY)).await;
    again.assert_refused(409, "idempotency_response_not_retained", "yes");
    assert_eq!(server.runs(), 1);
}

/// I18: the first event is read while the second has yet to happen.
pub(crate) async fn a_stream_of_events_reaches_its_client_at_once_and_never_runs_again(
    keeper: Keeper,
) {
    let (stage, director) = stage();
    let server = Server::start(keeper, Policy::default(), move |_, _| {
        let mut stage = stage.clone();
        let (events, body) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            events.send(Bytes::from_static(b"data: charged\n\n")).unwrap();
            stage.opened().await;
            events.send(Bytes::from_static(b"data: shipped\n\n")).unwrap();
        });
        Box::pin(async move {
            let response = Response::builder().header("content-type", "text/event-stream");
            response.body(Body::new(Pieces(body))).unwrap()
        })
    })
    .await;
    let mut client = Client::open(server.address).await;
    client.write(&pay(BODY).bytes()).await;
    let (status, _) = client.read_head().await;
    assert_eq!((status, &client.read_chunk().await[..]), (200, &b"data: charged\n\n"[..]));
    // The stream is half-way, and its retry is told so already.
    let meanwhile = server.send(&pay(BODY)).await;
    meanwhile.assert_refused(409, "idempotency_response_not_retained", "yes");
    director.open();
    assert_eq!(&client.read_chunk().await[..], b"data: shipped\n\n");
    assert!(client.read_chunk().await.is_empty());
    let afterwards = server.send(&pay(BODY)).await;
    afterwards.assert_refused(409, "idempotency_response_not_retained", "yes");
    assert_eq!((afterwards.problem()["original_status"].as_u64(), server.runs()), (Some(200), 1));
}

/// A body whose frames come when they come.
struct Pieces(mpsc::UnboundedReceiver<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
