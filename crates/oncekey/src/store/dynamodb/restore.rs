//! Records that come from elsewhere, and which table this is.

use oncekey_core::restore::{self, Restored, supersedes};
use oncekey_core::{Lineage, Record, State, StoreError};

use super::DynamoStore;
use super::call::{Written, values_of};
use super::claim::as_it_was;
use super::error::contended;
use super::item::{self, Beside, Slot, number};
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
                Slot::Held(found) if found.record().fence == record.fence => Some(found.erasures),
                Slot::Held(_) | Slot::Gone(_) | Slot::Empty => None,
            };
            let erasures = same.unwrap_or(0);
            // How long the lease was meant to be is not told; what is left of it is.
            let span = match record.state {
                State::Running { until, .. } => micros_of(until.since(now)),
                State::Done { .. } | State::Unknown { .. } | State::Parked { .. } => 0,
            };
            let spread = self.spread_of(record, erasures).await?;
            let high = slot.highest().filter(|high| *high > record.fence);
            let high = high.map_or(0, |high| high.number());
            let beside = Beside { span, erasures, high, pieces: spread.pieces };
            let (mut condition, mut values) = {
                let (condition, values) = as_it_was(&slot);
                (condition.to_owned(), values)
            };
            match same {
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
                self.sight.note(&record.id, record.fence, 0);
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
