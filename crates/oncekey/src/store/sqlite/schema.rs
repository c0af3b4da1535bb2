//! Opening a database file: what must be true before a single record is trusted to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use oncekey_core::{ErrorKind, StoreError, Timestamp};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, TransactionBehavior, params};

use super::error::{from_sqlite, read_only};
use crate::clock::Stopwatch;

/// Older versions can corrupt a WAL file when one connection checkpoints while another writes;
/// the bug lived from 3.7.0 to 3.51.2. Checked at run time, because Cargo may pick another
/// `libsqlite3-sys` than we tested with, or link the system's.
pub(super) const OLDEST_SQLITE: i32 = 3_051_003;

/// How long a connection waits for another process to finish its transaction. A batch takes
/// milliseconds; five seconds means that the other process is stuck, and the caller is told.
pub(super) const BUSY: Duration = Duration::from_secs(5);

/// How long the write-ahead log may get, in pages of 4 KiB, before it is written back: enough that
/// a page is written once for many changes, little enough that readers find their pages quickly
/// (a log of 64 000 pages doubled the cost of a claim).
pub(super) const CHECKPOINT_AT: i64 = 8_000;

/// "once" in ASCII, in the file's header, so that `file` and we can tell whose file it is.
const APPLICATION_ID: i64 = 0x6f6e_6365;

/// A change of the tables.
struct Migration {
    version: i64,
    name: &'static str,
    /// The oldest version whose code still works on the tables as this one leaves them. A change
    /// that only adds keeps the number of the one before it: then processes of the last release and
    /// of this one can use the file at the same time, and a release can be rolled back.
    serves: i64,
    statements: &'static str,
}

/// Every change of the tables, in order. Never edited after a release, only added to.
const MIGRATIONS: [Migration; 2] = [
    Migration {
        version: 1,
        name: "records",
        serves: 1,
        statements: include_str!("../../../migrations/sqlite/0001_records.sql"),
    },
    Migration {
        version: 2,
        name: "epoch",
        serves: 1,
        statements: include_str!("../../../migrations/sqlite/0002_epoch.sql"),
    },
];

/// The newest version of the tables that this code knows.
pub(super) const NEWEST: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

const CREATE_LEDGER: &str = "
    CREATE TABLE IF NOT EXISTS oncekey_migrations (
        version INTEGER PRIMARY KEY,
        name    TEXT    NOT NULL,
        applied INTEGER NOT NULL,
        serves  INTEGER NOT NULL
    ) STRICT";

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// The file is oncekey's alone. A file with other tables in it is refused: it is more likely
    /// a wrong path than a wish.
    #[default]
    Own,
    /// The tables live in the application's own database, beside its tables, so that both can
    /// commit in one transaction.
    Shared,
}

/// Where a path leads: through links, and from the working folder of this moment. A file that does
/// not exist yet is looked for in its folder.
pub(super) fn resolve(path: &Path) -> PathBuf {
    let in_its_folder = || {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) | None => Path::new("."),
        };
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    // What cannot be resolved cannot be opened either, and opening it says why in better words.
    path.canonicalize().ok().or_else(in_its_folder).unwrap_or_else(|| path.to_owned())
}

/// Opens the file for the writer thread, makes it ours, and brings its tables up to date. The file
/// is made if it does not exist.
pub(super) fn open_writer(
    path: &Path,
    placement: Placement,
    now: Timestamp,
) -> Result<Connection, StoreError> {
    match placement {
        Placement::Own => make_private(path),
        // Who may read the application's database is the application's business.
        Placement::Shared => {}
    }
    open_with(path, placement, now, OpenFlags::SQLITE_OPEN_CREATE)
}

/// Opens the file once more. If it is gone, making another would hide that.
pub(super) fn reopen_writer(
    path: &Path,
    placement: Placement,
    now: Timestamp,
) -> Result<Connection, StoreError> {
    open_with(path, placement, now, OpenFlags::empty())
}

/// Makes a file that does not exist yet, for its owner alone: it holds keys and answers. The log and
/// its index get the same rights from SQLite.
fn make_private(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut new = std::fs::OpenOptions::new();
        // What cannot be made cannot be opened either, and opening it says why in better words.
        drop(new.write(true).create_new(true).mode(0o600).open(path));
    }
    #[cfg(not(unix))]
    let _ = path;
}

fn open_with(
    path: &Path,
    placement: Placement,
    now: Timestamp,
    create: OpenFlags,
) -> Result<Connection, StoreError> {
    check_version(rusqlite::version_number())?;
    super::network::check(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
    let mut connection = Connection::open_with_flags(path, flags).map_err(from_sqlite)?;
    connection.busy_timeout(BUSY).map_err(from_sqlite)?;
    check_writable(&connection)?;
    check_owner(&connection, placement)?;
    set_up_writer(&connection).map_err(from_sqlite)?;
    check_pragmas(&connection)?;
    migrate(&mut connection, &MIGRATIONS, placement, now)?;
    Ok(connection)
}

/// Opens the file for replays. Read-only: a bug here can never write.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(from_sqlite)?;
    connection.busy_timeout(BUSY).map_err(from_sqlite)?;
    connection.pragma_update(None, "query_only", true).map_err(from_sqlite)?;
    keep_statements(&connection).map_err(from_sqlite)?;
    // Opens the log, which SQLite puts off until the first read: a replay must not fail because
    // the file has been moved since.
    connection.pragma_query_value(None, "schema_version", |_| Ok(())).map_err(from_sqlite)?;
    Ok(connection)
}

/// Opens the file to write its log back, and for nothing else.
pub(super) fn open_scribe(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // The file must be durable before the log is overwritten: FULL, as for the writer.
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

/// The statements that bring an empty database up to date, for people who apply them by hand.
#[must_use]
pub fn migration_sql() -> String {
    let mut sql = format!("{};\n", CREATE_LEDGER.trim());
    for Migration { version, name, serves, statements } in &MIGRATIONS {
        sql.push_str(&format!("\n-- {version}: {name}\n{statements}"));
        sql.push_str(&format!(
            "INSERT INTO oncekey_migrations (version, name, applied, serves) \
             VALUES ({version}, '{name}', unixepoch() * 1000000, {serves});\n"
        ));
    }
    sql
}

fn check_version(version: i32) -> Result<(), StoreError> {
    if version >= OLDEST_SQLITE {
        return Ok(());
    }
    let text = format!("{}.{}.{}", version / 1_000_000, version / 1_000 % 1_000, version % 1_000);
    Err(unsuitable(format!(
        "SQLite {text} can corrupt a write-ahead log: oncekey needs 3.51.3 or newer; build with \
         rusqlite's `bundled` feature and libsqlite3-sys 0.37 or newer"
    )))
}

/// SQLite opens a file that may not be written for reading, without a word.
fn check_writable(connection: &Connection) -> Result<(), StoreError> {
    match connection.is_readonly(MAIN_DB) {
        Ok(true) => Err(read_only()),
        Ok(false) => Ok(()),
        Err(error) => Err(from_sqlite(error)),
    }
}

/// Looks only: a file that is refused is left as it was.
fn check_owner(connection: &Connection, placement: Placement) -> Result<(), StoreError> {
    let (tables, ours): (i64, i64) = connection
        .query_row(
            "SELECT count(*), coalesce(sum(name = 'oncekey_migrations'), 0)
             FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .map_err(from_sqlite)?;
    if placement == Placement::Own && tables > 0 && ours == 0 {
        return Err(unsuitable(
            "the database file belongs to another program: give oncekey a file of its own, or \
             say that it is to share the application's database (`?placement=shared` in the URL, or \
             Placement::Shared)"
                .to_owned(),
        ));
    }
    if ours > 0 { applied(connection, NEWEST).map(drop) } else { Ok(()) }
}

/// The newest migration that the file has, if code that knows the migrations up to `known` works on
/// its tables. A newer one need not matter: it says itself whom it serves.
pub(super) fn applied(connection: &Connection, known: i64) -> Result<i64, StoreError> {
    let (applied, serves): (i64, i64) = connection
        .query_row(
            "SELECT coalesce(max(version), 0), coalesce(max(serves), 0) FROM oncekey_migrations",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .map_err(from_sqlite)?;
    if serves > known {
        return Err(unsuitable(format!(
            "the database file has tables of version {applied}, which need a version of oncekey \
             that knows {serves}; this one knows {known}: upgrade oncekey"
        )));
    }
    Ok(applied)
}

/// Of processes that put a new file into WAL mode at the same time, SQLite lets one and tells the
/// others at once that it is busy: it does not wait where two might wait for each other.
fn enter_wal_mode(connection: &Connection) -> rusqlite::Result<()> {
    const PAUSE: Duration = Duration::from_millis(5);
    let watch = Stopwatch::start();
    loop {
        match connection.pragma_update(None, "journal_mode", "wal") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && watch.elapsed() < BUSY =>
            {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

fn set_up_writer(connection: &Connection) -> rusqlite::Result<()> {
    enter_wal_mode(connection)?;
    // FULL syncs the log at every commit: what was acknowledged survives a power cut. NORMAL is
    // hardly faster with group commit, and loses the last commits.
    connection.pragma_update(None, "synchronous", "full")?;
    // The log is written back beside the writer. This is the backstop for the day on which that
    // cannot keep up.
    connection.pragma_update(None, "wal_autocheckpoint", 4 * CHECKPOINT_AT)?;
    connection.pragma_update(None, "journal_size_limit", 128 * 1024 * 1024)?;
    // 16 MiB of pages: the small key map and the newest rows fit twice. Not more, because a commit after a
    // page was split looks through all of them: with 64 MiB that was a twentieth of what the writer does.
    connection.pragma_update(None, "cache_size", -16_384)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    // What is deleted is overwritten with zeros, always and not only by an erasure: SQLite moves rows
    // from page to page and would leave copies behind that an erasure does not know of. Inside SQLite
    // a claim costs up to 2 % more, a completion 1 to 3 %, a purge 9 to 25 %.
    connection.pragma_update(None, "secure_delete", true)?;
    // Who may run is decided on this connection, and a damaged page of a key map must not look like
    // an absent key. This notices a few of those, for nothing: pages are checked when they are read
    // from the file, which a claim hardly ever has to. Replays do it all the time, and it made them
    // cost 1.3 to 1.4 times as much, so readers do without.
    connection.pragma_update(None, "cell_size_check", true)?;
    keep_statements(connection)
}

/// Has every statement compiled once. Without the planner's stability guarantee, SQLite compiles
/// a statement on a table with a partial index again whenever its parameters have been cleared,
/// which is at every use from the cache: 75 µs for a look-up of 4 µs.
fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(64);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Reads the settings back. SQLite does not report a pragma that it could not follow.
fn check_pragmas(connection: &Connection) -> Result<(), StoreError> {
    let read = |name: &str| setting(connection, name).map_err(from_sqlite);
    let journal = read("journal_mode")?;
    if journal != "wal" {
        return Err(unsuitable(format!(
            "the database file cannot be put into WAL mode (it is in {journal} mode): move it to \
             a local disk"
        )));
    }
    let synchronous = read("synchronous")?;
    if synchronous != "2" {
        return Err(unsuitable(format!("synchronous is {synchronous} and must be 2 (FULL)")));
    }
    let secure_delete = read("secure_delete")?;
    if secure_delete != "1" {
        return Err(unsuitable(format!("secure_delete is {secure_delete} and must be 1 (ON)")));
    }
    Ok(())
}

/// How a connection is set up, in one respect. As text, whatever its type: one pragma answers with
/// a word, the other with a number.
pub(super) fn setting(connection: &Connection, name: &str) -> rusqlite::Result<String> {
    let text = format!("SELECT CAST({name} AS TEXT) FROM pragma_{name}");
    connection.query_row(&text, [], |row| row.get(0))
}

/// Brings the tables up to date in one transaction. Two processes that start together are safe:
/// the second finds the work done.
fn migrate(
    connection: &mut Connection,
    migrations: &[Migration],
    placement: Placement,
    now: Timestamp,
) -> Result<(), StoreError> {
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(from_sqlite)?;
    transaction.execute_batch(CREATE_LEDGER).map_err(from_sqlite)?;
    let known = migrations.last().map_or(0, |newest| newest.version);
    let applied = applied(&transaction, known)?;
    for migration in migrations.iter().filter(|migration| migration.version > applied) {
        let Migration { version, name, serves, statements } = migration;
        transaction.execute_batch(statements).map_err(from_sqlite)?;
        transaction
            .execute(
                "INSERT INTO oncekey_migrations (version, name, applied, serves)
                 VALUES (?1, ?2, ?3, ?4)",
                params![version, name, now.micros(), serves],
            )
            .map_err(from_sqlite)?;
    }
    if placement == Placement::Own && applied == 0 {
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(from_sqlite)?;
    }
    transaction.commit().map_err(from_sqlite)
}

fn unsuitable(message: String) -> StoreError {
    StoreError::new(ErrorKind::Unsuitable, message)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    /// The WAL-reset bug: versions that have it are refused by name.
    #[test]
    fn an_sqlite_with_the_wal_reset_bug_is_refused() {
        assert!(check_version(OLDEST_SQLITE).is_ok());
        assert!(check_version(rusqlite::version_number()).is_ok());
        let error = check_version(3_051_002).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsuitable);
        assert!(error.to_string().contains("3.51.2"), "{error}");
        assert!(check_version(3_040_001).is_err());
    }

    /// The cost of a claim rests on it: see `keep_statements`.
    #[test]
    fn a_cached_statement_is_compiled_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncekey.db");
        let writer = open_writer(&path, Placement::Own, Timestamp::default()).unwrap();
        let reader = open_reader(&path).unwrap();
        let text = "SELECT created FROM oncekey_records WHERE id = ?1 AND key_id = ?2";
        for connection in [writer, reader] {
            for use_of_it in 0..3 {
                let mut statement = connection.prepare_cached(text).unwrap();
                assert!(!statement.exists(params![use_of_it, [0_u8; 32]]).unwrap());
                assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
            }
        }
    }

    #[test]
    fn the_printed_migrations_make_a_database_that_opens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("by-hand.db");
        Connection::open(&path).unwrap().execute_batch(&migration_sql()).unwrap();
        let connection = open_writer(&path, Placement::Own, Timestamp::default()).unwrap();
        let applied: i64 = connection
            .query_row("SELECT count(*) FROM oncekey_migrations", [], |row| row.get(0))
            .unwrap();
        assert_eq!(applied, NEWEST);
    }

    /// I36: the release before this one and this one share a file, whoever opens it first; and a
    /// change that the older one cannot work with keeps it out.
    #[test]
    fn a_file_serves_the_versions_that_its_migrations_say() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncekey.db");
        let (now, own) = (Timestamp::default(), Placement::Own);
        let mut older = Connection::open(&path).unwrap();
        migrate(&mut older, &MIGRATIONS[..1], own, now).unwrap();
        let newer = open_writer(&path, own, now).unwrap();
        assert_eq!(applied(&newer, NEWEST).unwrap(), NEWEST);
        // The older one starts again, after the newer one has added its table.
        migrate(&mut older, &MIGRATIONS[..1], own, now).unwrap();
        let epochs = "SELECT count(*) FROM oncekey_epoch";
        assert_eq!(newer.query_row(epochs, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
        let breaking = Migration {
            version: NEWEST + 1,
            name: "breaking",
            serves: NEWEST + 1,
            statements: "CREATE TABLE oncekey_more (id INTEGER PRIMARY KEY)",
        };
        let [first, second] = MIGRATIONS;
        migrate(&mut older, &[first, second, breaking], own, now).unwrap();
        let error = open_writer(&path, own, now).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsuitable);
        assert!(error.to_string().contains("upgrade"), "{error}");
    }
}
