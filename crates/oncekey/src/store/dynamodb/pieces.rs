//! Bodies that are too large for one item, in pieces of their own.
//!
//! The pieces are written first and refer to nothing. The completion comes last and makes them
//! count. A piece belongs to a fence, to one life of the record between two erasures, and to one
//! answer: so two answers that are written at the same time do not mix, and whoever removes the
//! pieces of the past never meets those of the present. What nobody refers to any more is removed by
//! whoever ended it, or by DynamoDB when its time is over.

use bytes::BytesMut;
use oncekey_core::decide::{Act, Judgement, judge};
use oncekey_core::saved::Outcome;
use oncekey_core::{Answer, Completion, ErrorKind, Fence, KeyId, Lease, Record, State, StoreError};

use super::DynamoStore;
use super::call::{side_by_side, values_of};
use super::item::{self, BODY, Found, Item, PIECE_PART, Reading, Slot, Writing, bytes};
use crate::store::parts::CompletionParts;

/// The most that header lines and body may have together to stay in the record's item. An item may
/// have 400 kB; the texts and places of a claim take 13 kB at most.
const INLINE: usize = 300_000;
/// The size of a piece. As large as an item allows with room for its key: fewer round trips.
const PIECE: usize = 300_000;
/// How many pieces of one body are under way at the same time. DynamoDB takes about a mebibyte a
/// second for one key; more would only be throttled.
const WIDTH: usize = 8;

/// What a piece is judged by, before anything is written.
const STANDING: &str = "v, s, f, o, m, yo, e";

/// In how many pieces a body is, and in which life of the record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) pieces: u32,
    pub(super) erasures: i64,
}

/// Which pieces are meant: all of one answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body {
    id: KeyId,
    fence: Fence,
    erasures: i64,
    outcome: Outcome,
    pieces: u32,
}

impl DynamoStore {
    /// Writes the pieces of a large body, if it is one. Judged like the completion itself, so that
    /// an attempt that was replaced does not fill the table.
    pub(super) async fn spread(
        &self,
        lease: &Lease,
        completion: &Completion,
    ) -> Result<Result<Spread, Judgement>, StoreError> {
        let Answer::Kept(saved) = &completion.answer else {
            return Ok(Ok(Spread { pieces: 0, erasures: 0 }));
        };
        if saved.body.len() + saved.headers.encoded_len() <= INLINE {
            return Ok(Ok(Spread { pieces: 0, erasures: 0 }));
        }
        let outcome = completion.answer.outcome();
        let found = self.caller.get(&lease.id, &item::RECORD_PART, Some(STANDING)).await?;
        match judge(Slot::standing(found.as_ref())?, lease, Act::Complete(outcome)) {
            Judgement::Apply => {}
            other @ (Judgement::Already | Judgement::Fenced) => return Ok(Err(other)),
        }
        let erasures = match &found {
            Some(found) => Reading(found).maybe(item::ERASURES)?.unwrap_or(0),
            None => 0,
        };
        let parts = CompletionParts::new(lease, completion, 1);
        let forget = parts.times(lease.fence, self.clock.now()).forget;
        let pieces = u32::try_from(saved.body.len().div_ceil(PIECE)).unwrap_or(u32::MAX);
        let body = Body { id: lease.id, fence: lease.fence, erasures, outcome, pieces };
        self.put_pieces(body, &saved.body, item::garbage_after(forget)).await?;
        Ok(Ok(Spread { pieces, erasures }))
    }

    /// The pieces that a record to be restored needs, written.
    pub(super) async fn spread_of(
        &self,
        record: &Record,
        erasures: i64,
    ) -> Result<Spread, StoreError> {
        let State::Done { forget, outcome, answer: Answer::Kept(saved), .. } = &record.state else {
            return Ok(Spread { pieces: 0, erasures });
        };
        if saved.body.len() + saved.headers.encoded_len() <= INLINE {
            return Ok(Spread { pieces: 0, erasures });
        }
        let pieces = u32::try_from(saved.body.len().div_ceil(PIECE)).unwrap_or(u32::MAX);
        let (id, fence) = (record.id, record.fence);
        let body = Body { id, fence, erasures, outcome: *outcome, pieces };
        self.put_pieces(body, &saved.body, item::garbage_after(*forget)).await?;
        Ok(Spread { pieces, erasures })
    }

    async fn put_pieces(
        &self,
        body: Body,
        content: &[u8],
        garbage: Option<i64>,
    ) -> Result<(), StoreError> {
        /// Pieces outlive their record by a day, because its times are taken a little later.
        const LONGER: i64 = 24 * 60 * 60;
        let mut puts = Vec::new();
        for (number, piece) in (0..).zip(content.chunks(PIECE)) {
            let mut item = Writing(body.key(number));
            item.bytes(BODY, piece);
            if let Some(garbage) = garbage {
                item.number(item::GARBAGE, garbage.saturating_add(LONGER));
            }
            let caller = self.caller.clone();
            let table = &caller.place.table;
            let put = caller.client.put_item().table_name(table).set_item(Some(item.0));
            puts.push(async move { caller.change(|| put.clone().send()).await.map(|_| ()) });
        }
        side_by_side(puts, WIDTH).await?;
        Ok(())
    }

    /// The record with its body; `None` if its pieces have been removed since it was read.
    pub(super) async fn whole(&self, found: Found) -> Result<Option<Record>, StoreError> {
        let Some(body) = Body::of(&found) else { return Ok(Some(found.found.record)) };
        let reads = (0..body.pieces).map(|number| {
            let caller = self.caller.clone();
            async move { caller.get(&body.id, &body.part(number), None).await }
        });
        let mut content = BytesMut::new();
        for piece in side_by_side(reads.collect::<Vec<_>>(), WIDTH).await? {
            let Some(piece) = piece else { return self.missing(&found).await };
            content.extend_from_slice(Reading(&piece).bytes(BODY)?);
        }
        Ok(Some(found.found.with_body(content.freeze())?))
    }

    /// A piece is not there: either its record has changed meanwhile, or it is damaged.
    async fn missing(&self, found: &Found) -> Result<Option<Record>, StoreError> {
        let id = found.record().id;
        let now = Slot::read(self.caller.get(&id, &item::RECORD_PART, None).await?.as_ref())?;
        let same = |later: &Found| {
            let place = |found: &Found| (found.record().fence, found.erasures, found.found.pieces);
            place(later) == place(found)
        };
        match now {
            Slot::Held(later) if same(&later) => Err(StoreError::new(
                ErrorKind::Corrupt,
                "a piece of a stored body is missing: it is neither replayed nor run again",
            )),
            Slot::Held(_) | Slot::Gone(_) | Slot::Empty => Ok(None),
        }
    }

    /// Removes the pieces of an answer that is no longer referred to, as far as possible: what stays
    /// is garbage that DynamoDB removes when its time is over.
    pub(super) async fn clear_away(&self, found: Option<&Found>) {
        if let Some(body) = found.and_then(Body::of)
            && let Err(error) = self.remove_pieces(body).await
        {
            tracing::debug!(%error, "pieces of a body are left for later");
        }
    }

    pub(super) async fn remove_pieces(&self, body: Body) -> Result<(), StoreError> {
        let keys = (0..body.pieces).map(|number| body.key(number));
        self.remove(keys.collect()).await
    }

    /// Removes every piece of a key that was written before this life of its record.
    pub(super) async fn remove_before(
        &self,
        id: &KeyId,
        fence: Option<Fence>,
        erasures: i64,
    ) -> Result<(), StoreError> {
        let end = match fence {
            Some(fence) => prefix(fence, erasures),
            None => vec![PIECE_PART + 1],
        };
        let values = vec![
            (":k", bytes(id.as_bytes())),
            (":from", bytes(&[PIECE_PART])),
            (":to", bytes(&end)),
        ];
        let query = self
            .caller
            .client
            .query()
            .table_name(&self.caller.place.table)
            .key_condition_expression("k = :k AND p BETWEEN :from AND :to")
            .set_expression_attribute_values(values_of(values))
            .projection_expression("k, p")
            .consistent_read(true);
        let mut after = None;
        loop {
            let page = query.clone().set_exclusive_start_key(after);
            let found = self.caller.read(|| page.clone().send()).await?;
            self.remove(found.items.unwrap_or_default()).await?;
            after = found.last_evaluated_key;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn remove(&self, keys: Vec<Item>) -> Result<(), StoreError> {
        let deletes = keys.into_iter().map(|key| {
            let caller = self.caller.clone();
            async move { caller.delete(key).await }
        });
        side_by_side(deletes.collect::<Vec<_>>(), WIDTH).await?;
        Ok(())
    }
}

impl Body {
    /// The body of a record, if it is in pieces.
    pub(super) fn of(found: &Found) -> Option<Self> {
        let State::Done { outcome, .. } = &found.record().state else { return None };
        Self::new(&found.record().lease(), found.erasures, *outcome, found.found.pieces)
    }

    /// The body of an answer, if it is in pieces.
    pub(super) fn new(lease: &Lease, erasures: i64, outcome: Outcome, pieces: u32) -> Option<Self> {
        let Lease { id, fence, .. } = *lease;
        (pieces > 0).then_some(Self { id, fence, erasures, outcome, pieces })
    }

    fn part(&self, number: u32) -> Vec<u8> {
        let mut part = prefix(self.fence, self.erasures);
        part.extend_from_slice(self.outcome.as_bytes());
        part.extend_from_slice(&number.to_be_bytes());
        part
    }

    fn key(&self, number: u32) -> Item {
        item::key_of(&self.id, &self.part(number))
    }
}

/// How the sort keys of all pieces of one life of a record begin. Big-endian and never negative, so
/// that they sort as the numbers do.
fn prefix(fence: Fence, erasures: i64) -> Vec<u8> {
    let mut prefix = vec![PIECE_PART];
    prefix.extend_from_slice(&fence.number().to_be_bytes());
    prefix.extend_from_slice(&erasures.to_be_bytes());
    prefix
}
