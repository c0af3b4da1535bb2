//! Removing what is over, and whatever else removes a record or its answer.

use oncekey_core::saved::{NotKept, Outcome};
use oncekey_core::seal::Seal;
use oncekey_core::store::Purged;
use oncekey_core::{Answer, Fence, KeyId, Lease, Owner, StateKind, Timestamp, Tombstone};
use rusqlite::{Connection, Row, params};

use super::error::Failure;
use super::row;
use super::settle::Ledger;

const DUE: &str = "
    SELECT a.record, a.expires, a.forget, a.status, a.not_kept, a.outcome, a.seal,
        r.key_id, r.fence, r.owner, r.state
    FROM oncekey_answers AS a JOIN oncekey_records AS r ON r.id = a.record
    WHERE a.due <= ?1 ORDER BY a.due";

const STRIP: &str = "
    UPDATE oncekey_answers SET due = forget, not_kept = ?2, seal = ?3, headers = x'',
        pieces = 0, body = x''
    WHERE record = ?1";

const FORGET_ANSWER: &str = "DELETE FROM oncekey_answers WHERE record = ?1";
const FORGET_PIECES: &str = "DELETE FROM oncekey_pieces WHERE record = ?1";
const FORGET_RECORD: &str = "DELETE FROM oncekey_records WHERE id = ?1";
const FORGET_FRESH: &str = "DELETE FROM oncekey_fresh WHERE hash = ?1 AND record = ?2";
const FORGET_SETTLED: &str = "DELETE FROM oncekey_settled WHERE hash = ?1 AND record = ?2";

pub(super) fn purge(
    connection: &Connection,
    limit: usize,
    ledger: &mut Ledger,
    now: Timestamp,
) -> Result<Purged, Failure> {
    let mut due = due(connection, limit, now)?;
    // In the order of the key maps, so that neighbours are removed together.
    due.sort_by_key(|(lease, ..)| row::hash_of(&lease.id));
    let mut purged = Purged::default();
    for (lease, row, forget_at, status, outcome) in due {
        if forget_at <= now {
            forget(connection, &lease.id, row, ledger)?;
            purged.forgotten += 1;
        } else {
            let reason = NotKept::Expired;
            let stands = Answer::Tombstone(Tombstone { status, reason }).outcome();
            let seal = Seal::of_answer(&lease, &outcome, &stands);
            let columns = params![row, reason.code(), seal.as_bytes()];
            connection.prepare_cached(STRIP)?.execute(columns)?;
            forget_pieces(connection, row)?;
            purged.stripped += 1;
        }
    }
    Ok(purged)
}

/// A lease of the newest attempt, its row, when to forget it, its status and its outcome.
type Due = (Lease, i64, Timestamp, Option<u16>, Outcome);

fn due(connection: &Connection, limit: usize, now: Timestamp) -> Result<Vec<Due>, Failure> {
    let mut statement = connection.prepare_cached(DUE)?;
    let mut rows = statement.query([now.micros()])?;
    let mut due = Vec::new();
    while due.len() < limit
        && let Some(row) = rows.next()?
    {
        // A damaged row stays for people to look at, and must not keep the others from going.
        due.extend(read_due(row, now));
    }
    Ok(due)
}

/// `None` if the row is not what was written, as far as can be told without reading the answer.
fn read_due(row: &Row<'_>, now: Timestamp) -> Option<Due> {
    let moment = |column| row.get(column).ok().map(Timestamp::from_micros);
    let (expires, forget_at) = (moment(1)?, moment(2)?);
    let (status, not_kept): (Option<u16>, u8) = (row.get(3).ok()?, row.get(4).ok()?);
    let given = Outcome::from_bytes(row.get(5).ok()?);
    let lease = Lease {
        id: KeyId::from_bytes(row.get(7).ok()?),
        fence: Fence::from_number(row.get(8).ok()?)?,
        owner: Owner::from_bytes(row.get(9).ok()?),
        until: now,
    };
    let stands = match not_kept {
        0 => given,
        code => {
            let reason = NotKept::from_code(code)?;
            Answer::Tombstone(Tombstone { status, reason }).outcome()
        }
    };
    let sound = expires <= now
        && expires <= forget_at
        && row.get(10) == Ok(StateKind::Done.code())
        && row.get(6).map(Seal::from_bytes) == Ok(Seal::of_answer(&lease, &given, &stands));
    sound.then_some((lease, row.get(0).ok()?, forget_at, status, given))
}

/// Removes a record with everything that belongs to it.
pub(super) fn forget(
    connection: &Connection,
    id: &KeyId,
    row: i64,
    ledger: &mut Ledger,
) -> Result<(), Failure> {
    let place = [row::hash_of(id), row];
    forget_answer(connection, row)?;
    connection.prepare_cached(FORGET_RECORD)?.execute([row])?;
    if connection.prepare_cached(FORGET_FRESH)?.execute(place)? > 0 {
        ledger.fresh -= 1;
    } else {
        connection.prepare_cached(FORGET_SETTLED)?.execute(place)?;
    }
    Ok(())
}

/// Removes the answer of a record and the pieces of its body.
pub(super) fn forget_answer(connection: &Connection, row: i64) -> Result<(), Failure> {
    connection.prepare_cached(FORGET_ANSWER)?.execute([row])?;
    forget_pieces(connection, row)
}

/// Removes the pieces of all bodies that were ever written for a record.
pub(super) fn forget_pieces(connection: &Connection, row: i64) -> Result<(), Failure> {
    connection.prepare_cached(FORGET_PIECES)?.execute([row])?;
    Ok(())
}
