//! Fills the tables, round by round.

use std::thread;
use std::time::Duration;

use oncekey_bench::Result;

use crate::Scene;
use crate::client::Client;
use crate::grid::{Grid, Measured};
use crate::operation::{Operation, Side};
use crate::servers::Server;
use crate::upstream::COUNT;
use crate::wrk::{self, CONNECTIONS, KEYS, Load};

/// Rounds at half load: a p99 takes more of them than a rate, but they are longer.
const HALF_ROUNDS: usize = 3;
/// The service has nothing more to do if it charged nothing for so long: a hundred times as long as a
/// charge takes.
const TAIL: Duration = Duration::from_millis(50);
/// How often that is looked at: for five seconds in all, longer than any request is kept waiting.
const LONGEST_TAIL: usize = 100;

impl Scene {
    /// Measures at full load. The servers take turns within a round, so that what the machine does
    /// besides disturbs all alike.
    pub(crate) fn full(&self, rounds: usize, seconds: u32) -> Result<Grid> {
        let mut grid = Grid::default();
        self.finish_keys()?;
        for round in 1..=rounds {
            for operation in Operation::ALL {
                eprintln!("round {round} of {rounds}: {}", operation.label());
                for (side, server) in &self.servers {
                    let load = Load { seconds, pause: 0 };
                    grid.add(operation, *side, self.drive(operation, *side, server, load)?);
                }
            }
        }
        Ok(grid)
    }

    /// Measures with connections that rest so long that each server gets half of the new keys that
    /// the gateway can take.
    pub(crate) fn half(&self, full: &Grid, seconds: u32) -> Result<(Grid, f64)> {
        let most = full.rate(Operation::New, Side::Sqlite).ok_or("no figures for new keys")?;
        let target = most / 2.0;
        let rest = f64::from(CONNECTIONS) / target * 1e3;
        // The answer itself takes a part of it, a millisecond or so.
        let pause = format!("{:.0}", (rest - 1.0).max(1.0)).parse::<u32>()?;
        let mut grid = Grid::default();
        for round in 1..=HALF_ROUNDS {
            eprintln!("round {round} of {HALF_ROUNDS} at half load");
            for operation in [Operation::Get, Operation::New] {
                for (side, server) in &self.servers {
                    let load = Load { seconds, pause };
                    grid.add(operation, *side, self.drive(operation, *side, server, load)?);
                }
            }
        }
        Ok((grid, target))
    }

    /// Has the work of every key done that is repeated later.
    fn finish_keys(&self) -> Result<()> {
        for (side, server) in self.servers.iter().filter(|(side, _)| side.is_gateway()) {
            eprintln!("{}: {KEYS} keys", side.label());
            let mut client = Client::connect(server.port)?;
            for key in 1..=KEYS {
                client.pay(Some(&format!("{}-{key}", self.name)))?;
            }
        }
        Ok(())
    }

    fn drive(
        &self,
        operation: Operation,
        side: Side,
        server: &Server,
        load: Load,
    ) -> Result<Measured> {
        let charges = self.charges()?;
        let before = server.spent();
        let sample = wrk::drive(&self.script, server.port, operation, &self.name, load)
            .map_err(|error| format!("{}, {}: {error}", operation.label(), side.label()))?;
        let spent = server.spent() - before;
        let made = self.charges()? - charges;
        if side.is_gateway() && operation.is_repeated() && made > 0 {
            let what = format!("{}: {made} charges were made again", side.label());
            return Err(what.into());
        }
        let requests = sample.rate * f64::from(load.seconds);
        Ok(Measured { sample, cpu: spent / requests.max(1.0) / 1e3 })
    }

    /// How many charges the service has made, once it makes no more: when wrk is gone, what it asked
    /// for last may still be on its way, and would count as the next server's.
    fn charges(&self) -> Result<u64> {
        let mut client = Client::connect(self.upstream.port)?;
        let mut made = client.get(COUNT)?.parse()?;
        for _ in 0..LONGEST_TAIL {
            thread::sleep(TAIL);
            let now = client.get(COUNT)?.parse()?;
            if now == made {
                return Ok(made);
            }
            made = now;
        }
        Err("the service goes on charging though nobody asks any more".into())
    }
}
