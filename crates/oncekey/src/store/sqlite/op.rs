//! What callers want done, and what they get.

use std::time::Duration;

use bytes::Bytes;
use oncekey_core::saved::Outcome;
use oncekey_core::store::Purged;
use oncekey_core::{Claimed, Erased, KeyId, Lease, Renewal, Restored, StateKind, Timestamp, Write};

use super::error::Failure;
use super::inspect::{self, Settings};
use super::restore::{self, PreparedRecord};
use super::running::Running;
use super::settle::Ledger;
use super::statements::Statements;
use super::verbs::{self, Completed, PreparedClaim};
use super::{erase, purge};
use crate::store::parts::CompletionParts;

/// What a caller wants done.
#[derive(Debug)]
pub(super) enum Op {
    Claim(Box<PreparedClaim>),
    Renew(Vec<Lease>, Duration),
    Send(Lease),
    Piece { lease: Lease, outcome: Outcome, part: u32, bytes: Bytes },
    Complete(Lease, Box<CompletionParts>),
    Release(Lease),
    Unknown(Lease),
    Purge(usize),
    Erase(KeyId),
    Restore(Box<PreparedRecord>),
    Inspect,
}

/// What it gets.
#[derive(Debug)]
pub(super) enum Reply {
    Claimed(Claimed),
    Renewed(Vec<Renewal>),
    Wrote(Write),
    /// The pieces of a completion are not there any more. It has changed nothing.
    PiecesGone,
    Purged(Purged),
    Erased(Erased),
    Restored(Restored),
    Inspected(Settings),
}

impl Op {
    /// Does it, inside a transaction.
    pub(super) fn apply(
        &self,
        statements: &Statements<'_>,
        (ledger, running): (&mut Ledger, &mut Running),
        now: Timestamp,
    ) -> Result<Reply, Failure> {
        match self {
            Self::Claim(claim) => {
                verbs::claim(statements, claim, (ledger, running), now).map(Reply::Claimed)
            }
            Self::Renew(leases, span) => {
                verbs::renew(statements, leases, *span, now).map(Reply::Renewed)
            }
            Self::Send(lease) => verbs::send(statements, lease).map(Reply::Wrote),
            Self::Piece { lease, outcome, part, bytes } => {
                verbs::piece(statements, lease, *outcome, *part, bytes).map(Reply::Wrote)
            }
            Self::Complete(lease, completion) => {
                let completed = verbs::complete(statements, lease, completion, running, now)?;
                Ok(match completed {
                    Completed::Wrote(write) => Reply::Wrote(write),
                    Completed::PiecesGone => Reply::PiecesGone,
                })
            }
            Self::Release(lease) => verbs::release(statements, lease, ledger).map(Reply::Wrote),
            Self::Unknown(lease) => verbs::unknown(statements, lease, now).map(Reply::Wrote),
            Self::Purge(limit) => purge::purge(statements, *limit, ledger, now).map(Reply::Purged),
            Self::Erase(id) => erase::erase(statements, id, ledger, now).map(Reply::Erased),
            Self::Restore(prepared) => {
                restore::restore(statements, prepared, ledger).map(Reply::Restored)
            }
            Self::Inspect => inspect::settings(statements).map(Reply::Inspected),
        }
    }

    /// Roughly how many bytes it adds to a transaction.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Piece { bytes, .. } => bytes.len(),
            Self::Complete(_, prepared) => prepared.inline_size(),
            Self::Claim(_)
            | Self::Send(_)
            | Self::Release(_)
            | Self::Unknown(_)
            | Self::Erase(_)
            | Self::Inspect => 0,
            Self::Restore(prepared) => prepared.size(),
            Self::Renew(leases, _) => leases.len(),
            Self::Purge(limit) => *limit,
        }
    }

    /// The key that stopped running by this operation, if one did.
    pub(super) fn finished_by(&self, reply: &Reply) -> Option<KeyId> {
        match (self, reply) {
            (
                Self::Complete(lease, _) | Self::Release(lease) | Self::Unknown(lease),
                Reply::Wrote(Write::Applied),
            ) => Some(lease.id),
            (Self::Restore(prepared), Reply::Restored(Restored::Written))
                if prepared.record.state.kind() != StateKind::Running =>
            {
                Some(prepared.record.id)
            }
            _ => None,
        }
    }
}
