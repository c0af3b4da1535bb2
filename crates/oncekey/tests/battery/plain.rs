//! Plain hyper without axum: a service with an error type of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use oncekey::core::{Class, Policy};
use oncekey::engine::Engine;
use oncekey::layer::RequestBody;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tower::{BoxError, ServiceBuilder};

use crate::scene::{Keeper, Kept, layer, stage, until_waiting};
use crate::wire::{Client, pay};

const BODY: &str = r#"{"amount": 500}"#;

/// A server of plain hyper.
struct Plain {
    address: SocketAddr,
    engine: Engine,
    runs: Arc<AtomicUsize>,
    _kept: Kept,
}

impl Plain {
    /// `work` gets the number of the run and the request's body.
    async fn start<W, F>(keeper: Keeper, policy: Policy, server: http1::Builder, work: W) -> Self
    where
        W: Fn(usize, Bytes) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Response<Full<Bytes>>, BoxError>> + Send + 'static,
    {
        let kept = keeper.keep();
        let engine = Engine::new(Arc::clone(&kept.store)).unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let inner = tower::service_fn(move |request: Request<RequestBody<Incoming>>| {
            let (run, work) = (count.fetch_add(1, Ordering::SeqCst) + 1, work.clone());
            async move { work(run, request.into_body().collect().await?.to_bytes()).await }
        });
        let service = ServiceBuilder::new()
            .map_request(|request: Request<Incoming>| request.map(RequestBody::new))
            .layer(layer(engine.clone(), policy).build())
            .service(inner);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = TowerToHyperService::new(service.clone());
                tokio::spawn(server.serve_connection(TokioIo::new(socket), service));
            }
        });
        Self { address, engine, runs, _kept: kept }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

fn paid(run: usize) -> Response<Full<Bytes>> {
    Response::builder().status(201).body(Full::from(format!("payment {run}"))).unwrap()
}

pub(crate) async fn a_service_of_plain_hyper_runs_once(keeper: Keeper) {
    let echo = async |_: usize, body: Bytes| Ok(Response::new(Full::from(body)));
    let server = Plain::start(keeper, Policy::default(), http1::Builder::new(), echo).await;
    let mut client = Client::open(server.address).await;
    let first = client.ask(&pay(BODY)).await;
    assert_eq!((first.status, first.text()), (200, BODY));
    client.ask(&pay(BODY)).await.assert_replays(&first);
    client.ask(&pay("{}")).await.assert_refused(422, "idempotency_key_reused", "no");
    assert_eq!(server.runs(), 1);
}

/// A service whose first run fails with an error of its own, which is no answer.
async fn first_fails(keeper: Keeper, class: Class) -> Plain {
    let work = async |run, _| match run {
        1 => Err(BoxError::from("the connection to the bank broke")),
        _ => Ok(paid(run)),
    };
    Plain::start(keeper, Policy { class, ..Policy::default() }, http1::Builder::new(), work).await
}

/// Row 18: hyper has nothing to say about an error of a service but to hang up.
pub(crate) async fn an_error_of_the_service_is_an_unknown_outcome_under_once(keeper: Keeper) {
    let server = first_fails(keeper, Class::Once).await;
    let mut client = Client::open(server.address).await;
    client.write(&pay(BODY).bytes()).await;
    assert!(client.is_at_its_end().await);
    for _ in 0..2 {
        let mut client = Client::open(server.address).await;
        let again = client.ask(&pay(BODY)).await;
        again.assert_refused(409, "idempotency_outcome_unknown", "unknown");
        assert_eq!(again.problem()["retryable"], false);
        assert!(!again.text().contains("bank"), "what went wrong is not for clients");
    }
    assert_eq!(server.runs(), 1);
}

/// Row 18, where the work may be done again.
pub(crate) async fn an_error_of_the_service_runs_again_under_retry_and_keyed(keeper: Keeper) {
    for class in [Class::Keyed, Class::Retry] {
        let server = first_fails(keeper, class).await;
        let mut client = Client::open(server.address).await;
        client.write(&pay(BODY).bytes()).await;
        assert!(client.is_at_its_end().await);
        let mut client = Client::open(server.address).await;
        let second = client.ask(&pay(BODY)).await;
        assert_eq!((second.status, second.text(), second.is_replay()), (201, "payment 2", false));
        client.ask(&pay(BODY)).await.assert_replays(&second);
        assert_eq!(server.runs(), 2, "{class:?}");
    }
}

/// With this one setting of hyper a client that has said all it wanted to say gets its answer.
pub(crate) async fn a_server_that_allows_half_closed_connections_answers_on_them(keeper: Keeper) {
    let (stage, mut director) = stage();
    let mut builder = http1::Builder::new();
    builder.half_close(true);
    let server = Plain::start(keeper, Policy::default(), builder, move |run, _| {
        let mut stage = stage.clone();
        async move {
            stage.reach(run);
            stage.opened().await;
            Ok(paid(run))
        }
    })
    .await;
    let mut half = Client::open(server.address).await;
    half.write(&pay(BODY).bytes()).await;
    half.socket.shutdown().await.unwrap();
    director.reached().await;
    let mut other = Client::open(server.address).await;
    let retry = tokio::spawn(async move { other.ask(&pay(BODY)).await });
    until_waiting(&server.engine, 1).await;
    director.open();
    let first = half.read("POST").await;
    assert_eq!((first.status, first.text()), (201, "payment 1"));
    retry.await.unwrap().assert_replays(&first);
    assert_eq!(server.runs(), 1);
}
