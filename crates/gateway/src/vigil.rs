//! Notices that the store goes away, and that it is back, and says so once each.
//!
//! Requests only say that it is away, each of them; why it is stands in here.

use std::time::Duration;

use oncekey::core::{Fence, KeyId, Lease, Owner, Store as _, StoreError, Timestamp};
use oncekey::engine::{Engine, StoreHealth};
use oncekey::store::Opened;
use tokio::time::error::Elapsed;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Looks at a store again and again.
#[derive(Debug)]
pub(crate) struct Vigil {
    engine: Engine,
    store: Opened,
    /// How it was when somebody looked last.
    stands: Stands,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Here,
    Away,
}

const NOBODY: KeyId = KeyId::from_bytes([0; 32]);
const REGRESSED: &str = "the store has lost records";
/// Soon enough for whoever looks into the log because requests are refused, and rare enough where
/// every write is paid for.
const EVERY: Duration = Duration::from_secs(5);
/// Longer than probes wait: a store that is slow for a moment is not worth a line.
const WITHIN: Duration = Duration::from_secs(2);

impl Vigil {
    pub(crate) const fn new(engine: Engine, store: Opened) -> Self {
        Self { engine, store, stands: Stands::Here }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let found = self.look().await;
            self.stands = told(self.stands, found);
        }
    }

    /// By a write: a file that was moved and a server that became a replica can still be read.
    async fn look(&self) -> Result<(), String> {
        match self.engine.load().store {
            StoreHealth::Answers | StoreHealth::Resting => {
                said(timeout(WITHIN, write(&self.store)).await, WITHIN)
            }
            StoreHealth::Regressed => Err(REGRESSED.to_owned()),
        }
    }
}

/// Says what has changed, and nothing else.
fn told(before: Stands, found: Result<(), String>) -> Stands {
    match (before, found) {
        (Stands::Here, Ok(())) => Stands::Here,
        (Stands::Here, Err(error)) => {
            tracing::error!(error, "the store is away: requests with a key cannot be protected");
            Stands::Away
        }
        // Whatever else goes wrong until then: the first reason is the one that counts.
        (Stands::Away, Err(_)) => Stands::Away,
        (Stands::Away, Ok(())) => {
            tracing::warn!("the store is back");
            Stands::Here
        }
    }
}

/// Whether the store answers, and if not, why.
///
/// A read is enough as long as claims go through. Once the engine leaves the store alone, only a
/// claim would show that it works again, and none comes to a node that is not ready: so it is tried
/// with a write.
pub(crate) async fn ask(engine: &Engine, store: &Opened, within: Duration) -> Result<(), String> {
    match engine.load().store {
        StoreHealth::Answers => {
            said(timeout(within, store.get(&NOBODY)).await.map(|read| read.map(drop)), within)
        }
        StoreHealth::Resting => said(timeout(within, write(store)).await, within),
        StoreHealth::Regressed => Err(REGRESSED.to_owned()),
    }
}

/// A write that changes nothing: nobody has this key.
async fn write(store: &Opened) -> Result<(), StoreError> {
    let fence = Fence::next(None, Timestamp::default());
    let (owner, until) = (Owner::from_bytes([0; 16]), Timestamp::default());
    store.release(&Lease { id: NOBODY, fence, owner, until }).await.map(drop)
}

fn said(asked: Result<Result<(), StoreError>, Elapsed>, within: Duration) -> Result<(), String> {
    match asked {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the store did not answer within {} ms", within.as_millis())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_stays_away_is_told_of_once() {
        let mut stands = Stands::Here;
        let mut changes = 0;
        for found in [Ok(()), Err("moved"), Err("moved"), Err("hung"), Ok(()), Ok(())] {
            let next = told(stands, found.map_err(str::to_owned));
            changes += usize::from(next != stands);
            stands = next;
        }
        assert_eq!((stands, changes), (Stands::Here, 2));
    }
}
