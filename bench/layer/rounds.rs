//! Fills the table, round by round.

use std::sync::Arc;

use oncekey::store::sqlite::SqliteStore;
use oncekey_bench::Result;

use crate::child::{Child, Peer};
use crate::drive::{Callers, Lane, measure};
use crate::grid::{Gauge, Grid, Side};
use crate::service::Operation;
use crate::{Plan, clock, ours};

/// Requests that are looked at for their allocations: those do not vary, but the growth of maps
/// is spread over all of them.
const COUNTED: usize = 2_000;
/// A new key on a disk waits for it, so there are this many times fewer of them, with one caller
/// and with many that share a commit.
const FEWER: (usize, usize) = (100, 5);

impl Grid {
    /// Measures. Ours and the peer's follow each other closely, so that what the machine does
    /// besides disturbs both alike.
    pub(crate) fn measure(
        plan: &Plan,
        mut peer: Option<&mut Peer>,
        counting: &mut Child,
    ) -> Result<Self> {
        let mut grid = Self::default();
        for operation in Operation::ALL {
            let what = (operation, Callers::One);
            grid.count(what, counting, peer.as_deref_mut())?;
        }
        for round in 1..=plan.rounds {
            for callers in Callers::ALL {
                eprintln!("round {round} of {}: {} callers", plan.rounds, callers.label());
                for operation in Operation::ALL {
                    let what = (operation, callers);
                    grid.time(what, ours::memory_lanes, plan.requests, Side::Memory)?;
                    if let Some(peer) = peer.as_deref_mut() {
                        let spent = peer.timed.ask(what, plan.requests)?;
                        grid.add_all(what, Side::Peer, Gauge::TIME, &spent);
                    }
                    grid.time_sqlite(what, plan)?;
                }
            }
        }
        Ok(grid)
    }

    fn count(
        &mut self,
        what: (Operation, Callers),
        counting: &mut Child,
        peer: Option<&mut Peer>,
    ) -> Result<()> {
        let spent = counting.ask(what, COUNTED)?;
        self.add_all(what, Side::Memory, Gauge::MEMORY, &spent);
        if let Some(peer) = peer {
            let spent = peer.counted.ask(what, COUNTED)?;
            self.add_all(what, Side::Peer, Gauge::MEMORY, &spent);
        }
        Ok(())
    }

    fn time(
        &mut self,
        what: (Operation, Callers),
        lanes: impl FnOnce() -> Vec<Lane> + Send + 'static,
        requests: usize,
        side: Side,
    ) -> Result<()> {
        let spent = measure(what, requests, lanes, clock::times)?;
        let each = |spent: [u64; 2]| spent.map(|count| count as f64 / requests as f64);
        let spent: Vec<_> = spent.into_iter().map(each).collect();
        self.add_all(what, side, Gauge::TIME, &spent);
        Ok(())
    }

    fn time_sqlite(&mut self, what: (Operation, Callers), plan: &Plan) -> Result<()> {
        let requests = match what {
            (Operation::New, Callers::One) => plan.requests / FEWER.0,
            // Each of the retried keys has to be written first.
            (Operation::New, Callers::Many) | (Operation::Replay, _) => plan.requests / FEWER.1,
            (Operation::Again | Operation::Conflict, _) => plan.requests,
            // Nothing of them reaches a store.
            (Operation::Get | Operation::NoKey, _)
            | (Operation::SmallUpload | Operation::LargeUpload, _) => return Ok(()),
        };
        let folder = tempfile::tempdir_in(&plan.folder)?;
        let store = Arc::new(SqliteStore::open(folder.path().join("keys.db"))?);
        self.time(what, move || ours::lanes(store), requests, Side::Sqlite)
    }

    /// Adds what each service took: without a layer, with it, and perhaps with an empty one.
    fn add_all(
        &mut self,
        (operation, callers): (Operation, Callers),
        side: Side,
        gauges: [Gauge; 2],
        spent: &[[f64; 2]],
    ) {
        let [bare, with, others @ ..] = spent else { return };
        self.add((operation, callers, side), gauges, (*bare, *with));
        // An empty layer lets everything pass, so it is compared with what passes.
        let passes = matches!(operation, Operation::Get | Operation::NoKey);
        for nothing in others.iter().filter(|_| passes) {
            self.add((operation, callers, Side::Nothing), gauges, (*bare, *nothing));
        }
    }
}
