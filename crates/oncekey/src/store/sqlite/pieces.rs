//! Large bodies, which are written in pieces before the completion that refers to them.

use std::collections::BTreeSet;

use oncekey_core::saved::Outcome;
use oncekey_core::{Answer, Completion, KeyId, Lease, StoreError, Write};
use rusqlite::params;

use super::error::Failure;
use super::op::Op;
use super::statements::Statements;
use super::{PIECE, SqliteStore, verbs};

const PARTS_WRITTEN: &str = "
    SELECT part FROM oncekey_pieces WHERE record = ?1 AND outcome = ?2";

impl SqliteStore {
    /// Writes a large body in pieces, and says in how many, or that the lease was lost.
    pub(super) async fn write_pieces(
        &self,
        lease: &Lease,
        completion: &Completion,
    ) -> Result<Option<u32>, StoreError> {
        let body = match &completion.answer {
            Answer::Kept(saved) if saved.body.len() > PIECE => saved.body.clone(),
            Answer::Kept(_) | Answer::Tombstone(_) => return Ok(Some(0)),
        };
        let outcome = completion.answer.outcome();
        // A caller that gave up on a slow disk comes again, and must come further each time. By number,
        // because an erasure in between leaves a gap at the beginning.
        let written = self
            .readers
            .read(|connection| parts_written(&Statements::of(connection), &lease.id, outcome))?;
        let mut part = 0;
        let mut rest = body;
        while !rest.is_empty() {
            let bytes = rest.split_to(PIECE.min(rest.len()));
            if !written.contains(&part)
                && self.write(Op::Piece { lease: *lease, outcome, part, bytes }).await?
                    == Write::Fenced
            {
                return Ok(None);
            }
            part += 1;
        }
        Ok(Some(part))
    }
}

/// Which pieces of this outcome are there. They are the same whoever wrote them, because an outcome is a
/// digest of the whole answer.
fn parts_written(
    statements: &Statements<'_>,
    id: &KeyId,
    outcome: Outcome,
) -> Result<BTreeSet<u32>, Failure> {
    let Some((row, _)) = verbs::standing(statements, id)? else { return Ok(BTreeSet::new()) };
    let mut statement = statements.get(PARTS_WRITTEN)?;
    let mut rows = statement.query(params![row, outcome.as_bytes()])?;
    let mut parts = BTreeSet::new();
    while let Some(row) = rows.next()? {
        parts.insert(row.get(0)?);
    }
    Ok(parts)
}
