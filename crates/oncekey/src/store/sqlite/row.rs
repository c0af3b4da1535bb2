//! From rows to records and back. What is read is checked: a damaged row is an error.

use bytes::Bytes;
use oncekey_core::decide::{Phase, Standing};
use oncekey_core::saved::{Headers, NotKept, Outcome};
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::{
    Answer, Class, Fence, Fingerprint, KeyId, Origin, Owner, Places, Record, Saved, Sent, State,
    StateKind, Timestamp, Tombstone,
};
use rusqlite::Row;
use rusqlite::types::{FromSql, ValueRef};

use super::error::Failure;

/// The columns of a whole record, in the order in which [`read`] takes them. `{from}` follows.
pub(super) const COLUMNS: &str = "\
    r.id, r.key_id, r.format, r.state, r.fence, r.owner, r.class, r.sent, r.at, r.created, \
    r.fingerprint_version, r.fingerprint, r.seal, r.places, r.key, r.scope, r.route, r.request, \
    a.expires, a.forget, a.status, a.not_kept, a.outcome, a.seal, a.headers, a.pieces, a.body";

const UNSEALED: Failure = Failure::Damaged("its answer does not fit its seal");

/// A record as it was found, with what only this store knows about it.
#[derive(Debug)]
pub(super) struct Found {
    /// Its row.
    pub(super) row: i64,
    /// The record. If `pieces` is not zero, the body of its answer is still missing and the
    /// answer has not been checked.
    pub(super) record: Record,
    /// In how many pieces its body is.
    pub(super) pieces: u32,
    /// The seal of its answer.
    answer_seal: Option<Seal>,
}

impl Found {
    /// Puts the body of a large answer in its place and checks the whole.
    pub(super) fn with_body(mut self, body: Vec<u8>) -> Result<Record, Failure> {
        if let State::Done { answer: Answer::Kept(saved), .. } = &mut self.record.state {
            saved.body = Bytes::from(body);
        }
        self.check_answer()?;
        Ok(self.record)
    }

    /// Checks what is there of the answer while its body is in pieces: the digest that was given
    /// at completion. Without pieces, everything has been checked.
    pub(super) fn check_outcome(&self) -> Result<(), Failure> {
        match &self.record.state {
            State::Done { outcome, .. } if self.pieces > 0 => {
                let expected = Seal::of_answer(&self.record.lease(), outcome, outcome);
                if self.answer_seal == Some(expected) { Ok(()) } else { Err(UNSEALED) }
            }
            State::Done { .. }
            | State::Running { .. }
            | State::Unknown { .. }
            | State::Parked { .. } => Ok(()),
        }
    }

    fn check_answer(&self) -> Result<(), Failure> {
        if Seal::expected_of_answer(&self.record) == self.answer_seal {
            Ok(())
        } else {
            Err(UNSEALED)
        }
    }
}

/// Reads a row with [`COLUMNS`].
pub(super) fn read(row: &Row<'_>) -> Result<Found, Failure> {
    check_format(get(row, 2)?)?;
    let record = Record {
        id: KeyId::from_bytes(array(row, 1)?),
        fence: fence(get(row, 4)?)?,
        owner: Owner::from_bytes(array(row, 5)?),
        fingerprint: Fingerprint::from_parts(byte(row, 10)?, array(row, 11)?),
        class: Class::from_code(byte(row, 6)?).ok_or(Failure::Damaged("class"))?,
        created: Timestamp::from_micros(get(row, 9)?),
        origin: Origin {
            key: blob(row, 14)?.into(),
            scope: blob(row, 15)?.into(),
            route: blob(row, 16)?.into(),
            request: blob(row, 17)?.into(),
        },
        places: Places::decode(blob(row, 13)?).map_err(|_| Failure::Damaged("places"))?,
        state: state(row)?,
    };
    if Seal::expected_of_claim(&record) != Seal::from_bytes(array(row, 12)?) {
        return Err(Failure::Damaged("its claim does not fit its seal"));
    }
    let is_done = record.state.kind() == StateKind::Done;
    if !is_done && row.get_ref(18)? != ValueRef::Null {
        return Err(Failure::Damaged("it has an answer, but is not done"));
    }
    let pieces = if is_done { get::<u32>(row, 25)? } else { 0 };
    let answer_seal = if is_done { Some(Seal::from_bytes(array(row, 23)?)) } else { None };
    let found = Found { row: get(row, 0)?, record, pieces, answer_seal };
    if pieces == 0 {
        found.check_answer()?;
    }
    Ok(found)
}

/// Reads `format, state, fence, owner, sent, outcome`: what a write is judged by.
pub(super) fn standing(row: &Row<'_>, first: usize) -> Result<Standing, Failure> {
    check_format(get(row, first)?)?;
    let phase = match kind(byte(row, first + 1)?)? {
        StateKind::Running => Phase::Running(sent(byte(row, first + 4)?)?),
        StateKind::Done => Phase::Done(Outcome::from_bytes(array(row, first + 5)?)),
        StateKind::Unknown => Phase::Unknown,
        StateKind::Parked => Phase::Parked,
    };
    if !matches!(phase, Phase::Done(_)) && row.get_ref(first + 5)? != ValueRef::Null {
        return Err(Failure::Damaged("it has an answer, but is not done"));
    }
    let owner = Owner::from_bytes(array(row, first + 3)?);
    Ok(Standing { fence: fence(get(row, first + 2)?)?, owner, phase })
}

/// The number that the key maps hold for a key id.
pub(super) fn hash_of(id: &KeyId) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *id.as_bytes();
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// How `not_kept` and `status` are written.
pub(super) fn answer_columns(answer: &Answer) -> (Option<u16>, u8) {
    match answer {
        Answer::Kept(saved) => (Some(saved.status), 0),
        Answer::Tombstone(tombstone) => (tombstone.status, tombstone.reason.code()),
    }
}

fn state(row: &Row<'_>) -> Result<State, Failure> {
    let at = Timestamp::from_micros(get(row, 8)?);
    match kind(byte(row, 3)?)? {
        StateKind::Running => Ok(State::Running { until: at, sent: sent(byte(row, 7)?)? }),
        StateKind::Unknown => Ok(State::Unknown { since: at }),
        StateKind::Parked => Ok(State::Parked { since: at }),
        StateKind::Done => {
            let expires = Timestamp::from_micros(get(row, 18)?);
            let forget = Timestamp::from_micros(get(row, 19)?);
            // The times are not sealed, but this much is known of them. So no wrong `forget` lets
            // work run again whose answer would still be replayed.
            if forget < expires {
                return Err(Failure::Damaged("it is forgotten before it expires"));
            }
            let outcome = Outcome::from_bytes(array(row, 22)?);
            Ok(State::Done { at, expires, forget, outcome, answer: answer(row)? })
        }
    }
}

fn answer(row: &Row<'_>) -> Result<Answer, Failure> {
    let status: Option<u16> = get(row, 20)?;
    match (byte(row, 21)?, status) {
        (0, Some(status)) => Ok(Answer::Kept(Saved {
            status,
            headers: Headers::decode(blob(row, 24)?).map_err(|_| Failure::Damaged("headers"))?,
            body: Bytes::copy_from_slice(blob(row, 26)?),
        })),
        (0, None) => Err(Failure::Damaged("status")),
        (code, status) => {
            let reason = NotKept::from_code(code).ok_or(Failure::Damaged("reason"))?;
            Ok(Answer::Tombstone(Tombstone { status, reason }))
        }
    }
}

fn check_format(format: i64) -> Result<(), Failure> {
    match format {
        known if known == i64::from(RECORD_FORMAT) => Ok(()),
        newer if newer > i64::from(RECORD_FORMAT) => Err(Failure::NewerFormat(newer)),
        _ => Err(Failure::Damaged("format")),
    }
}

fn kind(code: u8) -> Result<StateKind, Failure> {
    StateKind::from_code(code).ok_or(Failure::Damaged("state"))
}

fn sent(code: u8) -> Result<Sent, Failure> {
    Sent::from_code(code).ok_or(Failure::Damaged("send mark"))
}

fn fence(number: i64) -> Result<Fence, Failure> {
    Fence::from_number(number).ok_or(Failure::Damaged("fence"))
}

fn byte(row: &Row<'_>, column: usize) -> Result<u8, Failure> {
    get(row, column)
}

/// A value of the wrong type or size is damage: SQLite itself would never have stored it there.
fn get<T: FromSql>(row: &Row<'_>, column: usize) -> Result<T, Failure> {
    row.get(column).map_err(|error| {
        if error.sqlite_error().is_some() {
            Failure::Sqlite(error)
        } else {
            Failure::Damaged("a column has a value of the wrong kind")
        }
    })
}

fn blob<'r>(row: &'r Row<'_>, column: usize) -> Result<&'r [u8], Failure> {
    let value = row.get_ref(column)?;
    value.as_blob().map_err(|_| Failure::Damaged("a column has a value of the wrong kind"))
}

fn array<const N: usize>(row: &Row<'_>, column: usize) -> Result<[u8; N], Failure> {
    blob(row, column)?.try_into().map_err(|_| Failure::Damaged("a column has the wrong length"))
}
