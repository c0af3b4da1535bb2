//! How a request ended, as one word for metrics, spans, logs and the status header.

use super::undelivered::Undelivered;
use crate::engine::{Ran, Recorded, Refused, Replayed, Reply, Source};

/// How a request with a rule ended.
///
/// Access logs and other layers outside find it in the extensions of a response, if the layer is told
/// to put it there ([`Outcomes::InExtensions`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// This request ran the work.
    Executed,
    /// It got the answer of a finished record.
    Replayed,
    /// It got the answer of a request that was running when it came.
    Coalesced,
    /// Another one is still running.
    InProgress,
    /// The key was used for a different request.
    Mismatch,
    /// There is no key where one is required.
    MissingKey,
    /// There is a key that is none.
    InvalidKey,
    /// The key is fine, but body or scope are not, so nothing was claimed.
    InvalidRequest,
    /// Nobody knows what became of the work.
    Unknown,
    /// The work is done and its answer is gone.
    NotRetained,
    /// There is no key and none is needed.
    Bypassed,
    /// The work ran without protection, because the policy says so.
    Unprotected,
    /// Nothing can be executed just now.
    StoreUnavailable,
    /// The service behind was never reached, see [`Undelivered`](super::Undelivered).
    NotDelivered,
}

/// Whether a response tells the layers outside how its request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outcomes {
    /// It does not: the first entry of a response's extensions costs three allocations, a tenth of a
    /// replay, and most services have nobody who looks.
    #[default]
    Untold,
    /// The [`Outcome`] is in the extensions of every response that the layer touched.
    InExtensions,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Executed,
        Self::Replayed,
        Self::Coalesced,
        Self::InProgress,
        Self::Mismatch,
        Self::MissingKey,
        Self::InvalidKey,
        Self::InvalidRequest,
        Self::Unknown,
        Self::NotRetained,
        Self::Bypassed,
        Self::Unprotected,
        Self::StoreUnavailable,
        Self::NotDelivered,
    ];

    /// The outcome of a keyed request that the engine answered.
    pub(super) fn of<T>(reply: &Reply<T>) -> Self {
        match reply {
            Reply::Ran(Ran { recorded: Recorded::Unprotected, .. }) => Self::Unprotected,
            Reply::Ran(_) => Self::Executed,
            Reply::Replayed(Replayed { source: Source::Record, .. }) => Self::Replayed,
            Reply::Replayed(Replayed { source: Source::Coalesced, .. }) => Self::Coalesced,
            Reply::Refused(refused) => Self::of_refusal(refused),
        }
    }

    /// The outcome of work that ran in this request, if its service has more to say about it.
    pub(super) fn of_answer(self, undelivered: Option<Undelivered>) -> Self {
        match (self, undelivered) {
            (_, Some(Undelivered::NeverSent)) => Self::NotDelivered,
            (Self::Executed, Some(Undelivered::NoAnswer)) => Self::Unknown,
            (_, Some(Undelivered::NoAnswer) | None) => self,
        }
    }

    /// The outcome of work that panicked, or was stopped by a shutdown, and whose end was recorded so.
    pub(super) const fn of_broken(self, recorded: Recorded) -> Self {
        match recorded {
            Recorded::Unknown | Recorded::Journalled | Recorded::Fenced | Recorded::Unrecorded => {
                Self::Unknown
            }
            Recorded::Released => Self::NotDelivered,
            Recorded::Kept | Recorded::Tombstone(_) | Recorded::Unprotected => self,
        }
    }

    /// The outcome of a request that was refused by the engine.
    pub(super) const fn of_refusal(refused: &Refused) -> Self {
        match refused {
            Refused::Mismatch { .. } => Self::Mismatch,
            Refused::InProgress { .. } | Refused::Accepted { .. } | Refused::Parked { .. } => {
                Self::InProgress
            }
            Refused::Unknown { .. } => Self::Unknown,
            Refused::NotRetained { .. } | Refused::Expired { .. } => Self::NotRetained,
            Refused::Unavailable { .. } | Refused::Damaged => Self::StoreUnavailable,
        }
    }

    /// The word for it in metrics, spans and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Replayed => "replayed",
            Self::Coalesced => "coalesced",
            Self::InProgress => "in_progress",
            Self::Mismatch => "mismatch",
            Self::MissingKey => "missing_key",
            Self::InvalidKey => "invalid_key",
            Self::InvalidRequest => "invalid_request",
            Self::Unknown => "unknown",
            Self::NotRetained => "not_retained",
            Self::Bypassed => "bypassed",
            Self::Unprotected => "unprotected",
            Self::StoreUnavailable => "store_unavailable",
            Self::NotDelivered => "not_delivered",
        }
    }

    /// The line in the log.
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Replayed | Self::Coalesced | Self::NotRetained => "duplicate stopped",
            Self::InProgress => "still running",
            Self::Mismatch => "key reused",
            Self::MissingKey => "key missing",
            Self::InvalidKey => "key invalid",
            Self::InvalidRequest => "request refused",
            Self::Unknown => "outcome unknown",
            Self::Bypassed => "no key",
            Self::Unprotected => "unprotected",
            Self::StoreUnavailable => "store unavailable",
            Self::NotDelivered => "not delivered",
        }
    }

    /// The word for it in `Idempotency-Status`, where words have hyphens.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in-progress",
            Self::MissingKey => "missing",
            Self::InvalidKey => "invalid",
            Self::InvalidRequest => "invalid-request",
            Self::NotRetained => "not-retained",
            Self::Bypassed => "keyless",
            Self::StoreUnavailable => "unavailable",
            Self::NotDelivered => "not-delivered",
            Self::Executed
            | Self::Replayed
            | Self::Coalesced
            | Self::Mismatch
            | Self::Unknown
            | Self::Unprotected => self.label(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncekey_core::saved::NotKept;
    use oncekey_core::{Fence, Headers, Saved, Timestamp};

    use super::*;
    use crate::engine::Unavailable;

    /// The engine and the layer name every end alike.
    #[test]
    fn the_engine_and_the_layer_use_the_same_labels() {
        let original = || "".into();
        let replayed = |source| {
            Reply::<()>::Replayed(Replayed {
                saved: Saved { status: 200, headers: Headers::new(), body: Vec::new().into() },
                source,
                age: Duration::ZERO,
                ttl: Duration::ZERO,
                original: original(),
                fence: Some(Fence::next(None, Timestamp::default())),
            })
        };
        let ran = |recorded| Reply::Ran(Ran { value: Some(()), recorded, fence: None });
        let wait = Duration::ZERO;
        let mut replies = vec![
            ran(Recorded::Kept),
            ran(Recorded::Unprotected),
            replayed(Source::Record),
            replayed(Source::Coalesced),
        ];
        let refusals = [
            Refused::Mismatch {
                differs: vec![],
                original: original(),
                first_used: Timestamp::default(),
            },
            Refused::InProgress { retry_after: wait, waited: wait, original: None },
            Refused::Accepted { retry_after: wait, original: None },
            Refused::Unknown { original: original() },
            Refused::NotRetained { status: None, reason: NotKept::Erased, original: original() },
            Refused::Expired { original: original() },
            Refused::Parked { original: original() },
            Refused::Unavailable { why: Unavailable::Busy, retry_after: wait },
            Refused::Damaged,
        ];
        replies.extend(refusals.map(Reply::Refused));
        for reply in replies {
            assert_eq!(Outcome::of(&reply).label(), reply.outcome(), "{reply:?}");
        }
    }

    #[test]
    fn every_outcome_has_its_place_and_words_of_its_own() {
        for (place, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
        }
        let words: std::collections::HashSet<_> = Outcome::ALL.map(Outcome::word).into();
        assert_eq!(words.len(), Outcome::ALL.len());
    }
}
