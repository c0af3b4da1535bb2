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

/// The times of completions, as variables of the server. Claims of a batch have the same fence, and most
/// of their completions come together again.
pub(super) struct Times(Vec<(Fence, i64, i64)>);

impl Times {
    pub(super) fn of<'w>(answers: impl Iterator<Item = (&'w Lease, &'w CompletionParts)>) -> Self {
        let mut times: Vec<_> = answers.map(|(lease, parts)| spans(lease, parts)).collect();
        times.sort_unstable();
        times.dedup();
        Self(times)
    }

    /// Sets the variables. By itself, because a `SET` computes all its values before it sets one: the
    /// clock in `@n` must have been read by the statement before.
    pub(super) fn set(&self) -> String {
        let mut text = String::from("SET ");
        for (nth, (fence, answers, stays)) in self.0.iter().enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            let at = at("@n", format_args!("{fence}"));
            write!(text, "{comma}@e{nth} = {at} + {answers}, @g{nth} = {at} + {stays}")
                .expect(EVERYTHING);
        }
        text
    }

    /// The variables of an answer: until when it answers, and when it may be forgotten.
    fn variables(&self, lease: &Lease, parts: &CompletionParts) -> [String; 2] {
        let place = self.0.binary_search(&spans(lease, parts)).expect("made of all answers");
        [format!("@e{place}"), format!("@g{place}")]
    }
}

/// The fence, and how long after its completion an answer answers, and stays.
fn spans(lease: &Lease, parts: &CompletionParts) -> (Fence, i64, i64) {
    let retention = sql::micros(parts.retention);
    (lease.fence, retention, retention + sql::micros(parts.linger))
}

/// When a completion under `fence` counts as done by this clock, as `Times::of` of the core has it.
pub(super) fn at(clock: &str, fence: Arguments<'_>) -> String {
    format!("GREATEST({clock}, LEAST({fence}, {clock} + {MOST_AHEAD}))")
}

/// Inserts one answer, as [`insert_all`] does, by the time of its completion in `@n`.
pub(super) fn insert_one(tables: &Tables, lease: &Lease, parts: &CompletionParts) -> String {
    let (_, answers, stays) = spans(lease, parts);
    let times = [format!("@n + {answers}"), format!("@n + {stays}")];
    let mut text = format!("INSERT INTO {} ({COLUMNS}) VALUES (", tables.answers);
    let pieces = format_args!("IF(ROW_COUNT() = 1, {}, NULL)", parts.pieces);
    push_values(&mut text, (lease, parts), &times, pieces);
    text.push(')');
    text
}

/// Inserts answers with their bodies in the row, if the statement before has changed as many rows. If it
/// has not, the server refuses this one with [`NULL`](super::error::NULL), and whatever comes after it in
/// the text is not run. It must be refused, and not merely insert nothing: with connections that were cut
/// while the server told of the change, there were records that were done and had no answer.
pub(super) fn insert_all<'w>(
    tables: &Tables,
    answers: impl ExactSizeIterator<Item = (&'w Lease, &'w CompletionParts)>,
    times: &Times,
) -> String {
    let mut text = format!("INSERT INTO {} ({COLUMNS}) VALUES ", tables.answers);
    let count = answers.len();
    for (nth, (lease, parts)) in answers.enumerate() {
        let times = times.variables(lease, parts);
        // Nothing is in pieces here. One row that cannot be written is enough.
        if nth == 0 {
            text.push('(');
            let pieces = format_args!("IF(ROW_COUNT() = {count}, 0, NULL)");
            push_values(&mut text, (lease, parts), &times, pieces);
        } else {
            text.push_str("), (");
            push_values(&mut text, (lease, parts), &times, format_args!("0"));
        }
    }
    text.push(')');
    text
}

fn push_values(
    out: &mut String,
    (lease, parts): (&Lease, &CompletionParts),
    [expires, forget]: &[String; 2],
    pieces: Arguments<'_>,
) {
    let Lease { id, fence, .. } = lease;
    write!(out, "{fence}, ").expect(EVERYTHING);
    push_hex(out, id.as_bytes());
    write!(out, ", {expires}, {forget}, {expires}, ").expect(EVERYTHING);
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
