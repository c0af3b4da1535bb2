//! Moves keys from the small map to the large one.
//!
//! A digest is a random number: in one large index every claim would dirty another page, write it
//! to the log and, at the next checkpoint, to the file. At five million keys that doubled the cost
//! of a claim. So new keys go into a small map, whose pages are dirty anyway, and every batch moves
//! a few to the large map, in the order of their digests: each page of the large map then takes
//! many keys at once, a sweep at a time.

use oncekey_core::{Fence, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::error::Failure;

/// How many keys the small map holds before any are moved: four megabytes of index, which stays
/// in memory, and about nine keys for every page of a large map of five million.
const SMALL: i64 = 262_144;
/// The most keys that one batch moves; they are neighbours, so this is a few dozen pages.
const MOST: i64 = 512;

const READ: &str = "SELECT fence, fresh FROM oncekey_clock WHERE id = 1";
const WRITE: &str = "UPDATE oncekey_clock SET fence = ?1, fresh = ?2 WHERE id = 1";

/// The digest up to which the next keys are moved.
const LAST: &str =
    "SELECT hash FROM oncekey_fresh WHERE hash >= ?1 ORDER BY hash LIMIT 1 OFFSET ?2";
/// A key that is in both maps, which nobody put there, must not stop all others.
const MOVE: &str = "
    INSERT OR IGNORE INTO oncekey_settled (hash, record)
    SELECT hash, record FROM oncekey_fresh WHERE hash BETWEEN ?1 AND ?2 ORDER BY hash";
const CLEAR: &str = "DELETE FROM oncekey_fresh WHERE hash BETWEEN ?1 AND ?2";

/// What a transaction knows about the whole store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger {
    /// The highest fence ever granted.
    pub(super) fence: i64,
    /// How many keys are in the small map.
    pub(super) fresh: i64,
}

impl Ledger {
    /// The next fence. One that does not rise cannot be granted: the ledger is damaged, because no
    /// clock counts microseconds up to the end of the numbers.
    pub(super) fn next_fence(self, found: Option<Fence>, now: Timestamp) -> Result<Fence, Failure> {
        const WRONG: Failure = Failure::damaged("the highest fence that was granted");
        // Zero is what a new file begins with.
        let previous = match self.fence {
            0 => None,
            number => Some(Fence::from_number(number).ok_or(WRONG)?),
        };
        // Normally the ledger is ahead of every record; a damaged one may not be.
        let previous = previous.max(found);
        let next = Fence::next(previous, now);
        if previous < Some(next) { Ok(next) } else { Err(WRONG) }
    }
}

/// Where the sweep stands. Any place is right, so it need not survive the writer thread, and two
/// processes that sweep the same file do not disturb each other.
#[derive(Debug)]
pub(super) struct Sweep {
    /// How many keys may stay in the small map.
    small: i64,
    /// The digest at which the next keys are taken.
    from: i64,
}

impl Sweep {
    /// A sweep of what is above `small` keys.
    pub(super) const fn above(small: i64) -> Self {
        Self { small, from: i64::MIN }
    }
}

impl Default for Sweep {
    fn default() -> Self {
        Self::above(SMALL)
    }
}

pub(super) fn read_ledger(connection: &Connection) -> Result<Ledger, Failure> {
    connection
        .prepare_cached(READ)?
        .query_row([], |row| Ok(Ledger { fence: row.get(0)?, fresh: row.get(1)? }))
        .optional()?
        .ok_or(Failure::damaged("the highest fence that was granted is gone"))
}

pub(super) fn write_ledger(
    connection: &Connection,
    ledger: Ledger,
    before: Ledger,
) -> rusqlite::Result<()> {
    if (ledger.fence, ledger.fresh) != (before.fence, before.fresh) {
        connection.prepare_cached(WRITE)?.execute(params![ledger.fence, ledger.fresh])?;
    }
    Ok(())
}

/// Moves about twice as many keys as the batch has added, if the small map is full.
pub(super) fn some(
    connection: &Connection,
    sweep: &mut Sweep,
    ledger: &mut Ledger,
    before: Ledger,
) -> rusqlite::Result<()> {
    let added = ledger.fresh - before.fresh;
    if ledger.fresh <= sweep.small || added <= 0 {
        return Ok(());
    }
    let from = sweep.from;
    let count = (added * 2).min(MOST);
    let last: Option<i64> = connection
        .prepare_cached(LAST)?
        .query_row([from, count - 1], |row| row.get(0))
        .optional()?;
    // Fewer than that are left above: take them all, and begin again at the bottom.
    let to = last.unwrap_or(i64::MAX);
    connection.prepare_cached(MOVE)?.execute([from, to])?;
    let moved = connection.prepare_cached(CLEAR)?.execute([from, to])?;
    ledger.fresh -= i64::try_from(moved).unwrap_or(i64::MAX);
    sweep.from = to.checked_add(1).unwrap_or(i64::MIN);
    Ok(())
}
