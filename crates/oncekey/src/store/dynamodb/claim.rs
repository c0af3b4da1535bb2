//! Asking to own a key: one conditional write if nobody does, and the item that stands in the way
//! if somebody does, in the same answer.

use oncekey_core::seal::RECORD_FORMAT;
use oncekey_core::{
    Claim, Claimed, Decision, Fence, Grant, Lease, Record, Refusal, State, StoreError, Timestamp,
};

use super::DynamoStore;
use super::call::{Values, Written, values_of};
use super::error::contended;
use super::item::{self, Beside, Found, Item, Slot, bytes, number};
use super::write::{AS_READ, TURNS, micros_of};

/// Nothing is there, or what is left of a record that is gone and whose fence is lower than the
/// clock: then the clock alone is the next fence.
const VACANT: &str = "attribute_not_exists(k) OR (s = :gone AND f < :f)";
/// The remainder that was read is still there.
const STILL_GONE: &str = "s = :gone AND f = :was";

impl DynamoStore {
    pub(super) async fn ask(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let now = self.clock.now();
        let fence = Fence::next(None, now);
        let values = vec![(":gone", number(item::GONE)), (":f", number(fence.number()))];
        let first = (Grant::Fresh, None);
        let mut old = match self.grant(claim, first, fence, now, (VACANT, values)).await? {
            Attempt::Won(claimed) => return Ok(claimed),
            Attempt::Lost(old) => old,
        };
        let mut is_read_anew = false;
        for _ in 0..TURNS {
            let slot = Slot::read(old.as_ref())?;
            let now = self.clock.now();
            let (found, decision) = match &slot {
                Slot::Empty | Slot::Gone(_) => (None, Decision::Run(Grant::Fresh)),
                Slot::Held(found) => match self.sight.decide(found, claim, now) {
                    Some(decision) => (Some(&**found), decision),
                    None => {
                        if is_read_anew {
                            self.sight.forget(&claim.id);
                        }
                        is_read_anew = true;
                        old = self.caller.get(&claim.id, &item::RECORD_PART, None).await?;
                        continue;
                    }
                },
            };
            old = match (decision, found) {
                (Decision::Refuse(refusal), Some(_)) => {
                    let Slot::Held(found) = slot else { unreachable!("a refusal has a record") };
                    match self.refuse(*found, refusal, now).await? {
                        Some(lost) => return Ok(lost),
                        // Its pieces were removed after it was read: decide anew.
                        None => self.caller.get(&claim.id, &item::RECORD_PART, None).await?,
                    }
                }
                (Decision::Run(Grant::Again), Some(found)) => {
                    match self.extend(claim, found, now).await? {
                        Attempt::Won(claimed) => return Ok(claimed),
                        Attempt::Lost(old) => old,
                    }
                }
                (Decision::Run(grant), found) => {
                    let fence = Fence::next(slot.highest(), now);
                    let condition = as_it_was(&slot);
                    match self.grant(claim, (grant, found), fence, now, condition).await? {
                        Attempt::Won(claimed) => {
                            self.clear_away(found).await;
                            return Ok(claimed);
                        }
                        Attempt::Lost(old) => old,
                    }
                }
                (Decision::Refuse(_), None) => unreachable!("a refusal is about a record"),
            };
        }
        Err(contended())
    }

    /// Writes a new attempt, under a condition on what is there.
    async fn grant(
        &self,
        claim: &Claim,
        (grant, found): (Grant, Option<&Found>),
        fence: Fence,
        now: Timestamp,
        (condition, values): (&str, Values<'_>),
    ) -> Result<Attempt, StoreError> {
        let before = found.map(Found::record);
        let earlier = grant.earlier(before);
        let until = now.after(claim.lease);
        let record = Record {
            id: claim.id,
            fence,
            owner: claim.owner,
            fingerprint: claim.fingerprint,
            class: claim.class,
            created: grant.created(before, now),
            origin: claim.origin.clone(),
            places: claim.places.clone(),
            state: State::Running { until, sent: claim.sent.or(earlier) },
        };
        let beside = Beside { span: micros_of(claim.lease), ..Beside::default() };
        let put = self
            .caller
            .client
            .put_item()
            .set_item(Some(item::of_record(&record, beside)))
            .condition_expression(condition)
            .set_expression_attribute_values(values_of(values));
        match self.caller.put(put).await? {
            Written::Done(_) => {
                self.sight.note(&claim.id, fence, 0);
                let lease = Lease { id: claim.id, fence, owner: claim.owner, until };
                Ok(Attempt::Won(Claimed::Won { lease, grant, earlier }))
            }
            Written::Failed { old, .. } => Ok(Attempt::Lost(old)),
        }
    }

    /// Extends the lease of an owner that asks again.
    async fn extend(
        &self,
        claim: &Claim,
        found: &Found,
        now: Timestamp,
    ) -> Result<Attempt, StoreError> {
        let lease = Lease { until: now.after(claim.lease), ..found.record().lease() };
        match self.lengthen(&lease, claim.lease).await? {
            Written::Done(_) => {
                let earlier = Grant::Again.earlier(Some(found.record()));
                Ok(Attempt::Won(Claimed::Won { lease, grant: Grant::Again, earlier }))
            }
            Written::Failed { old, .. } => Ok(Attempt::Lost(old)),
        }
    }

    /// Tells a loser what stands in its way; `None` if that has changed meanwhile.
    async fn refuse(
        &self,
        found: Found,
        refusal: Refusal,
        now: Timestamp,
    ) -> Result<Option<Claimed>, StoreError> {
        // A body of megabytes is read only if it is going to be sent.
        let record = match refusal {
            Refusal::Replay => self.whole(found).await?,
            Refusal::Mismatch
            | Refusal::NotRetained
            | Refusal::Expired
            | Refusal::InProgress(_)
            | Refusal::Unknown
            | Refusal::Parked => Some(found.found.record),
        };
        Ok(record.map(|record| Claimed::Lost { refusal, record: Box::new(record), now }))
    }
}

/// One try at a write.
enum Attempt {
    /// The caller owns the key.
    Won(Claimed),
    /// This was there instead.
    Lost(Option<Item>),
}

/// The condition that nothing has changed since the item was read.
///
/// The send mark is part of it: an owner that was found not to have sent may announce its send a
/// moment later, and then it must not be taken over. So is the beat, which every renewal changes.
pub(super) fn as_it_was(slot: &Slot) -> (&'static str, Values<'static>) {
    match slot {
        Slot::Empty => ("attribute_not_exists(k)", Vec::new()),
        Slot::Gone(fence) => {
            (STILL_GONE, vec![(":gone", number(item::GONE)), (":was", number(fence.number()))])
        }
        Slot::Held(found) => {
            let Record { fence, owner, state, .. } = found.record();
            let mut values = vec![
                (":was", number(fence.number())),
                (":o", bytes(owner.as_bytes())),
                (":v", number(RECORD_FORMAT)),
                (":s", number(state.kind().code())),
            ];
            match state {
                State::Running { sent, .. } => {
                    values.extend([(":m", number(sent.code())), (":b", number(found.beat))]);
                    ("f = :was AND o = :o AND v = :v AND s = :s AND m = :m AND b = :b", values)
                }
                State::Done { .. } | State::Unknown { .. } | State::Parked { .. } => {
                    (AS_READ, values)
                }
            }
        }
    }
}
