//! The services that are measured: without a layer, and with that of the crate `idempotent` on its
//! memory store.
//!
//! This folder is a template. The benchmark writes it into a folder of its own, with copies of
//! some files of ours, and compiles it there. So that crate never becomes a dependency of this
//! repository.

use idempotent::memory::MemoryStore;
use idempotent::middleware::IdempotencyLayer;

use crate::drive::{Front, Lane};

pub(crate) fn lanes() -> Vec<Lane> {
    let store = MemoryStore::builder().try_build().expect("a store");
    let layer = IdempotencyLayer::new(store);
    let bare = Lane::new(Front::Bare, |service| service);
    vec![bare, Lane::new(Front::Layer, |service| service.layer(layer))]
}
