//! Which trace a replay came from.

use std::sync::Arc;

/// The `traceparent` of the request whose answer a response replays, in its extensions: whoever
/// traces requests can link the two. It never goes over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalTrace(Arc<str>);

impl OriginalTrace {
    pub(super) fn new(traceparent: String) -> Self {
        Self(traceparent.into())
    }

    /// As the request had it. Nobody has checked it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
