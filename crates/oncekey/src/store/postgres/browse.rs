//! Lists, counts and finds records for operators. Nothing here is prepared: these statements are
//! rare, and their shape depends on the filter.

use oncekey_core::browse::{Count, Cursor, Filter, Listing, MAX_PAGE, Page, Summary};
use oncekey_core::record::Text;
use oncekey_core::{Class, ErrorKind, Fence, Origin, StateKind, StoreError, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::PostgresStore;
use super::pool::Effect;
use super::row;
use super::sql::{NOW, Statement};

const COLUMNS: &str = "key_id, fence, class, created, key, scope, route, request, state, at, \
    expires, status, born";

/// Records that may be forgotten are absent, whether or not somebody has removed them.
const STANDS: &str = "(forget IS NULL OR forget > c.now)";

/// The records of which there is an index by age: as numbers in the text, so that the planner sees which
/// index fits.
const OPEN: &str = "state <> 51";
const DONE: &str = "state = 51";

/// An item of a list: eight bytes of time and the key id.
const CURSOR: usize = 40;

impl PostgresStore {
    /// Newest first, by the time at which the row was made, which neither a takeover nor a new
    /// generation changes. Keys of one microsecond are in the
    /// order of their ids, so that a page can begin between any two.
    pub(super) async fn list_records(
        &self,
        filter: &Filter,
        page: &Page,
    ) -> Result<Listing, StoreError> {
        let limit = page.bounded_limit();
        let mut query = Query::new();
        query.filter(filter);
        if let Some(cursor) = &page.after {
            let (born, id) = read_cursor(cursor)?;
            let (born, id) = (query.value(born, Type::INT8), query.value(id, Type::BYTEA));
            query.conditions.push(format!("(born, key_id) < ({born}, {id})"));
        }
        // One more than asked for tells whether there is another page.
        let more = query.value(i64::try_from(limit + 1).unwrap_or(i64::MAX), Type::INT8);
        let order = format!("ORDER BY born DESC, key_id DESC LIMIT {more}");
        let text = query.text(&self.schema, COLUMNS, &order);
        let rows = self.browse(&text, query).await?;
        // The clock was read before the rows, and there is a row even if nothing was found.
        let now = rows.first().map_or(Ok(0), |row| row::get(row, 0))?;
        let mut found: Vec<&Row> = rows.iter().filter(|row| is_there(row)).collect();
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| has_more).map(|row| write_cursor(row)).transpose()?;
        // A damaged record must not hide the others; asking for it by its key id says so.
        let summaries = found.into_iter().filter_map(summary).collect();
        Ok(Listing { summaries, next, now: Timestamp::from_micros(now) })
    }

    pub(super) async fn count_records(
        &self,
        filter: &Filter,
        cap: usize,
    ) -> Result<Count, StoreError> {
        let mut query = Query::new();
        query.filter(filter);
        let limit = i64::try_from(cap.saturating_add(1)).unwrap_or(i64::MAX);
        let limit = query.value(limit, Type::INT8);
        let text = query.text(&self.schema, "1 AS one", &format!("LIMIT {limit}"));
        let text = text.replace("SELECT c.now, r.*", "SELECT count(r.one)");
        let rows = self.browse(&text, query).await?;
        let counted: i64 = rows.first().map_or(Ok(0), |row| row::get(row, 0))?;
        let counted = usize::try_from(counted).unwrap_or(usize::MAX);
        Ok(if counted > cap { Count::AtLeast(cap) } else { Count::Exactly(counted) })
    }

    /// Looks through all records: an index on the key as it was sent would cost every claim a random
    /// page, for a question that people ask a few times a day.
    pub(super) async fn find_records(
        &self,
        key: &Text,
        limit: usize,
    ) -> Result<Vec<Summary>, StoreError> {
        let mut query = Query::new();
        let key = query.value(key.as_bytes().to_vec(), Type::BYTEA);
        query.conditions.push(format!("key = {key}"));
        let limit = i64::try_from(limit.min(MAX_PAGE)).unwrap_or(i64::MAX);
        let limit = query.value(limit, Type::INT8);
        let order = format!("ORDER BY born DESC, key_id DESC LIMIT {limit}");
        let text = query.text(&self.schema, COLUMNS, &order);
        let rows = self.browse(&text, query).await?;
        Ok(rows.iter().filter(|row| is_there(row)).filter_map(summary).collect())
    }

    async fn browse(&self, text: &str, query: Query) -> Result<Vec<Row>, StoreError> {
        let statement = Statement::plain(text, &query.types);
        let values: Vec<&(dyn ToSql + Sync)> =
            query.values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
        self.readers.ask(Effect::Harmless, &statement, &values).await
    }
}

/// A query that is being put together.
struct Query {
    /// Which of the partial indexes are read: each of these conditions fits one.
    parts: Vec<&'static str>,
    conditions: Vec<String>,
    values: Vec<Box<dyn ToSql + Sync + Send>>,
    types: Vec<Type>,
}

impl Query {
    fn new() -> Self {
        let conditions = vec![STANDS.to_owned()];
        Self { parts: vec![OPEN, DONE], conditions, values: Vec::new(), types: Vec::new() }
    }

    /// Reads the clock, and then `columns` of the rows beside it. There is a row even if nothing was
    /// found. All of it is one statement, so a record that is finished meanwhile is in one part alone.
    fn text(&self, schema: &str, columns: &str, order: &str) -> String {
        let conditions = self.conditions.join(" AND ");
        let part = |which: &&str| {
            format!(
                "(SELECT {columns} FROM {schema}.oncekey_records
                  WHERE {which} AND {conditions} {order})"
            )
        };
        let parts: Vec<String> = self.parts.iter().map(part).collect();
        format!(
            "WITH c AS MATERIALIZED (SELECT {NOW} AS now)
             SELECT c.now, r.* FROM c LEFT JOIN LATERAL (
                SELECT * FROM ({}) AS parts {order}) AS r ON true",
            parts.join(" UNION ALL ")
        )
    }

    /// Adds a value, and says how the text refers to it.
    fn value(&mut self, value: impl ToSql + Sync + Send + 'static, kind: Type) -> String {
        self.values.push(Box::new(value));
        self.types.push(kind);
        format!("${}", self.values.len())
    }

    fn filter(&mut self, filter: &Filter) {
        let Filter { state, route, scope, older_than } = filter;
        match state {
            None => {}
            Some(StateKind::Done) => self.parts = vec![DONE],
            Some(open @ (StateKind::Running | StateKind::Unknown | StateKind::Parked)) => {
                self.parts = vec![OPEN];
                self.conditions.push(format!("state = {}", open.code()));
            }
        }
        for (column, text) in [("route", route), ("scope", scope)] {
            if let Some(text) = text {
                let text = self.value(text.as_bytes().to_vec(), Type::BYTEA);
                self.conditions.push(format!("{column} = {text}"));
            }
        }
        if let Some(age) = older_than {
            let age = self.value(super::batch::micros(*age), Type::INT8);
            self.conditions.push(format!("created <= c.now - {age}"));
        }
    }
}

/// Whether a row holds a record; if nothing was found, one row holds the clock alone.
fn is_there(row: &Row) -> bool {
    row::get::<Option<&[u8]>>(row, 1).is_ok_and(|id| id.is_some())
}

/// The record in this row, unless it is damaged.
fn summary(row: &Row) -> Option<Summary> {
    let text = |column| row::get::<&[u8]>(row, column).ok().map(Text::from);
    let byte = |column| u8::try_from(row::small(row, column).ok()?).ok();
    Some(Summary {
        id: row::id(row, 1).ok()?,
        fence: Fence::from_number(row::get(row, 2).ok()?)?,
        class: Class::from_code(byte(3)?)?,
        created: Timestamp::from_micros(row::get(row, 4).ok()?),
        origin: Origin { key: text(5)?, scope: text(6)?, route: text(7)?, request: text(8)? },
        state: StateKind::from_code(byte(9)?)?,
        at: Timestamp::from_micros(row::get(row, 10).ok()?),
        expires: row::get::<Option<i64>>(row, 11).ok()?.map(Timestamp::from_micros),
        status: row::get::<Option<i32>>(row, 12).ok()?.map(u16::try_from).transpose().ok()?,
    })
}

fn write_cursor(row: &Row) -> Result<Cursor, StoreError> {
    let born: i64 = row::get(row, 13)?;
    let id: &[u8] = row::get(row, 1)?;
    Ok(Cursor([born.to_be_bytes().as_slice(), id].concat()))
}

/// A cursor of another store, or a damaged one, is the caller's mistake.
fn read_cursor(Cursor(bytes): &Cursor) -> Result<(i64, Vec<u8>), StoreError> {
    match bytes.split_first_chunk::<8>() {
        Some((born, id)) if bytes.len() == CURSOR => Ok((i64::from_be_bytes(*born), id.to_vec())),
        _ => Err(StoreError::new(
            ErrorKind::Rejected,
            "the cursor is not one of this store: begin at the first page",
        )),
    }
}
