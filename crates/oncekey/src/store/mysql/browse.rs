//! Lists, counts and finds records for operators.

use mysql_async::Row;
use oncekey_core::browse::{Count, Cursor, Filter, Listing, MAX_PAGE, Page, Summary};
use oncekey_core::record::Text;
use oncekey_core::{Class, ErrorKind, Fence, KeyId, Origin, StateKind, StoreError, Timestamp};

use super::error::Trouble;
use super::row;
use super::session::Session;
use super::sql::{self, NOW, Tables};
use crate::store::parts::Damage;

const SUMMARY: &str = "`key_id`, `fence`, `class`, `created`, `key`, `scope`, `route`, `request`, \
    `state`, `at`, `expires`, `status`, `seq`";

pub(super) async fn list(
    session: &mut Session,
    tables: &Tables,
    filter: &Filter,
    page: &Page,
) -> Result<Listing, Trouble> {
    let limit = page.bounded_limit();
    let now = clock(session).await?;
    let below = page.after.as_ref().map_or(i64::MAX, |Cursor(bytes)| {
        // Checked by `check_cursor` before; anything else would be an empty page.
        bytes.as_slice().try_into().map_or(i64::MIN, i64::from_be_bytes)
    });
    // One more than asked for tells whether there is another page.
    let text = format!(
        "SELECT {SUMMARY} FROM {} WHERE {} AND `seq` < {below} ORDER BY `seq` DESC LIMIT {}",
        tables.records,
        conditions(filter, now),
        limit + 1
    );
    let sets = session.run(&[text]).await?;
    let rows = sets.first().map_or(&[][..], |set| &set.rows);
    let last = rows.get(limit).and_then(|_| rows.get(limit - 1));
    let next = last.map(cursor).transpose()?;
    // A damaged record must not hide the others; asking for it by its key id says so.
    let summaries = rows.iter().take(limit).filter_map(|row| summary(row).ok()).collect();
    Ok(Listing { summaries, next, now })
}

pub(super) async fn count(
    session: &mut Session,
    tables: &Tables,
    filter: &Filter,
    cap: usize,
) -> Result<Count, Trouble> {
    let now = clock(session).await?;
    let text = format!(
        "SELECT COUNT(*) FROM (SELECT 1 FROM {} WHERE {} LIMIT {}) AS c",
        tables.records,
        conditions(filter, now),
        cap.saturating_add(1)
    );
    let sets = session.run(&[text]).await?;
    let row = sets.first().and_then(|set| set.rows.first());
    let counted: usize = row::number(row.ok_or(Trouble::damaged("a count"))?, 0)?;
    Ok(if counted > cap { Count::AtLeast(cap) } else { Count::Exactly(counted) })
}

/// Looks through all records: an index on the key as it was sent would cost every claim a random
/// page, for a question that people ask a few times a day.
pub(super) async fn find(
    session: &mut Session,
    tables: &Tables,
    key: &Text,
    limit: usize,
) -> Result<Vec<Summary>, Trouble> {
    let now = clock(session).await?;
    let text = format!(
        "SELECT {SUMMARY} FROM {} WHERE {} AND `key` = {} ORDER BY `seq` DESC LIMIT {}",
        tables.records,
        conditions(&Filter::default(), now),
        sql::hex(key.as_bytes()),
        limit.min(MAX_PAGE)
    );
    let sets = session.run(&[text]).await?;
    let rows = sets.first().map_or(&[][..], |set| &set.rows);
    Ok(rows.iter().filter_map(|row| summary(row).ok()).collect())
}

/// A cursor of another store, or a damaged one, is the caller's mistake.
pub(super) fn check_cursor(page: &Page) -> Result<(), StoreError> {
    match &page.after {
        Some(Cursor(bytes)) if bytes.len() != 8 => Err(StoreError::new(
            ErrorKind::Rejected,
            "the cursor is not one of this store: begin at the first page",
        )),
        Some(_) | None => Ok(()),
    }
}

/// Read before the records, so that nothing is told about a time that had not come.
async fn clock(session: &mut Session) -> Result<Timestamp, Trouble> {
    let text = format!("SELECT {NOW}");
    row::moment(session.run(&[text]).await?.first())
}

fn conditions(filter: &Filter, now: Timestamp) -> String {
    let Filter { state, route, scope, older_than } = filter;
    let forgotten = format!("(`forget` IS NULL OR `forget` > {})", now.micros());
    let mut all = vec![forgotten];
    match state {
        Some(StateKind::Done) => all.push(format!("`state` = {}", StateKind::Done.code())),
        // Said twice for open states, so that the index of what is due serves them.
        Some(open) => all.push(format!("`due` IS NULL AND `state` = {}", open.code())),
        None => {}
    }
    if let Some(route) = route {
        all.push(format!("`route` = {}", sql::hex(route.as_bytes())));
    }
    if let Some(scope) = scope {
        all.push(format!("`scope` = {}", sql::hex(scope.as_bytes())));
    }
    if let Some(age) = older_than {
        all.push(format!("`created` <= {}", now.before(*age).micros()));
    }
    all.join(" AND ")
}

fn cursor(last: &Row) -> Result<Cursor, Damage> {
    let seq: i64 = row::number(last, 12)?;
    Ok(Cursor(seq.to_be_bytes().to_vec()))
}

/// The record in this row, unless it is damaged.
fn summary(found: &Row) -> Result<Summary, Damage> {
    const WRONG: Damage = Damage::Damaged("a code");
    let text = |column| row::blob(found, column).map(Text::from);
    let moment = |column| row::number(found, column).map(Timestamp::from_micros);
    let id: KeyId = row::key_id(found)?;
    Ok(Summary {
        id,
        fence: Fence::from_number(row::number(found, 1)?).ok_or(WRONG)?,
        class: Class::from_code(row::number(found, 2)?).ok_or(WRONG)?,
        created: moment(3)?,
        origin: Origin { key: text(4)?, scope: text(5)?, route: text(6)?, request: text(7)? },
        state: StateKind::from_code(row::number(found, 8)?).ok_or(WRONG)?,
        at: moment(9)?,
        expires: row::optional(found, 10)?.map(Timestamp::from_micros),
        status: row::optional(found, 11)?,
    })
}
