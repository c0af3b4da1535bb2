//! What the layer is held to.

use oncekey_bench::bars::Bar;
use oncekey_bench::table::count;

use crate::drive::Callers;
use crate::grid::{Gauge, Grid, Side};
use crate::service::Operation;
use crate::waiters::Crowd;

/// What a request may cost that the layer has nothing to do with, in nanoseconds. A request over
/// the network costs a hundred times as much.
const PASS_THROUGH: f64 = 300.0;
/// A peer of the same kind must be beaten by a distance that does not depend on the day.
const OF_PEER: f64 = 0.7;
/// What ten thousand waiters may take, in megabytes: 20 kB each, a connection's worth.
const WAITERS_MEGABYTES: f64 = 200.0;
/// By how much they may slow down everybody else.
const SLOWDOWN: f64 = 1.1;

/// The demands on the table.
pub(crate) fn of_grid(grid: &Grid, no_peer: Option<&str>) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (operation, what) in [
        (Operation::Get, "a GET passes through"),
        (Operation::NoKey, "a POST without a key passes through"),
    ] {
        let added = grid.added((operation, Callers::One, Side::Memory, Gauge::Cpu));
        bars.extend(added.map(|added| {
            let (wanted, found) = (format!("<= {PASS_THROUGH} ns"), format!("{added:.0} ns"));
            Bar::new(what, wanted, found, added <= PASS_THROUGH)
        }));
    }
    bars.extend(large_body(grid));
    for (operation, callers, what) in [
        (Operation::New, Callers::One, "new key on memory / idempotent"),
        (Operation::New, Callers::Many, "new key on memory, 64 callers / idempotent"),
        (Operation::Replay, Callers::One, "replay on memory / idempotent"),
        (Operation::Replay, Callers::Many, "replay on memory, 64 callers / idempotent"),
        (Operation::Again, Callers::One, "further replay on memory / idempotent"),
        (Operation::Again, Callers::Many, "further replay on memory, 64 callers / idempotent"),
    ] {
        let ratio = grid.of_peer((operation, callers, Side::Memory, Gauge::Cpu));
        bars.push(match (ratio, no_peer) {
            (Some(ratio), _) => Bar::at_most(what, OF_PEER, ratio),
            (None, why) => {
                Bar::not_measured(what, format!("<= {OF_PEER} x"), why.unwrap_or("no figures"))
            }
        });
    }
    bars
}

/// Whether what passes through is copied.
fn large_body(grid: &Grid) -> Option<Bar> {
    let bytes = |operation| grid.added((operation, Callers::One, Side::Memory, Gauge::Bytes));
    let (small, large) = (bytes(Operation::SmallUpload)?, bytes(Operation::LargeUpload)?);
    let what = "allocated for 1 MiB that passes through - for 10 bytes";
    let more = (large - small).round();
    Some(Bar::new(what, "0 bytes", format!("{} bytes", count(more)), more <= 0.0))
}

/// The demands on a crowd of waiters.
pub(crate) fn of_crowd(crowd: &Crowd) -> Vec<Bar> {
    let (memory, slowdown) = (crowd.megabytes(), crowd.slowdown());
    vec![
        Bar::new(
            "memory for 10 000 waiters on one key",
            format!("< {WAITERS_MEGABYTES} MB"),
            format!("{memory:.1} MB"),
            memory < WAITERS_MEGABYTES,
        ),
        Bar::new(
            "new keys beside 10 000 waiters / without them",
            format!("< {SLOWDOWN} x"),
            format!("{slowdown:.2} x"),
            slowdown < SLOWDOWN,
        ),
    ]
}
