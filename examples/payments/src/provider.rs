//! A toy payment provider: a server of its own, in the same process. Like real ones it recognises
//! the `Idempotency-Key` of a charge that it has made already.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router, routing};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The provider, as its customers see it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Provider {
    address: SocketAddr,
    client: Client<HttpConnector, Body>,
    ledger: Ledger,
}

/// What came of a charge.
pub(crate) enum Charged {
    /// It was made, and this is its name.
    Yes(String),
    /// The card has too little on it.
    Declined,
}

/// Charges by their key. A real provider keeps them for a day or longer.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<HashMap<String, String>>>);

/// No card of this provider pays more.
const LIMIT: i64 = 100_000;

impl Provider {
    pub(crate) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let ledger = Ledger::default();
        let app = Router::new().route("/charges", routing::post(charge)).with_state(ledger.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { address, client, ledger })
    }

    /// Charges a card, once for each `key`.
    pub(crate) async fn charge(
        &self,
        key: &str,
        amount: i64,
        currency: &str,
    ) -> Result<Charged, Box<dyn Error + Send + Sync>> {
        let order = json!({ "amount": amount, "currency": currency });
        let request = Request::post(format!("http://{}/charges", self.address))
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Body::from(order.to_string()))?;
        let response = self.client.request(request).await?;
        if response.status() == StatusCode::PAYMENT_REQUIRED {
            return Ok(Charged::Declined);
        }
        let body: Bytes = response.into_body().collect().await?.to_bytes();
        let charge: Value = serde_json::from_slice(&body)?;
        Ok(Charged::Yes(charge["id"].as_str().unwrap_or_default().to_owned()))
    }

    /// How many charges it has made.
    pub(crate) fn charges(&self) -> usize {
        self.ledger.open().len()
    }
}

impl Ledger {
    fn open(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn charge(
    State(ledger): State<Ledger>,
    headers: HeaderMap,
    Json(order): Json<Value>,
) -> Response {
    if order["amount"].as_i64().is_none_or(|amount| amount > LIMIT) {
        return StatusCode::PAYMENT_REQUIRED.into_response();
    }
    let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let mut charges = ledger.open();
    let next = format!("ch_{}", charges.len() + 1);
    let id = charges.entry(key.to_owned()).or_insert(next);
    Json(json!({ "id": id })).into_response()
}
