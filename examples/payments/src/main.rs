//! A payment API that is safe to retry.
//!
//! `POST /payments` charges a card at a provider, which must not happen twice. oncekey's layer sees
//! to that: however often a client sends a payment with the same `Idempotency-Key`, it is made once,
//! and every retry gets the same answer. The [README](../README.md) has the requests to try.
//!
//! `cargo run [ADDRESS]` starts it, by default on 127.0.0.1:3000. Payments and keys are kept in
//! `payments.db` in the current folder, the keys in tables of oncekey's own.

mod api;
mod payments;
mod provider;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware::from_fn;
use axum::{Extension, Router, routing};
use oncekey::core::{Class, Policy, Scope};
use oncekey::engine::Engine;
use oncekey::layer::{IdempotencyLayer, Rule, ScopeFrom};
use oncekey::store::sqlite::{Placement, SqliteOptions, SqliteStore};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::Tenant;
use crate::payments::Payments;
use crate::provider::Provider;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).or_else(|| std::env::var("PAYMENTS_ADDRESS").ok());
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    let provider = Provider::start().await?;

    // Our own table and oncekey's share a file here; a file of its own would do as well.
    let payments = Payments::open("payments.db")?;
    let store = SqliteOptions::new("payments.db").placement(Placement::Shared).open()?;
    let store = Arc::new(store);
    let engine = Engine::builder(Arc::clone(&store) as _)
        .namespace("payments")
        .wake(Arc::clone(&store) as _)
        .store_label("sqlite")
        .build()?;
    clean_up(&engine, &store);

    // The last layer is the outermost: who asks is known before anybody looks at a key.
    let app = Router::new()
        .route("/payments", routing::post(api::create))
        .layer(protection(engine.clone())?)
        .route("/payments/{id}", routing::get(api::show))
        .layer(from_fn(api::authenticate))
        .route("/charges", routing::get(api::charges))
        .layer(Extension(payments))
        .layer(Extension(provider));

    // From here on Ctrl-C ends the program in good order.
    let mut interrupt = signal(SignalKind::interrupt())?;
    println!("listening on http://{}", listener.local_addr()?);
    println!("{}", api::requests_to_try(listener.local_addr()?));
    let stop = async move { interrupt.recv().await.unwrap_or_default() };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;

    // Payments whose clients have hung up are still being made. They are finished first.
    let drained = engine.shutdown(Duration::from_secs(20)).await;
    println!("stopped; {} payments were broken off", drained.stopped);
    Ok(())
}

/// What makes `POST /payments` safe to retry.
fn protection(engine: Engine) -> Result<IdempotencyLayer, Box<dyn Error>> {
    // The provider recognises the key that we send with a charge. So if this process dies in the
    // middle of one, the next attempt may ask for the same charge again. For a provider that
    // recognises nothing the class is `Once`: such a payment is then held as unknown.
    let policy = Policy { class: Class::Keyed, ..Policy::default() };
    // A key belongs to the tenant whom authentication found, never to what a client says it is.
    let scope = ScopeFrom::extension(|tenant: &Tenant| Ok(Scope::new(tenant.0)?));
    let rule = Rule::new("POST /payments").required().policy(policy)?;
    Ok(IdempotencyLayer::builder(engine).scope(scope).rule(rule).build())
}

/// The two loops that every service with an engine should run.
fn clean_up(engine: &Engine, store: &Arc<SqliteStore>) {
    // Forgets keys whose retention is over.
    tokio::spawn(engine.reaper().run());
    // Finds payments whose process died, and frees them or records that nobody knows.
    tokio::spawn(engine.sweeper(Arc::clone(store) as _).run());
}
