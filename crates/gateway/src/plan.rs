//! What the gateway does with requests, put together from a configuration. A reload makes a new one.

use std::sync::Arc;

use http::HeaderName;
use oncekey::engine::Engine;
use oncekey::layer::{Idempotency, IdempotencyLayer, LayerError, ScopeFrom};
use tower_layer::Layer as _;

use crate::proxy::Forward;
use crate::route::{Route, RouteTable};

/// Everything that a request meets on its way. Never changes: whoever has one keeps it to the end of
/// the request, whatever is reloaded meanwhile.
pub(crate) struct Plan {
    pub(crate) routes: RouteTable,
    /// Fields that no client can have removed: those that hold keys and scopes.
    pub(crate) own: Vec<HeaderName>,
    pub(crate) service: Idempotency<Forward>,
}

/// What of a plan is not a route.
pub(crate) struct Manners {
    /// The page that explains the problems.
    pub(crate) problems: Box<str>,
    /// Where clients ask what became of a key.
    pub(crate) status_path: Option<Box<str>>,
}

impl Plan {
    /// # Errors
    /// If the manners cannot be kept.
    pub(crate) fn new(
        engine: &Engine,
        routes: RouteTable,
        forward: Forward,
        manners: &Manners,
    ) -> Result<Self, LayerError> {
        let mut layer = IdempotencyLayer::builder(engine.clone())
            .rules(|parts| Some(Arc::clone(&parts.extensions.get::<Arc<Route>>()?.rule)))
            .scope(ScopeFrom::credential())
            .problems(&manners.problems)?;
        if let Some(path) = &manners.status_path {
            layer = layer.status_path(path)?;
        }
        let service = layer.build().layer(forward);
        Ok(Self { own: routes.own_headers(), routes, service })
    }
}
