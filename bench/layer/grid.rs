//! The table: every operation in front of every store, with one caller and with many, beside the
//! peer.

use std::collections::BTreeMap;

use oncekey_bench::stats::{median, median_ratio};
use oncekey_bench::table::{Table, count};
use serde_json::{Value, json};

use crate::drive::Callers;
use crate::service::Operation;

/// Whose cost it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// Our layer on the memory store.
    Memory,
    /// Our layer on the SQLite store.
    Sqlite,
    /// A layer that does nothing: what axum itself takes for having one.
    Nothing,
    /// The crate `idempotent` on its memory store.
    Peer,
}

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Gauge {
    /// Nanoseconds on the wall.
    Wall,
    /// Nanoseconds of processor time.
    Cpu,
    /// Allocations.
    Allocations,
    /// Allocated bytes.
    Bytes,
}

/// One measurement, for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Without a layer.
    pub(crate) bare: f64,
    /// With it.
    pub(crate) with: f64,
}

/// The name of a cell.
pub(crate) type Cell = (Operation, Callers, Side, Gauge);

/// All samples of all cells, in the order of the rounds.
#[derive(Debug, Default)]
pub(crate) struct Grid(BTreeMap<Cell, Vec<Sample>>);

impl Gauge {
    pub(crate) const TIME: [Self; 2] = [Self::Wall, Self::Cpu];
    pub(crate) const MEMORY: [Self; 2] = [Self::Allocations, Self::Bytes];

    const fn label(self) -> &'static str {
        match self {
            Self::Wall => "wall_ns",
            Self::Cpu => "cpu_ns",
            Self::Allocations => "allocations",
            Self::Bytes => "bytes",
        }
    }
}

impl Side {
    const fn label(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Nothing => "(empty layer)",
            Self::Peer => "idempotent",
        }
    }
}

impl Sample {
    const fn added(&self) -> f64 {
        self.with - self.bare
    }
}

impl Grid {
    /// Adds one measurement: two counters without a layer and with it.
    pub(crate) fn add(
        &mut self,
        (operation, callers, side): (Operation, Callers, Side),
        gauges: [Gauge; 2],
        (bare, with): ([f64; 2], [f64; 2]),
    ) {
        for (place, gauge) in gauges.into_iter().enumerate() {
            let sample = Sample { bare: bare[place], with: with[place] };
            self.0.entry((operation, callers, side, gauge)).or_default().push(sample);
        }
    }

    /// What the layer adds to a request: the median of the differences, round by round.
    pub(crate) fn added(&self, cell: Cell) -> Option<f64> {
        self.0.get(&cell).map(|samples| median(samples.iter().map(Sample::added)))
    }

    /// How many times as much as the peer our layer adds.
    pub(crate) fn of_peer(&self, (operation, callers, side, gauge): Cell) -> Option<f64> {
        let ours = self.0.get(&(operation, callers, side, gauge))?;
        let peers = self.0.get(&(operation, callers, Side::Peer, gauge))?;
        Some(median_ratio(ours.iter().map(Sample::added), peers.iter().map(Sample::added)))
    }

    pub(crate) fn text(&self) -> String {
        let mut table = Table::new(&[
            "operation",
            "store",
            "callers",
            "bare ns",
            "with ns",
            "added ns",
            "added cpu",
            "idempotent",
            "of it",
            "allocations",
            "idempotent",
            "bytes",
            "idempotent",
        ]);
        for (operation, callers, side) in self.rows() {
            table.add(self.line(operation, callers, side));
        }
        table.text()
    }

    pub(crate) fn to_json(&self) -> Value {
        let cells = self.0.iter().map(|(cell, samples)| {
            let (operation, callers, side, gauge) = *cell;
            json!({
                "operation": operation.label(),
                "callers": callers.label(),
                "layer": side.label(),
                "gauge": gauge.label(),
                "added": self.added(*cell),
                "rounds": samples.iter().map(|s| json!([s.bare, s.with])).collect::<Vec<_>>(),
            })
        });
        cells.collect()
    }

    fn line(&self, operation: Operation, callers: Callers, side: Side) -> Vec<String> {
        let figure = |figure: Option<f64>| figure.map_or_else(String::new, count);
        let each = |side, gauge, figure: fn(&Sample) -> f64| {
            let samples = self.0.get(&(operation, callers, side, gauge))?;
            Some(median(samples.iter().map(figure)))
        };
        let added = |side, gauge| self.added((operation, callers, side, gauge));
        // Allocations are shown as they are, because a replay saves those of the handler.
        let all = |side, gauge| each(side, gauge, |sample| sample.with);
        // What the peer does with the same request says nothing about an empty layer, and its
        // memory is no disk.
        let peer = (side == Side::Memory).then_some(Side::Peer);
        let ratio = peer.and_then(|_| self.of_peer((operation, callers, side, Gauge::Cpu)));
        vec![
            operation.label().to_owned(),
            side.label().to_owned(),
            callers.label().to_owned(),
            figure(each(side, Gauge::Wall, |sample| sample.bare)),
            figure(all(side, Gauge::Wall)),
            figure(added(side, Gauge::Wall)),
            figure(added(side, Gauge::Cpu)),
            figure(peer.and_then(|peer| added(peer, Gauge::Cpu))),
            ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} x")),
            figure(all(side, Gauge::Allocations)),
            figure(peer.and_then(|peer| all(peer, Gauge::Allocations))),
            figure(all(side, Gauge::Bytes)),
            figure(peer.and_then(|peer| all(peer, Gauge::Bytes))),
        ]
    }

    fn rows(&self) -> Vec<(Operation, Callers, Side)> {
        let cells = self.0.keys().filter(|(.., side, _)| *side != Side::Peer);
        let mut rows: Vec<_> =
            cells.map(|(operation, callers, side, _)| (*operation, *callers, *side)).collect();
        rows.sort_unstable_by_key(|(operation, callers, side)| (*operation, *side, *callers));
        rows.dedup();
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_taken_round_by_round() {
        let mut grid = Grid::default();
        // The second round is slow, for everybody.
        for (bare, ours, peers) in [(1.0, 3.0, 5.0), (10.0, 30.0, 50.0), (1.0, 3.5, 6.0)] {
            for (side, with) in [(Side::Memory, ours), (Side::Peer, peers)] {
                let what = (Operation::New, Callers::One, side);
                grid.add(what, Gauge::TIME, ([bare; 2], [with; 2]));
            }
        }
        let cell = (Operation::New, Callers::One, Side::Memory, Gauge::Cpu);
        assert_eq!(grid.added(cell), Some(2.5));
        assert_eq!(grid.of_peer(cell), Some(0.5));
        assert_eq!(grid.of_peer((Operation::Get, Callers::One, Side::Memory, Gauge::Cpu)), None);
    }
}
