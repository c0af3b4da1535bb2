//! From rows to the parts of a record. What is read is checked: a damaged row is an error.

use mysql_async::prelude::FromValue;
use mysql_async::{Row, Value, from_value_opt};
use oncekey_core::decide::Standing;
use oncekey_core::{KeyId, Timestamp};

use super::error::Trouble;
use super::session::Set;
use crate::store::parts::{AnswerParts, Assembled, Damage, Parts, StandingParts};

/// The columns of a whole record, in the order in which [`read`] takes them, from [`Tables::whole`].
///
/// [`Tables::whole`]: super::sql::Tables::whole
pub(super) const COLUMNS: &str = "\
    r.`key_id`, r.`format`, r.`state`, r.`fence`, r.`owner`, r.`class`, r.`sent`, r.`at`, \
    r.`created`, r.`fingerprint_version`, r.`fingerprint`, r.`seal`, r.`places`, r.`key`, \
    r.`scope`, r.`route`, r.`request`, \
    a.`expires`, a.`forget`, a.`status`, a.`not_kept`, a.`outcome`, a.`seal`, a.`headers`, \
    a.`pieces`, a.`body`";

/// The columns that a write is judged by, in the order in which [`standing`] takes them, from the same.
pub(super) const STANDING: &str =
    "r.`key_id`, r.`format`, r.`state`, r.`fence`, r.`owner`, r.`sent`, a.`outcome`, r.`at`";

const WRONG_KIND: Damage = Damage::Damaged("a column has a value of the wrong kind");
const ABSENT: Damage = Damage::Damaged("a column is missing");

/// Reads a row with [`COLUMNS`].
pub(super) fn read(row: &Row) -> Result<Assembled, Damage> {
    let parts = Parts {
        key_id: blob(row, 0)?,
        format: number(row, 1)?,
        state: number(row, 2)?,
        fence: number(row, 3)?,
        owner: blob(row, 4)?,
        class: number(row, 5)?,
        sent: number(row, 6)?,
        at: number(row, 7)?,
        created: number(row, 8)?,
        fingerprint_version: number(row, 9)?,
        fingerprint: blob(row, 10)?,
        seal: blob(row, 11)?,
        places: blob(row, 12)?,
        key: blob(row, 13)?,
        scope: blob(row, 14)?,
        route: blob(row, 15)?,
        request: blob(row, 16)?,
        answer: answer(row)?,
    };
    parts.assemble()
}

/// Reads a row with [`STANDING`].
pub(super) fn standing(row: &Row) -> Result<Standing, Damage> {
    let parts = StandingParts {
        format: number(row, 1)?,
        state: number(row, 2)?,
        fence: number(row, 3)?,
        owner: blob(row, 4)?,
        sent: number(row, 5)?,
        outcome: optional_blob(row, 6)?,
    };
    parts.standing()
}

/// The key id in the first column.
pub(super) fn key_id(row: &Row) -> Result<KeyId, Damage> {
    let bytes = blob(row, 0)?.try_into();
    Ok(KeyId::from_bytes(bytes.map_err(|_| WRONG_KIND)?))
}

/// A clock reading that stands alone.
pub(super) fn moment(set: Option<&Set>) -> Result<Timestamp, Trouble> {
    let row = set.and_then(|set| set.rows.first());
    let micros = number(row.ok_or(Trouble::damaged("the server told no time"))?, 0)?;
    Ok(Timestamp::from_micros(micros))
}

/// A number.
pub(super) fn number<T: FromValue>(row: &Row, column: usize) -> Result<T, Damage> {
    optional(row, column)?.ok_or(WRONG_KIND)
}

/// A number, or nothing.
pub(super) fn optional<T: FromValue>(row: &Row, column: usize) -> Result<Option<T>, Damage> {
    let value = row.as_ref(column).ok_or(ABSENT)?.clone();
    from_value_opt(value).map_err(|_| WRONG_KIND)
}

/// Bytes.
pub(super) fn blob(row: &Row, column: usize) -> Result<&[u8], Damage> {
    optional_blob(row, column)?.ok_or(WRONG_KIND)
}

/// Bytes, or nothing.
pub(super) fn optional_blob(row: &Row, column: usize) -> Result<Option<&[u8]>, Damage> {
    match row.as_ref(column) {
        Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
        Some(Value::NULL) => Ok(None),
        Some(_) => Err(WRONG_KIND),
        None => Err(ABSENT),
    }
}

/// A record has an answer, or it has nothing of one: anything between is damage.
fn answer(row: &Row) -> Result<Option<AnswerParts<'_>>, Damage> {
    if *row.as_ref(17).ok_or(ABSENT)? == Value::NULL {
        return Ok(None);
    }
    Ok(Some(AnswerParts {
        expires: number(row, 17)?,
        forget: number(row, 18)?,
        status: optional(row, 19)?,
        not_kept: number(row, 20)?,
        outcome: blob(row, 21)?,
        seal: blob(row, 22)?,
        headers: blob(row, 23)?,
        pieces: number(row, 24)?,
        body: blob(row, 25)?,
    }))
}
