//! One cell of the table: one operation, one way of doing it, so many callers, once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncekey::store::sqlite::SqliteStore;
use oncekey_bench::clock::Stopwatch;
use oncekey_bench::stats::Sample;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::Result;
use crate::by_hand::{self, ByHand, Held, PreparedClaim, StoredAnswer};
use crate::calls::{Calls, pick};
use crate::drive::{Next, drive};
use crate::work::{self, Work};

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    /// New keys are claimed.
    Claim,
    /// Claimed keys are completed.
    Complete,
    /// A new key is claimed and completed.
    Pair,
    /// A finished key is claimed.
    Replay,
    /// As many callers as there are claim the same new key.
    Contended,
}

/// Who does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// The store.
    Store,
    /// One thread with transactions of as many rows as there are callers; for replays, one
    /// thread and connection per core.
    ByHand,
    /// One transaction per operation, and the callers queue for it.
    Unbatched,
    /// The same on many more connections than the store has.
    Wide,
}

/// Where and how long a cell runs.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) folder: PathBuf,
    pub(crate) callers: usize,
    pub(crate) span: Duration,
    pub(crate) seed: u64,
}

/// Finished keys that are replayed: some megabytes, as the busy part of a store is.
const REPLAYED: usize = 10_000;
/// The most claimed keys to prepare for a second of completions; the cell ends early without.
const MOST_COMPLETIONS: usize = 60_000;
/// The same for each caller: a caller waits for at least one sync of the disk per completion.
const MOST_COMPLETIONS_EACH: usize = 6_000;

impl Verb {
    pub(crate) const ALL: [Self; 5] =
        [Self::Claim, Self::Complete, Self::Pair, Self::Replay, Self::Contended];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Complete => "complete",
            Self::Pair => "claim+complete",
            Self::Replay => "replay",
            Self::Contended => "contended claim",
        }
    }

    /// The operation with this label.
    pub(crate) fn named(label: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|verb| verb.label() == label);
        found.ok_or_else(|| format!("there is no such operation: {label}"))
    }

    /// Who can do it.
    pub(crate) const fn ways(self) -> &'static [Way] {
        match self {
            Self::Claim | Self::Complete | Self::Pair => &Way::ALL,
            Self::Replay => &[Way::Store, Way::ByHand],
            Self::Contended => &[Way::Store],
        }
    }
}

impl Way {
    /// Those that have columns in the table.
    pub(crate) const ALL: [Self; 3] = [Self::Store, Self::ByHand, Self::Unbatched];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::ByHand => "by hand",
            Self::Unbatched => "unbatched",
            Self::Wide => "unbatched, wide",
        }
    }
}

/// Runs a cell in a new file and removes the file.
pub(crate) fn run(runtime: &Runtime, verb: Verb, way: Way, setting: &Setting) -> Result<Sample> {
    let path = setting.folder.join("cell.db");
    let held = prepare(verb, setting, &path)?;
    let sample = match way {
        Way::Store => with_store(runtime, verb, setting, &path, &held)?,
        Way::ByHand if verb == Verb::Replay => select_by_hand(setting, &path)?,
        Way::ByHand => write_by_hand(verb, setting, &path, &held)?,
        // SQLite has one writer, whoever asks.
        Way::Unbatched | Way::Wide => unbatched(runtime, verb, setting, &path, held)?,
    };
    remove(&path)?;
    Ok(sample)
}

/// Removes a database file and what SQLite keeps beside it.
pub(crate) fn remove(path: &Path) -> Result<()> {
    for end in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        match std::fs::remove_file(&name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Makes the file, with the keys that the operation needs.
fn prepare(verb: Verb, setting: &Setting, path: &Path) -> Result<Vec<Held>> {
    let count = match verb {
        Verb::Claim | Verb::Pair | Verb::Contended => 0,
        Verb::Replay => REPLAYED,
        Verb::Complete => {
            let each_second = MOST_COMPLETIONS.min(MOST_COMPLETIONS_EACH * setting.callers);
            let millis = usize::try_from(setting.span.as_millis())?;
            each_second * millis / 1_000
        }
    };
    let work = Work::new(setting.seed);
    let mut by_hand = ByHand::open(path)?;
    by_hand.connection().pragma_update(None, "synchronous", "off")?;
    let mut held = Vec::with_capacity(count);
    for first in (0..count).step_by(1_000) {
        let batch = first..count.min(first + 1_000);
        let claims: Vec<_> = batch.map(|n| PreparedClaim::new(work.claim(n, n))).collect();
        held.extend(by_hand.claim(&claims)?);
    }
    if verb == Verb::Replay {
        let answer = StoredAnswer::new(work::completion());
        let answers: Vec<_> = held.iter().map(|held| answer.prepare(*held)).collect();
        by_hand.complete(&answer, &answers)?;
    }
    Ok(held)
}

fn with_store(
    runtime: &Runtime,
    verb: Verb,
    setting: &Setting,
    path: &Path,
    held: &[Held],
) -> Result<Sample> {
    let store = Arc::new(SqliteStore::open(path)?);
    let leases = held.iter().map(|held| held.lease).collect();
    let replayed = if verb == Verb::Replay { REPLAYED } else { 0 };
    let work = Work::new(setting.seed);
    let calls = Calls::new((verb, setting.callers), store, work, leases, replayed);
    Ok(runtime.block_on(calls.run(setting.span)))
}

fn write_by_hand(verb: Verb, setting: &Setting, path: &Path, held: &[Held]) -> Result<Sample> {
    let mut by_hand = ByHand::open(path)?;
    let work = Work::new(setting.seed);
    let answer = StoredAnswer::new(work::completion());
    let batch = setting.callers;
    let (mut done, mut spent, mut latencies) = (0, Duration::ZERO, Vec::new());
    let (warm, mut warm_done, mut warm_spent) = (setting.span / 8, 0, Duration::ZERO);
    let watch = Stopwatch::start();
    while watch.elapsed() < setting.span {
        // Made before the clock starts: the limit is that of SQLite, not of this program.
        let numbers = done..done + batch;
        let claims: Vec<_> =
            numbers.clone().map(|n| PreparedClaim::new(work.claim(n, n))).collect();
        let mut leases = if verb == Verb::Complete {
            let Some(leases) = held.get(numbers) else { break };
            leases.to_vec()
        } else {
            Vec::new()
        };
        let claiming = Stopwatch::start();
        if verb != Verb::Complete {
            leases = by_hand.claim(&claims)?;
            by_hand.checkpoint(batch)?;
        }
        let claimed = claiming.elapsed();
        let answers: Vec<_> = leases.into_iter().map(|held| answer.prepare(held)).collect();
        let completing = Stopwatch::start();
        if verb != Verb::Claim {
            by_hand.complete(&answer, &answers)?;
            by_hand.checkpoint(batch)?;
        }
        let latency = claimed + completing.elapsed();
        done += batch;
        spent += latency;
        if watch.elapsed() < warm {
            (warm_done, warm_spent) = (done, spent);
        } else {
            latencies.push(latency);
        }
    }
    Ok(Sample::new(done - warm_done, spent - warm_spent, latencies))
}

fn select_by_hand(setting: &Setting, path: &Path) -> Result<Sample> {
    // The store has its writer open too, so the readers find the log's index in place.
    let _writer = ByHand::open(path)?;
    let cores = std::thread::available_parallelism()?.get();
    let watch = Stopwatch::start();
    let reader = |core: usize| -> Result<Vec<Duration>> {
        let connection = by_hand::open_reader(path)?;
        let work = Work::new(setting.seed);
        let mut latencies = Vec::new();
        while watch.elapsed() < setting.span {
            let id = work.key(pick(latencies.len() * cores + core, REPLAYED));
            let reading = Stopwatch::start();
            assert_ne!(by_hand::read(&connection, &id)?, 0, "every key was filled in");
            latencies.push(reading.elapsed());
        }
        Ok(latencies)
    };
    let latencies = std::thread::scope(|scope| -> Result<Vec<Duration>> {
        let threads: Vec<_> = (0..cores).map(|core| scope.spawn(move || reader(core))).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().expect("no reader panics")?);
        }
        Ok(all)
    })?;
    Ok(Sample::new(latencies.len(), watch.elapsed(), latencies))
}

fn unbatched(
    runtime: &Runtime,
    verb: Verb,
    setting: &Setting,
    path: &Path,
    held: Vec<Held>,
) -> Result<Sample> {
    let by_hand = Arc::new(Mutex::new(ByHand::open(path)?));
    let work = Arc::new(Work::new(setting.seed));
    let answer = Arc::new(StoredAnswer::new(work::completion()));
    let held = Arc::new(held);
    let call = move |ticket: usize| {
        let (by_hand, work) = (Arc::clone(&by_hand), Arc::clone(&work));
        let (answer, held) = (Arc::clone(&answer), Arc::clone(&held));
        async move {
            let held = match verb {
                Verb::Complete => match held.get(ticket) {
                    Some(held) => *held,
                    None => return Next::Dry,
                },
                Verb::Claim | Verb::Pair | Verb::Replay | Verb::Contended => {
                    let prepared = [PreparedClaim::new(work.claim(ticket, ticket))];
                    let mut alone = by_hand.lock().await;
                    let held = alone.claim(&prepared).expect("SQLite writes");
                    alone.checkpoint(1).expect("SQLite writes");
                    held[0]
                }
            };
            if verb != Verb::Claim {
                let prepared = [answer.prepare(held)];
                let mut alone = by_hand.lock().await;
                alone.complete(&answer, &prepared).expect("SQLite writes");
                alone.checkpoint(1).expect("SQLite writes");
            }
            Next::More
        }
    };
    Ok(runtime.block_on(drive(setting.callers, setting.span, call)))
}
