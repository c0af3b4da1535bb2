//! Lists, counts and finds records for operators.
//!
//! Every shard has an index of open records and one of finished ones, in the order of the first
//! fences of their generations: a record keeps its place whatever becomes of it and whatever the
//! clock does. A list merges the indexes, newest first. They may lag behind: they name records that
//! Redis has removed since. So what counts is the record that is found.

use std::collections::VecDeque;

use futures_util::future::try_join_all;
use oncekey_core::browse::{Count, Cursor, Filter, Listing, MAX_PAGE, Page, Summary};
use oncekey_core::record::Text;
use oncekey_core::{ErrorKind, KeyId, Record, StateKind, StoreError, Timestamp};
use redis::Value;

use super::error::Failure;
use super::layout;
use super::place::{shard_of, shards};
use super::purge::id_of;
use super::reach::Reach;
use super::script::{Call, PAGE};
use crate::store::parts::is_forgotten;

/// How many names are taken from an index at once. With 512 indexes a first page of a hundred needs
/// few from each, and a long walk pays a round trip for every four thousand records.
const CHUNK: usize = 8;

/// How many records are read at once.
const BATCH: usize = 256;

/// How many records a page looks at before it ends early, with a cursor to go on from: a filter that
/// matches nothing must not keep a server busy for minutes.
const LOOKS: usize = 50_000;

/// A place in the order of a list: the first fence, and which key.
type Spot = (i64, KeyId);

/// A walk through the records of a store, newest first.
struct Walk<'r> {
    reach: &'r Reach,
    lanes: Vec<Lane>,
    now: Option<Timestamp>,
}

/// An index of a shard, as far as it was read.
struct Lane {
    shard: u8,
    kind: Kind,
    below: Option<Spot>,
    waiting: VecDeque<Spot>,
    is_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Open,
    Done,
}

impl Reach {
    pub(super) async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Failure> {
        let limit = page.bounded_limit();
        let mut walk = Walk::new(self, filter, page.after.as_ref().and_then(spot_of));
        let mut found: Vec<(Spot, Summary)> = Vec::new();
        let mut last = None;
        let mut looks = 0;
        // One more than asked for tells whether there is another page.
        while found.len() <= limit && looks < LOOKS {
            let batch = walk.next().await?;
            let Some((spot, _)) = batch.last() else {
                last = None;
                break;
            };
            last = Some(*spot);
            looks += batch.len();
            let now = walk.now();
            let meant = batch.into_iter().filter_map(|(spot, record)| Some((spot, record?)));
            let meant = meant.filter(|(_, record)| filter.matches(record, now));
            found.extend(meant.map(|(spot, record)| (spot, Summary::from(&record))));
        }
        let next = if found.len() > limit { Some(found[limit - 1].0) } else { last };
        let summaries = found.into_iter().take(limit).map(|(_, summary)| summary).collect();
        Ok(Listing { summaries, next: next.map(cursor_of), now: walk.now() })
    }

    pub(super) async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, Failure> {
        let mut walk = Walk::new(self, filter, None);
        let mut counted = 0;
        loop {
            let batch = walk.next().await?;
            if batch.is_empty() {
                return Ok(Count::Exactly(counted));
            }
            let now = walk.now();
            let records = batch.iter().filter_map(|(_, record)| record.as_ref());
            counted += records.filter(|record| filter.matches(record, now)).count();
            if counted > cap {
                return Ok(Count::AtLeast(cap));
            }
        }
    }

    /// Looks through all records: an index on the key as it was sent would cost every claim, for a
    /// question that people ask a few times a day.
    pub(super) async fn find_key(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, Failure> {
        let limit = limit.min(MAX_PAGE);
        let mut walk = Walk::new(self, &Filter::default(), None);
        let mut found = Vec::new();
        while found.len() < limit {
            let batch = walk.next().await?;
            if batch.is_empty() {
                break;
            }
            let records = batch.iter().filter_map(|(_, record)| record.as_ref());
            let meant = records.filter(|record| record.origin.key == *key);
            found.extend(meant.map(Summary::from));
        }
        found.truncate(limit);
        Ok(found)
    }
}

impl<'r> Walk<'r> {
    fn new(reach: &'r Reach, filter: &Filter, below: Option<Spot>) -> Self {
        let kinds: &[Kind] = match filter.state {
            None => &[Kind::Open, Kind::Done],
            Some(StateKind::Done) => &[Kind::Done],
            Some(StateKind::Running | StateKind::Unknown | StateKind::Parked) => &[Kind::Open],
        };
        let lane = |shard, kind| {
            let waiting = VecDeque::new();
            Lane { shard, kind, below, waiting, is_over: false }
        };
        let lanes = shards().flat_map(|shard| kinds.iter().map(move |kind| lane(shard, *kind)));
        Self { reach, lanes: lanes.collect(), now: None }
    }

    /// The earliest clock that was read: what had lapsed by then had lapsed when it was read.
    fn now(&self) -> Timestamp {
        self.now.unwrap_or_default()
    }

    /// The next records in order, with `None` for what an index names and is not there any more.
    /// Empty at the end.
    async fn next(&mut self) -> Result<Vec<(Spot, Option<Record>)>, Failure> {
        let mut spots: Vec<(Spot, Kind)> = Vec::new();
        while spots.len() < BATCH {
            self.fill().await?;
            let lanes = self.lanes.iter_mut().filter(|lane| !lane.waiting.is_empty());
            let Some(lane) = lanes.max_by_key(|lane| lane.waiting.front().copied().map(order))
            else {
                break;
            };
            if let Some(spot) = lane.waiting.pop_front() {
                spots.push((spot, lane.kind));
            }
        }
        let reach = self.reach;
        let now = self.now();
        let read = |(spot, kind): (Spot, Kind)| async move {
            let record = reach.look(&spot.1).await?;
            let stands = |record: &Record| {
                let is_done = record.state.kind() == StateKind::Done;
                is_done == (kind == Kind::Done) && !is_forgotten(record, now)
            };
            Ok::<_, Failure>((spot, record.filter(stands)))
        };
        try_join_all(spots.into_iter().map(read)).await
    }

    /// Makes sure that every index that is not over has a name waiting.
    async fn fill(&mut self) -> Result<(), Failure> {
        let reach = self.reach;
        let empty = self.lanes.iter_mut().filter(|lane| lane.waiting.is_empty() && !lane.is_over);
        for now in try_join_all(empty.map(|lane| lane.fill(reach))).await? {
            self.now = Some(self.now.map_or(now, |earlier| earlier.min(now)));
        }
        Ok(())
    }
}

impl Lane {
    async fn fill(&mut self, reach: &Reach) -> Result<Timestamp, Failure> {
        let key = match self.kind {
            Kind::Open => reach.names.open(self.shard),
            Kind::Done => reach.names.done(self.shard),
        };
        let mut limit = CHUNK;
        loop {
            let highest = self.below.map_or("+inf".to_owned(), |(score, _)| score.to_string());
            let call = Call::new(&PAGE, [key]).arg(highest).arg(limit);
            let (value, _) = reach.servers.read_by(reach.names.slot(self.shard), &call).await?;
            let (now, spots) = read_page(value)?;
            self.is_over = spots.len() < limit;
            let is_new = |spot: &Spot| self.below.is_none_or(|below| order(*spot) < order(below));
            self.waiting.extend(spots.into_iter().filter(is_new));
            self.below = self.waiting.back().copied().or(self.below);
            // So many records of one microsecond that none of them was new: take more.
            if self.is_over || !self.waiting.is_empty() {
                return Ok(now);
            }
            limit *= 2;
        }
    }
}

impl Reach {
    /// Reads a record without its answer. A damaged one must not hide the others; asking for it by
    /// its key id says so.
    async fn look(&self, id: &KeyId) -> Result<Option<Record>, Failure> {
        let mut command = redis::cmd("HGET");
        command.arg(self.names.record(id)).arg("r");
        let slot = self.names.slot(shard_of(id));
        let Value::BulkString(bytes) = self.servers.read(slot, &command).await? else {
            return Ok(None);
        };
        Ok(layout::read_without_answer(id, &bytes).ok().map(|found| found.record))
    }
}

/// A cursor of another store, or a damaged one, is the caller's mistake.
pub(super) fn check_cursor(page: &Page) -> Result<(), StoreError> {
    match &page.after {
        Some(cursor) if spot_of(cursor).is_none() => Err(StoreError::new(
            ErrorKind::Rejected,
            "the cursor is not one of this store: begin at the first page",
        )),
        Some(_) | None => Ok(()),
    }
}

fn read_page(value: Value) -> Result<(Timestamp, Vec<Spot>), Failure> {
    let Value::Array(values) = value else { return Err(Failure::Odd("an index")) };
    let mut values = values.into_iter();
    let Some(Value::Int(now)) = values.next() else { return Err(Failure::Odd("an index")) };
    let mut spots = Vec::new();
    while let (Some(id), Some(Value::Int(score))) = (values.next(), values.next()) {
        spots.push((score, id_of(&id)?));
    }
    Ok((Timestamp::from_micros(now), spots))
}

/// Newest first, as the indexes have it.
fn order((score, id): Spot) -> (i64, [u8; 32]) {
    (score, *id.as_bytes())
}

fn cursor_of((score, id): Spot) -> Cursor {
    let mut bytes = score.to_be_bytes().to_vec();
    bytes.extend_from_slice(id.as_bytes());
    Cursor(bytes)
}

fn spot_of(Cursor(bytes): &Cursor) -> Option<Spot> {
    let (score, id) = bytes.split_first_chunk::<8>()?;
    Some((i64::from_be_bytes(*score), KeyId::from_bytes(id.try_into().ok()?)))
}
