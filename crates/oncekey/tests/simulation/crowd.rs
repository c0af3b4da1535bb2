//! Many histories at once, and what is said about one that fails.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::bugs::Bug;
use crate::checker::check;
use crate::run::History;
use crate::story::tell;
use crate::totals::Totals;

/// How a history is made from a seed.
pub(crate) type Run = fn(u64, Option<Bug>) -> History;

/// Runs the histories of these seeds on all cores.
///
/// # Panics
/// With the story of the first history found that breaks a promise.
pub(crate) fn run_all(seeds: Range<u64>, run: Run) -> Totals {
    let next = AtomicU64::new(seeds.start);
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let totals = thread::scope(|scope| {
        let workers: Vec<_> =
            (0..cores).map(|_| scope.spawn(|| run_some(&next, seeds.end, run))).collect();
        let mut totals = Totals::default();
        for worker in workers {
            match worker.join() {
                Ok(Ok(some)) => totals.add(&some),
                Ok(Err(story)) => {
                    next.store(u64::MAX / 2, Ordering::SeqCst);
                    return Err(story);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(totals)
    });
    totals.unwrap_or_else(|story: String| panic!("{story}"))
}

fn run_some(next: &AtomicU64, end: u64, run: Run) -> Result<Totals, String> {
    let mut totals = Totals::default();
    loop {
        let seed = next.fetch_add(1, Ordering::SeqCst);
        if seed >= end {
            return Ok(totals);
        }
        let history = run(seed, None);
        let violations = check(&history);
        if !violations.is_empty() {
            // The others need not go on.
            next.store(u64::MAX / 2, Ordering::SeqCst);
            return Err(tell(&history, &violations));
        }
        totals.count(&history);
    }
}

/// A number from an environment variable, if it is set.
pub(crate) fn number_from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, it is {text:?}")))
}
