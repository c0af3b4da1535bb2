//! From rows to the parts of a record. What is read is checked: a damaged row is an error.

use oncekey_core::decide::Standing;
use oncekey_core::{KeyId, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::store::parts::{AnswerParts, Assembled, Damage, Parts, StandingParts};

/// A record as it was found.
#[derive(Debug)]
pub(super) struct Found {
    /// The record, whose body may still be elsewhere.
    pub(super) found: Assembled,
    /// The server's clock when it was read.
    pub(super) now: Timestamp,
}

/// Reads a row of the statements `found` and `whole`.
pub(super) fn read(row: &Row) -> Result<Found, Damage> {
    let parts = Parts {
        key_id: get(row, 0)?,
        format: small(row, 1)?,
        state: small(row, 2)?,
        fence: get(row, 3)?,
        owner: get(row, 4)?,
        class: small(row, 5)?,
        sent: small(row, 6)?,
        at: get(row, 7)?,
        created: get(row, 8)?,
        fingerprint_version: small(row, 9)?,
        fingerprint: get(row, 10)?,
        seal: get(row, 11)?,
        places: get(row, 12)?,
        key: get(row, 13)?,
        scope: get(row, 14)?,
        route: get(row, 15)?,
        request: get(row, 16)?,
        answer: answer(row)?,
    };
    Ok(Found { found: parts.assemble()?, now: Timestamp::from_micros(get(row, 26)?) })
}

/// Reads a row of the statement `standing`: what a write is judged by.
pub(super) fn standing(row: &Row) -> Result<Standing, Damage> {
    let parts = StandingParts {
        format: small(row, 1)?,
        state: small(row, 2)?,
        fence: get(row, 3)?,
        owner: get(row, 4)?,
        sent: small(row, 5)?,
        outcome: get(row, 6)?,
    };
    parts.standing()
}

/// The key id in this column.
pub(super) fn id(row: &Row, column: usize) -> Result<KeyId, Damage> {
    let bytes: &[u8] = get(row, column)?;
    let bytes = bytes.try_into().map_err(|_| Damage::Damaged("a column has the wrong length"))?;
    Ok(KeyId::from_bytes(bytes))
}

/// A value of the wrong type is damage: our statements never put it there.
pub(super) fn get<'r, T: FromSql<'r>>(row: &'r Row, column: usize) -> Result<T, Damage> {
    row.try_get(column).map_err(|_| Damage::Damaged("a column has a value of the wrong kind"))
}

pub(super) fn small(row: &Row, column: usize) -> Result<i64, Damage> {
    get::<i16>(row, column).map(i64::from)
}

fn answer(row: &Row) -> Result<Option<AnswerParts<'_>>, Damage> {
    // Whoever has one of these has all of them, or is damaged.
    let Some(outcome) = get::<Option<&[u8]>>(row, 21)? else { return Ok(None) };
    let far: i32 = get(row, 24)?;
    Ok(Some(AnswerParts {
        expires: get(row, 17)?,
        forget: get(row, 18)?,
        status: get::<Option<i32>>(row, 19)?.map(i64::from),
        not_kept: small(row, 20)?,
        outcome,
        seal: get(row, 22)?,
        headers: get(row, 23)?,
        pieces: i64::from(far),
        body: get::<Option<&[u8]>>(row, 25)?.unwrap_or_default(),
    }))
}
