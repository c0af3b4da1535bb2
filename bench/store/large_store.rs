//! Whether a claim and a purge cost more when millions of keys are stored.
//!
//! Two files, one with ten thousand keys and one with millions, filled straight into the store's
//! tables as the store itself would have left them: the newest keys in the small map, all others
//! in the large one. Then both are measured in turns.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncekey::clock::SystemClock;
use oncekey::core::{Clock as _, KeyId, State, StateKind, Store as _};
use oncekey::store::sqlite::SqliteStore;
use oncekey_bench::clock::Stopwatch;
use oncekey_bench::stats::{self, micros};
use oncekey_bench::table::{Table, count, millis};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::by_hand::{ByHand, PreparedClaim, StoredAnswer, hash_of};
use crate::drive::{Next, drive};
use crate::work::{self, Work};
use crate::{Plan, Result, calls, cells};

/// Keys in the small file.
const FEW: usize = 10_000;
/// How many keys the store leaves in its small map.
const FRESH: usize = 262_144;
/// Callers that claim.
const CALLERS: usize = 64;
/// Claims in a round: the small file must not grow out of its class.
const CLAIMS: usize = 20_000;
/// Long enough to go through millions of keys.
const SETTLED: Duration = Duration::from_secs(4);
/// Claims before each round that do not count: they warm the caches.
const WARM: usize = 2_000;
/// Finished keys that a round purges.
const PURGED: usize = 1_000;
/// Purges that find nothing to do.
const IDLE: usize = 50;
/// Filled keys that are read back before anything is measured.
const CHECKED: usize = 1_000;

/// The seed of the keys that are filled in; the rounds use those above it.
const FILLED: u64 = 1_000;

/// What was found for both files.
#[derive(Debug)]
pub(crate) struct LargeStore {
    few: Found,
    many: Found,
    fill: Duration,
}

/// What was found for one file.
#[derive(Debug, Default)]
struct Found {
    stored: usize,
    bytes: u64,
    /// Microseconds per claim, each round; closing the file is part of it, because that writes
    /// back what is left in the log.
    claim: Vec<f64>,
    /// Microseconds per purged record, each round.
    purge: Vec<f64>,
    /// Microseconds per purge that finds nothing.
    idle: Vec<f64>,
}

impl LargeStore {
    pub(crate) fn measure(runtime: &Runtime, plan: &Plan, stored: usize) -> Result<Self> {
        // More rounds than elsewhere: they are short, and checkpoints fall where they fall.
        let rounds = plan.rounds * 2 + 1;
        let paths = [plan.folder.join("few.db"), plan.folder.join("many.db")];
        let mut found = [FEW, stored].map(|stored| Found { stored, ..Found::default() });
        let watch = Stopwatch::start();
        for (path, found) in paths.iter().zip(&mut found) {
            eprintln!("filling in {} keys", count(found.stored as f64));
            fill(path, found.stored, rounds * PURGED)?;
            found.bytes = std::fs::metadata(path)?.len();
            runtime.block_on(check(path, found.stored, rounds * PURGED))?;
        }
        let fill = watch.elapsed();
        for round in 1..=rounds {
            eprintln!("round {round} of {rounds}: claims and purges in both files");
            for (path, found) in paths.iter().zip(&mut found) {
                let copy = if found.stored == FEW { copy_of(path)? } else { path.clone() };
                let work = Work::new(FILLED + round as u64);
                found.claim.push(claims(runtime, &copy, work)?);
                found.purge.push(runtime.block_on(purge(path, PURGED))?);
            }
        }
        for (path, found) in paths.iter().zip(&mut found) {
            found.idle = runtime.block_on(purge_nothing(path))?;
            cells::remove(path)?;
        }
        cells::remove(&copy_path(&paths[0]))?;
        let [few, many] = found;
        Ok(Self { few, many, fill })
    }

    /// How many times as much a claim costs in the large file.
    pub(crate) fn claim_growth(&self) -> f64 {
        stats::median_ratio(self.many.claim.iter().copied(), self.few.claim.iter().copied())
    }

    /// How many times as much it costs to purge a record in the large file.
    pub(crate) fn purge_growth(&self) -> f64 {
        stats::median_ratio(self.many.purge.iter().copied(), self.few.purge.iter().copied())
    }

    /// What a purge of nothing costs in the large file, in microseconds.
    pub(crate) fn idle_purge(&self) -> f64 {
        stats::median(self.many.idle.iter().copied())
    }

    pub(crate) fn text(&self) -> String {
        let headings =
            ["stored keys", "file MiB", "us/claim", "least", "us/purged", "idle purge ms"];
        let mut table = Table::new(&headings);
        for found in [&self.few, &self.many] {
            let median = |figures: &[f64]| stats::median(figures.iter().copied());
            let least = found.claim.iter().copied().fold(f64::INFINITY, f64::min);
            table.add(vec![
                count(found.stored as f64),
                count(found.bytes as f64 / 1024.0 / 1024.0),
                format!("{:.1}", median(&found.claim)),
                format!("{least:.1}"),
                format!("{:.1}", median(&found.purge)),
                millis(median(&found.idle)),
            ]);
        }
        format!("{}(filled and checked in {:.0} s)\n", table.text(), self.fill.as_secs_f64())
    }

    pub(crate) fn to_json(&self) -> Value {
        let one = |found: &Found| {
            json!({
                "stored": found.stored,
                "bytes": found.bytes,
                "claim_us": found.claim,
                "purge_us_per_record": found.purge,
                "idle_purge_us": found.idle,
            })
        };
        json!({ "few": one(&self.few), "many": one(&self.many), "fill_s": self.fill.as_secs_f64() })
    }
}

/// Fills a new file with `stored` finished keys, and `due` more that a purge will find.
fn fill(path: &Path, stored: usize, due: usize) -> Result<()> {
    let work = Work::new(FILLED);
    let answer = StoredAnswer::new(work::completion());
    let mut by_hand = ByHand::open(path)?;
    for (name, value) in [("journal_mode", "off"), ("synchronous", "off")] {
        by_hand.connection().pragma_update(None, name, value)?;
    }
    let now = SystemClock.now();
    let long_ago = now.before(Duration::from_secs(365 * 24 * 60 * 60));
    let total = stored + due;
    let mut places = Vec::with_capacity(total);
    for first in (0..total).step_by(100_000) {
        by_hand.begin()?;
        for number in first..total.min(first + 100_000) {
            let claim = PreparedClaim::new(work.claim(number, number));
            let held = by_hand.insert(&claim, now, StateKind::Done)?;
            let at = if number < due { long_ago } else { now };
            by_hand.insert_answer(&answer, &answer.prepare(held), at)?;
            places.push([hash_of(&held.lease.id), held.row]);
        }
        by_hand.commit()?;
        if total > 1_000_000 && first % 1_000_000 == 0 {
            eprintln!("  {} of {}", count(first as f64), count(total as f64));
        }
    }
    let fresh = places.split_off(total.saturating_sub(FRESH));
    let count = fresh.len();
    by_hand.begin()?;
    for (map, mut places) in [("oncekey_settled", places), ("oncekey_fresh", fresh)] {
        places.sort_unstable();
        let insert = format!("INSERT INTO {map} (hash, record) VALUES (?1, ?2)");
        for place in places {
            by_hand.connection().prepare_cached(&insert)?.execute(place)?;
        }
    }
    by_hand.add_fresh(count)?;
    by_hand.commit()?;
    drop(by_hand);
    // Gigabytes that still have to reach the disk would be paid for by the first checkpoint.
    std::fs::File::open(path)?.sync_all()?;
    Ok(())
}

/// Reads some of the filled keys back through the store: what was filled in by hand is exactly
/// what it would have written, seals included.
async fn check(path: &Path, stored: usize, due: usize) -> Result<()> {
    let store = SqliteStore::open(path)?;
    let work = Work::new(FILLED);
    for ticket in 0..CHECKED {
        let id: KeyId = work.key(due + calls::pick(ticket, stored));
        let record = store.get(&id).await?.ok_or("a filled key is not there")?;
        if record.id != id || !matches!(record.state, State::Done { .. }) {
            return Err("a filled key is not what was filled in".into());
        }
    }
    Ok(())
}

/// Microseconds per claim of a new key, with everything that has to be written for it.
fn claims(runtime: &Runtime, path: &Path, work: Work) -> Result<f64> {
    let store = Arc::new(SqliteStore::open(path)?);
    // A store that has just been opened is still going through its keys.
    std::thread::sleep(SETTLED);
    let work = Arc::new(work);
    let run = |numbers: std::ops::Range<usize>| {
        let (store, work) = (Arc::clone(&store), Arc::clone(&work));
        let call = move |ticket: usize| {
            let (store, work) = (Arc::clone(&store), Arc::clone(&work));
            let number = Some(numbers.start + ticket).filter(|number| *number < numbers.end);
            async move {
                let Some(number) = number else { return Next::Dry };
                calls::claim(&*store, &work, number).await;
                Next::More
            }
        };
        runtime.block_on(drive(CALLERS, Duration::MAX, call))
    };
    run(0..WARM);
    let watch = Stopwatch::start();
    run(WARM..WARM + CLAIMS);
    drop(store);
    Ok(micros(watch.elapsed()) / CLAIMS as f64)
}

/// Microseconds per record of a purge that finds enough to do.
async fn purge(path: &Path, limit: usize) -> Result<f64> {
    let store = SqliteStore::open(path)?;
    let watch = Stopwatch::start();
    let purged = store.purge(limit).await?;
    let elapsed = watch.elapsed();
    if purged.forgotten != limit {
        return Err("a purge found less than was due".into());
    }
    Ok(micros(elapsed) / limit as f64)
}

async fn purge_nothing(path: &Path) -> Result<Vec<f64>> {
    let store = SqliteStore::open(path)?;
    let mut found = Vec::with_capacity(IDLE);
    for _ in 0..IDLE {
        let watch = Stopwatch::start();
        let purged = store.purge(PURGED).await?;
        found.push(micros(watch.elapsed()));
        if purged.total() != 0 {
            return Err("a purge found something after everything due was gone".into());
        }
    }
    Ok(found)
}

fn copy_path(path: &Path) -> PathBuf {
    path.with_extension("copy")
}

/// A copy to claim in, so that the small file stays small from round to round.
fn copy_of(path: &Path) -> Result<PathBuf> {
    let copy = copy_path(path);
    cells::remove(&copy)?;
    std::fs::copy(path, &copy)?;
    Ok(copy)
}
