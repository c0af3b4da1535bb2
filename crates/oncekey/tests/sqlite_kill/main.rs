//! `kill -9` at any moment takes nothing back that was acknowledged. F30, F6, I2, I3, I5, I34.
//!
//! A child process claims, completes, releases, gives up and takes over as fast as it can, and
//! tells every result after it was told. The parent kills it, opens the file itself, and compares.
//! `ONCEKEY_KILLS=1000` kills more often than the sixty times of a usual run, and `ONCEKEY_SEED`
//! repeats the moments of another run, as far as a scheduler lets anything be repeated.

#![cfg(feature = "sqlite")]

#[path = "../common/mod.rs"]
mod common;
mod history;
mod note;
mod plan;
mod worker;

use std::path::Path;
use std::time::{Duration, SystemTime};

use oncekey::clock::SystemClock;
use oncekey::core::{
    Claimed, Class, Clock, Fence, Grant, Lease, Record, State, StateKind, Store, Timestamp, Write,
};
use oncekey::store::sqlite::SqliteStore;

use self::common::child::{self, Process};
use self::common::{Bits, file};
use self::history::History;
use self::note::{Note, Step, What};
use self::plan::{is_heavy, is_recycled};

/// How often a usual run kills.
const KILLS: u64 = 60;

/// Once in so many kills everything is compared, and not only what was touched.
const COMPARE_ALL: u64 = 50;

/// More than the pages at which the writer thread writes the log back.
const FILL_THE_LOG: &str = "
    PRAGMA wal_autocheckpoint = 0;
    CREATE TABLE IF NOT EXISTS ballast (bytes BLOB);
    INSERT INTO ballast VALUES (zeroblob(34000000));
    DELETE FROM ballast;";

/// Longer than any process takes to write its log back.
const PATIENCE: Duration = Duration::from_secs(60);

/// Not a test: what the child process does.
#[test]
fn child() {
    if let Some(orders) = child::orders() {
        worker::work(&orders.file, orders.number);
    }
}

/// F30.
#[test]
fn kill_9_at_any_moment_takes_back_nothing_that_was_acknowledged() {
    let kills = number_from("ONCEKEY_KILLS").unwrap_or(KILLS);
    let began = SystemClock.now();
    let seed = number_from("ONCEKEY_SEED").unwrap_or(began.micros().unsigned_abs());
    common::say(&format!("ONCEKEY_SEED={seed} ONCEKEY_KILLS={kills}"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    let mut bits = Bits::seeded(seed);
    let mut history = History::default();
    let mut tally = Tally::default();
    for generation in 0..kills {
        let told = if is_heavy(generation) {
            die_while_writing_back(&path, generation, &mut bits)
        } else {
            live_and_die(&path, generation, &mut bits)
        };
        tally.died_at_start += u64::from(told.is_empty());
        tally.died_while_writing_back += u64::from(is_heavy(generation));
        for line in told {
            assert!(!line.starts_with("broken"), "generation {generation}: {line}");
            let note = Note::read(&line).unwrap_or_else(|| panic!("not a note: {line}"));
            tally.acknowledged += u64::from(!matches!(note.what, What::Asks(_)));
            history.add(&note);
        }
        let keys = history.take_touched();
        let all = generation % COMPARE_ALL == COMPARE_ALL - 1 || generation + 1 == kills;
        let keys = if all { history.keys() } else { keys };
        compare(&path, &keys, &mut history, &mut tally);
        file::check(&path);
    }
    let seconds = SystemClock.now().since(began).as_secs();
    common::say(&format!("{kills} kills in {seconds} s, no violation: {tally:?}"));
    assert!(tally.acknowledged > 0, "the children did nothing");
}

/// What a run has seen.
#[derive(Debug, Default)]
struct Tally {
    /// Results that a child was told.
    acknowledged: u64,
    /// Claims and other steps that were under way when their process died, and of these, how many
    /// turned out to have happened.
    unanswered: u64,
    happened: u64,
    /// Processes that died before they asked for anything, and while they wrote the log back.
    died_at_start: u64,
    died_while_writing_back: u64,
}

/// Starts a process and kills it after a number of lines and a moment more.
fn live_and_die(path: &Path, generation: u64, bits: &mut Bits) -> Vec<String> {
    let mut process = Process::start(&mut child::command("work", path, generation));
    let (lines, spins) = match bits.below(10) {
        0 => (0, bits.below(300_000)),
        _ => (1 + bits.below(500), bits.below(50_000)),
    };
    let mut told: Vec<String> = std::iter::from_fn(|| process.hear()).take(index(lines)).collect();
    assert_eq!(told.len(), index(lines), "a child works until it is killed: {:?}", told.last());
    spin(spins);
    process.kill();
    told.extend(std::iter::from_fn(|| process.hear()));
    told
}

/// Starts a process with a log that is full and kills it a moment after it began to write it back
/// to the file.
fn die_while_writing_back(path: &Path, generation: u64, bits: &mut Bits) -> Vec<String> {
    let bystander = file::open(path);
    bystander.execute_batch(FILL_THE_LOG).expect("the log can be filled");
    let written = last_written(path);
    let until = SystemClock.now().after(PATIENCE);
    let mut process = Process::start(&mut child::command("work", path, generation));
    process.hear_and_kill(|| {
        // Only writing back the log changes the file itself.
        while last_written(path) == written {
            assert!(SystemClock.now() < until, "the log is never written back");
            std::thread::yield_now();
        }
        spin(bits.below(500_000));
    })
    // The bystander is closed here. While it was open, nobody else wrote the log back on closing.
}

/// Compares the file with what is known of these keys, and resolves what was under way.
fn compare(
    path: &Path,
    keys: &std::collections::BTreeSet<u64>,
    history: &mut History,
    tally: &mut Tally,
) {
    let store = SqliteStore::open(path).expect("the file opens after a kill");
    common::block_on(async {
        for key in keys {
            let mut unanswered = history.open(*key);
            let found = get(&store, *key).await;
            // Whoever turns out to own it asks first, before somebody else takes over.
            let owner = found.as_ref().map(|record| record.owner);
            unanswered.sort_by_key(|attempt| Some(common::owner(*attempt)) != owner);
            history.check(*key, found.as_ref());
            if history.unanswered(*key).is_some() || !unanswered.is_empty() {
                repeat_step(&store, *key, found.as_ref(), history, tally).await;
                for attempt in unanswered {
                    repeat_claim(&store, *key, attempt, history, tally).await;
                }
                history.check(*key, get(&store, *key).await.as_ref());
            }
            settle_unknown(&store, *key, history).await;
        }
    });
}

/// I5: a step that was not answered is repeated with the same lease.
async fn repeat_step(
    store: &SqliteStore,
    key: u64,
    found: Option<&Record>,
    history: &mut History,
    tally: &mut Tally,
) {
    let Some((attempt, fence, step)) = history.unanswered(key) else { return };
    tally.unanswered += 1;
    let fence = Fence::from_number(fence).expect("a fence that was granted");
    let owner = common::owner(attempt);
    let lease = Lease { id: common::key_id(key), fence, owner, until: Timestamp::default() };
    let write = worker::take(store, key, attempt, &lease, step).await.expect("a step is repeated");
    let holds = found.is_some_and(|record| record.is_held_by(&lease));
    assert!(
        write == Write::Applied || !holds,
        "key {key}: {step:?} of attempt {attempt} was fenced, but {found:?} is its own"
    );
    let happened = match found.map(|record| &record.state) {
        Some(State::Done { .. }) => step == Step::Complete && holds,
        Some(State::Unknown { .. }) => step == Step::Unknown && holds,
        Some(_) => false,
        None => step == Step::Release,
    };
    tally.happened += u64::from(happened);
    let what = match write {
        Write::Applied => What::Applied(step),
        Write::Fenced => What::Fenced(step),
    };
    history.add(&Note { key, attempt, what });
}

/// I5: a claim that was not answered is repeated with the same owner token. Whoever gets the key
/// by that gives it back, so that no key is stuck.
async fn repeat_claim(
    store: &SqliteStore,
    key: u64,
    attempt: u64,
    history: &mut History,
    tally: &mut Tally,
) {
    tally.unanswered += 1;
    let claim = plan::claim(key, attempt);
    let found = get(store, key).await;
    let mine = found.as_ref().filter(|record| record.owner == claim.owner);
    tally.happened += u64::from(mine.is_some());
    match store.claim(&claim).await.expect("a claim is repeated") {
        Claimed::Won { lease, grant: Grant::Again, .. } => {
            let fence = mine.map(|record| record.fence);
            assert_eq!(Some(lease.fence), fence, "key {key}: asking again gave another fence");
            give_back(store, key, attempt, &lease, history).await;
        }
        Claimed::Won { lease, .. } => {
            assert!(mine.is_none(), "key {key}: attempt {attempt} was not recognised");
            history.add(&Note { key, attempt, what: What::Won(lease.fence.number()) });
            give_back(store, key, attempt, &lease, history).await;
        }
        Claimed::Lost { refusal, .. } => {
            assert!(mine.is_none(), "key {key}: attempt {attempt} is refused as {refusal:?}");
            history.add(&Note { key, attempt, what: What::Lost });
        }
    }
}

async fn give_back(
    store: &SqliteStore,
    key: u64,
    attempt: u64,
    lease: &Lease,
    history: &mut History,
) {
    history.add(&Note { key, attempt, what: What::Asks(Step::Release) });
    let write = store.release(lease).await.expect("a release is applied");
    assert_eq!(write, Write::Applied, "key {key}: its owner gives it back");
    history.add(&Note { key, attempt, what: What::Applied(Step::Release) });
}

/// Nobody takes over an unknown outcome of class `once`: a person completes it.
async fn settle_unknown(store: &SqliteStore, key: u64, history: &mut History) {
    if !is_recycled(key) {
        return;
    }
    let Some(record) = get(store, key).await else { return };
    if record.state.kind() != StateKind::Unknown || record.class != Class::Once {
        return;
    }
    let attempt = history.attempt_of(&record.owner);
    history.add(&Note { key, attempt, what: What::Asks(Step::Complete) });
    let write = worker::take(store, key, attempt, &record.lease(), Step::Complete).await;
    assert_eq!(write.expect("a person completes it"), Write::Applied, "key {key}");
    history.add(&Note { key, attempt, what: What::Applied(Step::Complete) });
}

async fn get(store: &SqliteStore, key: u64) -> Option<Record> {
    store.get(&common::key_id(key)).await.expect("a record can be read")
}

fn spin(times: u64) {
    (0..times).for_each(|_| std::hint::spin_loop());
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("a small number")
}

fn last_written(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|about| about.modified()).ok()
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}
