//! Walking through the index: open records by age, finished ones by when they are due.
//!
//! The index is spread over shards, because one partition could not take the writes of a busy
//! table. A walk merges them. It lags a little behind the table, so whatever it names is read from
//! the table before anything is made of it.

use std::collections::VecDeque;

use aws_sdk_dynamodb::operation::query::builders::QueryFluentBuilder;
use oncekey_core::browse::Cursor;
use oncekey_core::{ErrorKind, KeyId, StateKind, StoreError, Timestamp};

use super::call::{Caller, side_by_side, values_of};
use super::item::{self, Item, KEY, Reading, SHARDS, WHEN, WORK, Writing, number};
use super::schema::INDEX;

/// A walk under way.
#[derive(Debug)]
pub(super) struct Walk {
    what: What,
    /// Nothing later than this.
    latest: Timestamp,
    shards: Vec<Shard>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Records that are not finished, newest first.
    Open,
    /// Finished records, those that have been due for longest first.
    Due,
}

#[derive(Clone, Debug, Default)]
struct Shard {
    number: u8,
    /// The last one that was taken from here.
    taken: Option<Entry>,
    /// Those that were read ahead.
    ahead: VecDeque<Entry>,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    MoreToRead,
    ReadToTheEnd,
}

type Entry = (i64, KeyId);

/// How many entries of a shard are read at least.
const LEAST: usize = 32;

/// How long the place of one shard is in a cursor.
const PLACE: usize = 8 + 32;

impl Walk {
    pub(super) fn due(latest: Timestamp) -> Self {
        Self { what: What::Due, latest, shards: Shard::all() }
    }

    pub(super) fn open(latest: Timestamp, after: Option<&Cursor>) -> Result<Self, StoreError> {
        let mut walk = Self { what: What::Open, latest, shards: Shard::all() };
        let Some(Cursor(bytes)) = after else { return Ok(walk) };
        if bytes.len() != walk.shards.len() * PLACE {
            return Err(foreign_cursor());
        }
        for (shard, place) in walk.shards.iter_mut().zip(bytes.chunks(PLACE)) {
            let (when, id) = place.split_at(8);
            let when = i64::from_be_bytes(when.try_into().map_err(|_| foreign_cursor())?);
            let id = KeyId::from_bytes(id.try_into().map_err(|_| foreign_cursor())?);
            // No record was created at the end of time.
            shard.taken = (when != i64::MAX).then_some((when, id));
        }
        Ok(walk)
    }

    /// Where the walk is now.
    pub(super) fn cursor(&self) -> Cursor {
        let mut bytes = Vec::with_capacity(self.shards.len() * PLACE);
        for shard in &self.shards {
            let (when, id) = shard.taken.unwrap_or((i64::MAX, KeyId::from_bytes([0; 32])));
            bytes.extend_from_slice(&when.to_be_bytes());
            bytes.extend_from_slice(id.as_bytes());
        }
        Cursor(bytes)
    }

    /// Returns true if and only if nothing is left.
    pub(super) fn is_over(&self) -> bool {
        self.shards.iter().all(Shard::is_over)
    }

    /// The next keys, at most `count`; none only at the end.
    pub(super) async fn next(
        &mut self,
        caller: &Caller,
        count: usize,
    ) -> Result<Vec<KeyId>, StoreError> {
        let mut ids = Vec::new();
        while ids.len() < count && !self.is_over() {
            self.read_ahead(caller, count).await?;
            while ids.len() < count && self.shards.iter().all(Shard::is_ready) {
                let Some(shard) = self.foremost() else { break };
                let taken = shard.ahead.pop_front();
                ids.extend(taken.map(|(_, id)| id));
                shard.taken = taken.or(shard.taken);
            }
        }
        Ok(ids)
    }

    /// The shard whose next entry comes first.
    fn foremost(&mut self) -> Option<&mut Shard> {
        let heads = self.shards.iter_mut().filter(|shard| !shard.ahead.is_empty());
        match self.what {
            What::Open => heads.max_by_key(|shard| shard.ahead.front().map(|(when, _)| *when)),
            What::Due => heads.min_by_key(|shard| shard.ahead.front().map(|(when, _)| *when)),
        }
    }

    /// Reads on wherever nothing is left of what was read.
    async fn read_ahead(&mut self, caller: &Caller, count: usize) -> Result<(), StoreError> {
        // Twice the share of a shard: most walks then need one read of each. Never a few: keys are
        // small, and what a short list reads too much is less than another round trip.
        let share = count.div_ceil(usize::from(SHARDS) / 2).max(LEAST);
        let empty = self.shards.iter().filter(|shard| !shard.is_ready());
        let queries = empty.map(|shard| {
            let (number, query, caller) =
                (shard.number, self.query(caller, shard, share), caller.clone());
            async move { caller.read(|| query.clone().send()).await.map(|page| (number, page)) }
        });
        let pages = side_by_side(queries.collect::<Vec<_>>(), usize::from(SHARDS)).await?;
        for (number, page) in pages {
            let Some(shard) = self.shards.get_mut(usize::from(number)) else { continue };
            if page.last_evaluated_key.is_none() {
                shard.progress = Progress::ReadToTheEnd;
            }
            for item in page.items.unwrap_or_default() {
                shard.ahead.push_back(entry_of(&item)?);
            }
        }
        Ok(())
    }

    fn query(&self, caller: &Caller, shard: &Shard, share: usize) -> QueryFluentBuilder {
        let state = match self.what {
            What::Open => StateKind::Running,
            What::Due => StateKind::Done,
        };
        let work = item::work_shard(shard.number, state);
        let start = shard.taken.map(|(when, id)| {
            let mut start = Writing(item::key_of(&id, &item::RECORD_PART));
            start.text(WORK, work.clone());
            start.number(WHEN, when);
            start.0
        });
        let values = vec![
            (":w", aws_sdk_dynamodb::types::AttributeValue::S(work)),
            (":d", number(self.latest.micros())),
        ];
        caller
            .client
            .query()
            .table_name(&caller.place.table)
            .index_name(INDEX)
            .key_condition_expression("w = :w AND d <= :d")
            .set_expression_attribute_values(values_of(values))
            .set_exclusive_start_key(start)
            .scan_index_forward(self.what == What::Due)
            .limit(i32::try_from(share).unwrap_or(i32::MAX))
    }
}

impl Shard {
    fn all() -> Vec<Self> {
        (0..SHARDS).map(|number| Self { number, ..Self::default() }).collect()
    }

    /// Whether its next entry is known, or that there is none.
    fn is_ready(&self) -> bool {
        !self.ahead.is_empty() || self.progress == Progress::ReadToTheEnd
    }

    fn is_over(&self) -> bool {
        self.ahead.is_empty() && self.progress == Progress::ReadToTheEnd
    }
}

fn entry_of(item: &Item) -> Result<Entry, StoreError> {
    let reading = Reading(item);
    let id = reading.bytes(KEY)?.try_into().map_err(|_| foreign_item())?;
    Ok((reading.number(WHEN)?, KeyId::from_bytes(id)))
}

/// A cursor of another store, or a damaged one, is the caller's mistake.
pub(super) fn foreign_cursor() -> StoreError {
    StoreError::new(
        ErrorKind::Rejected,
        "the cursor is not one of this list: begin at the first page",
    )
}

fn foreign_item() -> StoreError {
    StoreError::new(
        ErrorKind::Corrupt,
        "the index names an item that this store did not write: keep other data out of the table",
    )
}
