//! What the gateway says about itself: log lines, metrics and traces.
//!
//! No key, body, credential, query or path is ever in any of them. `docs/reference/logs.md` and
//! `docs/reference/metrics.md` list what is, and tests compare them with the code.

mod fields;
mod json;
pub(crate) mod logs;
mod metrics;
#[cfg(test)]
mod paper;
pub(crate) mod prometheus;
mod sink;
pub(crate) mod trace;
