//! What the admin API may ask of the gateway that it belongs to.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use oncekey::core::Policy;
use serde::Serialize;

/// The running gateway, as an operator sees it.
#[async_trait]
pub(crate) trait Gateway: fmt::Debug + Send + Sync + 'static {
    /// The routes of the configuration in force, in its order.
    fn routes(&self) -> Vec<RouteView>;

    /// The policy of a route by its name; `None` if there is no such route any more.
    fn policy(&self, route: &str) -> Option<Arc<Policy>>;

    /// Whether the upstream can be reached. `Err` says why not, for people, without a password;
    /// `Ok` also if nobody wants to know. Called at most once a second.
    async fn upstream(&self) -> Result<(), String>;

    /// Reads the configuration again. `Ok` says what changed, one line each. On `Err` the old one
    /// stays in force.
    async fn reload(&self, reload: Reload) -> Result<Vec<String>, String>;

    /// Begins to drain, and returns at once. Asking twice is asking once.
    fn drain(&self);

    /// Whether it is draining, for whatever reason.
    fn is_draining(&self) -> bool;
}

/// How much of a reload is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// Put it in force.
    Apply,
    /// Say what would change, and change nothing.
    DryRun,
}

/// A route, as it is shown.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RouteView {
    /// Its name: the label of its metrics, and the filter of its records.
    pub(crate) name: String,
    /// `off`, `observe`, `optional` or `required`.
    pub(crate) mode: &'static str,
    /// The methods that it applies to; empty for all.
    pub(crate) methods: Vec<String>,
    /// The pattern of its paths.
    pub(crate) path: String,
    /// The effect class.
    pub(crate) class: &'static str,
    /// How long an answer is kept.
    pub(crate) retention_seconds: u64,
}
