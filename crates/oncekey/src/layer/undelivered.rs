//! What a service can say about a request that it passes on to somebody else.

use http::Extensions;

/// Says that an answer is not the upstream's, because there is none. A service that forwards
/// requests puts it into the extensions of the response that it makes up instead.
///
/// Such a response goes to the client as it is and is never kept: our own errors are not the
/// upstream's answer. Without the mark, a made-up 502 would be an answer like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Undelivered {
    /// Provably no byte of the request left: the key is free again.
    NeverSent,
    /// Something was sent and no complete answer came back: whether the request may be sent again
    /// is up to the class of the route.
    NoAnswer,
}

impl Undelivered {
    /// What a response says about itself.
    pub(super) fn of(extensions: &Extensions) -> Option<Self> {
        extensions.get().copied()
    }
}
