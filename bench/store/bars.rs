//! What the store is held to, and whether it was met in this run.

use serde_json::{Value, json};

use crate::cells::{Verb, Way};
use crate::grid::Grid;
use crate::large_body::LargeBody;
use crate::large_store::LargeStore;
use crate::machine::Machine;
use crate::table::{Table, count};

/// The number of callers at which the store is held to something.
const CALLERS: usize = 64;

/// One demand.
#[derive(Debug)]
pub(crate) struct Bar {
    what: &'static str,
    wanted: String,
    found: String,
    verdict: Verdict,
}

/// Whether a demand was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Miss,
}

impl Bar {
    fn new(what: &'static str, wanted: impl Into<String>, found: String, is_met: bool) -> Self {
        let verdict = if is_met { Verdict::Pass } else { Verdict::Miss };
        Self { what, wanted: wanted.into(), found, verdict }
    }

    fn at_least(what: &'static str, wanted: f64, found: f64) -> Self {
        Self::new(what, format!(">= {wanted} x"), format!("{found:.2} x"), found >= wanted)
    }

    fn at_most(what: &'static str, wanted: f64, found: f64) -> Self {
        Self::new(what, format!("<= {wanted} x"), format!("{found:.2} x"), found <= wanted)
    }
}

impl Verdict {
    const fn label(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Miss => "MISS",
        }
    }
}

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

pub(crate) fn text(bars: &[Bar]) -> String {
    let mut table = Table::new(&["bar", "wanted", "found", "verdict"]);
    for Bar { what, wanted, found, verdict } in bars {
        let line = [*what, wanted, found, verdict.label()];
        table.add(line.map(str::to_owned).to_vec());
    }
    table.text()
}

pub(crate) fn are_met(bars: &[Bar]) -> bool {
    bars.iter().all(|bar| bar.verdict == Verdict::Pass)
}

pub(crate) fn to_json(bars: &[Bar]) -> Value {
    let all = bars.iter().map(|Bar { what, wanted, found, verdict }| {
        json!({ "bar": what, "wanted": wanted, "found": found, "verdict": verdict.label() })
    });
    all.collect()
}
