//! A look at the file behind the store's back.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

/// Opens the file as any other program would.
pub(crate) fn open(path: &Path) -> Connection {
    Connection::open(path).expect("the file opens")
}

/// Opens the file and reads from it: until it is closed, this connection takes part.
pub(crate) fn open_and_look(path: &Path) -> Connection {
    let connection = open(path);
    number(&connection, "SELECT count(*) FROM sqlite_schema");
    connection
}

/// The write-ahead log of a database file.
pub(crate) fn log_of(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

/// The file with the same name and something more.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// One number out of the file.
pub(crate) fn number(connection: &Connection, sql: &str) -> i64 {
    connection.query_row(sql, [], |row| row.get(0)).expect("a query with one number")
}

/// Checks what must be true of a file whatever happened to its writers.
pub(crate) fn check(path: &Path) {
    let connection = open(path);
    let integrity: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .expect("the check answers");
    assert_eq!(integrity, "ok", "SQLite's own check");
    let counted = number(&connection, "SELECT count(*) FROM oncekey_fresh");
    let noted = number(&connection, "SELECT fresh FROM oncekey_clock");
    assert_eq!(noted, counted, "the ledger counts the keys in the small map");
    let nothing = [
        (
            "answers without a record that is done",
            "SELECT count(*) FROM oncekey_answers WHERE record NOT IN
                 (SELECT id FROM oncekey_records WHERE state = 51)",
        ),
        (
            "records that are done without an answer",
            "SELECT count(*) FROM oncekey_records WHERE state = 51 AND id NOT IN
                 (SELECT record FROM oncekey_answers)",
        ),
        (
            "pieces without a record",
            "SELECT count(*) FROM oncekey_pieces WHERE record NOT IN
                 (SELECT id FROM oncekey_records)",
        ),
        (
            "fences above the highest one granted",
            "SELECT count(*) FROM oncekey_records WHERE fence > (SELECT fence FROM oncekey_clock)",
        ),
    ];
    for (what, sql) in nothing {
        assert_eq!(number(&connection, sql), 0, "{what}");
    }
    check_maps(&connection);
}

/// Every record is in exactly one of the two key maps, under its own digest, and nothing else is.
fn check_maps(connection: &Connection) {
    let mut hashes: HashMap<i64, i64> = HashMap::new();
    let maps = "SELECT record, hash FROM oncekey_fresh
                UNION ALL SELECT record, hash FROM oncekey_settled";
    let mut statement = connection.prepare(maps).expect("the maps are there");
    let mut rows = statement.query([]).expect("the maps can be read");
    while let Some(row) = rows.next().expect("the maps can be read") {
        let record = row.get(0).expect("a record");
        let again = hashes.insert(record, row.get(1).expect("a hash"));
        assert_eq!(again, None, "record {record} is in the maps twice");
    }
    let records = "SELECT id, key_id FROM oncekey_records";
    let mut statement = connection.prepare(records).expect("the records are there");
    let mut rows = statement.query([]).expect("the records can be read");
    while let Some(row) = rows.next().expect("the records can be read") {
        let (record, key_id): (i64, [u8; 32]) =
            (row.get(0).expect("an id"), row.get(1).expect("a key id"));
        let [a, b, c, d, e, f, g, h, ..] = key_id;
        let hash = i64::from_be_bytes([a, b, c, d, e, f, g, h]);
        assert_eq!(hashes.remove(&record), Some(hash), "record {record} is in one map");
    }
    assert!(hashes.is_empty(), "the maps name records that are not there: {hashes:?}");
}
