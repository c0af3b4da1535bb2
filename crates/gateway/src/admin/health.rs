//! Whether the process lives, and whether it should get requests.
//!
//! Two questions, because the cures differ: who is dead is started again, who is not ready is left
//! alone. A gateway that is started again because its store is down loses the work that it holds.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use http::StatusCode;
use oncekey::clock::{SystemUptime, Uptime as _};
use serde::Serialize;
use serde_json::json;
use tokio::sync::Mutex;

use super::access::Shown;
use super::guard::Caller;
use super::page::{self, Answer};
use super::state::Admin;
use crate::vigil;

/// What the last look found, for as long as it counts.
#[derive(Debug, Default)]
pub(super) struct Readiness(Mutex<Option<(Duration, Vec<Check>)>>);

/// Something that has to be as it should.
#[derive(Clone, Debug, Serialize)]
struct Check {
    name: &'static str,
    ok: bool,
    /// What is wrong. Only for those who have the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// How long a look counts. A load balancer with a hundred nodes that all probe costs the store one
/// read a second.
const COUNTS_FOR: Duration = Duration::from_secs(1);
/// Kubernetes gives up after a second if nobody tells it otherwise: say why before.
const WITHIN: Duration = Duration::from_millis(800);

pub(super) async fn live() -> Answer {
    page::json(&json!({ "status": "live" }))
}

pub(super) async fn ready(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
) -> Answer {
    let mut checks = admin.readiness.look(&admin).await;
    // Not remembered: once draining has begun, no new request should come.
    let draining = admin.gateway.is_draining();
    checks.push(Check::new("drain", if draining { Err("draining".into()) } else { Ok(()) }));
    let ready = checks.iter().all(|check| check.ok);
    if caller.token == Shown::Wrong {
        checks.iter_mut().for_each(|check| check.why = None);
    }
    let mut response = page::json(&json!({ "ready": ready, "checks": checks }))?;
    if !ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(response)
}

impl Readiness {
    /// Looks, unless somebody has a moment ago. Whoever comes while somebody looks waits for them.
    async fn look(&self, admin: &Admin) -> Vec<Check> {
        let mut last = self.0.lock().await;
        let now = SystemUptime.elapsed();
        if let Some((at, checks)) = &*last
            && now.saturating_sub(*at) < COUNTS_FOR
        {
            return checks.clone();
        }
        let store = vigil::ask(&admin.engine, &admin.store, WITHIN);
        let (store, upstream) = tokio::join!(store, upstream(admin));
        let checks = vec![Check::new("store", store), Check::new("upstream", upstream)];
        *last = Some((SystemUptime.elapsed(), checks.clone()));
        checks
    }
}

async fn upstream(admin: &Admin) -> Result<(), String> {
    match tokio::time::timeout(WITHIN, admin.gateway.upstream()).await {
        Ok(reached) => reached,
        Err(_) => Err(format!("the upstream did not answer within {} ms", WITHIN.as_millis())),
    }
}

impl Check {
    fn new(name: &'static str, found: Result<(), String>) -> Self {
        Self { name, ok: found.is_ok(), why: found.err() }
    }
}
