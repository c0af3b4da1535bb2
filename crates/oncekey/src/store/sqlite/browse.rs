//! Lists, counts and finds records for operators, on connections of their own.

use oncekey_core::browse::{Count, Cursor, Filter, Listing, MAX_PAGE, Page, Summary};
use oncekey_core::record::Text;
use oncekey_core::{Class, ErrorKind, Fence, KeyId, Origin, StateKind, StoreError, Timestamp};
use rusqlite::{Connection, Row, ToSql, params};

use super::error::Failure;

/// Rows are numbered in the order in which keys came, so the row is the cursor.
const LIST: &str = "
    SELECT r.id, r.key_id, r.fence, r.class, r.created, r.key, r.scope, r.route, r.request,
        r.state, r.at, a.expires, a.status
    FROM oncekey_records AS r LEFT JOIN oncekey_answers AS a ON a.record = r.id
    WHERE (a.forget IS NULL OR a.forget > ?1)";

const COUNT: &str = "
    SELECT count(*) FROM (
        SELECT 1 FROM oncekey_records AS r LEFT JOIN oncekey_answers AS a ON a.record = r.id
        WHERE (a.forget IS NULL OR a.forget > ?1){conditions} LIMIT ?2)";

pub(super) fn list(
    connection: &Connection,
    filter: &Filter,
    page: &Page,
    now: Timestamp,
) -> Result<Listing, Failure> {
    let limit = page.bounded_limit();
    let below = page.after.as_ref().map_or(i64::MAX, |Cursor(bytes)| {
        // Checked by `check_cursor` before; anything else would be an empty page.
        bytes.as_slice().try_into().map_or(i64::MIN, i64::from_be_bytes)
    });
    let conditions = Conditions::of(filter, now);
    let sql = format!("{LIST}{} AND r.id < ?2 ORDER BY r.id DESC LIMIT ?3", conditions.sql(4));
    // One more than asked for tells whether there is another page.
    let more = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let at = now.micros();
    let mut values: Vec<&dyn ToSql> = vec![&at, &below, &more];
    values.extend(conditions.values());
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(&*values)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        // A damaged record must not hide the others; asking for it by its key id says so.
        if let Some(summary) = summary(row) {
            found.push((row.get::<_, i64>(0)?, summary));
        }
    }
    let next = (found.len() > limit && limit > 0)
        .then(|| Cursor(found[limit - 1].0.to_be_bytes().to_vec()));
    let summaries = found.into_iter().take(limit).map(|(_, summary)| summary).collect();
    Ok(Listing { summaries, next, now })
}

pub(super) fn count(
    connection: &Connection,
    filter: &Filter,
    cap: usize,
    now: Timestamp,
) -> Result<Count, Failure> {
    let conditions = Conditions::of(filter, now);
    let sql = COUNT.replace("{conditions}", &conditions.sql(3));
    let limit = i64::try_from(cap.saturating_add(1)).unwrap_or(i64::MAX);
    let now = now.micros();
    let mut values: Vec<&dyn ToSql> = vec![&now, &limit];
    values.extend(conditions.values());
    let counted: i64 = connection.prepare_cached(&sql)?.query_row(&*values, |row| row.get(0))?;
    let counted = usize::try_from(counted).unwrap_or(usize::MAX);
    Ok(if counted > cap { Count::AtLeast(cap) } else { Count::Exactly(counted) })
}

/// Looks through all records: an index on the key as it was sent would cost every claim a random
/// page, for a question that people ask a few times a day.
pub(super) fn find(
    connection: &Connection,
    key: &Text,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<Summary>, Failure> {
    let sql = format!("{LIST} AND r.key = ?2 ORDER BY r.id DESC LIMIT ?3");
    let limit = i64::try_from(limit.min(MAX_PAGE)).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![now.micros(), key.as_bytes(), limit])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.extend(summary(row));
    }
    Ok(found)
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

/// The conditions of a filter, as SQL with numbered parameters and their values.
struct Conditions {
    columns: Vec<&'static str>,
    values: Vec<Box<dyn ToSql>>,
}

impl Conditions {
    fn of(filter: &Filter, now: Timestamp) -> Self {
        let Filter { state, route, scope, older_than } = filter;
        let mut conditions = Self { columns: Vec::new(), values: Vec::new() };
        // Said twice for open states, because SQLite uses a partial index only if the query
        // repeats its condition.
        match state {
            Some(StateKind::Done) => conditions.add("r.state =", StateKind::Done.code()),
            Some(open) => conditions.add("r.state <> 51 AND r.state =", open.code()),
            None => {}
        }
        if let Some(route) = route {
            conditions.add("r.route =", route.as_bytes().to_vec());
        }
        if let Some(scope) = scope {
            conditions.add("r.scope =", scope.as_bytes().to_vec());
        }
        if let Some(age) = older_than {
            conditions.add("r.created <=", now.before(*age).micros());
        }
        conditions
    }

    fn add(&mut self, column: &'static str, value: impl ToSql + 'static) {
        self.columns.push(column);
        self.values.push(Box::new(value));
    }

    fn sql(&self, first: usize) -> String {
        let numbered = self.columns.iter().enumerate();
        numbered.map(|(i, column)| format!(" AND {column} ?{}", first + i)).collect()
    }

    fn values(&self) -> impl Iterator<Item = &dyn ToSql> {
        self.values.iter().map(|value| &**value)
    }
}

/// The record in this row, unless it is damaged.
fn summary(row: &Row<'_>) -> Option<Summary> {
    let text = |column| Some(Text::from(row.get_ref(column).ok()?.as_blob().ok()?));
    Some(Summary {
        id: KeyId::from_bytes(row.get(1).ok()?),
        fence: Fence::from_number(row.get(2).ok()?)?,
        class: Class::from_code(row.get(3).ok()?)?,
        created: Timestamp::from_micros(row.get(4).ok()?),
        origin: Origin { key: text(5)?, scope: text(6)?, route: text(7)?, request: text(8)? },
        state: StateKind::from_code(row.get(9).ok()?)?,
        at: Timestamp::from_micros(row.get(10).ok()?),
        expires: row.get::<_, Option<i64>>(11).ok()?.map(Timestamp::from_micros),
        status: row.get(12).ok()?,
    })
}
