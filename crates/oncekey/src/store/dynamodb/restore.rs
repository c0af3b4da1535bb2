//! Records that come from elsewhere, and which table this is.

use oncekey_core::restore::{self, Restored, supersedes};
use oncekey_core::{Lineage, Record, State, StoreError, Timestamp};

use super::DynamoStore;
use super::call::{Written, values_of};
use super::claim::as_it_was;
use super::error::contended;
use super::item::{self, Beside, Found, Slot, number};
use super::schema;
use super::write::{TURNS, micros_of};

impl DynamoStore {
    pub(super) async fn put_back(&self, record: &Record) -> Result<Restored, StoreError> {
        restore::check(record)?;
        for _ in 0..TURNS {
            let found = self.caller.get(&record.id, &item::RECORD_PART, None).await?;
            if !supersedes(record, Slot::standing(found.as_ref())?) {
                return Ok(Restored::Kept);
            }
            let slot = Slot::read(found.as_ref())?;
            let now = self.clock.now();
            // The same attempt, further on: its pieces must not meet those of an erasure.
            let same = match &slot {
                Slot::Held(found) if found.record().fence == record.fence => Some(&**found),
                Slot::Held(_) | Slot::Gone(_) | Slot::Empty => None,
            };
            let erasures = same.map_or(0, |found| found.erasures);
            let beat = beat_after(same, now);
            // How long the lease was meant to be is not told; what is left of it is. Whoever renews it
            // here may rely on more than that.
            let span = match record.state {
                State::Running { until, .. } => {
                    micros_of(until.since(now)).max(same.map_or(0, |found| found.span))
                }
                State::Done { .. } | State::Unknown { .. } | State::Parked { .. } => 0,
            };
            let spread = self.spread_of(record, erasures).await?;
            let high = slot.highest().filter(|high| *high > record.fence);
            let high = high.map_or(0, |high| high.number());
            let beside = Beside { beat, span, erasures, high, pieces: spread.pieces };
            let (mut condition, mut values) = {
                let (condition, values) = as_it_was(&slot);
                (condition.to_owned(), values)
            };
            match same.map(|found| found.erasures) {
                None => {}
                Some(0) => condition += " AND attribute_not_exists(e)",
                Some(erasures) => {
                    condition += " AND e = :e";
                    values.push((":e", number(erasures)));
                }
            }
            let put = self
                .caller
                .client
                .put_item()
                .set_item(Some(item::of_record(record, beside)))
                .condition_expression(condition)
                .set_expression_attribute_values(values_of(values));
            if let Written::Done(_) = self.caller.put(put).await? {
                // Watched from here on, as what is granted here is.
                self.sight.note(&record.id, record.fence, beat);
                if let Slot::Held(found) = &slot {
                    self.clear_away(Some(found)).await;
                }
                return Ok(Restored::Written);
            }
        }
        Err(contended())
    }

    /// A restored backup is another table; an emptied one has another epoch.
    pub(super) async fn which(&self) -> Result<Lineage, StoreError> {
        let (table, _) = schema::describe(&self.caller).await?;
        let table = table.ok_or_else(|| self.caller.place.no_table())?;
        let epoch = schema::epoch(&self.caller).await?;
        Ok(Lineage::new(format!("dynamodb/{}/{epoch}", table.table_id().unwrap_or("local"))))
    }
}

/// The beat of a record that is put back: above every beat that anybody can have seen under its fence, or
/// else the owner's next renewals would count up to one of those again, and look as if nobody had
/// renewed in between. What the table has lost may have been ahead of what is there, so the clock counts
/// instead: no owner renews a million times a second.
fn beat_after(same: Option<&Found>, now: Timestamp) -> i64 {
    let above = same.map_or(0, |found| found.beat.saturating_add(1));
    above.max(now.micros())
}
