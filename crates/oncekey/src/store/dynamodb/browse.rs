//! Lists, counts and finds records for operators.
//!
//! What is not finished is found through the index, newest first. A list of everything, or of
//! finished records, reads the table from one end to the other, in no order that means anything, a
//! bounded part at a time: an index of all records would make every claim and every completion
//! dearer for a question that people ask a few times a day.

use std::collections::{HashMap, HashSet};

use aws_sdk_dynamodb::types::KeysAndAttributes;
use oncekey_core::browse::{Count, Cursor, Filter, Listing, MAX_PAGE, Page, Summary};
use oncekey_core::record::Text;
use oncekey_core::{Class, Fence, KeyId, Origin, StateKind, StoreError, Timestamp};

use super::DynamoStore;
use super::call::values_of;
use super::index::{Walk, foreign_cursor};
use super::item::{self, Item, RECORD_PART, Reading, bytes};

/// What is read of a record to list it: everything but its answer.
const COLUMNS: &str = "k, p, s, f, c, t, a, xk, xs, xr, xq, ye, yf, ys";
/// How many items DynamoDB gives in one call at most.
const BATCH: usize = 100;
/// How many mebibytes one page of a list reads at most. Then it ends early and says where to go on.
const PAGE_READS: usize = 32;
/// How many mebibytes a count reads at most. Then it says "at least".
const COUNT_READS: usize = 256;

/// A part of the table that was read.
struct Part {
    summaries: Vec<Summary>,
    /// Where to go on.
    after: Option<Item>,
}

impl DynamoStore {
    pub(super) async fn list_page(
        &self,
        filter: &Filter,
        page: &Page,
    ) -> Result<Listing, StoreError> {
        let now = self.clock.now();
        match filter.state {
            Some(StateKind::Running | StateKind::Unknown | StateKind::Parked) => {
                self.list_open(filter, page, now).await
            }
            Some(StateKind::Done) | None => {
                let after = page.after.as_ref().map(start_of).transpose()?;
                let part = self.scan(filter, after, page.bounded_limit(), PAGE_READS, now).await?;
                let next = part.after.as_ref().map(cursor_of);
                Ok(Listing { summaries: part.summaries, next: next.transpose()?, now })
            }
        }
    }

    async fn list_open(
        &self,
        filter: &Filter,
        page: &Page,
        now: Timestamp,
    ) -> Result<Listing, StoreError> {
        let limit = page.bounded_limit();
        let latest =
            filter.older_than.map_or(Timestamp::from_micros(i64::MAX), |age| now.before(age));
        let mut walk = Walk::open(latest, page.after.as_ref())?;
        let mut summaries = Vec::new();
        while summaries.len() < limit {
            let ids = walk.next(&self.caller, limit - summaries.len()).await?;
            if ids.is_empty() {
                break;
            }
            let found = self.read_many(ids).await?;
            summaries.extend(found.into_iter().filter(|found| is_meant(filter, found, now)));
        }
        let next = (!walk.is_over()).then(|| walk.cursor());
        Ok(Listing { summaries, next, now })
    }

    pub(super) async fn count_up_to(
        &self,
        filter: &Filter,
        cap: usize,
    ) -> Result<Count, StoreError> {
        let most = cap.saturating_add(1);
        let mut counted = 0;
        match filter.state {
            Some(StateKind::Running | StateKind::Unknown | StateKind::Parked) => {
                let mut page = Page { after: None, limit: MAX_PAGE };
                while counted < most {
                    let listing = self.list_page(filter, &page).await?;
                    counted += listing.summaries.len();
                    match listing.next {
                        Some(next) => page.after = Some(next),
                        None => break,
                    }
                }
            }
            Some(StateKind::Done) | None => {
                let now = self.clock.now();
                let part = self.scan(filter, None, most, COUNT_READS, now).await?;
                counted = part.summaries.len();
                if counted <= cap && part.after.is_some() {
                    return Ok(Count::AtLeast(counted));
                }
            }
        }
        Ok(if counted > cap { Count::AtLeast(cap) } else { Count::Exactly(counted) })
    }

    /// Reads the whole table if it must: somebody looks for one key and wants to find it.
    pub(super) async fn find_all(
        &self,
        key: &Text,
        limit: usize,
    ) -> Result<Vec<Summary>, StoreError> {
        let now = self.clock.now();
        let limit = limit.min(MAX_PAGE);
        let mut found = Vec::new();
        let mut after = None;
        while found.len() < limit {
            let part = self.scan(&Filter::default(), after, usize::MAX, 1, now).await?;
            found.extend(part.summaries.into_iter().filter(|summary| summary.origin.key == *key));
            after = part.after;
            if after.is_none() {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Reads on through the table until there are `limit` records that are meant, or `reads`
    /// mebibytes have been read.
    async fn scan(
        &self,
        filter: &Filter,
        mut after: Option<Item>,
        limit: usize,
        reads: usize,
        now: Timestamp,
    ) -> Result<Part, StoreError> {
        let mut summaries = Vec::new();
        let scan = self
            .caller
            .client
            .scan()
            .table_name(&self.caller.place.table)
            .filter_expression("p = :record")
            .set_expression_attribute_values(values_of(vec![(":record", bytes(&RECORD_PART))]))
            .projection_expression(COLUMNS)
            .consistent_read(true);
        for _ in 0..reads {
            let page = scan.clone().set_exclusive_start_key(after);
            let page = self.caller.read(|| page.clone().send()).await?;
            after = page.last_evaluated_key;
            let items = page.items.unwrap_or_default();
            let total = items.len();
            for (place, item) in (1..).zip(items) {
                let is_shown = |found: &Summary| is_meant(filter, found, now);
                let visible = self.summary(&item, now).filter(is_shown);
                summaries.extend(visible);
                if summaries.len() == limit {
                    // Not where the page ended, but where we did.
                    let is_rest = place < total || after.is_some();
                    let after = is_rest.then(|| primary_key(item));
                    return Ok(Part { summaries, after });
                }
            }
            if after.is_none() {
                break;
            }
        }
        Ok(Part { summaries, after })
    }

    /// Reads records by key id, and leaves out what is not there any more.
    async fn read_many(&self, ids: Vec<KeyId>) -> Result<Vec<Summary>, StoreError> {
        let now = self.clock.now();
        let mut found = HashMap::new();
        let distinct: HashSet<KeyId> = ids.iter().copied().collect();
        let keys: Vec<Item> = distinct.iter().map(|id| item::key_of(id, &RECORD_PART)).collect();
        for batch in keys.chunks(BATCH) {
            let mut wanted = Some(batch.to_vec());
            // What DynamoDB leaves out because the answer became too large is asked for again.
            while let Some(keys) = wanted.take().filter(|keys| !keys.is_empty()) {
                let request = KeysAndAttributes::builder()
                    .set_keys(Some(keys))
                    .projection_expression(COLUMNS)
                    .consistent_read(true)
                    .build()
                    .map_err(|_| foreign_cursor())?;
                let table = &self.caller.place.table;
                let get = self.caller.client.batch_get_item().request_items(table, request);
                let answer = self.caller.read(|| get.clone().send()).await?;
                let items = answer.responses.and_then(|mut tables| tables.remove(table));
                for item in items.unwrap_or_default() {
                    found.extend(self.summary(&item, now).map(|summary| (summary.id, summary)));
                }
                let rest = answer.unprocessed_keys.and_then(|mut tables| tables.remove(table));
                wanted = rest.map(|rest| rest.keys);
            }
        }
        Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
    }

    /// The record in this item, unless it is forgotten, gone or damaged. A damaged record must not
    /// hide the others; asking for it by its key id says so.
    fn summary(&self, item: &Item, now: Timestamp) -> Option<Summary> {
        let reading = Reading(item);
        let moment = |name| reading.maybe(name).ok().map(|it| it.map(Timestamp::from_micros));
        let text = |name| reading.bytes(name).ok().map(Text::from);
        let code = |name| reading.number(name).ok().and_then(|code| u8::try_from(code).ok());
        if moment(item::FORGET)?.is_some_and(|forget| forget <= self.sight.judging(now)) {
            return None;
        }
        let status = reading.maybe(item::STATUS).ok()?.map(u16::try_from).transpose().ok()?;
        Some(Summary {
            id: KeyId::from_bytes(reading.bytes(item::KEY).ok()?.try_into().ok()?),
            state: StateKind::from_code(code(item::STATE)?)?,
            fence: Fence::from_number(reading.number(item::FENCE).ok()?)?,
            class: Class::from_code(code(item::CLASS)?)?,
            created: moment(item::CREATED)??,
            origin: Origin {
                key: text(item::ORIGIN_KEY)?,
                scope: text(item::SCOPE)?,
                route: text(item::ROUTE)?,
                request: text(item::REQUEST)?,
            },
            at: moment(item::MOMENT)??,
            expires: moment(item::EXPIRES)?,
            status,
        })
    }
}

fn is_meant(filter: &Filter, found: &Summary, now: Timestamp) -> bool {
    let Filter { state, route, scope, older_than } = filter;
    state.is_none_or(|state| state == found.state)
        && route.as_ref().is_none_or(|route| *route == found.origin.route)
        && scope.as_ref().is_none_or(|scope| *scope == found.origin.scope)
        && older_than.is_none_or(|age| found.created <= now.before(age))
}

fn primary_key(item: Item) -> Item {
    item.into_iter().filter(|(name, _)| name == item::KEY || name == item::PART).collect()
}

/// A place in the table: the key of an item, which may be a piece of a body.
fn cursor_of(key: &Item) -> Result<Cursor, StoreError> {
    let reading = Reading(key);
    let (id, part) = (reading.bytes(item::KEY)?, reading.bytes(item::PART)?);
    let length = u8::try_from(id.len()).map_err(|_| foreign_cursor())?;
    Ok(Cursor([&[length], id, part].concat()))
}

fn start_of(cursor: &Cursor) -> Result<Item, StoreError> {
    let Cursor(place) = cursor;
    let split = place.split_first().and_then(|(length, rest)| {
        rest.split_at_checked(usize::from(*length))
            .filter(|(id, part)| !id.is_empty() && !part.is_empty() && part.len() < 64)
    });
    let (id, part) = split.ok_or_else(foreign_cursor)?;
    let mut key = item::Writing::default();
    key.bytes(item::KEY, id);
    key.bytes(item::PART, part);
    Ok(key.0)
}
