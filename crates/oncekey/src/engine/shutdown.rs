//! The end of a node: what runs is finished, what never began is handed back.

use std::time::Duration;

use super::Engine;

/// What a shutdown left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Drained {
    /// Attempts that did not finish in time and were stopped. Those that had sent nothing gave
    /// their keys back; the outcome of the others is recorded as unknown.
    pub stopped: usize,
    /// Tasks that are still not finished, because the store does not take their ends.
    pub left: usize,
}

/// How long a stopped attempt may take to write its end. The machine that ends us waits longer.
const LAST_WORDS: Duration = Duration::from_secs(5);

impl Engine {
    /// Lets nothing new begin, and finishes what is running, for at most `within`. Leases are kept
    /// alive meanwhile.
    ///
    /// Replays are still answered. New work is refused with
    /// [`Unavailable::Draining`](super::Unavailable::Draining).
    pub async fn shutdown(&self, within: Duration) -> Drained {
        let gate = &self.0.gate;
        gate.close();
        if tokio::time::timeout(within, gate.idle()).await.is_ok() {
            return Drained::default();
        }
        // Before the look at what is held: whoever is not among it yet sees this.
        gate.stop();
        let held = self.0.heart.everything();
        for held in &held {
            held.stop();
        }
        tracing::warn!(attempts = held.len(), "a shutdown stopped attempts that took too long");
        let _ = tokio::time::timeout(LAST_WORDS, gate.idle()).await;
        Drained { stopped: held.len(), left: gate.tasks() }
    }
}
