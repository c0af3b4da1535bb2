//! Removing what is over.

use mysql_async::Row;
use oncekey_core::saved::{NotKept, Outcome};
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::store::Purged;
use oncekey_core::{Answer, Fence, KeyId, Lease, Owner, StateKind, Timestamp, Tombstone};

use super::error::Trouble;
use super::session::{COMMIT, Session};
use super::sql::{self, NOW, Tables};
use super::{remove, row};
use crate::store::parts::Damage;

/// What is read of an answer that is due, and of its record, if it has one.
const DUE: &str = "a.`key_id`, a.`due`, a.`fence`, a.`expires`, a.`forget`, a.`status`, \
    a.`not_kept`, a.`outcome`, a.`seal`, r.`fence`, r.`owner`, r.`state`, r.`format`";

/// An answer whose time is over.
enum Due {
    /// Of a finished record.
    Finished(Finished),
    /// Of a record that somebody has deleted by hand.
    Alone(KeyId, Fence),
}

/// A finished record whose time is over.
struct Finished {
    lease: Lease,
    forget: Timestamp,
    status: Option<u16>,
    outcome: Outcome,
}

/// What was found to be due.
#[derive(Default)]
struct Found {
    finished: Vec<Finished>,
    alone: Vec<(KeyId, Fence)>,
}

/// Removes at most `limit` records, in one transaction.
pub(super) async fn purge(
    session: &mut Session,
    tables: &Tables,
    limit: usize,
) -> Result<Purged, Trouble> {
    let (Found { mut finished, alone }, now) = due(session, tables, limit).await?;
    if finished.is_empty() && alone.is_empty() {
        return Ok(Purged::default());
    }
    // In the order of the keys, as every batch.
    finished.sort_by_key(|due| due.lease.id);
    let mut statements = vec!["BEGIN".to_owned()];
    let (gone, stripped): (Vec<_>, Vec<_>) =
        finished.into_iter().partition(|due| due.forget <= now);
    for due in &stripped {
        statements.push(strip(tables, due));
        statements.push(drop_pieces(tables, due));
    }
    for due in &gone {
        statements.push(forget(tables, due));
        statements.push(remove::pieces(tables, &due.lease.id, due.lease.fence));
    }
    statements.extend(alone.iter().map(|(id, fence)| remove::answer(tables, id, *fence)));
    if let Some(fence) = gone.iter().map(|due| due.lease.fence).max() {
        statements.push(remove::raise(tables, fence));
    }
    statements.push(COMMIT.to_owned());
    let sets = session.run(&statements).await?;
    // Another purge may have been quicker with some of them.
    let changed = |first: usize, count: usize| {
        sets.iter().skip(first).step_by(2).take(count).filter(|set| set.matched > 0).count()
    };
    Ok(Purged {
        stripped: changed(1, stripped.len()),
        forgotten: changed(1 + 2 * stripped.len(), gone.len()),
    })
}

/// After so many answers without a record a look ends: each is a statement of the same text, which the
/// server takes up to a length. The next purge goes on.
const MOST_ALONE: usize = 1_000;

async fn due(
    session: &mut Session,
    tables: &Tables,
    limit: usize,
) -> Result<(Found, Timestamp), Trouble> {
    let clock = format!("SELECT {NOW}");
    let sets = session.run(&[clock]).await?;
    let now = row::moment(sets.first())?;
    let Tables { records, answers, .. } = tables;
    let mut found = Found::default();
    // A look goes on past damaged rows, which stay for people to look at and must not keep the others
    // from going.
    let mut beyond = String::new();
    while found.finished.len() < limit && found.alone.len() < MOST_ALONE {
        let text = format!(
            "SELECT {DUE} FROM {answers} AS a LEFT JOIN {records} AS r ON r.`key_id` = a.`key_id` \
             WHERE a.`due` <= {}{beyond} ORDER BY a.`due`, a.`fence`, a.`key_id` LIMIT {limit}",
            now.micros(),
        );
        let sets = session.run(&[text]).await?;
        let rows = sets.first().map_or(&[][..], |set| &set.rows);
        for due in rows.iter().filter_map(|row| read_due(row, now).ok().flatten()) {
            match due {
                Due::Finished(finished) => found.finished.push(finished),
                Due::Alone(id, fence) => found.alone.push((id, fence)),
            }
        }
        let Some(last) = rows.last().filter(|_| rows.len() == limit) else { break };
        let (due, fence): (i64, i64) = (row::number(last, 1)?, row::number(last, 2)?);
        let id = sql::hex(row::blob(last, 0)?);
        beyond = format!(
            " AND a.`due` >= {due} AND (a.`due` > {due} OR a.`fence` > {fence} \
             OR (a.`fence` = {fence} AND a.`key_id` > {id}))"
        );
    }
    found.finished.truncate(limit);
    Ok((found, now))
}

/// `None` if the row is not what was written, as far as can be told without reading the answer.
fn read_due(found: &Row, now: Timestamp) -> Result<Option<Due>, Damage> {
    let (id, fence) = (row::key_id(found)?, row::number::<i64>(found, 2)?);
    let Some(fence) = Fence::from_number(fence) else { return Ok(None) };
    let Some(newest) = row::optional::<i64>(found, 9)? else {
        return Ok(Some(Due::Alone(id, fence)));
    };
    let moment = |column| row::number(found, column).map(Timestamp::from_micros);
    let (expires, forget) = (moment(3)?, moment(4)?);
    let (status, not_kept): (Option<u16>, u8) = (row::optional(found, 5)?, row::number(found, 6)?);
    let array = |column| -> Result<[u8; 16], Damage> {
        row::blob(found, column)?.try_into().map_err(|_| Damage::Damaged("length"))
    };
    let outcome = Outcome::from_bytes(array(7)?);
    let lease = Lease { id, fence, owner: Owner::from_bytes(array(10)?), until: now };
    let stands = match not_kept {
        0 => outcome,
        code => {
            let Some(reason) = NotKept::from_code(code) else { return Ok(None) };
            Answer::Tombstone(Tombstone { status, reason }).outcome()
        }
    };
    let sound = expires <= now
        && expires <= forget
        && newest == fence.number()
        && row::number::<u8>(found, 11)? == StateKind::Done.code()
        && row::number::<u8>(found, 12)? == RECORD_FORMAT
        && Seal::from_bytes(array(8)?) == Seal::of_answer(&lease, &outcome, &stands);
    Ok(sound.then_some(Due::Finished(Finished { lease, forget, status, outcome })))
}

fn strip(tables: &Tables, due: &Finished) -> String {
    let reason = NotKept::Expired;
    let stands = Answer::Tombstone(Tombstone { status: due.status, reason }).outcome();
    let seal = Seal::of_answer(&due.lease, &due.outcome, &stands);
    format!(
        "UPDATE {} SET `due` = `forget`, `not_kept` = {}, `seal` = {}, `headers` = x'', \
         `pieces` = 0, `body` = x'' WHERE `fence` = {} AND `key_id` = {} AND `outcome` = {} \
         AND `forget` = {} AND `due` < `forget`",
        tables.answers,
        reason.code(),
        sql::hex(seal.as_bytes()),
        due.lease.fence,
        sql::hex(due.lease.id.as_bytes()),
        sql::hex(due.outcome.as_bytes()),
        due.forget.micros(),
    )
}

/// Removes the pieces of a record that was stripped. If its key was used again, their fence is older
/// than that of the new attempt.
fn drop_pieces(tables: &Tables, Finished { lease, .. }: &Finished) -> String {
    format!(
        "DELETE FROM {} WHERE `key_id` = {} AND `fence` <= {}",
        tables.pieces,
        sql::hex(lease.id.as_bytes()),
        lease.fence
    )
}

/// Removes a record with its answer, if it is still the one that was found: nobody has used its key
/// again.
fn forget(tables: &Tables, Finished { lease, forget, .. }: &Finished) -> String {
    let Tables { records, answers, .. } = tables;
    format!(
        "DELETE r, a FROM {records} AS r STRAIGHT_JOIN {answers} AS a \
         ON a.`fence` = r.`fence` AND a.`key_id` = r.`key_id` \
         WHERE r.`key_id` = {} AND r.`fence` = {} AND r.`owner` = {} AND r.`state` = {} \
         AND r.`format` = {RECORD_FORMAT} AND a.`forget` = {}",
        sql::hex(lease.id.as_bytes()),
        lease.fence,
        sql::hex(lease.owner.as_bytes()),
        StateKind::Done.code(),
        forget.micros()
    )
}
