//! Bringing the tables up to date.

use oncekey_core::{ErrorKind, StoreError};

use super::error::{Trouble, unsuitable};
use super::row;
use super::session::Session;
use super::sql::{NOW, Tables};

/// A change of the tables. Never edited after a release, only added to.
struct Migration {
    version: i64,
    name: &'static str,
    /// The newest version that a program must know to work on tables of this one: so the programs
    /// of a fleet can be upgraded one after the other.
    needs: i64,
    statements: &'static str,
}

const MIGRATIONS: [Migration; 1] = [Migration {
    version: 1,
    name: "records",
    needs: 1,
    statements: include_str!("../../../migrations/mysql/0001_records.sql"),
}];

const CREATE_LEDGER: &str = "\
CREATE TABLE IF NOT EXISTS `{prefix}migrations` (
    `version` INT           NOT NULL,
    `name`    VARBINARY(64) NOT NULL,
    `needs`   INT           NOT NULL,
    `applied` BIGINT        NOT NULL,
    PRIMARY KEY (`version`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC";

/// The prefix of table names, unless another is chosen.
pub(super) const PREFIX: &str = "oncekey_";

/// How long a program waits for another one that migrates the same tables.
const LOCK_SECONDS: u32 = 30;

/// Whether the store may change the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Migrate {
    /// Opening the store brings the tables up to date. The user needs the right to create tables.
    #[default]
    OnOpen,
    /// Somebody applies [`migration_sql`] by hand. Opening the store only looks.
    ByHand,
}

/// The statements that bring an empty database up to date, for people who apply them by hand.
#[must_use]
pub fn migration_sql() -> String {
    migration_sql_of(PREFIX)
}

/// The same, for tables with another prefix.
pub(super) fn migration_sql_of(prefix: &str) -> String {
    let mut sql = format!("{CREATE_LEDGER};\n");
    for migration in &MIGRATIONS {
        let Migration { version, name, statements, .. } = migration;
        sql.push_str(&format!("\n-- {version}: {name}\n{statements}{};\n", enter(migration)));
    }
    sql.replace("{prefix}", prefix)
}

/// Brings the tables up to date, one program at a time.
///
/// The server commits every change of a table by itself, so a crash may leave half a migration.
/// Every statement can be run again: the next program finishes it.
pub(super) async fn migrate(session: &mut Session, tables: &Tables) -> Result<(), StoreError> {
    if check(session, tables).await.is_ok() {
        return Ok(());
    }
    let name = format!("MD5(CONCAT('oncekey:', DATABASE(), ':{}'))", tables.prefix);
    let lock = format!("SELECT GET_LOCK({name}, {LOCK_SECONDS})");
    let sets = session.run(&[lock]).await.map_err(Trouble::of_read)?;
    let row = sets.first().and_then(|set| set.rows.first());
    if row.and_then(|row| row::optional(row, 0).ok().flatten()) != Some(1_i64) {
        return Err(StoreError::new(
            ErrorKind::Unavailable,
            "another program is migrating the tables of oncekey: start again when it is done",
        ));
    }
    let migrated = migrate_under_lock(session, tables).await;
    // If this fails, the lock goes with the connection.
    let _ = session.apply(&format!("DO RELEASE_LOCK({name})")).await;
    migrated
}

async fn migrate_under_lock(session: &mut Session, tables: &Tables) -> Result<(), StoreError> {
    let prefixed = |text: &str| text.replace("{prefix}", &tables.prefix);
    session.apply(&prefixed(CREATE_LEDGER)).await.map_err(Trouble::of_write)?;
    let (applied, needs) = applied(session, tables).await.map_err(Trouble::of_read)?;
    check_known(applied, needs)?;
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > applied) {
        session.apply(&prefixed(migration.statements)).await.map_err(Trouble::of_write)?;
        session.apply(&prefixed(&enter(migration))).await.map_err(Trouble::of_write)?;
    }
    Ok(())
}

/// Looks whether this version can work on the tables as they are.
pub(super) async fn check(session: &mut Session, tables: &Tables) -> Result<i64, StoreError> {
    let (applied, needs) = applied(session, tables).await.map_err(Trouble::of_read)?;
    check_known(applied, needs)?;
    let newest = newest();
    if applied < newest {
        return Err(unsuitable(format!(
            "the tables of oncekey have version {applied}, this version needs {newest}: run \
             `oncekey store migrate`, or apply `migration_sql()` by hand"
        )));
    }
    Ok(applied)
}

/// The newest migration that the tables have, and what they ask of a program.
async fn applied(session: &mut Session, tables: &Tables) -> Result<(i64, i64), Trouble> {
    let text = format!(
        "SELECT COALESCE(MAX(`version`), 0), COALESCE(MAX(`needs`), 0) FROM {}",
        tables.migrations
    );
    let sets = session.run(&[text]).await?;
    let row = sets.first().and_then(|set| set.rows.first());
    let row = row.ok_or(Trouble::damaged("the ledger of migrations"))?;
    Ok((row::number(row, 0)?, row::number(row, 1)?))
}

fn check_known(applied: i64, needs: i64) -> Result<(), StoreError> {
    let newest = newest();
    if needs > newest {
        return Err(unsuitable(format!(
            "the tables of oncekey have version {applied} and need a program that knows {needs}, \
             this one knows {newest}: upgrade oncekey"
        )));
    }
    Ok(())
}

fn enter(Migration { version, name, needs, .. }: &Migration) -> String {
    format!(
        "INSERT INTO `{{prefix}}migrations` (`version`, `name`, `needs`, `applied`) \
         VALUES ({version}, '{name}', {needs}, {NOW})"
    )
}

fn newest() -> i64 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_a_newer_version_are_refused_only_if_they_say_so() {
        assert!(check_known(newest(), newest()).is_ok());
        // The next version added a column that this one can do without.
        assert!(check_known(newest() + 1, newest()).is_ok());
        let error = check_known(newest() + 1, newest() + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsuitable);
    }

    #[test]
    fn the_printed_migrations_have_names() {
        let sql = migration_sql();
        assert!(sql.contains("`oncekey_records`") && !sql.contains("{prefix}"), "{sql}");
    }
}
