//! Blanking what is personal in a record.
//!
//! The old version of the row stays on its page until a vacuum has passed, as with every update in
//! PostgreSQL, and in the write-ahead log until that is recycled.

use oncekey_core::erase::{Erased, blank};
use oncekey_core::seal::Seal;
use oncekey_core::{KeyId, State, StoreError};

use super::PostgresStore;
use super::error::contested;
use super::pool::Effect;
use super::row::Found;
use crate::store::parts::{answer_codes, is_forgotten};

/// How often a record is looked at anew because it had changed before it was blanked.
const ROUNDS: usize = 16;

impl PostgresStore {
    /// Blanks a record as the core says, with new seals. A damaged one is an error and stays as it
    /// is.
    pub(super) async fn blank_record(&self, id: &KeyId) -> Result<Erased, StoreError> {
        for _ in 0..ROUNDS {
            let Some(Found { found, now }) = self.read(id).await? else {
                return Ok(Erased::Absent);
            };
            if is_forgotten(&found.record, now) {
                // Gone or changed by somebody else meanwhile: then it is looked at anew.
                self.forget(std::iter::once(&found.record.lease())).await?;
                continue;
            }
            let before = found.record;
            let mut after = before.clone();
            let said = blank(&mut after);
            let not_kept = match &after.state {
                State::Done { answer, .. } => Some(i16::from(answer_codes(answer).1)),
                State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => None,
            };
            let (was, is) = (Seal::expected_of_claim(&before), Seal::expected_of_claim(&after));
            let answer_was = Seal::expected_of_answer(&before).map(|seal| *seal.as_bytes());
            let answer_is = Seal::expected_of_answer(&after).map(|seal| *seal.as_bytes());
            let changed = self
                .singles
                .ask(
                    Effect::Repeatable,
                    &self.sql.blank,
                    &[
                        &id.as_bytes().as_slice(),
                        &before.fence.number(),
                        &before.owner.as_bytes().as_slice(),
                        &i16::from(before.state.kind().code()),
                        &was.as_bytes().as_slice(),
                        &answer_was.as_ref().map(<[u8; 16]>::as_slice),
                        &is.as_bytes().as_slice(),
                        &after.places.as_encoded(),
                        &not_kept,
                        &answer_is.as_ref().map(<[u8; 16]>::as_slice),
                    ],
                )
                .await?;
            if !changed.is_empty() {
                return Ok(said);
            }
        }
        Err(contested())
    }
}
