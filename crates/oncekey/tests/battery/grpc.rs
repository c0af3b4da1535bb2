//! A service like those of tonic: HTTP/2, messages with a prefix, and a status in the trailers.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use oncekey::core::Policy;
use oncekey::engine::Engine;
use oncekey::layer::RequestBody;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceBuilder;

use crate::scene::{Keeper, Kept, Stage, layer, stage, until_waiting};
use crate::wire::KEY;

/// A message of gRPC: not compressed, its length, its bytes.
const MESSAGE: &[u8] = b"\x00\x00\x00\x00\x05\x0a\x03pay";

struct Grpc {
    address: SocketAddr,
    engine: Engine,
    runs: Arc<AtomicUsize>,
    _kept: Kept,
}

/// What a client sees.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
    trailers: HeaderMap,
}

impl Grpc {
    async fn start(keeper: Keeper, stage: Stage) -> Self {
        let kept = keeper.keep();
        let engine = Engine::new(Arc::clone(&kept.store)).unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let charge = tower::service_fn(move |request: Request<RequestBody<Incoming>>| {
            let (run, mut stage) = (count.fetch_add(1, Ordering::SeqCst) + 1, stage.clone());
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                stage.reach(run);
                stage.opened().await;
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                trailers.insert("grpc-message", HeaderValue::from_static("charged"));
                let body = Full::new(body).with_trailers(ready(Some(Ok(trailers))));
                let response = Response::builder().header("content-type", "application/grpc");
                Ok::<_, Infallible>(response.body(body).unwrap())
            }
        });
        let service = ServiceBuilder::new()
            .map_request(|request: Request<Incoming>| request.map(RequestBody::new))
            .layer(layer(engine.clone(), Policy::default()).build())
            .service(charge);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = TowerToHyperService::new(service.clone());
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(socket), service));
            }
        });
        Self { address, engine, runs, _kept: kept }
    }

    async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let socket = TcpStream::connect(self.address).await.unwrap();
        let shaken =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket));
        let (sender, connection) = shaken.await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

fn charge(message: &'static [u8]) -> Request<Full<Bytes>> {
    Request::post("http://localhost/payments.Payments/Charge")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("x-tenant", "acme")
        .header("idempotency-key", KEY)
        .body(Full::new(Bytes::from_static(message)))
        .unwrap()
}

async fn send(sender: &mut SendRequest<Full<Bytes>>, message: &'static [u8]) -> Seen {
    let (head, body) = sender.send_request(charge(message)).await.unwrap().into_parts();
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let (status, headers) = (head.status.as_u16(), head.headers);
    Seen { status, headers, body: collected.to_bytes(), trailers }
}

/// I42: a client of gRPC that finds no status behind the message takes the call for failed.
pub(crate) async fn trailers_are_replayed_as_trailers(keeper: Keeper) {
    let (stage, director) = stage();
    director.open();
    let server = Grpc::start(keeper, stage).await;
    let mut sender = server.connect().await;
    let first = send(&mut sender, MESSAGE).await;
    let again = send(&mut sender, MESSAGE).await;
    for (seen, replay) in [(&first, false), (&again, true)] {
        assert_eq!((seen.status, &seen.body[..]), (200, MESSAGE));
        assert_eq!(seen.headers["content-type"], "application/grpc");
        assert!(!seen.headers.contains_key("grpc-status"), "trailers are no headers");
        let status = (&seen.trailers["grpc-status"], &seen.trailers["grpc-message"]);
        assert_eq!((status.0.as_bytes(), status.1.as_bytes()), (&b"0"[..], &b"charged"[..]));
        assert_eq!(seen.trailers.len(), 2);
        assert_eq!(seen.headers.contains_key("idempotent-replayed"), replay);
    }
    let other = send(&mut sender, b"\x00\x00\x00\x00\x00").await;
    assert_eq!(other.status, 422);
    assert_eq!(server.runs.load(Ordering::SeqCst), 1);
}

/// F11, by RST_STREAM: dropping the future of a request resets its stream and nothing else.
pub(crate) async fn a_client_that_resets_its_stream_stops_nothing(keeper: Keeper) {
    let (stage, mut director) = stage();
    let server = Grpc::start(keeper, stage).await;
    let mut sender = server.connect().await;
    let given_up = tokio::spawn(sender.send_request(charge(MESSAGE)));
    director.reached().await;
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    // On the same connection, so it arrives behind the reset.
    let retry = tokio::spawn(async move { send(&mut sender, MESSAGE).await });
    until_waiting(&server.engine, 1).await;
    director.open();
    let retry = retry.await.unwrap();
    assert_eq!((retry.status, &retry.body[..]), (200, MESSAGE));
    assert_eq!(retry.headers["idempotent-replayed"], "true");
    assert_eq!(server.runs.load(Ordering::SeqCst), 1);
}
