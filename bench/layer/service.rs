//! The service that is measured, and the requests that it gets. The peer's program has a copy of
//! this file, so that both layers stand in front of the same handler.
//!
//! A request is a payment as JSON of some 200 bytes, and so is its answer. Requests are the same
//! with and without a layer, the key included: the difference is what the layer costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    /// A GET, which no layer has anything to do with.
    Get,
    /// A POST without a key.
    NoKey,
    /// The same with 10 bytes that the handler does not look at.
    SmallUpload,
    /// The same with a mebibyte.
    LargeUpload,
    /// A POST with a key that nobody used.
    New,
    /// The first retry of a POST whose work is done: what most replays are.
    Replay,
    /// A further retry, which a layer may answer from memory.
    Again,
    /// A POST with a key whose work is under way.
    Conflict,
}

/// What the handlers share with whoever measures them.
#[derive(Clone, Debug)]
pub(crate) struct Desk(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// How often a handler ran.
    runs: AtomicUsize,
    /// One permit for each handler of held requests that has begun.
    begun: Semaphore,
    /// One permit for each handler of held requests that may end.
    may_end: Semaphore,
}

/// A payment.
#[derive(Debug, Deserialize)]
struct Charge {
    amount: u64,
    currency: String,
    customer: String,
    description: String,
    capture: bool,
}

/// What became of it.
#[derive(Debug, Serialize)]
struct Receipt {
    id: &'static str,
    status: &'static str,
    amount: u64,
    currency: String,
    customer: String,
    description: String,
    captured: bool,
}

/// 201 bytes, as an ordinary payment has.
const CHARGE: &[u8] = br#"{"amount":4200,"currency":"eur","customer":"cus_8h2k1QxT0bV7mL","capture":true,"description":"Order 7f3c9a12: two tickets, row 14, seats 3 and 4, delivered by mail to the address on file today"}"#;
/// Finished keys that are retried again and again: more than fits into the processor's first
/// cache.
pub(crate) const REPLAYED: usize = 1_000;
/// Where payments are posted.
const CHARGES: &str = "/v1/charges";
/// The same, for payments that take until somebody says so.
const HELD: &str = "/v1/held";
/// Takes a body of any size and looks at nothing but its length.
const UPLOADS: &str = "/v1/uploads";
/// What is uploaded there. Handed over without a copy, so that a copy would be the layer's.
static UPLOAD: [u8; 1024 * 1024] = [b'7'; 1024 * 1024];

impl Operation {
    pub(crate) const ALL: [Self; 8] = [
        Self::Get,
        Self::NoKey,
        Self::SmallUpload,
        Self::LargeUpload,
        Self::New,
        Self::Replay,
        Self::Again,
        Self::Conflict,
    ];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::NoKey => "no-key",
            Self::SmallUpload => "no-key-10-bytes",
            Self::LargeUpload => "no-key-1-MiB",
            Self::New => "new",
            Self::Replay => "replay",
            Self::Again => "replay-again",
            Self::Conflict => "conflict",
        }
    }

    /// The request with this number. Two numbers make two keys, except that further retries are of
    /// a few keys in turns, and all requests of a conflict have the same.
    pub(crate) fn request(self, number: usize) -> Request<Body> {
        let (method, path, body) = match self {
            Self::Get => (Method::GET, CHARGES, Body::empty()),
            Self::NoKey | Self::New | Self::Replay | Self::Again => {
                (Method::POST, CHARGES, fixed(CHARGE))
            }
            Self::SmallUpload => (Method::POST, UPLOADS, fixed(&UPLOAD[..10])),
            Self::LargeUpload => (Method::POST, UPLOADS, fixed(&UPLOAD)),
            Self::Conflict => (Method::POST, HELD, fixed(CHARGE)),
        };
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_static(path);
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::HOST, HeaderValue::from_static("api.example.com"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static("shop/4.2"));
        let key = match self {
            Self::Get | Self::NoKey | Self::SmallUpload | Self::LargeUpload => return request,
            Self::New | Self::Replay => key(number),
            Self::Again => key(number % REPLAYED),
            Self::Conflict => key(0),
        };
        headers.insert("idempotency-key", key);
        request
    }
}

impl Desk {
    pub(crate) fn new() -> Self {
        let closed = || Semaphore::new(0);
        Self(Arc::new(Shared { runs: AtomicUsize::new(0), begun: closed(), may_end: closed() }))
    }

    /// The service without any layer.
    pub(crate) fn routes(&self) -> Router {
        Router::new()
            .route(CHARGES, post(charge_at_once).get(list))
            .route(HELD, post(charge_when_told))
            .route(UPLOADS, post(measure_upload))
            .with_state(self.clone())
    }

    /// How often a handler ran.
    pub(crate) fn runs(&self) -> usize {
        self.0.runs.load(Ordering::Relaxed)
    }

    /// Waits until a handler of a held request has begun.
    pub(crate) async fn begun(&self) {
        self.0.begun.acquire().await.expect("nobody closes it").forget();
    }

    /// Lets this many handlers of held requests end.
    pub(crate) fn let_end(&self, handlers: usize) {
        self.0.may_end.add_permits(handlers);
    }
}

async fn list(State(desk): State<Desk>) -> impl IntoResponse {
    desk.0.runs.fetch_add(1, Ordering::Relaxed);
    Json(receipt(Charge {
        amount: 4_200,
        currency: "eur".to_owned(),
        customer: "cus_8h2k1QxT0bV7mL".to_owned(),
        description: "two tickets".to_owned(),
        capture: true,
    }))
}

async fn charge_at_once(State(desk): State<Desk>, Json(charge): Json<Charge>) -> impl IntoResponse {
    desk.0.runs.fetch_add(1, Ordering::Relaxed);
    let location = [(header::LOCATION, HeaderValue::from_static("/v1/charges/ch_3Nf0k2eZvKYlo2C"))];
    (StatusCode::CREATED, location, Json(receipt(charge)))
}

async fn charge_when_told(desk: State<Desk>, charge: Json<Charge>) -> impl IntoResponse {
    desk.0.0.begun.add_permits(1);
    desk.0.0.may_end.acquire().await.expect("nobody closes it").forget();
    charge_at_once(desk, charge).await
}

async fn measure_upload(State(desk): State<Desk>, body: Bytes) -> impl IntoResponse {
    desk.0.runs.fetch_add(1, Ordering::Relaxed);
    if body.is_empty() { StatusCode::BAD_REQUEST } else { StatusCode::NO_CONTENT }
}

fn receipt(charge: Charge) -> Receipt {
    let Charge { amount, currency, customer, description, capture } = charge;
    let (id, status) = ("ch_3Nf0k2eZvKYlo2C", "succeeded");
    Receipt { id, status, amount, currency, customer, description, captured: capture }
}

fn fixed(bytes: &'static [u8]) -> Body {
    Body::from(Bytes::from_static(bytes))
}

/// A key as long as a UUID.
fn key(number: usize) -> HeaderValue {
    let text = format!("8a6e0804-2bd0-4672-b79d-{number:012}");
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("digits are a header value")
}
