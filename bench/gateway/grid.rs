//! The table: every kind of request, through every server.

use std::collections::BTreeMap;

use oncekey_bench::stats::{Sample, median, median_ratio};
use oncekey_bench::table::{Table, count, millis};
use serde_json::{Value, json};

use crate::operation::{Operation, Side};

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) sample: Sample,
    /// Processor time that the server took for a request, in microseconds.
    pub(crate) cpu: f64,
}

/// All measurements, in the order of the rounds.
#[derive(Debug, Default)]
pub(crate) struct Grid(BTreeMap<(Operation, Side), Vec<Measured>>);

impl Grid {
    pub(crate) fn add(&mut self, operation: Operation, side: Side, measured: Measured) {
        self.0.entry((operation, side)).or_default().push(measured);
    }

    /// Requests per second, round by round.
    fn rates(&self, operation: Operation, side: Side) -> Option<impl Iterator<Item = f64>> {
        let all = self.0.get(&(operation, side))?;
        Some(all.iter().map(|measured| measured.sample.rate))
    }

    /// The median of requests per second.
    pub(crate) fn rate(&self, operation: Operation, side: Side) -> Option<f64> {
        self.rates(operation, side).map(median)
    }

    /// How many times as many requests as another cell, round by round.
    pub(crate) fn ratio(
        &self,
        (operation, side): (Operation, Side),
        (other, beside): (Operation, Side),
    ) -> Option<f64> {
        Some(median_ratio(self.rates(operation, side)?, self.rates(other, beside)?))
    }

    /// By how much the slowest in a hundred takes longer than without a proxy, in microseconds.
    pub(crate) fn added_p99(&self, operation: Operation, side: Side) -> Option<f64> {
        let p99 = |side| Some(self.0.get(&(operation, side))?.iter().map(|m| m.sample.p99));
        Some(median(p99(side)?.zip(p99(Side::Direct)?).map(|(with, without)| with - without)))
    }

    pub(crate) fn text(&self) -> String {
        let headings =
            ["request", "server", "per second", "of nginx", "p50 ms", "p99 ms", "cpu us"];
        let mut table = Table::new(&headings);
        for (&(operation, side), all) in &self.0 {
            let samples: Vec<Sample> = all.iter().map(|measured| measured.sample).collect();
            let Sample { rate, p50, p99 } = Sample::median(&samples);
            let of_nginx = self.ratio((operation, side), (operation, Side::Nginx));
            table.add(vec![
                operation.label().to_owned(),
                side.label().to_owned(),
                count(rate),
                of_nginx.map_or_else(String::new, |ratio| format!("{ratio:.2} x")),
                millis(p50),
                millis(p99),
                format!("{:.1}", median(all.iter().map(|measured| measured.cpu))),
            ]);
        }
        table.text()
    }

    pub(crate) fn to_json(&self) -> Value {
        let cells = self.0.iter().map(|((operation, side), all)| {
            let rounds: Vec<Value> = all
                .iter()
                .map(|Measured { sample, cpu }| json!({ "load": sample.to_json(), "cpu_us": cpu }))
                .collect();
            json!({ "request": operation.label(), "server": side.label(), "rounds": rounds })
        });
        cells.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_compared_round_by_round() {
        let mut grid = Grid::default();
        // The second round is slow, for everybody.
        for (rate, p99) in [(100.0, 1.0), (10.0, 20.0), (100.0, 1.5)] {
            for (side, factor) in [(Side::Direct, 1.0), (Side::Nginx, 0.5), (Side::Sqlite, 0.25)] {
                let sample = Sample { rate: rate * factor, p50: 0.0, p99: p99 / factor };
                grid.add(Operation::Get, side, Measured { sample, cpu: 1.0 });
            }
        }
        let cell = |side| (Operation::Get, side);
        assert_eq!(grid.ratio(cell(Side::Sqlite), cell(Side::Nginx)), Some(0.5));
        assert_eq!(grid.rate(Operation::Get, Side::Sqlite), Some(25.0));
        assert_eq!(grid.added_p99(Operation::Get, Side::Sqlite), Some(4.5));
        assert_eq!(grid.rate(Operation::Get, Side::Postgres), None);
    }
}
