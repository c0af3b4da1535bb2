//! What callers want done, and what they get.

use oncekey_core::decide::Act;
use oncekey_core::seal::Seal;
use oncekey_core::{Claim, KeyId, Lease, Write};

use super::row::Found;
use crate::store::group::Operation;
use crate::store::parts::{self, CompletionParts};

/// What a caller wants done in a batch with others of its kind.
#[derive(Debug)]
pub(super) enum Op {
    Complete(Lease, Box<CompletionParts>),
    Release(Lease),
    Unknown(Lease),
    Send(Lease),
    Claim(Box<PreparedClaim>),
}

/// What it gets.
#[derive(Debug)]
pub(super) enum Reply {
    Wrote(Write),
    Tried(Tried),
}

/// What came of an attempt to make a record.
#[derive(Debug)]
pub(super) enum Tried {
    /// It was made: the caller owns the key.
    Won(Lease),
    /// Another one stands there.
    Found(Box<Found>),
    /// One stood in the way: the caller's own from an earlier attempt, or one that was gone a moment
    /// later. A look tells.
    Unseen,
}

/// A claim with what can be computed before the server is asked.
#[derive(Debug)]
pub(super) struct PreparedClaim {
    pub(super) claim: Claim,
    pub(super) seal: Seal,
}

impl PreparedClaim {
    pub(super) fn new(claim: &Claim) -> Self {
        Self { seal: parts::seal_of(claim), claim: claim.clone() }
    }
}

impl Op {
    /// What a write is judged by; claims are decided, not judged.
    pub(super) fn act(&self) -> Option<(&Lease, Act)> {
        match self {
            Self::Complete(lease, completion) => Some((lease, Act::Complete(completion.outcome))),
            Self::Release(lease) => Some((lease, Act::Release)),
            Self::Unknown(lease) => Some((lease, Act::Unknown)),
            Self::Send(lease) => Some((lease, Act::Send)),
            Self::Claim(_) => None,
        }
    }

    fn id(&self) -> KeyId {
        match self {
            Self::Complete(lease, _)
            | Self::Release(lease)
            | Self::Unknown(lease)
            | Self::Send(lease) => lease.id,
            Self::Claim(prepared) => prepared.claim.id,
        }
    }
}

impl Operation for Op {
    type Reply = Reply;
    const RANKS: usize = 5;

    /// What ends an attempt goes first, because others wait for it; a send mark is waited for by
    /// its owner alone; a claim begins new work, for which there is time when the old is done.
    fn rank(&self) -> usize {
        match self {
            Self::Complete(..) => 0,
            Self::Release(_) => 1,
            Self::Unknown(_) => 2,
            Self::Send(_) => 3,
            Self::Claim(_) => 4,
        }
    }

    fn ids(&self) -> impl Iterator<Item = KeyId> {
        std::iter::once(self.id())
    }

    fn size(&self) -> usize {
        match self {
            Self::Complete(_, completion) => completion.inline_size(),
            Self::Claim(prepared) => prepared.claim.places.as_encoded().len(),
            Self::Release(_) | Self::Unknown(_) | Self::Send(_) => 0,
        }
    }
}
