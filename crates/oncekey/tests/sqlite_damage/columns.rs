//! Every value of every column, damaged in every way that a value can be.

use rusqlite::types::Value;

use crate::common::{self, Bits};
use crate::scene::{Scene, Subject};

/// Blobs up to this many bits have every bit flipped once; of longer ones, this many are drawn.
/// Fewer where another subject has been through the same.
const MOST_BITS: usize = 512;
const FEW_BITS: usize = 16;

/// F55: every column, as the file itself lists them, so that a new one cannot be forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_damaged_value_is_replayed_or_run() {
    let scene = Scene::new().await;
    let mut tally = Tally::default();
    for subject in &scene.subjects {
        for (table, key) in
            [("oncekey_records", "id"), ("oncekey_answers", "record"), ("oncekey_pieces", "record")]
        {
            for column in columns(&scene, table) {
                damage_column(&scene, subject, (table, key), &column, &mut tally).await;
            }
        }
    }
    common::say(&format!("damaged values: {tally:?}"));
    assert!(tally.noticed > 1_000, "hardly anything was damaged");
}

/// How the damages went.
#[derive(Debug, Default)]
struct Tally {
    /// Ended in an error.
    noticed: u64,
    /// Made no difference, or hit what is not sealed and was answered safely.
    harmless: u64,
    /// Would not be stored by SQLite.
    refused: u64,
}

async fn damage_column(
    scene: &Scene,
    subject: &Subject,
    (table, key): (&str, &str),
    column: &str,
    tally: &mut Tally,
) {
    // Of the pieces of a large body, the first is damaged.
    let place = format!("rowid = (SELECT min(rowid) FROM {table} WHERE {key} = {})", subject.row);
    let read = format!("SELECT {column} FROM {table} WHERE {place}");
    let Ok(value) = scene.raw.query_row(&read, [], |row| row.get::<_, Value>(0)) else {
        // Nothing is there: only what is done has an answer, and only large bodies have pieces.
        return;
    };
    let update = format!("UPDATE {table} SET {column} = ?1 WHERE {place}");
    let bits = if subject.name == "done" { MOST_BITS } else { FEW_BITS };
    for (damage, damaged) in damages(&value, bits) {
        if scene.raw.execute(&update, [damaged]).is_err() {
            tally.refused += 1;
            continue;
        }
        let about = format!("{table}.{column} {damage}");
        match scene.check(subject, &about).await {
            true => tally.noticed += 1,
            false => tally.harmless += 1,
        }
        if table == "oncekey_pieces" {
            scene.restore();
        } else {
            scene.restore_all_but_pieces();
        }
    }
}

fn columns(scene: &Scene, table: &str) -> Vec<String> {
    let sql = format!("SELECT name FROM pragma_table_info('{table}')");
    let mut statement = scene.raw.prepare(&sql).expect("a list of columns");
    let names = statement.query_map([], |row| row.get(0)).expect("a list of columns");
    names.map(|name| name.expect("a name")).collect()
}

/// Every way in which a value is damaged.
fn damages(value: &Value, bits: usize) -> Vec<(String, Value)> {
    let mut damages = vec![
        ("is null".to_owned(), Value::Null),
        ("is a text".to_owned(), Value::Text("1".to_owned())),
        ("is a real number".to_owned(), Value::Real(1.5)),
    ];
    match value {
        Value::Integer(number) => {
            let odd = [0, -1, 1, 2, 255, 256, i64::MAX, i64::MIN, i64::MAX - 1];
            let flipped = (0..64).map(|bit| number ^ (1 << bit));
            damages.extend(
                odd.into_iter()
                    .chain(flipped)
                    .filter(|damaged| damaged != number)
                    .map(|damaged| (format!("is {damaged}"), Value::Integer(damaged))),
            );
        }
        Value::Blob(bytes) => {
            damages.extend(damaged_blobs(bytes, bits).map(|(how, blob)| (how, Value::Blob(blob))));
        }
        Value::Null | Value::Real(_) | Value::Text(_) => {
            damages.push(("is a number".to_owned(), Value::Integer(200)));
        }
    }
    damages
}

fn damaged_blobs(bytes: &[u8], most: usize) -> impl Iterator<Item = (String, Vec<u8>)> {
    let count = bytes.len() * 8;
    let bits: Vec<usize> = if count <= most {
        (0..count).collect()
    } else {
        let mut drawn = Bits::seeded(u64::try_from(count).expect("a length"));
        (0..most).map(|_| drawn.index(count)).collect()
    };
    let flipped = bits.into_iter().map(|bit| {
        let mut blob = bytes.to_vec();
        blob[bit / 8] ^= 1 << (bit % 8);
        (format!("has bit {bit} flipped"), blob)
    });
    let mut lengths = vec![("is a byte longer".to_owned(), [bytes, &[0]].concat())];
    if let Some((_, shorter)) = bytes.split_last() {
        lengths.push(("is a byte shorter".to_owned(), shorter.to_vec()));
        lengths.push(("is empty".to_owned(), Vec::new()));
        lengths.push(("is there twice".to_owned(), [bytes, bytes].concat()));
    }
    flipped.collect::<Vec<_>>().into_iter().chain(lengths)
}
