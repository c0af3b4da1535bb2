//! Observe mode: nothing changes, and everything is counted.

#![expect(clippy::unwrap_used, reason = "all of it is a test, also what stands outside of one")]

#[path = "../common/mod.rs"]
mod common;
mod counted;
mod kept;
mod unchanged;

/// Every request that can have a key is watched.
const OBSERVED: &str = r#"
[defaults]
scope = ["header:X-Tenant"]
mode = "observe"
methods = ["POST", "PUT", "PATCH", "DELETE"]

[[route]]
name = "all"
match = "/{rest...}"
"#;
