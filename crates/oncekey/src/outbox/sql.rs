//! What is said to the database about staged messages.
//!
//! Lists of rows travel as one value, a JSON array, so that a batch of any size is one prepared
//! statement. In every statement that writes, the list is the first value.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::entropy::SystemEntropy;
use crate::flow::{Dialect, render};

/// What everybody who stages and relays on one store shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) sql: Statements,
    pub(super) entropy: SystemEntropy,
    /// Rings when something was staged in this process.
    pub(super) wake: Arc<Notify>,
}

impl Shared {
    pub(crate) fn new(dialect: Dialect, before: &str) -> Self {
        Self {
            sql: Statements::new(dialect, before),
            entropy: SystemEntropy::default(),
            wake: Arc::new(Notify::new()),
        }
    }
}

/// States as they are stored.
pub(super) mod state {
    pub(crate) const WAITING: i64 = 1;
    pub(crate) const TAKEN: i64 = 2;
    pub(crate) const DEAD: i64 = 3;
}

/// How many messages one statement of [`Statements::stage_many`] stages. PostgreSQL allows 65 535 values
/// in a statement, SQLite 32 766: this is far from both, and more gains nothing.
pub(super) const MANY: usize = 50;

/// The statements, made once for a layout.
#[derive(Debug)]
pub(super) struct Statements {
    /// Waits for others who stage under the same order key. SQLite has one writer anyway.
    pub(super) queue_up: Option<Arc<str>>,
    pub(super) collapse: Arc<str>,
    pub(super) stage: Arc<str>,
    pub(super) stage_many: Arc<str>,
    pub(super) now: Arc<str>,
    pub(super) due: Arc<str>,
    pub(super) blockers: Arc<str>,
    pub(super) live_blockers: Arc<str>,
    pub(super) take: Arc<str>,
    pub(super) look: Arc<str>,
    pub(super) put_off: Arc<str>,
    pub(super) sent: Arc<str>,
    pub(super) not_sent: Arc<str>,
    pub(super) dead: Arc<str>,
    pub(super) replay: Arc<str>,
    pub(super) discard: Arc<str>,
    pub(super) waiting: Arc<str>,
    pub(super) dead_count: Arc<str>,
}

/// The time that never comes, of dead letters. Only they have it, so it finds them.
const NEVER: &str = "9223372036854775807";

const COLUMNS: &str = "INSERT INTO {staged} (id, flow_id, topic, order_key, collapse, headers, body, \
     state, attempt, due, owner, reason, created) VALUES ";
const VALUES: &str = "(?, ?, ?, ?, ?, ?, ?, 1, 0, {now} + ?, ?, '', {now})";

/// The columns of a list: the name, and whether it is text.
type Columns = [(&'static str, bool)];

const SEQ: &Columns = &[("seq", false)];
const OFF: &Columns = &[("seq", false), ("delay", false)];
const SENT: &Columns = &[("seq", false), ("attempt", false)];
const NOT_SENT: &Columns = &[
    ("seq", false),
    ("attempt", false),
    ("state", false),
    ("delay", false),
    ("next", false),
    ("reason", true),
];

/// A list as something to select from.
fn list(dialect: Dialect, columns: &Columns) -> String {
    let column = |(place, (name, text)): (usize, &(&str, bool))| match (dialect, text) {
        (Dialect::Sqlite, _) => format!("value->>{place} AS {name}"),
        (Dialect::Postgres, true) => format!("e->>{place} AS {name}"),
        (Dialect::Postgres, false) => format!("(e->>{place})::bigint AS {name}"),
        (Dialect::Mysql, true) => format!("{name} VARCHAR(1000) PATH '$[{place}]'"),
        (Dialect::Mysql, false) => format!("{name} BIGINT PATH '$[{place}]'"),
    };
    let columns: Vec<_> = columns.iter().enumerate().map(column).collect();
    let columns = columns.join(", ");
    match dialect {
        Dialect::Sqlite => format!("(SELECT {columns} FROM json_each(?))"),
        Dialect::Postgres => {
            format!("(SELECT {columns} FROM jsonb_array_elements((?::text)::jsonb) AS e)")
        }
        // Values are bound as bytes, and bytes are not JSON.
        Dialect::Mysql => {
            format!("JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' COLUMNS ({columns}))")
        }
    }
}

/// An update of the rows of a list. Every condition is one on the row itself: PostgreSQL looks at it
/// again after it has waited for a lock, which it does not do for a subquery.
fn update(dialect: Dialect, columns: &Columns, set: &[(&str, &str)], condition: &str) -> String {
    let list = list(dialect, columns);
    let of = |before: &str| {
        let set: Vec<_> = set.iter().map(|(name, to)| format!("{before}{name} = {to}")).collect();
        set.join(", ")
    };
    match dialect {
        Dialect::Sqlite | Dialect::Postgres => format!(
            "WITH j AS {list} UPDATE {{staged}} AS s SET {} FROM j WHERE s.seq = j.seq{condition}",
            of("")
        ),
        // In this order and by this index, whatever the optimiser thinks of a list whose length it does
        // not know: a scan of the table would wait for every transaction that stages.
        Dialect::Mysql => format!(
            "UPDATE {list} AS j STRAIGHT_JOIN {{staged}} AS s FORCE INDEX (PRIMARY) ON s.seq = j.seq \
             SET {} WHERE s.seq = j.seq{condition}",
            of("s.")
        ),
    }
}

/// By row, attempt and taking. Whoever was overtaken meets no row.
const MINE: &str = " AND s.attempt = j.attempt AND s.owner = ? AND s.state = 2";

fn sent(dialect: Dialect) -> String {
    let list = list(dialect, SENT);
    match dialect {
        // One writer: nothing changes between the subquery and the deletion.
        Dialect::Sqlite => format!(
            "WITH j AS {list} DELETE FROM {{staged}} WHERE seq IN \
             (SELECT s.seq FROM j JOIN {{staged}} AS s ON s.seq = j.seq{MINE})"
        ),
        Dialect::Postgres => format!(
            "WITH j AS {list} DELETE FROM {{staged}} AS s USING j WHERE s.seq = j.seq{MINE}"
        ),
        Dialect::Mysql => format!(
            "DELETE s FROM {list} AS j STRAIGHT_JOIN {{staged}} AS s FORCE INDEX (PRIMARY) \
             ON s.seq = j.seq WHERE s.seq = j.seq{MINE}"
        ),
    }
}

/// For each row of the list, the oldest unfinished message of its key that stands before it and is not of
/// this taking. What is older is visible to whoever sees what is younger: see `queue_up`.
///
/// A subquery for each key, because a join is done by reading the whole table as soon as the list is long.
fn blockers(dialect: Dialect, which: &str) -> String {
    let (list, index) = match dialect {
        Dialect::Mysql => (list(dialect, SEQ), " FORCE INDEX (`order`)"),
        Dialect::Sqlite | Dialect::Postgres => (list(dialect, SEQ), ""),
    };
    format!(
        "SELECT s.order_key, (SELECT e.seq FROM {{staged}} AS e{index} \
         WHERE e.order_key = s.order_key AND e.order_key <> '' AND e.seq < s.seq AND e.owner <> ?{which} \
         ORDER BY e.order_key, e.seq LIMIT 1) FROM {list} AS j JOIN {{staged}} AS s ON s.seq = j.seq"
    )
}

impl Statements {
    fn new(dialect: Dialect, before: &str) -> Self {
        let of = |template: &str| render(dialect, before, template);
        let (index, hold) = match dialect {
            Dialect::Sqlite => ("", ""),
            Dialect::Postgres => ("", " FOR UPDATE SKIP LOCKED"),
            Dialect::Mysql => (" FORCE INDEX (due)", " FOR UPDATE SKIP LOCKED"),
        };
        let queue_up = match dialect {
            Dialect::Sqlite => None,
            Dialect::Postgres => Some("SELECT pg_advisory_xact_lock(?)"),
            // What changes nothing and locks the row all the same.
            Dialect::Mysql => Some(
                "INSERT INTO {staged_slots} (slot) VALUES (?) ON DUPLICATE KEY UPDATE slot = slot",
            ),
        };
        let take =
            [("state", "2"), ("attempt", "s.attempt + 1"), ("owner", "?"), ("due", "{now} + ?")];
        let put_off = [("state", "1"), ("attempt", "s.attempt - 1"), ("due", "{now} + j.delay")];
        let due = format!("CASE WHEN j.state = 3 THEN {NEVER} ELSE {{now}} + j.delay END");
        let not_sent = [
            ("state", "j.state"),
            ("attempt", "j.next"),
            ("due", &due),
            ("reason", "coalesce(j.reason, s.reason)"),
        ];
        Self {
            queue_up: queue_up.map(of),
            collapse: of("DELETE FROM {staged} WHERE collapse = ? AND state = 1 AND attempt = 0"),
            stage: of(&format!("{COLUMNS}{VALUES}")),
            stage_many: of(&format!("{COLUMNS}{}", [VALUES; MANY].join(", "))),
            now: of("SELECT {now}"),
            // The time is a value, because a clock that ticks while it is asked cannot be looked up
            // in an index.
            due: of(&format!(
                "SELECT s.seq, s.id, s.topic, s.order_key, s.headers, s.body, s.attempt, s.created, \
                 s.flow_id FROM {{staged}} AS s{index} WHERE s.due <= ? ORDER BY s.due, s.seq \
                 LIMIT ?{hold}"
            )),
            blockers: of(&blockers(dialect, "")),
            live_blockers: of(&blockers(dialect, " AND e.state <> 3")),
            take: of(&update(dialect, SEQ, &take, "")),
            look: of(&format!(
                "SELECT s.seq, s.state, s.due FROM {} AS j JOIN {{staged}} AS s ON s.seq = j.seq",
                list(dialect, SEQ)
            )),
            put_off: of(&update(dialect, OFF, &put_off, "")),
            sent: of(&sent(dialect)),
            not_sent: of(&update(dialect, NOT_SENT, &not_sent, MINE)),
            dead: of(&format!(
                "SELECT id, topic, attempt, reason, created FROM {{staged}} WHERE due = {NEVER} \
                 ORDER BY seq LIMIT ?"
            )),
            replay: of("UPDATE {staged} SET state = 1, attempt = 0, due = {now} \
                 WHERE id = ? AND state = 3"),
            discard: of("DELETE FROM {staged} WHERE id = ? AND state = 3"),
            waiting: of("SELECT count(*), coalesce(min(created), 0), {now} FROM {staged} \
                 WHERE state IN (1, 2)"),
            dead_count: of(&format!("SELECT count(*) FROM {{staged}} WHERE due = {NEVER}")),
        }
    }
}
