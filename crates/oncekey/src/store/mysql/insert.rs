//! Claims free keys: inserts their records.
//!
//! The fence of a free key must be higher than that of every record which this key ever had. Such a
//! record is gone, and whoever removed it has raised the high-water mark in the same transaction
//! (`remove.rs`). An insert may have begun before that and have waited for the row to go: it then
//! knows an old mark. So the mark is read again *after* the insert, where the removal must be visible,
//! and if it has reached the new fence the insert is taken back. Insert and second look are one
//! transaction for that reason, and are sent in one text: it is never open while a client thinks.
//!
//! The first look is there only to spare the insert that is taken back, and the clock is almost always
//! ahead of the mark. So a lone claim does without: every statement more is a tenth of a millisecond.

use std::fmt::Write as _;
use std::time::Duration;

use oncekey_core::{Claim, Claimed, Fence, Grant, Lease, Sent, StoreError, Timestamp};

use super::claims::{COLUMNS, Came, PreparedClaim, push_values};
use super::error::Trouble;
use super::row;
use super::session::{COMMIT, Session, Set};
use super::sql::{self, EVERYTHING, NOW, Tables};

/// What is believed of the high-water mark before an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The clock is ahead of it.
    Trusted,
    /// Nothing: it is read first.
    Read,
}

/// The fence of a free key, by the clock in `@n` and one more than the high-water mark in `@m`.
const FENCE: &str = "GREATEST(@n, @m)";

/// The different spans for which claims are leased: few, and mostly one.
struct Leases(Vec<Duration>);

impl Leases {
    fn of(spans: impl Iterator<Item = Duration>) -> Self {
        let mut spans: Vec<Duration> = spans.collect();
        spans.sort_unstable();
        spans.dedup();
        Self(spans)
    }

    /// Sets the variables of the server, and that of the fence.
    fn set(&self) -> String {
        let mut text = format!("SET @f = {FENCE}");
        for (nth, span) in self.0.iter().enumerate() {
            write!(text, ", @u{nth} = @n + {}", sql::micros(*span)).expect(EVERYTHING);
        }
        text
    }

    /// The variable that says when a lease of this span lapses.
    fn variable(&self, span: Duration) -> String {
        let place = self.0.binary_search(&span).expect("made of all claims");
        format!("@u{place}")
    }
}

/// Claims the free keys of the claims at these places, all of them or none.
pub(super) async fn insert(
    session: &mut Session,
    tables: &Tables,
    mark: Mark,
    (claims, open): (&[&PreparedClaim], &[usize]),
    answers: &mut [Option<Result<Came, StoreError>>],
) -> Result<(), Trouble> {
    let those: Vec<&PreparedClaim> = open.iter().map(|&place| claims[place]).collect();
    let statements = match (&those[..], mark) {
        ([], _) => return Ok(()),
        ([prepared], Mark::Trusted) => lone(tables, prepared).to_vec(),
        (those, Mark::Trusted | Mark::Read) => several(tables, those),
    };
    let sets = session.run(&statements).await?;
    let (now, fence) = match granted(&sets) {
        Ok(granted) => granted,
        // It is committed, and nobody can say with which fence.
        Err(trouble) => {
            open.iter().for_each(|&place| answers[place] = Some(Err(trouble.after_commit())));
            return Ok(());
        }
    };
    for &place in open {
        let Claim { id, owner, lease, .. } = &claims[place].claim;
        let until = Timestamp::from_micros(now.micros() + sql::micros(*lease));
        let lease = Lease { id: *id, fence, owner: *owner, until };
        let (grant, earlier) = (Grant::Fresh, Sent::No);
        answers[place] = Some(Ok(Came::Decided(Claimed::Won { lease, grant, earlier })));
    }
    Ok(())
}

/// Claims one free key, with the clock as its fence. The other times are reckoned from the column of the
/// fence, which an insert may do with columns that stand before its own. The variable is for the second
/// look alone: in which order one statement sets and reads it is nowhere promised.
fn lone(tables: &Tables, prepared: &PreparedClaim) -> [String; 4] {
    let Tables { records, .. } = tables;
    let mut row = format!("INSERT INTO {records} ({COLUMNS}, `born`) VALUES (");
    let PreparedClaim { claim, .. } = prepared;
    let fence = format!("@n := {NOW}");
    let until = format!("`fence` + {}", sql::micros(claim.lease));
    push_values(&mut row, prepared, &fence, claim.sent, [&until, "`fence`"]);
    row.push_str(", `fence`)");
    ["BEGIN".to_owned(), row, second_look(tables, "@n"), COMMIT.to_owned()]
}

/// Claims free keys, with a first look at the mark. What the rows have in common is computed once.
fn several(tables: &Tables, those: &[&PreparedClaim]) -> Vec<String> {
    let Tables { records, clock, .. } = tables;
    // Without the row of the mark this is NULL, which no column takes: nothing is granted.
    let look =
        format!("SELECT {NOW}, (SELECT `fence` FROM {clock} WHERE `id` = 1) + 1 INTO @n, @m");
    let leases = Leases::of(those.iter().map(|prepared| prepared.claim.lease));
    let mut rows = format!("INSERT INTO {records} ({COLUMNS}, `born`) VALUES ");
    for (nth, prepared) in those.iter().enumerate() {
        rows.push_str(if nth == 0 { "(" } else { ", (" });
        let PreparedClaim { claim, .. } = prepared;
        push_values(&mut rows, prepared, "@f", claim.sent, [&leases.variable(claim.lease), "@n"]);
        rows.push_str(", @f)");
    }
    let begin = "BEGIN".to_owned();
    vec![look, leases.set(), begin, rows, second_look(tables, "@f"), COMMIT.to_owned()]
}

/// Tells the clock and the fence. If the mark has reached the fence, or is gone, this adds to the largest
/// number, which is an error and ends the text before the commit.
fn second_look(Tables { clock, .. }: &Tables, fence: &str) -> String {
    format!(
        "SELECT @n, {fence}, IF((SELECT `fence` FROM {clock} WHERE `id` = 1) < {fence}, 0, \
         9223372036854775807 + {fence})"
    )
}

/// The clock and the fence of an insert.
fn granted(sets: &[Set]) -> Result<(Timestamp, Fence), Trouble> {
    const WRONG: Trouble = Trouble::damaged("the highest fence that was removed");
    let row = sets.iter().find_map(|set| set.rows.first()).ok_or(WRONG)?;
    let fence = Fence::from_number(row::number(row, 1)?).ok_or(WRONG)?;
    Ok((Timestamp::from_micros(row::number(row, 0)?), fence))
}
