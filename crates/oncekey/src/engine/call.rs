//! What is asked of the engine, and what the work tells it at the end.

use std::sync::Arc;

use oncekey_core::policy::{Ending, Fit};
use oncekey_core::{Fingerprint, Key, KeyId, Places, Policy, Saved, Scope};

use super::RequestId;

/// One keyed request: everything but the work.
#[derive(Clone, Debug)]
pub struct Call {
    /// The id of the record: [`Engine::key_id`](super::Engine::key_id) of `scope` and `key`.
    pub id: KeyId,
    /// What the client sent.
    pub key: Key,
    /// Whom it belongs to.
    pub scope: Scope,
    /// What must not change between attempts.
    pub fingerprint: Fingerprint,
    /// The very bytes of the request, if somebody looked: see [`Engine::recall`](super::Engine::recall).
    pub exact: Option<Exact>,
    /// Digests of the request's places, to name what differs.
    pub places: Places,
    /// The route by its template name, such as `POST /v1/charges`. A metric label: never put
    /// anything into it that a client can choose.
    pub route: Arc<str>,
    /// The id of this request.
    pub request: RequestId,
    /// What the route promises.
    pub policy: Arc<Policy>,
}

/// What a request looks like byte for byte: a digest of everything that its fingerprint is computed
/// from, and how. What it covers is the caller's business, as long as two different requests never
/// look the same: key it with random bits of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exact(pub [u8; 16]);

/// What the work tells the engine when it has ended.
///
/// `value` goes to the caller that ran the work, as it is. What is recorded, and what everybody
/// else gets, is `saved`: it must not hold what belongs to one exchange alone, such as cookies.
#[derive(Debug)]
pub struct Finish<T> {
    pub(super) ending: Ending,
    pub(super) saved: Option<Saved>,
    pub(super) value: T,
}

impl<T> Finish<T> {
    /// A complete answer that can be kept.
    ///
    /// Waiting duplicates get it too, even if the policy does not keep this status: they asked
    /// for the same thing at the same time.
    #[must_use]
    pub fn answered(saved: Saved, value: T) -> Self {
        let ending = Ending::Answered { status: saved.status, fit: Fit::Whole };
        Self { ending, saved: Some(saved), value }
    }

    /// An answer that cannot be kept, and why.
    #[must_use]
    pub fn not_kept(status: u16, fit: Fit, value: T) -> Self {
        Self { ending: Ending::Answered { status, fit }, saved: None, value }
    }

    /// Provably nothing was sent.
    #[must_use]
    pub fn never_sent(value: T) -> Self {
        Self { ending: Ending::NeverSent, saved: None, value }
    }

    /// Something may have been sent, and no complete answer came back.
    #[must_use]
    pub fn no_answer(value: T) -> Self {
        Self { ending: Ending::NoAnswer, saved: None, value }
    }
}
