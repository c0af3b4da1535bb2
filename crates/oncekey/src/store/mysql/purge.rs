//! Removing what is over.

use mysql_async::Row;
use oncekey_core::saved::{NotKept, Outcome};
use oncekey_core::seal::Seal;
use oncekey_core::store::Purged;
use oncekey_core::{Answer, Fence, Lease, Owner, StateKind, Timestamp, Tombstone};

use super::error::Trouble;
use super::session::Session;
use super::sql::{self, NOW, Tables};
use super::{remove, row};
use crate::store::parts::Damage;

const DUE: &str = "`key_id`, `due`, `seq`, `expires`, `forget`, `status`, `not_kept`, `outcome`, \
    `answer_seal`, `fence`, `owner`, `state`";

/// A finished record whose time is over.
struct Due {
    lease: Lease,
    forget: Timestamp,
    status: Option<u16>,
    outcome: Outcome,
}

/// Removes at most `limit` records, in one transaction.
pub(super) async fn purge(
    session: &mut Session,
    tables: &Tables,
    limit: usize,
) -> Result<Purged, Trouble> {
    let (mut due, now) = due(session, tables, limit).await?;
    if due.is_empty() {
        return Ok(Purged::default());
    }
    // In the order of the keys, as every batch.
    due.sort_by_key(|due| due.lease.id);
    let mut statements = vec!["BEGIN".to_owned()];
    let (gone, stripped): (Vec<_>, Vec<_>) = due.into_iter().partition(|due| due.forget <= now);
    for due in &stripped {
        statements.push(strip(tables, due));
        statements.push(drop_pieces(tables, due));
    }
    for due in &gone {
        statements.push(forget(tables, due));
        statements.push(remove::pieces(tables, &due.lease.id, due.lease.fence));
    }
    if let Some(fence) = gone.iter().map(|due| due.lease.fence).max() {
        statements.push(remove::raise(tables, fence));
    }
    statements.push("COMMIT".to_owned());
    let sets = session.run(&statements).await?;
    // Another purge may have been quicker with some of them.
    let changed = |first: usize, count: usize| {
        sets.iter().skip(first).step_by(2).take(count).filter(|set| set.matched == 1).count()
    };
    Ok(Purged {
        stripped: changed(1, stripped.len()),
        forgotten: changed(1 + 2 * stripped.len(), gone.len()),
    })
}

async fn due(
    session: &mut Session,
    tables: &Tables,
    limit: usize,
) -> Result<(Vec<Due>, Timestamp), Trouble> {
    let clock = format!("SELECT {NOW}");
    let sets = session.run(&[clock]).await?;
    let now = row::moment(sets.first())?;
    let mut found = Vec::new();
    // A look goes on past damaged rows, which stay for people to look at and must not keep the others
    // from going.
    let mut beyond = String::new();
    while found.len() < limit {
        let text = format!(
            "SELECT {DUE} FROM {} WHERE `due` <= {}{beyond} ORDER BY `due`, `seq` LIMIT {limit}",
            tables.records,
            now.micros(),
        );
        let sets = session.run(&[text]).await?;
        let rows = sets.first().map_or(&[][..], |set| &set.rows);
        found.extend(rows.iter().filter_map(|row| read_due(row, now).ok().flatten()));
        let Some(last) = rows.last().filter(|_| rows.len() == limit) else { break };
        let (due, seq): (i64, i64) = (row::number(last, 1)?, row::number(last, 2)?);
        beyond = format!(" AND (`due` > {due} OR (`due` = {due} AND `seq` > {seq}))");
    }
    found.truncate(limit);
    Ok((found, now))
}

/// `None` if the row is not what was written, as far as can be told without reading the answer.
fn read_due(found: &Row, now: Timestamp) -> Result<Option<Due>, Damage> {
    let moment = |column| row::number(found, column).map(Timestamp::from_micros);
    let (expires, forget) = (moment(3)?, moment(4)?);
    let (status, not_kept): (Option<u16>, u8) = (row::optional(found, 5)?, row::number(found, 6)?);
    let array = |column| -> Result<[u8; 16], Damage> {
        row::blob(found, column)?.try_into().map_err(|_| Damage::Damaged("length"))
    };
    let outcome = Outcome::from_bytes(array(7)?);
    let Some(fence) = Fence::from_number(row::number(found, 9)?) else { return Ok(None) };
    let owner = Owner::from_bytes(array(10)?);
    let lease = Lease { id: row::key_id(found)?, fence, owner, until: now };
    let stands = match not_kept {
        0 => outcome,
        code => {
            let Some(reason) = NotKept::from_code(code) else { return Ok(None) };
            Answer::Tombstone(Tombstone { status, reason }).outcome()
        }
    };
    let sound = expires <= now
        && expires <= forget
        && row::number::<u8>(found, 11)? == StateKind::Done.code()
        && Seal::from_bytes(array(8)?) == Seal::of_answer(&lease, &outcome, &stands);
    Ok(sound.then_some(Due { lease, forget, status, outcome }))
}

/// Holds as long as the record is the one that was found: nobody has used its key again.
fn is_still(Due { lease, forget, .. }: &Due) -> String {
    format!(
        "`key_id` = {} AND `fence` = {} AND `owner` = {} AND `state` = {} AND `forget` = {}",
        sql::hex(lease.id.as_bytes()),
        lease.fence,
        sql::hex(lease.owner.as_bytes()),
        StateKind::Done.code(),
        forget.micros()
    )
}

fn strip(tables: &Tables, due: &Due) -> String {
    let reason = NotKept::Expired;
    let stands = Answer::Tombstone(Tombstone { status: due.status, reason }).outcome();
    let seal = Seal::of_answer(&due.lease, &due.outcome, &stands);
    format!(
        "UPDATE {} SET `due` = `forget`, `not_kept` = {}, `answer_seal` = {}, `headers` = x'', \
         `pieces` = 0, `body` = x'' WHERE {} AND `due` < `forget`",
        tables.records,
        reason.code(),
        sql::hex(seal.as_bytes()),
        is_still(due)
    )
}

/// Removes the pieces of a record that was stripped. If its key was used again, their fence is older
/// than that of the new attempt.
fn drop_pieces(tables: &Tables, Due { lease, .. }: &Due) -> String {
    format!(
        "DELETE FROM {} WHERE `key_id` = {} AND `fence` <= {}",
        tables.pieces,
        sql::hex(lease.id.as_bytes()),
        lease.fence
    )
}

fn forget(tables: &Tables, due: &Due) -> String {
    format!("DELETE FROM {} WHERE {}", tables.records, is_still(due))
}
