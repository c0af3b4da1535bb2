//! What the store is held to, and whether it was met in this run.

use oncekey_bench::bars::Bar;
use oncekey_bench::machine::Machine;
use oncekey_bench::table::count;

use crate::cells::{Verb, Way};
use crate::grid::Grid;
use crate::large_body::LargeBody;
use crate::large_store::LargeStore;

/// The number of callers at which the store is held to something.
const CALLERS: usize = 64;

/// The demands on what the table holds. Those at a number of callers that was not measured are
/// left out.
pub(crate) fn of_grid(grid: &Grid, machine: &Machine) -> Vec<Bar> {
    let mut bars = Vec::new();
    if let Some(times) = grid.times(Verb::Pair, CALLERS, Way::Unbatched) {
        bars.push(Bar::at_least("claim+complete at 64 callers / unbatched", 8.0, times));
    }
    if let Some(times) = grid.times(Verb::Pair, CALLERS, Way::ByHand) {
        bars.push(Bar::at_least("claim+complete at 64 callers / by hand", 0.6, times));
    }
    let replays = grid.median(Verb::Replay, CALLERS, Way::Store);
    let times = grid.times(Verb::Replay, CALLERS, Way::ByHand);
    if let (Some(replays), Some(times)) = (replays, times) {
        let per_core = replays.rate / machine.cores as f64;
        bars.push(Bar::new(
            "replay at 64 callers",
            ">= 50 000/s per core or >= 0.8 x by hand",
            format!("{}/s per core, {times:.2} x", count(per_core)),
            per_core >= 50_000.0 || times >= 0.8,
        ));
    }
    bars
}

/// The demand on claims beside large answers.
pub(crate) fn of_large_body(found: &LargeBody) -> Vec<Bar> {
    let (p50, p99) = found.slowdown();
    vec![
        Bar::at_most("p50 of claims beside 1 MiB each 50 ms / alone", 1.2, p50),
        Bar::at_most("p99 of claims beside 1 MiB each 50 ms / alone", 1.2, p99),
    ]
}

/// The demands on a store with millions of keys.
pub(crate) fn of_large_store(found: &LargeStore, machine: &Machine) -> Vec<Bar> {
    // A purge of nothing asks the writer, which commits nothing: no sync of the disk.
    let idle = found.idle_purge();
    let sync = machine.sync_micros;
    vec![
        Bar::at_most("claim in millions of keys / in 10 000", 1.5, found.claim_growth()),
        Bar::at_most("purge of a record in millions / in 10 000", 4.0, found.purge_growth()),
        Bar::new(
            "purge of nothing in millions of keys",
            "<= one fdatasync",
            format!("{idle:.0} us, fdatasync {sync:.0} us"),
            idle <= sync,
        ),
    ]
}
