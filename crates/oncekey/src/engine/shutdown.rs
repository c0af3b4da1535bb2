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
    /// Ends that are in the journal, because the store did not take them. The next process that
    /// opens the folder writes them: until then it must not be thrown away.
    pub journalled: usize,
}

/// How long a stopped attempt may take to write its end, and the journal the rest. The machine that ends us
/// waits longer.
const LAST_WORDS: Duration = Duration::from_secs(5);

impl Engine {
    /// Lets nothing new begin, and finishes what is running, for at most `within`. Leases are kept
    /// alive meanwhile. Ends in the journal are written once more: the machine may not come back.
    ///
    /// Replays are still answered. New work is refused with
    /// [`Unavailable::Draining`](super::Unavailable::Draining).
    pub async fn shutdown(&self, within: Duration) -> Drained {
        let gate = &self.0.gate;
        gate.close();
        let began = self.0.uptime.elapsed();
        let mut stopped = 0;
        if tokio::time::timeout(within, gate.idle()).await.is_err() && gate.tasks() > 0 {
            // Before the look at what is held: whoever is not among it yet sees this.
            gate.stop();
            let held = self.0.heart.everything();
            for held in &held {
                held.stop();
            }
            stopped = held.len();
            tracing::warn!(attempts = stopped, "a shutdown stopped attempts that took too long");
            let _ = tokio::time::timeout(LAST_WORDS, gate.idle()).await;
        }
        if let Some(backlog) = &self.0.backlog {
            let left = within.saturating_sub(self.0.uptime.elapsed().saturating_sub(began));
            let drained = backlog.run_once(&*self.0.store, self.0.sentry.as_deref());
            // How far it came is looked at below. It has a moment of its own: whoever drains has often used
            // up all of its time for others.
            let _ = tokio::time::timeout(left.max(LAST_WORDS), drained).await;
        }
        let journalled = self.0.backlog.as_ref().map_or(0, |backlog| backlog.len());
        if journalled > 0 {
            tracing::warn!(ends = journalled, "a shutdown leaves ends in the journal");
        }
        Drained { stopped, left: gate.tasks(), journalled }
    }
}
