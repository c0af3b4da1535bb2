//! How answers are written.
//!
//! An answer has a row of its own, beside the record. What a completion changes in the record is then the
//! same for every record of a batch, which is one short statement; and the answer is a plain insert at
//! the end of its table. See `ends.rs` for what holds the two together.

use std::fmt::{Arguments, Write as _};

use oncekey_core::{Fence, Lease};

use super::sql::{self, EVERYTHING, Tables, push_hex, push_optional};
use crate::store::parts::CompletionParts;

/// The columns of an answer, in the order in which they are written everywhere.
pub(super) const COLUMNS: &str = "`fence`, `key_id`, `expires`, `forget`, `due`, `status`, \
    `not_kept`, `outcome`, `seal`, `headers`, `pieces`, `body`";

/// How much later than the clock a fence may move the times of a completion: see `Times::of`.
const MOST_AHEAD: i64 = 24 * 60 * 60 * 1_000_000;

/// When completions count as done, as a variable of the server for every fence: claims of a batch have
/// the same, and most of their completions come together again.
pub(super) struct Times(Vec<Fence>);

impl Times {
    pub(super) fn of<'w>(leases: impl Iterator<Item = &'w Lease>) -> Self {
        let mut fences: Vec<Fence> = leases.map(|lease| lease.fence).collect();
        fences.sort_unstable();
        fences.dedup();
        Self(fences)
    }

    /// Sets the variables. By itself, because a `SET` computes all its values before it sets one: the
    /// clock in `@n` must have been read by the statement before.
    pub(super) fn set(&self) -> String {
        let mut text = String::from("SET ");
        for (nth, fence) in self.0.iter().enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            write!(text, "{comma}@t{nth} = {}", at(format_args!("{fence}"))).expect(EVERYTHING);
        }
        text
    }

    /// The variable for a fence.
    fn variable(&self, fence: Fence) -> String {
        let place = self.0.binary_search(&fence).expect("made of all completions");
        format!("@t{place}")
    }
}

/// When a completion under `fence` counts as done, by the clock in `@n`, as `Times::of` of the core has
/// it.
pub(super) fn at(fence: Arguments<'_>) -> String {
    format!("GREATEST(@n, LEAST({fence}, @n + {MOST_AHEAD}))")
}

/// Inserts one answer, if the statement before has changed one row, and none if it has not.
pub(super) fn insert_one(tables: &Tables, lease: &Lease, parts: &CompletionParts) -> String {
    let mut text = format!("INSERT INTO {} ({COLUMNS}) SELECT ", tables.answers);
    let at = at(format_args!("{}", lease.fence));
    push_values(&mut text, (lease, parts), &at, format_args!("{}", parts.pieces));
    text.push_str(" FROM DUAL WHERE ROW_COUNT() = 1");
    text
}

/// Inserts answers with their bodies in the row, if the statement before has changed as many rows. If it
/// has not, the server refuses this one with [`NULL`](super::error::NULL), and whatever comes after it in
/// the text is not run.
pub(super) fn insert_all<'w>(
    tables: &Tables,
    answers: impl ExactSizeIterator<Item = (&'w Lease, &'w CompletionParts)>,
    times: &Times,
) -> String {
    let mut text = format!("INSERT INTO {} ({COLUMNS}) VALUES ", tables.answers);
    let count = answers.len();
    for (nth, (lease, parts)) in answers.enumerate() {
        let at = times.variable(lease.fence);
        // Nothing is in pieces here. One row that cannot be written is enough.
        if nth == 0 {
            text.push('(');
            let pieces = format_args!("IF(ROW_COUNT() = {count}, 0, NULL)");
            push_values(&mut text, (lease, parts), &at, pieces);
        } else {
            text.push_str("), (");
            push_values(&mut text, (lease, parts), &at, format_args!("0"));
        }
    }
    text.push(')');
    text
}

fn push_values(
    out: &mut String,
    (lease, parts): (&Lease, &CompletionParts),
    at: &str,
    pieces: Arguments<'_>,
) {
    let Lease { id, fence, .. } = lease;
    let retention = sql::micros(parts.retention);
    let both = retention + sql::micros(parts.linger);
    write!(out, "{fence}, ").expect(EVERYTHING);
    push_hex(out, id.as_bytes());
    write!(out, ", {at} + {retention}, {at} + {both}, {at} + {retention}, ").expect(EVERYTHING);
    push_optional(out, parts.status);
    write!(out, ", {}, ", parts.not_kept).expect(EVERYTHING);
    push_hex(out, parts.outcome.as_bytes());
    out.push_str(", ");
    push_hex(out, parts.seal.as_bytes());
    out.push_str(", ");
    push_hex(out, &parts.headers);
    write!(out, ", {pieces}, ").expect(EVERYTHING);
    push_hex(out, &parts.body);
}
