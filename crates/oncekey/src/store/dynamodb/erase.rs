//! Blanking what is personal in a record, and removing the pieces of its body.

use oncekey_core::erase::{Erased, blank};
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::{Fence, KeyId, State, StoreError};

use super::DynamoStore;
use super::call::{Written, values_of};
use super::error::contended;
use super::item::{self, ANSWER_SEAL, ERASURES, Found, NOT_KEPT, PLACES, SEAL, Slot, Writing};
use super::item::{bytes, number};
use super::write::{AS_READ, TURNS, set_expression};
use crate::store::parts::{answer_codes, is_forgotten};

impl DynamoStore {
    /// First the record, then the pieces: whoever completes in between finds that the record was
    /// erased and writes its pieces anew, where this erasure does not look.
    pub(super) async fn blank_out(&self, id: &KeyId) -> Result<Erased, StoreError> {
        for _ in 0..TURNS {
            let item = self.caller.get(id, &item::RECORD_PART, None).await?;
            let found = match Slot::read(item.as_ref())? {
                Slot::Held(found) => found,
                slot @ (Slot::Empty | Slot::Gone(_)) => {
                    // What an attempt that is over has left behind. One that begins now has a
                    // higher fence, and its pieces stay.
                    let fence = slot.highest().unwrap_or_else(|| self.fence_of_now());
                    self.remove_before(id, Some(fence), i64::MAX).await?;
                    return Ok(Erased::Absent);
                }
            };
            let now = self.clock.now();
            if is_forgotten(found.record(), self.sight.judging(now)) {
                let (lease, high) = (found.record().lease(), found.highest());
                let put = self
                    .caller
                    .client
                    .put_item()
                    .set_item(Some(item::of_remainder(id, high, now)))
                    .condition_expression(AS_READ)
                    .set_expression_attribute_values(values_of(as_read(&found)));
                if let Written::Done(_) = self.caller.put(put).await? {
                    self.remove_before(id, Some(lease.fence), i64::MAX).await?;
                    return Ok(Erased::Absent);
                }
                continue;
            }
            let (fence, erasures) = (found.record().fence, found.erasures + 1);
            if let Some(said) = self.blank_record(*found).await? {
                self.remove_before(id, Some(fence), erasures).await?;
                return Ok(said);
            }
        }
        Err(contended())
    }

    /// `None` if the record changed after it was read.
    async fn blank_record(&self, found: Found) -> Result<Option<Erased>, StoreError> {
        found.found.check_outcome()?;
        let mut values = as_read(&found);
        let was_erased = found.erasures;
        let mut record = found.found.record;
        let kept = match &record.state {
            State::Done { answer, .. } => Some(answer_codes(answer).1),
            State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => None,
        };
        let said = blank(&mut record);
        let mut set = Writing::default();
        set.bytes(SEAL, Seal::expected_of_claim(&record).as_bytes());
        set.bytes(PLACES, record.places.as_encoded());
        set.number(ERASURES, was_erased + 1);
        let mut remove = vec![item::ORIGIN_KEY, item::SCOPE];
        if let (State::Done { answer, .. }, Some(seal)) =
            (&record.state, Seal::expected_of_answer(&record))
        {
            set.number(NOT_KEPT, answer_codes(answer).1);
            set.bytes(ANSWER_SEAL, seal.as_bytes());
            remove.extend([item::HEADERS, item::PIECES, item::BODY]);
        }
        if !set.0.contains_key(PLACES) {
            remove.push(PLACES);
        }
        let mut condition = AS_READ.to_owned();
        match was_erased {
            0 => condition += " AND attribute_not_exists(e)",
            times => {
                condition += " AND e = :e";
                values.push((":e", number(times)));
            }
        }
        // A purge may strip the answer meanwhile, and what has expired has expired.
        if let Some(kept) = kept {
            condition += " AND yn = :kept";
            values.push((":kept", number(kept)));
        }
        let (expression, set) = set_expression(&set.0);
        let update = self
            .caller
            .client
            .update_item()
            .set_key(Some(item::key_of(&record.id, &item::RECORD_PART)))
            .update_expression(format!("{expression} REMOVE {}", remove.join(", ")))
            .condition_expression(condition)
            .set_expression_attribute_values(values_of(values).map(|mut all| {
                all.extend(set);
                all
            }));
        match self.caller.update(update).await? {
            Written::Done(_) => Ok(Some(said)),
            Written::Failed { .. } => Ok(None),
        }
    }

    fn fence_of_now(&self) -> Fence {
        Fence::next(None, self.clock.now())
    }
}

/// Fence, owner, format and state, as they were read.
fn as_read(found: &Found) -> super::call::Values<'static> {
    let record = found.record();
    vec![
        (":was", number(record.fence.number())),
        (":o", bytes(record.owner.as_bytes())),
        (":v", number(RECORD_FORMAT)),
        (":s", number(record.state.kind().code())),
    ]
}
