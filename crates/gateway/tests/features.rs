//! What the gateway does with requests, over real sockets: the built program in front of an
//! upstream of the test.

#[path = "features/errors.rs"]
mod errors;
#[path = "features/keys.rs"]
mod keys;
#[path = "features/places.rs"]
mod places;
#[path = "features/probe.rs"]
mod probe;
#[path = "features/rig.rs"]
mod rig;
#[path = "features/rollout.rs"]
mod rollout;
#[path = "features/scopes.rs"]
mod scopes;
#[path = "features/web.rs"]
mod web;
