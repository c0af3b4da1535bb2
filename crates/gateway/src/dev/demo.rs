//! A toy payment API. It does what its clients say, as often as they say it: whatever is charged
//! once here was charged once because of the gateway.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::header::CONTENT_TYPE;
use http::{HeaderName, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::exit::{self, Exit};

/// How long a charge takes. So long that two requests from a shell meet, and so short that nobody
/// gets impatient.
const TAKES: Duration = Duration::from_millis(300);
/// Charges that are listed. Somebody may drive the demonstration with a load generator.
const LISTED: usize = 100;

/// The API, until it is dropped.
#[derive(Debug)]
pub(super) struct Demo {
    pub(super) address: SocketAddr,
    serving: JoinHandle<()>,
}

/// What was charged. All clones are one.
#[derive(Clone, Debug, Default)]
struct Ledger(Arc<Mutex<Vec<Value>>>);

impl Demo {
    /// Serves on a free port.
    pub(super) async fn start() -> Result<Self, Exit> {
        let cannot = |error: std::io::Error| {
            Exit::chain(exit::FAILURE, "the toy API does not start", Some(&error))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let charges = post(charge).get(list);
        let api = Router::new().route("/v1/charges", charges).with_state(Ledger::default());
        let serving = tokio::spawn(async move {
            // It ends only when it is aborted.
            drop(axum::serve(listener, api).await);
        });
        Ok(Self { address, serving })
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Ledger {
    /// Writes a charge down and gives it its number.
    fn add(&self, amount: &Value) -> Value {
        let mut charges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let charge = json!({ "id": format!("ch_{}", charges.len() + 1), "amount": amount });
        charges.push(charge.clone());
        charge
    }

    fn list(&self) -> Value {
        let charges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = charges.len().saturating_sub(LISTED);
        json!({ "made": charges.len(), "charges": charges.get(from..) })
    }
}

async fn charge(State(ledger): State<Ledger>, body: String) -> Answer {
    let wanted: Value = serde_json::from_str(&body).unwrap_or_default();
    let Some(amount) = wanted.get("amount").filter(|amount| amount.is_number()) else {
        let why =
            json!({ "error": "write a JSON object with an amount, such as {\"amount\":1000}" });
        return answer(StatusCode::BAD_REQUEST, &why);
    };
    sleep(TAKES).await;
    answer(StatusCode::CREATED, &ledger.add(amount))
}

async fn list(State(ledger): State<Ledger>) -> Answer {
    answer(StatusCode::OK, &ledger.list())
}

type Answer = (StatusCode, [(HeaderName, &'static str); 1], String);

/// JSON with a line end, so that the prompt of a shell begins a line of its own.
fn answer(status: StatusCode, body: &Value) -> Answer {
    (status, [(CONTENT_TYPE, "application/json")], format!("{body}\n"))
}
