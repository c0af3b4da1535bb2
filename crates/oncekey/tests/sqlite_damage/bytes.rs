//! Bytes of the file itself, damaged at random.

use std::fs;
use std::path::Path;

use oncekey::core::{Claim, Claimed, Record, Store, Write};
use oncekey::store::sqlite::SqliteStore;

use crate::common::{self, Bits, LARGE, file};
use crate::scene::is_told;

/// How many copies of the file are damaged, each in one byte.
const COPIES: u64 = 300;
/// How many records the file holds.
const RECORDS: u64 = 120;

/// F55: whatever a file that lost a byte still answers is true. What is lost with the index of the
/// keys cannot be told from what was never there; that is counted, and documented in core's `seal`.
#[test]
fn no_damaged_byte_of_the_file_leads_to_a_wrong_replay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sound.db");
    let records = common::block_on(fill(&path));
    let sound = fs::read(&path).unwrap();
    let copy = folder.path().join("damaged.db");
    let mut bits = Bits::seeded(20_251_115);
    let mut tally = Tally::default();
    for _ in 0..COPIES {
        let mut damaged = sound.clone();
        let place = bits.index(damaged.len());
        let flipped = u8::try_from(1 + bits.below(255)).unwrap();
        damaged[place] ^= flipped;
        for ending in ["", "-wal", "-shm"] {
            drop(fs::remove_file(file::beside(&copy, ending)));
        }
        fs::write(&copy, damaged).unwrap();
        let about = format!("byte {place} changed by {flipped:#04x}");
        common::block_on(look(&copy, &records, &about, &mut tally));
    }
    common::say(&format!("damaged files: {tally:?}"));
    assert!(tally.true_answers > 10_000, "hardly anything was asked");
}

/// What the damaged files said.
#[derive(Debug, Default)]
struct Tally {
    /// Files that do not open any more.
    unopened: u64,
    errors: u64,
    true_answers: u64,
    /// Records that are not found any more, keys that would run again because of it, and files with
    /// such keys.
    lost: u64,
    run_again: u64,
    files_that_run_again: u64,
}

/// Makes a file of finished and running records, closed and without a log.
async fn fill(path: &Path) -> Vec<Record> {
    let store = SqliteStore::open(path).expect("a new file opens");
    let mut records = Vec::new();
    for key in 0..RECORDS {
        let claim = common::claim(key, key);
        let (lease, _) = common::win(&store, &claim).await;
        if !key.is_multiple_of(4) {
            let size = if key.is_multiple_of(40) { LARGE } else { 200 };
            let completion = common::completion(common::answer(key, size));
            let write = store.complete(&lease, &completion).await.expect("a completion");
            assert_eq!(write, Write::Applied);
        }
        records.push(store.get(&claim.id).await.expect("a record").expect("it is there"));
    }
    records
}

async fn look(path: &Path, records: &[Record], about: &str, tally: &mut Tally) {
    let Ok(store) = SqliteStore::open(path) else {
        tally.unopened += 1;
        return;
    };
    let run_again = tally.run_again;
    for (record, key) in records.iter().zip(0..) {
        match store.get(&record.id).await {
            Ok(Some(found)) => {
                is_told(&found, record, about);
                tally.true_answers += 1;
            }
            Ok(None) => tally.lost += 1,
            Err(_) => tally.errors += 1,
        }
        let rival = Claim { owner: common::owner(1_000 + key), ..common::claim(key, key) };
        match store.claim(&rival).await {
            Ok(Claimed::Lost { record: found, .. }) => is_told(&found, record, about),
            Ok(Claimed::Won { .. }) => tally.run_again += 1,
            Err(_) => tally.errors += 1,
        }
    }
    tally.files_that_run_again += u64::from(tally.run_again > run_again);
}
