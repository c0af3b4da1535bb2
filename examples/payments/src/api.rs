//! The handlers. None of them knows anything about idempotency, except that the one that charges
//! forwards a key to the provider.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{Path, Query, Request};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use oncekey::layer::IdempotencyContext;
use serde::Deserialize;
use serde_json::json;

use crate::payments::Payments;
use crate::provider::{Charged, Provider};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant(pub(crate) &'static str);

/// What a client wants to pay.
#[derive(Deserialize)]
pub(crate) struct Order {
    amount: i64,
    currency: String,
}

#[derive(Deserialize)]
pub(crate) struct Pace {
    slow: Option<String>,
}

/// How long a payment takes that was asked to be slow: long enough to send a second one meanwhile.
const SLOW: Duration = Duration::from_secs(3);

/// Finds the tenant of an API key. A real service keeps them in a database.
pub(crate) async fn authenticate(mut request: Request, next: Next) -> Response {
    let key = request.headers().get("x-api-key").map(|key| key.as_bytes());
    let tenant = match key {
        Some(b"sk_acme") => Tenant("acme"),
        Some(b"sk_globex") => Tenant("globex"),
        _ => return refuse(StatusCode::UNAUTHORIZED, "send an X-Api-Key that we know"),
    };
    request.extensions_mut().insert(tenant);
    next.run(request).await
}

/// `POST /payments`
pub(crate) async fn create(
    Extension(tenant): Extension<Tenant>,
    Extension(attempt): Extension<IdempotencyContext>,
    Extension(payments): Extension<Payments>,
    Extension(provider): Extension<Provider>,
    Query(pace): Query<Pace>,
    Json(order): Json<Order>,
) -> Response {
    if order.amount <= 0 || order.currency.len() != 3 {
        return refuse(StatusCode::BAD_REQUEST, "pay a positive amount in a currency like EUR");
    }
    if pace.slow.is_some() {
        tokio::time::sleep(SLOW).await;
    }
    // The same for every attempt at this payment, and for no other payment.
    let key = attempt.derived_key("charge");
    let charge = match provider.charge(&key, order.amount, &order.currency).await {
        Ok(Charged::Yes(charge)) => charge,
        // A decline is an outcome: it is kept, and a retry is declined without being asked again.
        Ok(Charged::Declined) => return refuse(StatusCode::PAYMENT_REQUIRED, "declined"),
        // Nobody knows whether the card was charged. 502 says so; the retry asks for the same
        // charge, under the same key.
        Err(_) => return refuse(StatusCode::BAD_GATEWAY, "the provider did not answer"),
    };
    match payments.insert(tenant.0, &key, order.amount, &order.currency, &charge) {
        Ok(payment) => {
            let location = [(LOCATION, format!("/payments/{}", payment.id))];
            (StatusCode::CREATED, location, Json(payment)).into_response()
        }
        Err(_) => refuse(StatusCode::BAD_GATEWAY, "the payment could not be written down"),
    }
}

/// `GET /payments/{id}`
pub(crate) async fn show(
    Extension(tenant): Extension<Tenant>,
    Extension(payments): Extension<Payments>,
    Path(id): Path<String>,
) -> Response {
    match payments.find(tenant.0, &id) {
        Ok(Some(payment)) => Json(payment).into_response(),
        Ok(None) => refuse(StatusCode::NOT_FOUND, "there is no such payment"),
        Err(_) => refuse(StatusCode::SERVICE_UNAVAILABLE, "come back later"),
    }
}

/// `GET /charges`: how often the provider has charged a card since it was started.
pub(crate) async fn charges(Extension(provider): Extension<Provider>) -> Response {
    Json(json!({ "charges": provider.charges() })).into_response()
}

/// The commands of the README, for this address.
pub(crate) fn requests_to_try(address: SocketAddr) -> String {
    let blocks = include_str!("../README.md").split("```sh\n").skip(1);
    let commands: Vec<&str> = blocks
        .filter_map(|block| block.split("```").next())
        .filter(|commands| commands.starts_with("curl"))
        .collect();
    format!("\n{}", commands.join("\n")).replace("127.0.0.1:3000", &address.to_string())
}

fn refuse(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}
