//! From rows to the parts of a record. What is read is checked: a damaged row is an error.

use oncekey_core::decide::Standing;
use oncekey_core::{KeyId, Record};
use rusqlite::Row;
use rusqlite::types::{FromSql, ValueRef};

use super::error::Failure;
use crate::store::parts::{AnswerParts, Assembled, Damage, Parts, StandingParts};

/// The columns of a whole record, in the order in which [`read`] takes them. `{from}` follows.
pub(super) const COLUMNS: &str = "\
    r.id, r.key_id, r.format, r.state, r.fence, r.owner, r.class, r.sent, r.at, r.created, \
    r.fingerprint_version, r.fingerprint, r.seal, r.places, r.key, r.scope, r.route, r.request, \
    a.expires, a.forget, a.status, a.not_kept, a.outcome, a.seal, a.headers, a.pieces, a.body";

const WRONG_KIND: Failure = Failure::Row(Damage::Damaged("a column has a value of the wrong kind"));

/// A record as it was found, with its row.
#[derive(Debug)]
pub(super) struct Found {
    /// Its row.
    pub(super) row: i64,
    /// The record, whose body may still be in pieces.
    pub(super) found: Assembled,
}

impl Found {
    pub(super) fn record(&self) -> &Record {
        &self.found.record
    }
}

/// Reads a row with [`COLUMNS`].
pub(super) fn read(row: &Row<'_>) -> Result<Found, Failure> {
    let parts = Parts {
        key_id: blob(row, 1)?,
        format: get(row, 2)?,
        state: get(row, 3)?,
        fence: get(row, 4)?,
        owner: blob(row, 5)?,
        class: get(row, 6)?,
        sent: get(row, 7)?,
        at: get(row, 8)?,
        created: get(row, 9)?,
        fingerprint_version: get(row, 10)?,
        fingerprint: blob(row, 11)?,
        seal: blob(row, 12)?,
        places: blob(row, 13)?,
        key: blob(row, 14)?,
        scope: blob(row, 15)?,
        route: blob(row, 16)?,
        request: blob(row, 17)?,
        answer: answer(row)?,
    };
    Ok(Found { row: get(row, 0)?, found: parts.assemble()? })
}

/// Reads `format, state, fence, owner, sent, outcome`: what a write is judged by.
pub(super) fn standing(row: &Row<'_>, first: usize) -> Result<Standing, Failure> {
    let has_answer = row.get_ref(first + 5)? != ValueRef::Null;
    let parts = StandingParts {
        format: get(row, first)?,
        state: get(row, first + 1)?,
        fence: get(row, first + 2)?,
        owner: blob(row, first + 3)?,
        sent: get(row, first + 4)?,
        outcome: has_answer.then(|| blob(row, first + 5)).transpose()?,
    };
    Ok(parts.standing()?)
}

/// The number that the key maps hold for a key id.
pub(super) fn hash_of(id: &KeyId) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *id.as_bytes();
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

fn answer<'r>(row: &'r Row<'_>) -> Result<Option<AnswerParts<'r>>, Failure> {
    if row.get_ref(18)? == ValueRef::Null {
        return Ok(None);
    }
    Ok(Some(AnswerParts {
        expires: get(row, 18)?,
        forget: get(row, 19)?,
        status: get(row, 20)?,
        not_kept: get(row, 21)?,
        outcome: blob(row, 22)?,
        seal: blob(row, 23)?,
        headers: blob(row, 24)?,
        pieces: get(row, 25)?,
        body: blob(row, 26)?,
    }))
}

/// A value of the wrong type or size is damage: SQLite itself would never have stored it there.
fn get<T: FromSql>(row: &Row<'_>, column: usize) -> Result<T, Failure> {
    row.get(column).map_err(|error| {
        if error.sqlite_error().is_some() { Failure::Sqlite(error) } else { WRONG_KIND }
    })
}

fn blob<'r>(row: &'r Row<'_>, column: usize) -> Result<&'r [u8], Failure> {
    row.get_ref(column)?.as_blob().map_err(|_| WRONG_KIND)
}
