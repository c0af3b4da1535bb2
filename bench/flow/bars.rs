//! What flows are held to.

use oncekey_bench::bars::Bar;

use crate::grid::{Contender, Grid, IN_FLIGHT};

/// The bars, and what was found.
pub(crate) fn of(grid: &Grid) -> Vec<Bar> {
    let many = IN_FLIGHT[IN_FLIGHT.len() - 1];
    let against = |who, wanted: f64, what: &str| match grid.ratio(many, Contender::Ours, who) {
        Some(ratio) => Bar::at_least(what, wanted, ratio),
        None => {
            let why = grid.no_peer.as_deref().unwrap_or("it was not measured");
            Bar::not_measured(what, format!(">= {wanted} x"), why)
        }
    };
    let relay = grid.relay_rate();
    vec![
        against(Contender::ByHand, 0.6, "32 in flight, beside by hand without safety"),
        against(Contender::Durare, 1.0, "32 in flight, beside durare"),
        Bar::new(
            "relay, staged rows per second",
            ">= 10000",
            format!("{relay:.0}"),
            relay >= 10_000.0,
        ),
    ]
}
