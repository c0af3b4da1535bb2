//! One screen about the gateway, and its metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse as _;
use http::{HeaderValue, header};
use oncekey::core::browse::{Browse as _, Count, Filter};
use oncekey::core::health::{Skew, StoreHealth};
use oncekey::core::{Inspect as _, StateKind};
use oncekey::engine::StoreHealth as Claims;
use serde_json::{Value, json};

use super::page::{self, Answer};
use super::problem::Problem;
use super::state::Admin;
use crate::allocations;
use crate::telemetry::prometheus::CONTENT_TYPE;

/// Counting stops here: more than this is "many" to anybody.
const COUNT_CAP: usize = 10_000;

pub(super) async fn metrics(State(admin): State<Arc<Admin>>) -> Answer {
    // Sets the gauges of what is under way.
    let _ = admin.engine.load();
    let mut response = admin.metrics.render().into_response();
    let kind = HeaderValue::from_static(CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

pub(super) async fn routes(State(admin): State<Arc<Admin>>) -> Answer {
    page::json(&json!({ "routes": admin.gateway.routes() }))
}

/// Answers even if the store does not: that is when people look.
pub(super) async fn status(State(admin): State<Arc<Admin>>) -> Answer {
    let load = admin.engine.load();
    let unknown = Filter { state: Some(StateKind::Unknown), ..Filter::default() };
    let (health, unknown) = tokio::join!(
        admin.ask(admin.store.inspect()),
        admin.ask(admin.store.count(&unknown, COUNT_CAP)),
    );
    let mut modes: BTreeMap<&str, usize> = BTreeMap::new();
    for route in admin.gateway.routes() {
        *modes.entry(route.mode).or_default() += 1;
    }
    let mut status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "instance": admin.instance,
        "uptime_seconds": admin.uptime().as_secs(),
        "draining": admin.gateway.is_draining(),
        "store": store(admin.store.label(), load.store, health),
        "in_flight": load.in_flight,
        "in_flight_oldest_seconds": load.oldest.as_secs_f64(),
        "waiters": load.waiters,
        "tasks": load.tasks,
        "journalled": load.journalled,
        "unknown": unknown.map_or(Value::Null, counted),
        "routes": modes,
    });
    if let Some(allocations) = allocations::so_far() {
        status["allocations"] = json!(allocations);
    }
    page::json(&status)
}

/// A number, or the number at which counting stopped.
fn counted(count: Count) -> Value {
    match count {
        Count::Exactly(count) => json!({ "count": count, "exact": true }),
        Count::AtLeast(count) => json!({ "count": count, "exact": false }),
    }
}

fn store(label: &str, claims: Claims, health: Result<StoreHealth, Problem>) -> Value {
    let claims = match claims {
        Claims::Answers => "answers",
        Claims::Resting => "resting",
        Claims::Regressed => "regressed",
    };
    let health = match health {
        Ok(health) => health,
        Err(problem) => {
            let why = problem.to_json()["detail"].take();
            return json!({ "kind": label, "claims": claims, "reachable": false, "why": why });
        }
    };
    let findings = health.findings.iter().map(|finding| {
        json!({
            "check": finding.check,
            "verdict": finding.verdict.label(),
            "text": finding.text,
        })
    });
    // Above zero if the store's clock is ahead.
    let skew = health.skew.map(|skew| match skew {
        Skew::Ahead(by) => by.as_secs_f64(),
        Skew::Behind(by) => -by.as_secs_f64(),
    });
    json!({
        "kind": label,
        "claims": claims,
        "reachable": true,
        "name": health.name,
        "tier": health.tier.label(),
        "verdict": health.verdict().label(),
        "skew_seconds": skew,
        "findings": findings.collect::<Vec<_>>(),
    })
}
