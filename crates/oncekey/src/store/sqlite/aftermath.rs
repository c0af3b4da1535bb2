//! What a failed commit did: every operation of its batch is looked for by its owner token.

use oncekey_core::decide::{Act, Judgement};
use oncekey_core::{Claimed, ErrorKind, Grant, Lease, StoreError, Write};
use rusqlite::Connection;

use super::error::{Failure, from_sqlite};
use super::op::{Op, Reply};
use super::statements::Statements;
use super::verbs;

/// Commits a change that harms nobody: a fence that nobody gets. One that changes nothing at all
/// would write nothing.
pub(super) fn barrier(connection: &Connection) -> Result<(), StoreError> {
    let barrier =
        "BEGIN IMMEDIATE; UPDATE oncekey_clock SET fence = fence + 1 WHERE id = 1; COMMIT";
    connection.execute_batch(barrier).map_err(from_sqlite)
}

/// Looks whether one operation of a failed commit is there. Only effects are looked for: an
/// operation that would have changed nothing may have been answered from changes of its own batch
/// that never happened, so its caller asks again.
pub(super) fn found_out(
    connection: &Connection,
    op: &Op,
    reply: Result<Reply, StoreError>,
    cause: &str,
) -> Result<Reply, StoreError> {
    let happened = match (op, &reply) {
        // Whether a repeated claim has extended its lease cannot be told from its owner token.
        (Op::Claim(_), Ok(Reply::Claimed(Claimed::Won { grant: Grant::Again, .. })))
        | (
            Op::Piece { .. } | Op::Renew(..) | Op::Purge(_) | Op::Erase(_) | Op::Restore(_),
            Ok(_),
        ) => {
            return Err(ambiguous(cause));
        }
        (Op::Claim(_), Ok(Reply::Claimed(Claimed::Won { lease, .. }))) => {
            is_judged(connection, lease, Act::Renew, Judgement::Apply)
        }
        (Op::Send(lease), Ok(Reply::Wrote(Write::Applied))) => {
            is_judged(connection, lease, Act::Send, Judgement::Already)
        }
        (Op::Complete(lease, completion), Ok(Reply::Wrote(Write::Applied))) => {
            let act = Act::Complete(completion.outcome);
            is_judged(connection, lease, act, Judgement::Already)
        }
        (Op::Release(lease), Ok(Reply::Wrote(Write::Applied))) => {
            is_judged(connection, lease, Act::Release, Judgement::Fenced)
        }
        (Op::Unknown(lease), Ok(Reply::Wrote(Write::Applied))) => {
            is_judged(connection, lease, Act::Unknown, Judgement::Already)
        }
        (
            Op::Piece { .. }
            | Op::Renew(..)
            | Op::Purge(_)
            | Op::Erase(_)
            | Op::Restore(_)
            | Op::Inspect
            | Op::Claim(_)
            | Op::Send(_)
            | Op::Complete(..)
            | Op::Release(_)
            | Op::Unknown(_),
            _,
        ) => Ok(false),
    };
    match happened {
        Ok(true) => reply,
        Ok(false) => Err(StoreError::new(
            ErrorKind::Unavailable,
            format!("the commit failed and nothing changed: {cause}"),
        )),
        Err(_) => Err(ambiguous(cause)),
    }
}

fn is_judged(
    connection: &Connection,
    lease: &Lease,
    act: Act,
    wanted: Judgement,
) -> Result<bool, Failure> {
    verbs::judged(&Statements::of(connection), lease, act).map(|(judgement, _)| judgement == wanted)
}

pub(super) fn ambiguous(cause: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Ambiguous,
        format!("the commit failed and it is not known what it changed: {cause}"),
    )
}
