//! Whether a client still waits for its answer.

use super::strict::Verdict;
use crate::observe::Reached;

/// What a connection knows about its client. With HTTP/2 nobody has to ask: a request whose client has
/// left is dropped. A client that has sent something behind its request is taken to be there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Presence(Option<Verdict>);

impl Presence {
    pub(super) fn seen_by(verdict: &Verdict) -> Self {
        Self(Some(verdict.clone()))
    }

    /// Has the connection look out for its client while there is no answer.
    pub(super) fn watch(&self) {
        if let Some(verdict) = &self.0 {
            verdict.watch();
        }
    }

    /// There is an answer. Says whether anybody is there to take it.
    pub(super) fn met(&self) -> Reached {
        let Some(verdict) = &self.0 else { return Reached::Client };
        verdict.unwatch();
        match verdict.has_left() {
            true => Reached::Nobody,
            false => Reached::Client,
        }
    }
}
