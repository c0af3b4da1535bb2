//! The end of an attempt, as it is written down.

use oncekey_core::policy::{Ending, Policy, Retain, Verdict};
use oncekey_core::saved::{NotKept, Tombstone};
use oncekey_core::{Answer, Completion, Lease, Saved, Store, StoreError, Write};

use super::reply::Recorded;

/// An end that is on its way to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The proof that it may be written.
    pub(super) lease: Lease,
    /// What is to be written.
    pub(super) end: End,
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The work is done.
    Complete(Completion),
    /// Nothing happened.
    Release,
    /// Nobody knows.
    Unknown,
}

impl End {
    /// What `verdict` asks for. `saved` is the answer in the form in which it is stored.
    pub(super) fn of(
        policy: &Policy,
        verdict: Verdict,
        ending: Ending,
        saved: Option<Saved>,
    ) -> Self {
        let status = match ending {
            Ending::Answered { status, .. } => Some(status),
            Ending::NeverSent | Ending::NoAnswer | Ending::Broke => None,
        };
        let tombstone = |reason| Answer::Tombstone(Tombstone { status, reason });
        let answer = match (verdict, saved) {
            (Verdict::Release, _) => return Self::Release,
            (Verdict::Unknown, _) => return Self::Unknown,
            (Verdict::Keep, Some(saved)) => Answer::Kept(saved),
            // An answer that could not be brought into its stored form.
            (Verdict::Keep, None) => tombstone(match policy.retain {
                Retain::Whole => NotKept::TooLarge,
                Retain::StatusOnly | Retain::Redacted(_) => NotKept::StatusOnly,
            }),
            (Verdict::Tombstone(reason), _) => tombstone(reason),
        };
        Self::Complete(Completion { answer, retention: policy.retention, linger: policy.linger })
    }

    /// What the owner is told once this is in the store.
    pub(super) fn recorded(&self) -> Recorded {
        match self {
            Self::Complete(Completion { answer: Answer::Kept(_), .. }) => Recorded::Kept,
            Self::Complete(Completion { answer: Answer::Tombstone(tombstone), .. }) => {
                Recorded::Tombstone(tombstone.reason)
            }
            Self::Release => Recorded::Released,
            Self::Unknown => Recorded::Unknown,
        }
    }

    /// The same end without the answer, for a store that does not take it.
    pub(super) fn without_answer(&self) -> Option<Self> {
        let Self::Complete(Completion { answer: Answer::Kept(saved), retention, linger }) = self
        else {
            return None;
        };
        let tombstone = Tombstone { status: Some(saved.status), reason: NotKept::TooLarge };
        let answer = Answer::Tombstone(tombstone);
        Some(Self::Complete(Completion { answer, retention: *retention, linger: *linger }))
    }
}

impl Entry {
    /// Writes it to `store`, once.
    pub(super) async fn write(&self, store: &dyn Store) -> Result<Write, StoreError> {
        match &self.end {
            End::Complete(completion) => store.complete(&self.lease, completion).await,
            End::Release => store.release(&self.lease).await,
            End::Unknown => store.unknown(&self.lease).await,
        }
    }
}
