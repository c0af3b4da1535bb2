//! A service behind the layer, and what a client sees of it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use oncekey::clock::SystemClock;
use oncekey::core::{MemoryStore, Policy, Store};
use oncekey::engine::Engine;
use oncekey::layer::{IdempotencyLayer, LayerBuilder, Rule, ScopeFrom};
use serde_json::Value;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

pub(crate) const KEY: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

/// A service behind the layer.
#[derive(Clone)]
pub(crate) struct Rig {
    service: BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>,
    runs: Arc<AtomicUsize>,
}

/// What a client sees.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
    /// Whether the body broke off.
    pub(crate) cut: bool,
}

/// An engine on a store in memory.
pub(crate) fn engine() -> Engine {
    engine_on(Arc::new(MemoryStore::new(Arc::new(SystemClock))))
}

pub(crate) fn engine_on(store: Arc<dyn Store>) -> Engine {
    Engine::new(store).unwrap()
}

/// A layer with one shared scope, so that rows need no credentials.
pub(crate) fn layer() -> LayerBuilder {
    IdempotencyLayer::builder(engine()).scope(ScopeFrom::shared())
}

pub(crate) fn required() -> Rule {
    Rule::new("POST /charges").required()
}

/// A request with a key and a JSON body.
pub(crate) fn post(key: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post("/charges").header("content-type", "application/json");
    request.header("idempotency-key", key).body(body.into()).unwrap()
}

impl Rig {
    /// A service that answers 201 and the number of the run.
    pub(crate) fn counting(layer: LayerBuilder) -> Self {
        Self::new(layer, |run, _| {
            Box::pin(async move {
                Ok(Response::builder().status(201).body(Body::from(format!("run {run}")))?)
            })
        })
    }

    /// The same under a policy.
    pub(crate) fn under(policy: Policy) -> Self {
        Self::counting(layer().rule(required().policy(policy).unwrap()))
    }

    /// A service that always gives the same answer.
    pub(crate) fn answering(answer: impl Fn() -> Response<Body> + Send + Sync + 'static) -> Self {
        Self::new(layer().rule(required()), move |_, _| {
            let answer = answer();
            Box::pin(async move { Ok(answer) })
        })
    }

    /// A service of any kind. `serve` gets the number of the run, from 1.
    pub(crate) fn new(
        layer: LayerBuilder,
        serve: impl Fn(usize, Request<Body>) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let serve = Arc::new(serve);
        let inner = tower::service_fn(move |request| {
            serve(count.fetch_add(1, Ordering::SeqCst) + 1, request)
        });
        let service = ServiceBuilder::new()
            .map_response(|response: Response<_>| response.map(Body::new))
            .layer(layer.build())
            .service(inner);
        Self { service: BoxCloneSyncService::new(service), runs }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Seen {
        self.try_send(request).await.unwrap()
    }

    pub(crate) async fn try_send(&self, request: Request<Body>) -> Result<Seen, BoxError> {
        Ok(Seen::of(self.service.clone().oneshot(request).await?).await)
    }

    /// How often the service ran.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

impl Seen {
    pub(crate) async fn of(response: Response<Body>) -> Self {
        let (head, mut body) = response.into_parts();
        let mut seen = Self {
            status: head.status,
            headers: head.headers,
            body: Vec::new(),
            trailers: None,
            cut: false,
        };
        while let Some(frame) = body.frame().await {
            match frame.map(|frame| frame.into_data().map_err(|frame| frame.into_trailers())) {
                Ok(Ok(data)) => seen.body.extend_from_slice(&data),
                Ok(Err(trailers)) => seen.trailers = trailers.ok(),
                Err(_) => {
                    seen.cut = true;
                    break;
                }
            }
        }
        seen
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == "true"
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The problem document, checked against the status line and the headers.
    pub(crate) fn problem(&self) -> Value {
        assert_eq!(self.header("content-type"), "application/problem+json", "{}", self.text());
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status.as_u16());
        assert_eq!(problem["request_id"], self.header("request-id"));
        let link = format!("<{}>; rel=\"describedby\"", problem["type"].as_str().unwrap());
        assert_eq!(self.header("link"), link);
        let executed = format!("executed={}", problem["executed"].as_str().unwrap());
        assert!(self.header("idempotency-status").contains(&executed));
        problem
    }

    /// Status, code and `executed` of a problem.
    pub(crate) fn refusal(&self) -> (u16, String, String) {
        let problem = self.problem();
        let text = |member: &str| problem[member].as_str().unwrap().to_owned();
        (self.status.as_u16(), text("code"), text("executed"))
    }

    #[track_caller]
    pub(crate) fn assert_refused(&self, status: u16, code: &str, executed: &str) {
        assert_eq!(self.refusal(), (status, code.to_owned(), executed.to_owned()));
    }
}

/// A body of these frames, with no declared length. An error breaks it off.
pub(crate) fn frames<I>(frames: I) -> Body
where
    I: IntoIterator<Item = Result<Frame<Bytes>, &'static str>>,
    I::IntoIter: Send + Unpin + 'static,
{
    Body::new(Frames(frames.into_iter()))
}

/// Frames of data.
pub(crate) fn pieces<I>(pieces: I) -> Body
where
    I: IntoIterator<Item = &'static str>,
    I::IntoIter: Send + Unpin + 'static,
{
    frames(pieces.into_iter().map(|piece| Ok(data(piece))))
}

pub(crate) fn data(piece: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(piece.as_bytes()))
}

struct Frames<I>(I);

impl<I> http_body::Body for Frames<I>
where
    I: Iterator<Item = Result<Frame<Bytes>, &'static str>> + Unpin,
{
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}
