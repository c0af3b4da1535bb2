//! The process that is killed: tasks that claim and end as fast as they can, and a purge.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{Claimed, Grant, Lease, Refusal, State, Store, StoreError, Write};
use oncekey::store::sqlite::{SqliteOptions, SqliteStore};

use crate::common::{self, Bits, child};
use crate::note::{Note, Step, What};
use crate::plan::{self, Ending, PER_GENERATION, RECYCLED, is_recycled};

const TASKS: u64 = 8;
/// Attempts per task. No process lives that long.
const PER_TASK: u64 = 100_000;
/// How many keys the small map holds: few, so that keys settle all the time.
const SMALL_MAP: u32 = 16;
/// The first key of a generation that is kept for ever is this times its number.
pub(crate) const KEYS_PER_GENERATION: u64 = 10_000;

/// Works until it is killed.
pub(crate) fn work(file: &Path, generation: u64) {
    let store = SqliteOptions::new(file).small_map(SMALL_MAP).open().expect("the file opens");
    let store = Arc::new(store);
    common::block_on(async {
        let purge = tokio::spawn(purge_for_ever(Arc::clone(&store)));
        let tasks = (0..TASKS).map(|task| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { attempt_for_ever(&store, generation, task).await })
        });
        for task in tasks.collect::<Vec<_>>() {
            if let Err(error) = task.await.expect("a task does not panic") {
                // The parent fails the test with this line.
                child::tell(&format!("broken: {error}"));
            }
        }
        purge.abort();
    });
}

async fn purge_for_ever(store: Arc<SqliteStore>) {
    loop {
        if let Err(error) = store.purge(64).await {
            child::tell(&format!("broken: {error}"));
        }
        // A purge that finds nothing is a commit of nothing: it must not crowd out the work.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn attempt_for_ever(
    store: &SqliteStore,
    generation: u64,
    task: u64,
) -> Result<(), StoreError> {
    let first = generation * PER_GENERATION + task * PER_TASK;
    let mut bits = Bits::seeded(first);
    let mut late = VecDeque::new();
    for number in 0..PER_TASK {
        let key = choose(&mut bits, generation, number);
        let attempt = first + number;
        let Some(lease) = claim(store, key, attempt).await? else { continue };
        if plan::ending(key, attempt) == Ending::Late {
            late.push_back((key, attempt, lease));
        } else {
            end(store, key, attempt, &lease).await?;
        }
        if late.len() > 4
            && let Some((key, attempt, lease)) = late.pop_front()
        {
            step(store, key, attempt, &lease, Step::Complete).await?;
        }
    }
    Ok(())
}

/// A key that is used again and again, a new one that other tasks want too, or an old one.
fn choose(bits: &mut Bits, generation: u64, number: u64) -> u64 {
    match bits.below(8) {
        0..5 => bits.below(RECYCLED),
        5 | 6 => (generation + 1) * KEYS_PER_GENERATION + number / 4 + bits.below(4),
        _ => (bits.below(generation + 1) + 1) * KEYS_PER_GENERATION + bits.below(40),
    }
}

async fn claim(store: &SqliteStore, key: u64, attempt: u64) -> Result<Option<Lease>, StoreError> {
    let claim = plan::claim(key, attempt);
    note(key, attempt, What::Asks(Step::Claim));
    let lease = match store.claim(&claim).await? {
        Claimed::Won { lease, .. } => lease,
        Claimed::Lost { refusal: Refusal::Replay, record, .. } => {
            let State::Done { answer, .. } = record.state else {
                panic!("a replay is of something that is done");
            };
            let owner = common::hex(record.owner.as_bytes());
            let outcome = common::hex(answer.outcome().as_bytes());
            note(key, attempt, What::Replayed { owner, outcome });
            return Ok(None);
        }
        Claimed::Lost { .. } => {
            note(key, attempt, What::Lost);
            return Ok(None);
        }
    };
    note(key, attempt, What::Won(lease.fence.number()));
    // Nobody takes over a long lease, so asking again must give the same fence.
    if attempt.is_multiple_of(5) && !is_recycled(key) {
        let again = store.claim(&claim).await?;
        let same = matches!(again, Claimed::Won { lease: again, grant: Grant::Again, .. }
            if again.fence == lease.fence);
        assert!(same, "an owner that asks again keeps its fence: {again:?}");
    }
    Ok(Some(lease))
}

async fn end(store: &SqliteStore, key: u64, attempt: u64, lease: &Lease) -> Result<(), StoreError> {
    let steps: &[Step] = match plan::ending(key, attempt) {
        Ending::Complete => &[Step::Complete],
        Ending::SendAndComplete => &[Step::Send, Step::Complete],
        Ending::Release => &[Step::Release],
        Ending::Unknown => &[Step::Unknown],
        Ending::UnknownAndComplete => &[Step::Unknown, Step::Complete],
        Ending::Abandon | Ending::Late => &[],
    };
    for each in steps {
        step(store, key, attempt, lease, *each).await?;
    }
    Ok(())
}

async fn step(
    store: &SqliteStore,
    key: u64,
    attempt: u64,
    lease: &Lease,
    step: Step,
) -> Result<(), StoreError> {
    note(key, attempt, What::Asks(step));
    let write = take(store, key, attempt, lease, step).await?;
    note(
        key,
        attempt,
        match write {
            Write::Applied => What::Applied(step),
            Write::Fenced => What::Fenced(step),
        },
    );
    Ok(())
}

/// Takes a step with the lease of an attempt. The parent repeats a step in the same way.
pub(crate) async fn take(
    store: &SqliteStore,
    key: u64,
    attempt: u64,
    lease: &Lease,
    step: Step,
) -> Result<Write, StoreError> {
    match step {
        Step::Send => store.send(lease).await,
        Step::Complete => store.complete(lease, &plan::completion(key, attempt)).await,
        Step::Release => store.release(lease).await,
        Step::Unknown => store.unknown(lease).await,
        Step::Claim => unreachable!("a claim is not taken with a lease"),
    }
}

fn note(key: u64, attempt: u64, what: What) {
    if !child::tell(&Note { key, attempt, what }.to_string()) {
        // The parent is gone, and with it everybody who could kill us.
        std::process::exit(1);
    }
}
