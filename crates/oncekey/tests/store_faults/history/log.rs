//! What is written down of every call.

use oncekey::core::saved::NotKept;
use oncekey::core::{
    Answer, Claimed, ErrorKind, Fence, Grant, Lease, Outcome, Owner, Record, Refusal, Renewal,
    Sent, State, StoreError, Timestamp, Write,
};

/// One call and its answer.
///
/// Times are the machine's, in microseconds: servers and callers are on the same one. A call that
/// returned before another began came before it; any other two may have happened in either order.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) call: i64,
    pub(crate) ret: i64,
    pub(crate) key: u64,
    pub(crate) deed: Deed,
}

/// What was asked, and what came of it.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    Claim { owner: Owner, sent: Sent, end: End<Claiming> },
    Renew { hold: Hold, end: End<Renewal> },
    Write { hold: Hold, act: Act, end: End<Write> },
    Get { end: End<Option<Sight>> },
    Erase,
}

/// A write that carries a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Send,
    Complete(Outcome),
    Release,
    Unknown,
}

/// An attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) fence: Fence,
    pub(crate) owner: Owner,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub(crate) enum End<T> {
    Said(T),
    /// The store says that nothing has changed.
    Nothing,
    /// Nobody knows, for ever: it may even happen later.
    Open,
}

/// What came of a claim.
#[derive(Clone, Debug)]
pub(crate) enum Claiming {
    Won { lease: Lease, grant: Grant, earlier: Sent },
    Lost(Sight),
}

/// What was seen of a record.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    pub(crate) hold: Hold,
    pub(crate) state: Seen,
}

/// A state, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    Running { until: Timestamp, sent: Sent },
    Done { outcome: Outcome, shown: Shown, expires: Timestamp, forget: Timestamp },
    Unknown,
    Parked,
}

/// What a finished record has for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// An answer with this digest.
    Answer(Outcome),
    /// The store need not show it here.
    Left,
    /// None any more, for this reason.
    Gone(NotKept),
}

impl<T> End<T> {
    pub(crate) fn of(result: Result<T, StoreError>) -> Self {
        match result {
            Ok(said) => Self::Said(said),
            Err(error) if error.kind() == ErrorKind::Unavailable => Self::Nothing,
            Err(error) if error.kind() == ErrorKind::Ambiguous => Self::Open,
            Err(error) => panic!("faults of the way never lead to {:?}: {error}", error.kind()),
        }
    }

    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> End<U> {
        match self {
            Self::Said(said) => End::Said(change(said)),
            Self::Nothing => End::Nothing,
            Self::Open => End::Open,
        }
    }
}

impl End<Write> {
    /// Whether it may have taken effect.
    pub(crate) const fn may_stand(&self) -> bool {
        matches!(self, Self::Said(Write::Applied) | Self::Open)
    }
}

impl From<&Lease> for Hold {
    fn from(lease: &Lease) -> Self {
        Self { fence: lease.fence, owner: lease.owner }
    }
}

impl From<Claimed> for Claiming {
    fn from(claimed: Claimed) -> Self {
        match claimed {
            Claimed::Won { lease, grant, earlier } => Self::Won { lease, grant, earlier },
            Claimed::Lost { refusal, record, .. } => {
                let mut sight = Sight::from(&*record);
                if let Seen::Done { shown: shown @ Shown::Answer(_), .. } = &mut sight.state
                    && refusal != Refusal::Replay
                {
                    *shown = Shown::Left;
                }
                Self::Lost(sight)
            }
        }
    }
}

impl From<&Record> for Sight {
    fn from(record: &Record) -> Self {
        let state = match &record.state {
            State::Running { until, sent } => Seen::Running { until: *until, sent: *sent },
            State::Done { expires, forget, outcome, answer, .. } => {
                let shown = match answer {
                    Answer::Kept(_) => Shown::Answer(answer.outcome()),
                    Answer::Tombstone(tombstone) => Shown::Gone(tombstone.reason),
                };
                Seen::Done { outcome: *outcome, shown, expires: *expires, forget: *forget }
            }
            State::Unknown { .. } => Seen::Unknown,
            State::Parked { .. } => Seen::Parked,
        };
        Self { hold: Hold { fence: record.fence, owner: record.owner }, state }
    }
}
