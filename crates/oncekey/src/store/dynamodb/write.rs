//! What an owner writes after its claim. Each is one conditional write on fence and owner; the item
//! that stands there if the condition does not hold says whether it was done before.

use std::time::Duration;

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::ReturnValue;
use oncekey_core::decide::{Act, Judgement, judge};
use oncekey_core::seal::RECORD_FORMAT;
use oncekey_core::store::Times;
use oncekey_core::{
    Completion, ErrorKind, Fence, Lease, Renewal, Sent, StateKind, StoreError, Timestamp, Write,
};
use tokio::time::{Instant, timeout_at};

use super::DynamoStore;
use super::call::{Earlier, Values, Written, side_by_side, values_of};
use super::error::contended;
use super::item::{self, BEAT, Item, Reading, Slot, bytes, number};
use super::pieces::Spread;
use crate::store::parts::CompletionParts;

/// How often a write is tried anew because somebody else changed the record in between. Every turn
/// that is lost is a step forward of somebody else, and no key has that many steps in it.
pub(super) const TURNS: usize = 16;

/// How many renewals go out at the same time. A node with a thousand attempts under way renews
/// them in a few hundred milliseconds, and leaves connections for everybody else.
const RENEWALS: usize = 32;

/// Renewals end after a quarter of the span that is asked for, and not before this: one that hangs must
/// not hide what became of the others from whoever waits for a third of the span. A second is what a
/// table that is moved takes, with another for a try after that.
const SHORTEST_ROUND: Duration = Duration::from_secs(2);
/// And never later than this, because nobody waits longer than ten seconds for a store: what is given up then
/// is the answer about all of them.
const LONGEST_ROUND: Duration = Duration::from_secs(7);

/// Fence, owner and state are as they were read, and so is the format: what a newer version has written
/// means something else, and is not written over.
pub(super) const AS_READ: &str = "f = :was AND o = :o AND v = :v AND s = :s";

const HELD: &str = "f = :f AND o = :o AND v = :v AND s = :running";
const OPEN: &str = "f = :f AND o = :o AND v = :v AND s IN (:running, :unknown, :parked)";
const NOT_KNOWN_YET: &str = "f = :f AND o = :o AND v = :v AND s IN (:running, :parked)";

impl DynamoStore {
    pub(super) async fn renew_one(
        &self,
        lease: &Lease,
        span: Duration,
    ) -> Result<Renewal, StoreError> {
        for _ in 0..TURNS {
            let lease = Lease { until: self.clock.now().after(span), ..*lease };
            let old = match self.lengthen(&lease, span).await? {
                Written::Done(_) => return Ok(Renewal::Until(lease.until)),
                Written::Failed { old, .. } => old,
            };
            let standing = match Slot::standing(old.as_ref()) {
                Ok(standing) => standing,
                Err(damage) => {
                    tracing::error!(%damage, "the lease of a damaged record is lost");
                    return Ok(Renewal::Lost);
                }
            };
            match judge(standing, &lease, Act::Renew) {
                Judgement::Fenced => return Ok(Renewal::Lost),
                Judgement::Apply | Judgement::Already => {}
            }
        }
        Err(contended())
    }

    /// Renews side by side. Each is a write of its own: a transaction over all of them would fail
    /// as a whole for one that is lost, and cost twice as much. So one that fails, because its
    /// partition is throttled for example, keeps none of the others from being renewed.
    pub(super) async fn renew_all(
        &self,
        leases: &[Lease],
        span: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        let deadline = Instant::now() + (span / 4).clamp(SHORTEST_ROUND, LONGEST_ROUND);
        let renewing = Self { caller: self.renewals.clone(), ..self.clone() };
        let calls = leases.iter().map(|lease| {
            let (store, lease) = (renewing.clone(), *lease);
            async move {
                let renewed = timeout_at(deadline, store.renew_one(&lease, span)).await;
                Ok(renewed.unwrap_or_else(|_| Err(late())))
            }
        });
        let (mut renewals, mut failed) = (Vec::with_capacity(leases.len()), None);
        for renewed in side_by_side(calls.collect::<Vec<_>>(), RENEWALS).await? {
            renewals.push(renewed.unwrap_or_else(|error| {
                failed = Some(error);
                Renewal::Failed
            }));
        }
        match failed {
            Some(error) if renewals.iter().all(|renewal| *renewal == Renewal::Failed) => Err(error),
            Some(error) => {
                tracing::debug!(%error, "some leases could not be renewed");
                Ok(renewals)
            }
            None => Ok(renewals),
        }
    }

    /// Writes the end of a lease and counts the beat.
    pub(super) async fn lengthen(
        &self,
        lease: &Lease,
        span: Duration,
    ) -> Result<Written, StoreError> {
        let mut values = held_by(lease);
        values.extend([
            (":running", number(StateKind::Running.code())),
            (":until", number(lease.until.micros())),
            (":span", number(micros_of(span))),
            (":one", number(1)),
        ]);
        let update = self
            .change(lease)
            .update_expression("SET a = :until, l = :span ADD b :one")
            .return_values(ReturnValue::UpdatedNew)
            .condition_expression(HELD)
            .set_expression_attribute_values(values_of(values));
        let written = self.caller.update(update).await?;
        if let Written::Done(Some(changed)) = &written {
            self.sight.note(&lease.id, lease.fence, Reading(changed).number(BEAT)?);
        }
        Ok(written)
    }

    pub(super) async fn mark_sent(&self, lease: &Lease) -> Result<Write, StoreError> {
        let mut values = held_by(lease);
        values.extend([
            (":running", number(StateKind::Running.code())),
            (":m", number(Sent::Yes.code())),
        ]);
        let update = self
            .change(lease)
            .update_expression("SET m = :m")
            .condition_expression(HELD)
            .set_expression_attribute_values(values_of(values));
        self.write(lease, Act::Send, update).await
    }

    pub(super) async fn mark_unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        let mut values = held_by(lease);
        values.extend([
            (":running", number(StateKind::Running.code())),
            (":parked", number(StateKind::Parked.code())),
            (":unknown", number(StateKind::Unknown.code())),
            (":now", number(self.clock.now().micros())),
        ]);
        let update = self
            .change(lease)
            .update_expression("SET s = :unknown, a = :now")
            .condition_expression(NOT_KNOWN_YET)
            .set_expression_attribute_values(values_of(values));
        self.write(lease, Act::Unknown, update).await
    }

    /// Puts the remainder in the place of the record: its fence must not be forgotten with it.
    pub(super) async fn give_back(&self, lease: &Lease) -> Result<Write, StoreError> {
        for _ in 0..TURNS {
            let now = self.clock.now();
            let (old, earlier) = match self.put_remainder(lease, now).await? {
                Written::Done(_) => return Ok(Write::Applied),
                Written::Failed { old, earlier } => (old, earlier),
            };
            let slot = Slot::read(old.as_ref())?;
            // An earlier try of this very call did it, and its answer was lost.
            if let (Slot::Gone(fence), Earlier::Doubt) = (&slot, earlier)
                && *fence == lease.fence
            {
                return Ok(Write::Applied);
            }
            match judge(Slot::standing(old.as_ref())?, lease, Act::Release) {
                Judgement::Fenced => return Ok(Write::Fenced),
                Judgement::Apply | Judgement::Already => {}
            }
        }
        Err(contended())
    }

    async fn put_remainder(&self, lease: &Lease, now: Timestamp) -> Result<Written, StoreError> {
        // The higher fence of a restored record, if there is one, is not known here: a record that
        // has one is read first.
        let mut values = held_by(lease);
        values.extend(open_states());
        let put = self
            .caller
            .client
            .put_item()
            .set_item(Some(item::of_remainder(&lease.id, lease.fence, now)))
            .condition_expression(format!("{OPEN} AND attribute_not_exists(h)"))
            .set_expression_attribute_values(values_of(values.clone()));
        let written = self.caller.put(put).await?;
        let Written::Failed { old: Some(old), .. } = &written else { return Ok(written) };
        let Some(high) = Reading(old).maybe(item::HIGH)?.and_then(Fence::from_number) else {
            return Ok(written);
        };
        values.push((":h", number(high.number())));
        let put = self
            .caller
            .client
            .put_item()
            .set_item(Some(item::of_remainder(&lease.id, high.max(lease.fence), now)))
            .condition_expression(format!("{OPEN} AND h = :h"))
            .set_expression_attribute_values(values_of(values));
        self.caller.put(put).await
    }

    pub(super) async fn finish(
        &self,
        lease: &Lease,
        completion: &Completion,
    ) -> Result<Write, StoreError> {
        let act = Act::Complete(completion.answer.outcome());
        for _ in 0..TURNS {
            let spread = match self.spread(lease, completion).await? {
                Ok(spread) => spread,
                Err(Judgement::Already) => return Ok(Write::Applied),
                Err(Judgement::Fenced | Judgement::Apply) => return Ok(Write::Fenced),
            };
            let update = self.completing(lease, completion, spread);
            let old = match self.caller.update(update).await? {
                Written::Done(_) => return Ok(Write::Applied),
                Written::Failed { old, .. } => old,
            };
            match judge(Slot::standing(old.as_ref())?, lease, act) {
                Judgement::Already => return Ok(Write::Applied),
                Judgement::Fenced => return Ok(Write::Fenced),
                // Erased meanwhile, and the pieces with it: they are written again.
                Judgement::Apply => {}
            }
        }
        Err(contended())
    }

    fn completing(
        &self,
        lease: &Lease,
        completion: &Completion,
        spread: Spread,
    ) -> UpdateItemFluentBuilder {
        let parts = CompletionParts::new(lease, completion, spread.pieces);
        let Times { at, expires, forget } = parts.times(lease.fence, self.clock.now());
        let mut set = item::Writing::default();
        set.number(item::STATE, StateKind::Done.code());
        set.number(item::MOMENT, at.micros());
        set.text(item::WORK, item::work_of(&lease.id, StateKind::Done));
        set.number(item::WHEN, expires.micros());
        set.number(item::EXPIRES, expires.micros());
        set.number(item::FORGET, forget.micros());
        set.number(item::NOT_KEPT, parts.not_kept);
        set.bytes(item::OUTCOME, parts.outcome.as_bytes());
        set.bytes(item::ANSWER_SEAL, parts.seal.as_bytes());
        set.bytes(item::HEADERS, &parts.headers);
        set.bytes(item::BODY, &parts.body);
        if let Some(status) = parts.status {
            set.number(item::STATUS, status);
        }
        if let Some(garbage) = item::garbage_after(forget) {
            set.number(item::GARBAGE, garbage);
        }
        let mut values = held_by(lease);
        values.extend(open_states());
        let mut condition = OPEN.to_owned();
        if spread.pieces > 0 {
            set.number(item::PIECES, spread.pieces);
            condition += match spread.erasures {
                0 => " AND attribute_not_exists(e)",
                erasures => {
                    values.push((":e", number(erasures)));
                    " AND e = :e"
                }
            };
        }
        let (expression, set) = set_expression(&set.0);
        self.change(lease)
            .update_expression(expression)
            .condition_expression(condition)
            .set_expression_attribute_values(values_of(values).map(|mut all| {
                all.extend(set);
                all
            }))
    }

    /// Makes a change that one update carries, or finds out why it cannot be made.
    async fn write(
        &self,
        lease: &Lease,
        act: Act,
        update: UpdateItemFluentBuilder,
    ) -> Result<Write, StoreError> {
        for _ in 0..TURNS {
            let old = match self.caller.update(update.clone()).await? {
                Written::Done(_) => return Ok(Write::Applied),
                Written::Failed { old, .. } => old,
            };
            match judge(Slot::standing(old.as_ref())?, lease, act) {
                Judgement::Already => return Ok(Write::Applied),
                Judgement::Fenced => return Ok(Write::Fenced),
                Judgement::Apply => {}
            }
        }
        Err(contended())
    }

    /// An update of the record of a lease.
    fn change(&self, lease: &Lease) -> UpdateItemFluentBuilder {
        let key = item::key_of(&lease.id, &item::RECORD_PART);
        self.caller.client.update_item().set_key(Some(key))
    }
}

/// A renewal was given up so that the others could be told. It may have been made.
fn late() -> StoreError {
    StoreError::new(ErrorKind::Ambiguous, "DynamoDB did not answer in time for this lease to last")
}

/// The proof of a lease.
fn held_by(lease: &Lease) -> Values<'static> {
    vec![
        (":f", number(lease.fence.number())),
        (":o", bytes(lease.owner.as_bytes())),
        (":v", number(RECORD_FORMAT)),
    ]
}

fn open_states() -> [(&'static str, aws_sdk_dynamodb::types::AttributeValue); 3] {
    [
        (":running", number(StateKind::Running.code())),
        (":unknown", number(StateKind::Unknown.code())),
        (":parked", number(StateKind::Parked.code())),
    ]
}

/// `SET` for every attribute, with values that are named like them.
pub(super) fn set_expression(attributes: &Item) -> (String, Item) {
    let mut names: Vec<&String> = attributes.keys().collect();
    names.sort();
    let terms: Vec<String> = names.iter().map(|name| format!("{name} = :new_{name}")).collect();
    let values = attributes.iter().map(|(name, value)| (format!(":new_{name}"), value.clone()));
    (format!("SET {}", terms.join(", ")), values.collect())
}

/// A span as it is stored. One of a million years is "for ever".
pub(super) fn micros_of(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
