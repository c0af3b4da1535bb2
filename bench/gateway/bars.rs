//! What the gateway is held to.

use oncekey_bench::bars::Bar;
use oncekey_bench::machine::Machine;

use crate::footprint::Footprint;
use crate::grid::Grid;
use crate::operation::{Operation, Side};

/// What passes through, beside nginx. 0.9 is the goal.
const OF_NGINX: f64 = 0.7;
/// A replay never reaches the service, so it must not be slower than nginx, which does.
const REPLAY_OF_NGINX: f64 = 1.0;
/// A new key waits for the disk twice.
const NEW_OF_OWN: f64 = 0.35;
/// What a new key may add at half load, in milliseconds.
const ADDED: f64 = 2.0;
/// Idle memory and the program, in megabytes.
const MEGABYTES: f64 = 30.0;
/// From its start to the first proxied request, in milliseconds.
const START: f64 = 1_000.0;

/// The demands on full load.
pub(crate) fn of_grid(grid: &Grid) -> Vec<Bar> {
    let of_nginx = |operation| grid.ratio((operation, Side::Sqlite), (operation, Side::Nginx));
    let new = grid.ratio((Operation::New, Side::Sqlite), (Operation::Post, Side::Sqlite));
    let figures = [
        ("GET passes through / nginx", OF_NGINX, of_nginx(Operation::Get)),
        ("POST without a key passes through / nginx", OF_NGINX, of_nginx(Operation::Post)),
        ("replay / nginx with the same requests", REPLAY_OF_NGINX, of_nginx(Operation::Replay)),
        ("hot key / nginx with the same requests", REPLAY_OF_NGINX, of_nginx(Operation::Hot)),
        ("new key on SQLite FULL / own POST without a key", NEW_OF_OWN, new),
    ];
    let bars = figures.into_iter().map(|(what, wanted, found)| match found {
        Some(found) => Bar::at_least(what, wanted, found),
        None => Bar::not_measured(what, format!(">= {wanted} x"), "no figures"),
    });
    bars.collect()
}

/// The demand on half load, beside what the disk alone takes for the two waits of a new key, and what
/// nginx adds to the same requests, which waits for no disk: the machine takes that much by itself.
pub(crate) fn of_half(half: &Grid, machine: &Machine) -> Bar {
    let what = "p99 that a new key on SQLite FULL adds at half load";
    let wanted = format!("<= {ADDED} ms");
    match half.added_p99(Operation::New, Side::Sqlite) {
        Some(micros) => {
            let (added, disk) = (micros / 1e3, machine.two_syncs_p99_micros / 1e3);
            let nginx = half.added_p99(Operation::New, Side::Nginx);
            let nginx = nginx.map_or_else(String::new, |it| format!("; nginx: {:.2} ms", it / 1e3));
            let found = format!("{added:.2} ms (the disk alone: {disk:.2} ms{nginx})");
            Bar::new(what, wanted, found, added <= ADDED)
        }
        None => Bar::not_measured(what, wanted, "no figures"),
    }
}

/// The demands on what it takes.
pub(crate) fn of_footprint(footprint: &Footprint) -> Vec<Bar> {
    let below = |what: &str, most: f64, found: f64, unit: &str| {
        Bar::new(what, format!("< {most} {unit}"), format!("{found:.1} {unit}"), found < most)
    };
    vec![
        below("idle memory", MEGABYTES, footprint.idle, "MB"),
        below("release program", MEGABYTES, footprint.program, "MB"),
        below("start to the first proxied request", START, footprint.start, "ms"),
    ]
}
