//! Blanking what is personal in a record, and the pieces of its body with it.

use oncekey_core::erase::{Erased, blank};
use oncekey_core::seal::Seal;
use oncekey_core::{KeyId, State};

use super::error::Trouble;
use super::session::Session;
use super::sql::{self, NOW, Tables};
use super::{remove, row};
use crate::store::parts::{answer_codes, is_forgotten};

/// Blanks a record as the core says, with new seals. A damaged one is an error and stays as it is.
///
/// The record is locked first, so that its owner cannot complete it between the look and the change.
pub(super) async fn erase(
    session: &mut Session,
    tables: &Tables,
    id: &KeyId,
) -> Result<Erased, Trouble> {
    let key = sql::hex(id.as_bytes());
    let find = format!(
        "SELECT {} FROM {} WHERE r.`key_id` = {key} FOR UPDATE",
        row::COLUMNS,
        tables.whole
    );
    let clock = format!("SELECT {NOW}");
    let sets = session.begin(&["BEGIN", &find, &clock]).await?;
    let now = row::moment(sets.get(2))?;
    let found = sets.get(1).and_then(|set| set.rows.first());
    let Some(found) = found else {
        session.roll_back().await?;
        return Ok(Erased::Absent);
    };
    let checked = row::read(found).and_then(|found| found.check_outcome().map(|()| found));
    let mut record = match checked {
        Ok(found) => found.record,
        Err(damage) => {
            session.roll_back().await?;
            return Err(damage.into());
        }
    };
    let of_key = format!("WHERE `key_id` = {key}");
    let Tables { records, answers, pieces, .. } = tables;
    let (said, statements) = if is_forgotten(&record, now) {
        let gone = format!("DELETE FROM {records} {of_key}");
        let answer = remove::answer(tables, id, record.fence);
        let pieces = remove::pieces(tables, id, record.fence);
        (Erased::Absent, vec![gone, answer, pieces, remove::raise(tables, record.fence)])
    } else {
        let said = blank(&mut record);
        let mut statements = vec![format!(
            "UPDATE {records} SET `seal` = {}, `places` = {}, `key` = x'', `scope` = x'' {of_key}",
            sql::hex(Seal::expected_of_claim(&record).as_bytes()),
            sql::hex(record.places.as_encoded()),
        )];
        if let (State::Done { answer, .. }, Some(seal)) =
            (&record.state, Seal::expected_of_answer(&record))
        {
            let (_, not_kept) = answer_codes(answer);
            let seal = sql::hex(seal.as_bytes());
            statements.push(format!(
                "UPDATE {answers} SET `not_kept` = {not_kept}, `seal` = {seal}, `headers` = x'', \
                 `pieces` = 0, `body` = x'' {of_key} AND `fence` = {}",
                record.fence
            ));
        }
        // Also those of an answer that was never completed. If its owner is still about to complete
        // it, it finds them gone and writes them again.
        statements.push(format!("DELETE FROM {pieces} {of_key}"));
        (said, statements)
    };
    session.begin(&statements).await?;
    session.commit().await?;
    Ok(said)
}
