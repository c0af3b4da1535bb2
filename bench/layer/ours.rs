//! Our layer in front of the measured service.

use std::sync::Arc;

use axum::Router;
use oncekey::clock::SystemClock;
use oncekey::core::policy::{InFlight, Policy};
use oncekey::core::{MemoryStore, Store};
use oncekey::engine::Engine;
use oncekey::layer::{IdempotencyLayer, Rule, ScopeFrom};
use tower::layer::util::Identity;

use crate::drive::{Front, Lane};

/// The last one to let go of a store.
///
/// Otherwise that is the thread that renews leases, some time after the engine: tens of
/// thousands of records would be freed during the next measurement, and count as its time.
struct Last(Arc<dyn Store>);

/// The services that are compared on the memory store: without a layer, with ours, and with one
/// that does nothing.
pub(crate) fn memory_lanes() -> Vec<Lane> {
    let mut lanes = lanes(memory());
    lanes.push(Lane::new(Front::Bare, |service| service.layer(Identity::new())));
    lanes
}

/// The services that are compared on any store: without a layer, and with ours. A duplicate gets
/// a conflict at once, as from the peer.
pub(crate) fn lanes(store: Arc<dyn Store>) -> Vec<Lane> {
    let policy = Policy { in_flight: InFlight::Conflict, ..Policy::default() };
    let bare = Lane::new(Front::Bare, |service| service);
    let last = Last(Arc::clone(&store));
    let ours = Lane::new(Front::Layer, |service| dress(service, store, policy));
    vec![bare, ours.drop_last(last)]
}

impl Drop for Last {
    fn drop(&mut self) {
        while Arc::strong_count(&self.0) > 1 {
            std::thread::yield_now();
        }
    }
}

/// A new memory store.
pub(crate) fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Arc::new(SystemClock)))
}

/// Puts our layer in front of a service. Everything that is not said has its default.
pub(crate) fn dress(service: Router, store: Arc<dyn Store>, policy: Policy) -> Router {
    let engine = Engine::new(store).expect("the thread that renews leases starts");
    let rule = Rule::new("all").policy(policy).expect("the policy has no contradiction");
    // One scope, as the peer has none.
    service.layer(IdempotencyLayer::builder(engine).rule(rule).scope(ScopeFrom::shared()).build())
}
