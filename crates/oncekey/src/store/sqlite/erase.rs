//! Blanking what is personal in a record.
//!
//! SQLite overwrites with zeros what is deleted here or made shorter (`secure_delete`), and the
//! writer thread empties the log before it answers: see `log.rs`.

use oncekey_core::erase::{Erased, blank};
use oncekey_core::seal::Seal;
use oncekey_core::{KeyId, State, Timestamp};
use rusqlite::params;

use super::error::Failure;
use super::row::Found;
use super::settle::Ledger;
use super::statements::Statements;
use super::{purge, verbs};
use crate::store::parts::{answer_codes, is_forgotten};

const BLANK_RECORD: &str = "
    UPDATE oncekey_records SET seal = ?2, places = ?3, key = x'', scope = x'' WHERE id = ?1";

const BLANK_ANSWER: &str = "
    UPDATE oncekey_answers SET not_kept = ?2, seal = ?3, headers = x'', pieces = 0, body = x''
    WHERE record = ?1";

/// Blanks a record as the core says, with new seals. A damaged one is an error and stays as it is.
pub(super) fn erase(
    statements: &Statements<'_>,
    id: &KeyId,
    ledger: &mut Ledger,
    now: Timestamp,
) -> Result<Erased, Failure> {
    let Some(found) = verbs::find(statements, id)? else {
        return Ok(Erased::Absent);
    };
    if is_forgotten(found.record(), now) {
        purge::forget(statements, id, found.row, ledger)?;
        return Ok(Erased::Absent);
    }
    let Found { row, found } = found;
    found.check_outcome()?;
    let mut record = found.record;
    let said = blank(&mut record);
    let seal = Seal::expected_of_claim(&record);
    let places = record.places.as_encoded();
    statements.get(BLANK_RECORD)?.execute(params![row, seal.as_bytes(), places])?;
    if let (State::Done { answer, .. }, Some(seal)) =
        (&record.state, Seal::expected_of_answer(&record))
    {
        let (_, not_kept) = answer_codes(answer);
        let columns = params![row, not_kept, seal.as_bytes()];
        statements.get(BLANK_ANSWER)?.execute(columns)?;
    }
    // Also those of an answer that was never completed. If its owner is still about to complete
    // it, it finds them gone and writes them again.
    purge::forget_pieces(statements, row)?;
    Ok(said)
}
