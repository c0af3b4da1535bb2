//! The table: every operation by every way at every number of callers, round after round.

use std::collections::{BTreeMap, BTreeSet};

use oncekey_bench::stats::{self, Sample};
use oncekey_bench::table::{Table, count, millis};
use serde_json::{Value, json};

use crate::cells::{Setting, Verb, Way};
use crate::{Plan, Result};

/// All samples of all cells, in the order of the rounds.
#[derive(Debug, Default)]
pub(crate) struct Grid(BTreeMap<(Verb, usize, Way), Vec<Sample>>);

impl Grid {
    /// Measures with `run`, which does an operation in one of its `ways`. The ways of one operation
    /// follow each other closely, so that what the machine does besides disturbs them alike.
    pub(crate) fn measure(
        name: &str,
        plan: &Plan,
        ways: impl Fn(Verb) -> &'static [Way],
        mut run: impl FnMut(Verb, Way, &Setting) -> Result<Sample>,
    ) -> Result<Self> {
        let mut grid = Self::default();
        let mut seed = 0;
        for round in 1..=plan.rounds {
            for &callers in &plan.callers {
                eprintln!("{name}, round {round} of {}: {callers} callers", plan.rounds);
                for &verb in &plan.operations {
                    for &way in ways(verb) {
                        seed += 1;
                        let setting =
                            Setting { folder: plan.folder.clone(), callers, span: plan.span, seed };
                        let sample = run(verb, way, &setting)?;
                        grid.0.entry((verb, callers, way)).or_default().push(sample);
                    }
                }
            }
        }
        Ok(grid)
    }

    /// How much longer the store takes than `way`, in microseconds, by the medians of the rounds.
    pub(crate) fn delay(&self, verb: Verb, callers: usize, way: Way) -> Option<f64> {
        let spans = |way| {
            let samples = self.0.get(&(verb, callers, way))?;
            Some(samples.iter().map(|sample| sample.p50))
        };
        Some(stats::median(spans(Way::Store)?.zip(spans(way)?).map(|(ours, theirs)| ours - theirs)))
    }

    /// The medians of a cell.
    pub(crate) fn median(&self, verb: Verb, callers: usize, way: Way) -> Option<Sample> {
        self.0.get(&(verb, callers, way)).map(|samples| Sample::median(samples))
    }

    /// How many times as fast as `way` the store is.
    pub(crate) fn times(&self, verb: Verb, callers: usize, way: Way) -> Option<f64> {
        let rates = |way| {
            let samples = self.0.get(&(verb, callers, way))?;
            Some(samples.iter().map(|sample| sample.rate))
        };
        Some(stats::median_ratio(rates(Way::Store)?, rates(way)?))
    }

    pub(crate) fn text(&self) -> String {
        let mut table = Table::new(&[
            "operation",
            "callers",
            "store/s",
            "p50 ms",
            "p99 ms",
            "by hand/s",
            "p50 ms",
            "of by hand",
            "unbatched/s",
            "p50 ms",
            "of unbatched",
        ]);
        for (verb, callers) in self.rows() {
            let Some(store) = self.median(verb, callers, Way::Store) else { continue };
            let mut line = vec![verb.label().to_owned(), callers.to_string()];
            line.extend([count(store.rate), millis(store.p50), millis(store.p99)]);
            for way in [Way::ByHand, Way::Unbatched] {
                let other = self.median(verb, callers, way);
                let times = self.times(verb, callers, way);
                line.push(other.map_or_else(String::new, |other| count(other.rate)));
                line.push(other.map_or_else(String::new, |other| millis(other.p50)));
                line.push(times.map_or_else(String::new, |times| format!("{times:.2} x")));
            }
            table.add(line);
        }
        table.text()
    }

    pub(crate) fn to_json(&self) -> Value {
        let cells = self.0.iter().map(|((verb, callers, way), samples)| {
            json!({
                "operation": verb.label(),
                "callers": callers,
                "way": way.label(),
                "median": Sample::median(samples).to_json(),
                "rounds": samples.iter().map(|sample| sample.to_json()).collect::<Vec<_>>(),
            })
        });
        cells.collect()
    }

    /// The numbers of callers that were measured.
    pub(crate) fn callers(&self) -> BTreeSet<usize> {
        self.0.keys().map(|(_, callers, _)| *callers).collect()
    }

    fn rows(&self) -> Vec<(Verb, usize)> {
        let mut rows: Vec<_> = self.0.keys().map(|(verb, callers, _)| (*verb, *callers)).collect();
        rows.dedup();
        rows
    }
}
