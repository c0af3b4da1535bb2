//! A record as an item, and back.
//!
//! All items of a key have its id as their partition key. The record is one of them; the others are
//! pieces of a large body. Names are short because they are part of every item, and the size of an
//! item is what a write costs.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use oncekey_core::decide::Standing;
use oncekey_core::saved::NotKept;
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::{Answer, Fence, KeyId, Record, Sent, State, StateKind, Timestamp};

use crate::store::parts::{AnswerParts, Assembled, Damage, Parts, StandingParts, answer_codes};

pub(super) type Item = HashMap<String, AttributeValue>;

/// The partition key: the key id, or [`META_KEY`].
pub(super) const KEY: &str = "k";
/// The sort key: [`RECORD_PART`], or a piece of a body.
pub(super) const PART: &str = "p";
pub(super) const FORMAT: &str = "v";
pub(super) const STATE: &str = "s";
pub(super) const FENCE: &str = "f";
/// A fence that was granted once and is higher than the record's: after a restoration.
pub(super) const HIGH: &str = "h";
pub(super) const OWNER: &str = "o";
pub(super) const CLASS: &str = "c";
pub(super) const SENT: &str = "m";
/// Running: when the lease lapses, by its owner's clock. Otherwise: since when the state stands.
pub(super) const MOMENT: &str = "a";
pub(super) const CREATED: &str = "t";
/// How often the lease was renewed. Whoever sees it stand still for a whole lease knows that
/// nobody is at home.
pub(super) const BEAT: &str = "b";
/// For how long the lease was granted, in microseconds.
pub(super) const SPAN: &str = "l";
/// How often the record was erased: pieces of a body belong to one of these lives.
pub(super) const ERASURES: &str = "e";
pub(super) const FINGERPRINT_VERSION: &str = "gv";
pub(super) const FINGERPRINT: &str = "g";
pub(super) const SEAL: &str = "cs";
pub(super) const PLACES: &str = "pl";
pub(super) const ORIGIN_KEY: &str = "xk";
pub(super) const SCOPE: &str = "xs";
pub(super) const ROUTE: &str = "xr";
pub(super) const REQUEST: &str = "xq";
pub(super) const EXPIRES: &str = "ye";
pub(super) const FORGET: &str = "yf";
pub(super) const STATUS: &str = "ys";
pub(super) const NOT_KEPT: &str = "yn";
pub(super) const OUTCOME: &str = "yo";
pub(super) const ANSWER_SEAL: &str = "yc";
pub(super) const HEADERS: &str = "yh";
pub(super) const PIECES: &str = "yp";
pub(super) const BODY: &str = "yb";
/// The partition key of the index: what has to be looked at, spread over [`SHARDS`].
pub(super) const WORK: &str = "w";
/// The sort key of the index: when an open record was created, or when a finished one is due.
pub(super) const WHEN: &str = "d";
/// From when on DynamoDB may remove the item by itself, in seconds.
pub(super) const GARBAGE: &str = "gc";

/// The sort key of every record.
pub(super) const RECORD_PART: [u8; 1] = [0];
/// The first byte of the sort key of every piece.
pub(super) const PIECE_PART: u8 = 1;
/// The partition key of the item that describes the table: shorter than any key id.
pub(super) const META_KEY: &[u8] = b"oncekey";
/// Its sort key.
pub(super) const META_PART: [u8; 1] = [9];

/// Over how many partitions the index is spread. One takes about a thousand writes a second, and an
/// index that cannot keep up throttles its table. More would make every purge and every list ask
/// more often.
pub(super) const SHARDS: u8 = 16;

/// The state of a remainder: the record is gone, its fence is not. Differs from the codes of all
/// states in at least four bits, as they do from each other.
pub(super) const GONE: u8 = 0x96;

/// How long a fence is remembered after its record is gone, and how long DynamoDB waits before it
/// removes what we should have removed: no clock that anybody works with is a week behind.
const REMEMBERED_SECONDS: i64 = 7 * 24 * 60 * 60;

/// The end of the year 9999. DynamoDB keeps what has a later time, or none, for ever.
const LAST_SECOND: i64 = 253_402_300_799;

/// What is found under a key id.
#[derive(Debug)]
pub(super) enum Slot {
    /// Nothing.
    Empty,
    /// A record was here. Its fence, or a higher one.
    Gone(Fence),
    /// A record.
    Held(Box<Found>),
}

/// A record, and what this store alone keeps beside it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) found: Assembled,
    pub(super) beat: i64,
    pub(super) span: i64,
    pub(super) erasures: i64,
    high: i64,
}

/// What this store alone keeps beside a record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    pub(super) beat: i64,
    pub(super) span: i64,
    pub(super) erasures: i64,
    pub(super) high: i64,
    pub(super) pieces: u32,
}

/// Reads attributes. One that is missing is empty, because empty ones are not written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'i>(pub(super) &'i Item);

/// Writes attributes.
#[derive(Debug, Default)]
pub(super) struct Writing(pub(super) Item);

impl Slot {
    /// Reads the item of a record. A damaged one is an error, never an absent key.
    pub(super) fn read(item: Option<&Item>) -> Result<Self, Damage> {
        let Some(item) = item else { return Ok(Self::Empty) };
        let reading = Reading(item);
        if reading.number(STATE)? == i64::from(GONE) {
            return Ok(Self::Gone(reading.fence()?));
        }
        Found::read(reading).map(|found| Self::Held(Box::new(found)))
    }

    /// What [`judge`](oncekey_core::judge) looks at.
    pub(super) fn standing(item: Option<&Item>) -> Result<Option<Standing>, Damage> {
        let Some(item) = item else { return Ok(None) };
        let reading = Reading(item);
        let state = reading.number(STATE)?;
        if state == i64::from(GONE) {
            return Ok(None);
        }
        let outcome = reading.bytes(OUTCOME)?;
        let parts = StandingParts {
            format: reading.number(FORMAT)?,
            state,
            fence: reading.number(FENCE)?,
            owner: reading.bytes(OWNER)?,
            sent: reading.number(SENT)?,
            outcome: (!outcome.is_empty()).then_some(outcome),
        };
        parts.standing().map(Some)
    }

    /// The highest fence that is known to have been granted.
    pub(super) fn highest(&self) -> Option<Fence> {
        match self {
            Self::Empty => None,
            Self::Gone(fence) => Some(*fence),
            Self::Held(found) => Some(found.highest()),
        }
    }
}

impl Found {
    fn read(reading: Reading<'_>) -> Result<Self, Damage> {
        let answer = match reading.bytes(OUTCOME)? {
            [] => None,
            outcome => Some(AnswerParts {
                expires: reading.number(EXPIRES)?,
                forget: reading.number(FORGET)?,
                status: reading.maybe(STATUS)?,
                not_kept: reading.number(NOT_KEPT)?,
                outcome,
                seal: reading.bytes(ANSWER_SEAL)?,
                headers: reading.bytes(HEADERS)?,
                pieces: reading.maybe(PIECES)?.unwrap_or(0),
                body: reading.bytes(BODY)?,
            }),
        };
        let parts = Parts {
            key_id: reading.bytes(KEY)?,
            format: reading.number(FORMAT)?,
            state: reading.number(STATE)?,
            fence: reading.number(FENCE)?,
            owner: reading.bytes(OWNER)?,
            class: reading.number(CLASS)?,
            sent: reading.number(SENT)?,
            at: reading.number(MOMENT)?,
            created: reading.number(CREATED)?,
            fingerprint_version: reading.number(FINGERPRINT_VERSION)?,
            fingerprint: reading.bytes(FINGERPRINT)?,
            seal: reading.bytes(SEAL)?,
            places: reading.bytes(PLACES)?,
            key: reading.bytes(ORIGIN_KEY)?,
            scope: reading.bytes(SCOPE)?,
            route: reading.bytes(ROUTE)?,
            request: reading.bytes(REQUEST)?,
            answer,
        };
        Ok(Self {
            found: parts.assemble()?,
            beat: reading.number(BEAT)?,
            span: reading.number(SPAN)?,
            erasures: reading.maybe(ERASURES)?.unwrap_or(0),
            high: reading.maybe(HIGH)?.unwrap_or(0),
        })
    }

    pub(super) fn record(&self) -> &Record {
        &self.found.record
    }

    /// The highest fence that is known to have been granted.
    pub(super) fn highest(&self) -> Fence {
        let fence = self.record().fence;
        Fence::from_number(self.high).map_or(fence, |high| high.max(fence))
    }
}

/// The whole item of a record. The beat of a new fence begins at zero: it is counted for one fence.
pub(super) fn of_record(record: &Record, beside: Beside) -> Item {
    let sent = match record.state {
        State::Running { sent, .. } => sent,
        State::Unknown { .. } => Sent::Yes,
        State::Done { .. } | State::Parked { .. } => Sent::No,
    };
    let moment = match record.state {
        State::Running { until: moment, .. }
        | State::Done { at: moment, .. }
        | State::Unknown { since: moment }
        | State::Parked { since: moment } => moment,
    };
    let mut item = Writing(key_of(&record.id, &RECORD_PART));
    item.number(FORMAT, RECORD_FORMAT);
    item.number(STATE, record.state.kind().code());
    item.number(FENCE, record.fence.number());
    item.bytes(OWNER, record.owner.as_bytes());
    item.number(CLASS, record.class.code());
    item.number(SENT, sent.code());
    item.number(MOMENT, moment.micros());
    item.number(CREATED, record.created.micros());
    item.number(BEAT, beside.beat);
    item.number(SPAN, beside.span);
    for (name, number) in [(ERASURES, beside.erasures), (HIGH, beside.high)] {
        if number > 0 {
            item.number(name, number);
        }
    }
    item.number(FINGERPRINT_VERSION, record.fingerprint.version());
    item.bytes(FINGERPRINT, record.fingerprint.digest());
    item.bytes(SEAL, Seal::expected_of_claim(record).as_bytes());
    item.bytes(PLACES, record.places.as_encoded());
    item.bytes(ORIGIN_KEY, record.origin.key.as_bytes());
    item.bytes(SCOPE, record.origin.scope.as_bytes());
    item.bytes(ROUTE, record.origin.route.as_bytes());
    item.bytes(REQUEST, record.origin.request.as_bytes());
    answer_of(record, beside.pieces, &mut item);
    item.0
}

/// What a finished record has, and where each record is in the index.
fn answer_of(record: &Record, pieces: u32, item: &mut Writing) {
    let State::Done { expires, forget, outcome, answer, .. } = &record.state else {
        item.text(WORK, work_of(&record.id, StateKind::Running));
        item.number(WHEN, record.created.micros());
        return;
    };
    let (status, not_kept) = answer_codes(answer);
    let due = if not_kept == NotKept::Expired.code() { forget } else { expires };
    item.text(WORK, work_of(&record.id, StateKind::Done));
    item.number(WHEN, due.micros());
    item.number(EXPIRES, expires.micros());
    item.number(FORGET, forget.micros());
    item.number(NOT_KEPT, not_kept);
    if let Some(status) = status {
        item.number(STATUS, status);
    }
    item.bytes(OUTCOME, outcome.as_bytes());
    if let Some(seal) = Seal::expected_of_answer(record) {
        item.bytes(ANSWER_SEAL, seal.as_bytes());
    }
    if let Answer::Kept(saved) = answer {
        item.bytes(HEADERS, &saved.headers.encode());
        if pieces == 0 {
            item.bytes(BODY, &saved.body);
        } else {
            item.number(PIECES, pieces);
        }
    }
    if let Some(garbage) = garbage_after(*forget) {
        item.number(GARBAGE, garbage);
    }
}

/// What is left of a record that is gone: its fence, for a week.
pub(super) fn of_remainder(id: &KeyId, fence: Fence, now: Timestamp) -> Item {
    let mut item = Writing(key_of(id, &RECORD_PART));
    item.number(STATE, GONE);
    item.number(FENCE, fence.number());
    if let Some(garbage) = garbage_after(now.max(Timestamp::from_micros(fence.number()))) {
        item.number(GARBAGE, garbage);
    }
    item.0
}

/// From when on DynamoDB may remove by itself what is over at `end`.
pub(super) fn garbage_after(end: Timestamp) -> Option<i64> {
    let seconds = (end.micros() / 1_000_000).saturating_add(REMEMBERED_SECONDS);
    (seconds <= LAST_SECOND).then_some(seconds)
}

/// The primary key of an item.
pub(super) fn key_of(id: &KeyId, part: &[u8]) -> Item {
    let mut item = Writing::default();
    item.bytes(KEY, id.as_bytes());
    item.bytes(PART, part);
    item.0
}

/// Where a record is in the index: with the open ones, or with those that are over some time.
pub(super) fn work_of(id: &KeyId, state: StateKind) -> String {
    let [first, ..] = id.as_bytes();
    work_shard(first % SHARDS, state)
}

/// The name of one partition of the index.
pub(super) fn work_shard(shard: u8, state: StateKind) -> String {
    match state {
        StateKind::Done => format!("done-{shard}"),
        StateKind::Running | StateKind::Unknown | StateKind::Parked => format!("open-{shard}"),
    }
}

pub(super) fn number(value: impl Into<i64>) -> AttributeValue {
    AttributeValue::N(value.into().to_string())
}

pub(super) fn bytes(value: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

impl<'i> Reading<'i> {
    pub(super) fn number(self, name: &'static str) -> Result<i64, Damage> {
        self.maybe(name)?.ok_or(Damage::Damaged("an attribute is missing"))
    }

    pub(super) fn maybe(self, name: &'static str) -> Result<Option<i64>, Damage> {
        let wrong = Damage::Damaged("an attribute is not a number");
        match self.0.get(name) {
            None => Ok(None),
            Some(AttributeValue::N(text)) => text.parse().map(Some).map_err(|_| wrong),
            Some(_) => Err(wrong),
        }
    }

    pub(super) fn bytes(self, name: &'static str) -> Result<&'i [u8], Damage> {
        match self.0.get(name) {
            None => Ok(&[]),
            Some(AttributeValue::B(blob)) => Ok(blob.as_ref()),
            Some(_) => Err(Damage::Damaged("an attribute is not binary")),
        }
    }

    pub(super) fn fence(self) -> Result<Fence, Damage> {
        Fence::from_number(self.number(FENCE)?).ok_or(Damage::Damaged("fence"))
    }
}

impl Writing {
    pub(super) fn number(&mut self, name: &str, value: impl Into<i64>) {
        self.0.insert(name.to_owned(), number(value));
    }

    /// Empty values are not written: an item is paid for by its size.
    pub(super) fn bytes(&mut self, name: &str, value: &[u8]) {
        if !value.is_empty() {
            self.0.insert(name.to_owned(), bytes(value));
        }
    }

    pub(super) fn text(&mut self, name: &str, value: String) {
        self.0.insert(name.to_owned(), AttributeValue::S(value));
    }
}
