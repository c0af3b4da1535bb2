//! How answers are written.
//!
//! An answer has a row of its own, beside the record. What a completion changes in the record is then the
//! same for every record of a batch, which is one short statement; and the answer is a plain insert at
//! the end of its table. See `ends.rs` for what holds the two together.

use std::fmt::Write as _;

use oncekey_core::Lease;

use super::sql::{self, Tables, push_hex, push_optional};
use crate::store::parts::CompletionParts;

/// The columns of an answer, in the order in which they are written everywhere.
pub(super) const COLUMNS: &str = "`fence`, `key_id`, `expires`, `forget`, `due`, `status`, \
    `not_kept`, `outcome`, `seal`, `headers`, `pieces`, `body`";

/// How much later than the clock a fence may move the times of a completion: see `Times::of`.
const MOST_AHEAD: i64 = 24 * 60 * 60 * 1_000_000;

/// When a completion under `fence` counts as done, by the clock in `@n`, as `Times::of` has it.
pub(super) fn at(fence: impl std::fmt::Display) -> String {
    format!("GREATEST(@n, LEAST({fence}, @n + {MOST_AHEAD}))")
}

/// Inserts one answer, if the statement before has changed one row, and none if it has not.
pub(super) fn insert_one(tables: &Tables, lease: &Lease, parts: &CompletionParts) -> String {
    let mut text = format!("INSERT INTO {} ({COLUMNS}) SELECT ", tables.answers);
    push_values(&mut text, lease, parts, format_args!("{}", parts.pieces));
    text.push_str(" FROM DUAL WHERE ROW_COUNT() = 1");
    text
}

/// Inserts answers with their bodies in the row, if the statement before has changed as many rows. If it
/// has not, the server refuses this one with [`NULL`](super::error::NULL), and whatever comes after it in
/// the text is not run.
pub(super) fn insert_all<'w>(
    tables: &Tables,
    answers: impl ExactSizeIterator<Item = (&'w Lease, &'w CompletionParts)>,
) -> String {
    let mut text = format!("INSERT INTO {} ({COLUMNS}) VALUES ", tables.answers);
    let count = answers.len();
    for (nth, (lease, parts)) in answers.enumerate() {
        // Nothing is in pieces here. One row that cannot be written is enough.
        if nth == 0 {
            text.push('(');
            push_values(&mut text, lease, parts, format_args!("IF(ROW_COUNT() = {count}, 0, NULL)"));
        } else {
            text.push_str("), (");
            push_values(&mut text, lease, parts, format_args!("0"));
        }
    }
    text.push(')');
    text
}

fn push_values(
    out: &mut String,
    lease: &Lease,
    parts: &CompletionParts,
    pieces: std::fmt::Arguments<'_>,
) {
    let Lease { id, fence, .. } = lease;
    let (at, retention) = (at(fence), sql::micros(parts.retention));
    let both = retention + sql::micros(parts.linger);
    write!(out, "{fence}, ").expect(sql::EVERYTHING);
    push_hex(out, id.as_bytes());
    write!(out, ", {at} + {retention}, {at} + {both}, {at} + {retention}, ")
        .expect(sql::EVERYTHING);
    push_optional(out, parts.status);
    write!(out, ", {}, ", parts.not_kept).expect(sql::EVERYTHING);
    push_hex(out, parts.outcome.as_bytes());
    out.push_str(", ");
    push_hex(out, parts.seal.as_bytes());
    out.push_str(", ");
    push_hex(out, &parts.headers);
    write!(out, ", {pieces}, ").expect(sql::EVERYTHING);
    push_hex(out, &parts.body);
}
