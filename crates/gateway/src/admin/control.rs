//! Reload and drain.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::json;

use super::audit::{Deed, audited};
use super::body::{Reason, Sent};
use super::gateway::Reload;
use super::guard::Caller;
use super::page::{self, Answer};
use super::problem::{Code, Problem};
use super::state::Admin;

/// A body that may say why.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Why {
    reason: Option<Reason>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReloadQuery {
    #[serde(default)]
    dry_run: bool,
}

pub(super) async fn reload(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    Sent(why): Sent<Why>,
) -> Answer {
    let ReloadQuery { dry_run } = page::query(&uri)?;
    let (reload, action) =
        if dry_run { (Reload::DryRun, "reload_dry_run") } else { (Reload::Apply, "reload") };
    let deed = Deed::new(caller, action, why.reason);
    audited(&admin, deed, async move |admin| {
        let changes = admin.gateway.reload(reload).await;
        let changes = changes.map_err(|why| Problem::new(Code::ReloadFailed, why))?;
        page::json(&json!({ "applied": reload == Reload::Apply, "changes": changes }))
    })
    .await
}

pub(super) async fn drain(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Sent(why): Sent<Why>,
) -> Answer {
    let deed = Deed::new(caller, "drain", why.reason);
    audited(&admin, deed, async |admin| {
        admin.gateway.drain();
        let load = admin.engine.load();
        let mut response = page::json(&json!({
            "draining": true,
            "in_flight": load.in_flight,
            "tasks": load.tasks,
        }))?;
        *response.status_mut() = StatusCode::ACCEPTED;
        Ok(response)
    })
    .await
}
