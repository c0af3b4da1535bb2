//! What the store is held to, and whether it was met in this run.

use oncekey_bench::bars::Bar;
use oncekey_bench::machine::Machine;
use oncekey_bench::table::count;

use crate::cells::{Verb, Way};
use crate::grid::Grid;
use crate::large_body::LargeBody;
use crate::large_store::LargeStore;
use crate::server::{Found, Kind};

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

/// What a store on a server is held to.
struct Demand {
    what: &'static str,
    wanted: &'static str,
    verb: Verb,
    callers: usize,
    than: Way,
    limit: Limit,
}

enum Limit {
    /// At least so many times as fast.
    Times(f64),
    /// At most so many microseconds slower.
    Later(f64),
}

/// The demands on a store on a server. What was not measured is not met.
pub(crate) fn of_server(found: &Found) -> Vec<Bar> {
    let demands = demands(found.kind);
    let bar = |demand: &Demand| {
        let Demand { what, wanted, verb, callers, than, ref limit } = *demand;
        let what = format!("{}: {what}", found.kind.label());
        let grid = match &found.grid {
            Ok((grid, _)) => grid,
            Err(why) => return Bar::not_measured(&what, wanted, why.lines().next().unwrap_or("")),
        };
        let figure = match limit {
            Limit::Times(_) => grid.times(verb, callers, than),
            Limit::Later(_) => grid.delay(verb, callers, than),
        };
        let Some(figure) = figure else {
            return Bar::not_measured(&what, wanted, "not with these callers, or not in this run");
        };
        match limit {
            Limit::Times(least) => {
                Bar::new(what, wanted, format!("{figure:.2} x"), figure >= *least)
            }
            Limit::Later(most) => {
                let shown = format!("{:.2} ms", figure / 1e3);
                Bar::new(what, wanted, shown, figure <= *most)
            }
        }
    };
    demands.iter().map(bar).collect()
}

fn demands(kind: Kind) -> Vec<Demand> {
    let times = |what, wanted, (verb, callers, than), least| Demand {
        what,
        wanted,
        verb,
        callers,
        than,
        limit: Limit::Times(least),
    };
    let pair = |callers| (Verb::Pair, callers, Way::Unbatched);
    let lone = Demand {
        what: "claim+complete at 1 caller, later than unbatched",
        wanted: "<= 1 ms",
        verb: Verb::Pair,
        callers: 1,
        than: Way::Unbatched,
        limit: Limit::Later(1_000.0),
    };
    match kind {
        Kind::Postgres => vec![
            times("claim+complete at 64 callers / unbatched", ">= 2 x", pair(64), 2.0),
            times("claim+complete at 512 callers / unbatched", ">= 4 x", pair(512), 4.0),
            times(
                "replay at 64 callers / plain SELECT",
                ">= 0.8 x",
                (Verb::Replay, CALLERS, Way::ByHand),
                0.8,
            ),
            lone,
        ],
        Kind::MariaDb => vec![
            times("claim+complete at 64 callers / unbatched", ">= 1.5 x", pair(64), 1.5),
            times("claim+complete at 512 callers / unbatched", ">= 3 x", pair(512), 3.0),
            lone,
        ],
        Kind::Redis => [64, 512]
            .map(|callers| {
                let what = if callers == 64 {
                    "claim at 64 callers / redis-benchmark"
                } else {
                    "claim at 512 callers / redis-benchmark"
                };
                times(what, ">= 0.7 x", (Verb::Claim, callers, Way::ByHand), 0.7)
            })
            .into(),
        // Nothing is demanded of it: its server is not the one that people run.
        Kind::DynamoDb => Vec::new(),
    }
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
