//! The tables of flows, and how statements about them are written for each database.

use std::sync::Arc;

use super::store::{TxError, TxStore, TxTrouble, Value};

/// Which database it is: what its clock and its statements look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// SQLite.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    Mysql,
}

/// The names of the tables in one database.
#[derive(Clone, Debug)]
pub struct Layout {
    dialect: Dialect,
    /// What comes before every table's name: a schema and a dot, or a prefix.
    before: Arc<str>,
    place: Arc<str>,
    statements: Arc<super::sql::Statements>,
    #[cfg(feature = "outbox")]
    outbox: Arc<crate::outbox::Shared>,
}

/// The newest version of the tables that this code knows.
const NEWEST: i64 = 1;

/// The longest name of a schema or prefix: with the longest table name it stays below the 63 and 64
/// characters that the servers allow.
const LONGEST: usize = 32;

/// A name that cannot be part of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a schema or prefix has 1 to 32 lower-case letters, digits and underscores")]
pub struct BadName;

impl Layout {
    /// The tables in schema or with prefix `place`.
    ///
    /// # Errors
    /// If the name could be taken for something else in a statement.
    pub fn new(dialect: Dialect, place: &str) -> Result<Self, BadName> {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if place.is_empty() || place.len() > LONGEST || !place.bytes().all(is_name) {
            return Err(BadName);
        }
        let before = match dialect {
            Dialect::Postgres => format!("{place}.oncekey_"),
            Dialect::Sqlite | Dialect::Mysql => place.to_owned(),
        };
        let statements = Arc::new(super::sql::Statements::new(dialect, &before));
        Ok(Self {
            dialect,
            #[cfg(feature = "outbox")]
            outbox: Arc::new(crate::outbox::Shared::new(dialect, &before)),
            before: before.into(),
            place: place.into(),
            statements,
        })
    }

    /// Which database it is.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The statements about flows.
    pub(crate) fn sql(&self) -> &super::sql::Statements {
        &self.statements
    }

    /// What everybody who stages and relays on this store shares.
    #[cfg(feature = "outbox")]
    pub(crate) fn outbox(&self) -> &crate::outbox::Shared {
        &self.outbox
    }

    /// A statement of this database from a template.
    ///
    /// `{flows}`, `{steps}`, `{effects}`, `{staged}`, `{events}`, `{findings}` are the tables, `{now}`
    /// is the database's clock in microseconds at the moment of evaluation, and `?` are the values in
    /// their order.
    #[must_use]
    pub fn statement(&self, template: &str) -> Arc<str> {
        render(self.dialect, &self.before, template)
    }

    /// The statements that make the tables, for people who apply them by hand.
    #[must_use]
    pub fn migration_sql(&self) -> String {
        let text = match self.dialect {
            Dialect::Sqlite => include_str!("../../migrations/flow/sqlite.sql"),
            Dialect::Postgres => include_str!("../../migrations/flow/postgres.sql"),
            Dialect::Mysql => include_str!("../../migrations/flow/mysql.sql"),
        };
        let schema = match self.dialect {
            Dialect::Postgres => format!("CREATE SCHEMA IF NOT EXISTS {};\n", self.place),
            Dialect::Sqlite | Dialect::Mysql => String::new(),
        };
        let text = text.replace("{schema}", &self.place).replace("{prefix}", &self.place);
        format!("{schema}{}{text}", self.ledger())
    }

    /// The ledger of changes: ours, never the application's. It stands beside the key store's, because
    /// either set of tables may be there without the other.
    fn ledger(&self) -> String {
        let number = match self.dialect {
            Dialect::Sqlite => "INTEGER",
            Dialect::Postgres | Dialect::Mysql => "BIGINT",
        };
        format!(
            "CREATE TABLE IF NOT EXISTS {}flow_migrations (version {number} PRIMARY KEY, \
             applied {number} NOT NULL);\n",
            self.before
        )
    }
}

/// Brings the tables up to date. May be run by many processes at once, and again after a crash: every
/// statement leaves alone what is there.
///
/// # Errors
/// If the database cannot be reached, if the user may not make tables, or if the tables were made by a
/// newer version.
pub async fn migrate<S: TxStore>(store: &S) -> Result<(), TxError> {
    let layout = store.layout();
    let newest = layout.statement("SELECT coalesce(max(version), 0) FROM {migrations}");
    let applied = match store.query_once(&newest, &[]).await {
        Ok(rows) => rows.first().map_or(Ok(0), |row| row.int(0))?,
        Err(error) if error.kind() == TxTrouble::Refused => 0,
        Err(error) => return Err(error),
    };
    if applied > NEWEST {
        let text = format!(
            "the tables of flows have version {applied}, this program knows {NEWEST}: upgrade oncekey"
        );
        return Err(TxError::new(TxTrouble::Refused, text));
    }
    if applied == NEWEST {
        return Ok(());
    }
    store.script(&layout.migration_sql()).await?;
    let enter = match layout.dialect {
        Dialect::Mysql => "INSERT IGNORE INTO {migrations} (version, applied) VALUES (?, {now})",
        Dialect::Sqlite | Dialect::Postgres => {
            "INSERT INTO {migrations} (version, applied) VALUES (?, {now}) ON CONFLICT DO NOTHING"
        }
    };
    store.execute_once(&layout.statement(enter), &[Value::Int(NEWEST)]).await?;
    Ok(())
}

/// See [`Layout::statement`].
pub(crate) fn render(dialect: Dialect, before: &str, template: &str) -> Arc<str> {
    let now = match dialect {
        // To the millisecond, which is what SQLite knows.
        Dialect::Sqlite => "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
        // Not `now()`, which is when the transaction began.
        Dialect::Postgres => "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
        // When the statement began, maybe a lock wait ago: a lease ends a little earlier for it, and is
        // taken for standing a little longer. `SYSDATE` would be exact, but is in the time zone of the
        // session, in which an hour comes twice in autumn.
        Dialect::Mysql => "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))",
    };
    let mut text = template.replace("{now}", now).replace("{events}", "{flow_events}");
    let tables = [
        "flows",
        "steps",
        "effects",
        "staged",
        "staged_slots",
        "flow_events",
        "findings",
        "flow_migrations",
        // Of the key store.
        "records",
        "answers",
        "fresh",
        "settled",
    ];
    text = text.replace("{migrations}", "{flow_migrations}");
    for table in tables {
        text = text.replace(&format!("{{{table}}}"), &format!("{before}{table}"));
    }
    let greatest = if dialect == Dialect::Sqlite { "max" } else { "greatest" };
    text = text.replace("{greatest}", greatest);
    let text = if dialect == Dialect::Postgres { numbered(&text) } else { text };
    text.into()
}

/// PostgreSQL numbers its values.
fn numbered(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for (number, part) in text.split('?').enumerate() {
        if number > 0 {
            out.push_str(&format!("${number}"));
        }
        out.push_str(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_be_a_statement_is_refused() {
        for name in ["", "a b", "a;b", "Upper", "a`", "a\"", &"a".repeat(33)] {
            assert_eq!(Layout::new(Dialect::Postgres, name).map(drop), Err(BadName), "{name}");
        }
        assert!(Layout::new(Dialect::Mysql, "oncekey_").is_ok());
    }

    #[test]
    fn each_database_gets_its_own_words() {
        let template = "UPDATE {flows} SET due = {now} + ? WHERE flow_id = ?";
        let of = |dialect, place| Layout::new(dialect, place).unwrap().statement(template);
        let postgres = of(Dialect::Postgres, "app");
        assert!(postgres.starts_with("UPDATE app.oncekey_flows SET due = (extract"), "{postgres}");
        assert!(postgres.ends_with("+ $1 WHERE flow_id = $2"), "{postgres}");
        assert!(of(Dialect::Mysql, "x_").starts_with("UPDATE x_flows"));
        assert!(of(Dialect::Sqlite, "oncekey_").ends_with("+ ? WHERE flow_id = ?"));
    }
}
