//! Removing what is over. DynamoDB would do it too, but days later.

use oncekey_core::saved::{NotKept, Outcome};
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::store::Purged;
use oncekey_core::{
    Answer, Fence, KeyId, Lease, Owner, StateKind, StoreError, Timestamp, Tombstone,
};

use super::DynamoStore;
use super::call::{Written, side_by_side, values_of};
use super::index::Walk;
use super::item::{
    self, ANSWER_SEAL, ERASURES, EXPIRES, FORGET, Item, NOT_KEPT, OUTCOME, OWNER, PIECES, Reading,
    STATE, STATUS, bytes, number,
};
use super::pieces::Body;

/// How many records of a purge are looked at before the next ones are fetched.
const SLICE: usize = 250;
/// How many of them are removed at the same time.
const WIDTH: usize = 16;

/// What is read of a record that may be due: everything but the answer itself.
const COLUMNS: &str = "k, s, f, h, o, e, ye, yf, ys, yn, yo, yc, yp";

/// A record of which something is over.
struct Due {
    lease: Lease,
    high: Fence,
    expires: Timestamp,
    forget: Timestamp,
    status: Option<u16>,
    not_kept: u8,
    outcome: Outcome,
    body: Option<Body>,
}

/// What was done about one record.
enum Handled {
    Forgotten,
    Stripped,
    /// It is not due, or not any more, or damaged: then it stays for people to look at.
    Left,
}

impl DynamoStore {
    pub(super) async fn purge_due(&self, limit: usize) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        let now = self.clock.now();
        let mut walk = Walk::due(self.sight.judging(now));
        while purged.total() < limit {
            let slice = SLICE.min(limit - purged.total());
            let ids = walk.next(&self.caller, slice).await?;
            if ids.is_empty() {
                break;
            }
            let calls = ids.into_iter().map(|id| {
                let store = self.clone();
                async move { store.handle(&id, now).await }
            });
            for handled in side_by_side(calls.collect::<Vec<_>>(), WIDTH).await? {
                match handled {
                    Handled::Forgotten => purged.forgotten += 1,
                    Handled::Stripped => purged.stripped += 1,
                    Handled::Left => {}
                }
            }
        }
        Ok(purged)
    }

    async fn handle(&self, id: &KeyId, now: Timestamp) -> Result<Handled, StoreError> {
        let found = self.caller.get(id, &item::RECORD_PART, Some(COLUMNS)).await?;
        let Some(due) = found.as_ref().and_then(|found| Due::read(id, found)) else {
            return Ok(Handled::Left);
        };
        let judging = self.sight.judging(now);
        let (done, handled) = if due.forget <= judging {
            (self.forget(&due, now).await?, Handled::Forgotten)
        } else if due.not_kept != NotKept::Expired.code() && due.expires <= judging {
            (self.strip(&due).await?, Handled::Stripped)
        } else {
            return Ok(Handled::Left);
        };
        if let Written::Failed { .. } = done {
            return Ok(Handled::Left);
        }
        if let Some(body) = due.body
            && let Err(error) = self.remove_pieces(body).await
        {
            tracing::debug!(%error, "pieces of a body are left for later");
        }
        Ok(handled)
    }

    async fn forget(&self, due: &Due, now: Timestamp) -> Result<Written, StoreError> {
        let put = self
            .caller
            .client
            .put_item()
            .set_item(Some(item::of_remainder(&due.lease.id, due.high, now)))
            .condition_expression(super::write::AS_READ)
            .set_expression_attribute_values(values_of(due.as_read()));
        self.caller.put(put).await
    }

    async fn strip(&self, due: &Due) -> Result<Written, StoreError> {
        let reason = NotKept::Expired;
        let stands = Answer::Tombstone(Tombstone { status: due.status, reason }).outcome();
        let seal = Seal::of_answer(&due.lease, &due.outcome, &stands);
        let mut values = due.as_read();
        values.extend([
            (":n", number(reason.code())),
            (":c", bytes(seal.as_bytes())),
            (":d", number(due.forget.micros())),
            (":kept", number(due.not_kept)),
        ]);
        let update = self
            .caller
            .client
            .update_item()
            .set_key(Some(item::key_of(&due.lease.id, &item::RECORD_PART)))
            .update_expression("SET yn = :n, yc = :c, d = :d REMOVE yh, yb, yp")
            .condition_expression(format!("{} AND yn = :kept", super::write::AS_READ))
            .set_expression_attribute_values(values_of(values));
        self.caller.update(update).await
    }
}

impl Due {
    /// `None` if the item is not a finished record, or is not what was written, as far as can be
    /// told without reading the answer.
    fn read(id: &KeyId, item: &Item) -> Option<Self> {
        let reading = Reading(item);
        let moment = |name| reading.number(name).ok().map(Timestamp::from_micros);
        let (expires, forget) = (moment(EXPIRES)?, moment(FORGET)?);
        let owner = Owner::from_bytes(reading.bytes(OWNER).ok()?.try_into().ok()?);
        let fence = reading.fence().ok()?;
        let lease = Lease { id: *id, fence, owner, until: forget };
        let status = reading.maybe(STATUS).ok()?.map(u16::try_from).transpose().ok()?;
        let not_kept = u8::try_from(reading.number(NOT_KEPT).ok()?).ok()?;
        let outcome = Outcome::from_bytes(reading.bytes(OUTCOME).ok()?.try_into().ok()?);
        let stands = match not_kept {
            0 => outcome,
            code => {
                let reason = NotKept::from_code(code)?;
                Answer::Tombstone(Tombstone { status, reason }).outcome()
            }
        };
        let seal = Seal::from_bytes(reading.bytes(ANSWER_SEAL).ok()?.try_into().ok()?);
        let sound = expires <= forget
            && reading.number(STATE) == Ok(i64::from(StateKind::Done.code()))
            && seal == Seal::of_answer(&lease, &outcome, &stands);
        let high = reading.maybe(item::HIGH).ok()?.and_then(Fence::from_number);
        let erasures = reading.maybe(ERASURES).ok()?.unwrap_or(0);
        let pieces = u32::try_from(reading.maybe(PIECES).ok()?.unwrap_or(0)).ok()?;
        let body = Body::new(&lease, erasures, outcome, pieces);
        let high = high.map_or(fence, |high| high.max(fence));
        sound.then_some(Self { lease, high, expires, forget, status, not_kept, outcome, body })
    }

    fn as_read(&self) -> super::call::Values<'static> {
        vec![
            (":was", number(self.lease.fence.number())),
            (":o", bytes(self.lease.owner.as_bytes())),
            (":v", number(RECORD_FORMAT)),
            (":s", number(StateKind::Done.code())),
        ]
    }
}
