//! The names of the tables, and how values are written into statements.
//!
//! Statements are sent as text: a batch has as many values as it has operations, and a prepared
//! statement for every size would fill the server's cache. Numbers are written in digits and bytes
//! in hexadecimal, so nothing that came from outside is ever taken for SQL. Plain text as it is would be
//! shorter, but takes the server longer to read: 7 microseconds for 300 bytes, and not 4.

use std::fmt::Write as _;
use std::time::Duration;

use oncekey_core::{KeyId, StoreError};

use super::error::unsuitable;

/// The server's clock at the moment at which it is read, in microseconds. `NOW()` would be the
/// moment at which the statement began, which may be a lock wait ago.
pub(super) const NOW: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";

/// The longest span that is written: 73 000 years. Twice of it can be added to any clock reading
/// without leaving the range of the column.
const LONGEST: i64 = 1 << 61;

/// The longest prefix: with the longest table name it stays far below the 64 characters that the
/// server allows.
const LONGEST_PREFIX: usize = 32;

/// Why writing to a string cannot fail.
pub(super) const EVERYTHING: &str = "a string takes everything";

/// The tables of a store, quoted.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) prefix: String,
    pub(super) records: String,
    pub(super) answers: String,
    /// Records as `r`, each with its answer as `a`, if it has one.
    pub(super) whole: String,
    pub(super) pieces: String,
    pub(super) clock: String,
    pub(super) migrations: String,
}

impl Tables {
    pub(super) fn new(prefix: &str) -> Result<Self, StoreError> {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if prefix.is_empty() || prefix.len() > LONGEST_PREFIX || !prefix.bytes().all(is_name) {
            return Err(unsuitable(format!(
                "the table prefix must be 1 to {LONGEST_PREFIX} lower-case letters, digits and \
                 underscores"
            )));
        }
        let table = |name: &str| format!("`{prefix}{name}`");
        let (records, answers) = (table("records"), table("answers"));
        Ok(Self {
            prefix: prefix.to_owned(),
            whole: whole(&records, &answers, ""),
            records,
            answers,
            pieces: table("pieces"),
            clock: table("clock"),
            migrations: table("migrations"),
        })
    }
}

impl Tables {
    /// As [`whole`](Self::whole), read by an index of the records: the server would read everything
    /// above a place deep in a long list once for every page.
    pub(super) fn whole_by(&self, index: &str) -> String {
        whole(&self.records, &self.answers, &format!(" FORCE INDEX ({index})"))
    }
}

fn whole(records: &str, answers: &str, hint: &str) -> String {
    format!(
        "{records} AS r{hint} LEFT JOIN {answers} AS a \
         ON a.`fence` = r.`fence` AND a.`key_id` = r.`key_id`"
    )
}

/// Bytes as a literal.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len() + 3);
    push_hex(&mut out, bytes);
    out
}

/// Appends bytes as a literal.
pub(super) fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push_str("x'");
    out.reserve(2 * bytes.len() + 1);
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    out.push('\'');
}

/// Appends a number, or NULL.
pub(super) fn push_optional(out: &mut String, number: Option<u16>) {
    match number {
        Some(number) => write!(out, "{number}").expect(EVERYTHING),
        None => out.push_str("NULL"),
    }
}

/// Key ids as a list for `IN`.
pub(super) fn list<'i>(ids: impl Iterator<Item = &'i KeyId>) -> String {
    let mut out = String::new();
    for id in ids {
        out.push(if out.is_empty() { '(' } else { ',' });
        push_hex(&mut out, id.as_bytes());
    }
    out.push(')');
    out
}

/// A span in microseconds.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_came_from_outside_is_taken_for_sql() {
        assert_eq!(hex(b"'; DROP"), "x'273b2044524f50'");
        assert_eq!(hex(b""), "x''");
        assert!(Tables::new("oncekey_").is_ok());
        for prefix in ["", "a`b", "Upper", "a b", &"a".repeat(33)] {
            assert!(Tables::new(prefix).is_err(), "{prefix}");
        }
    }

    #[test]
    fn endless_spans_fit_the_column() {
        let now = 1_763_000_000_000_000_i64;
        let longest = micros(Duration::MAX);
        assert!(now.checked_add(longest).and_then(|sum| sum.checked_add(longest)).is_some());
        assert_eq!(micros(Duration::from_secs(1)), 1_000_000);
    }
}
