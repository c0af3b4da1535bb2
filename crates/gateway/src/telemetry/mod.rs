//! What the gateway says about itself: log lines and metrics.
//!
//! No key, body, credential, query or path is ever in either. `docs/reference/logs.md` and
//! `docs/reference/metrics.md` list what is, and tests compare them with the code.

mod fields;
mod json;
pub(crate) mod logs;
mod metrics;
pub(crate) mod prometheus;
mod sink;
