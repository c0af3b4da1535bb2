//! How much may be under way at once, and whether anything new may begin.
//!
//! The order in which load is shed is: waits, then claims, then replays; renewals and ends of work
//! are never shed. So the gate counts claims and the attempts that came of them, and closes for claims when
//! the node shuts down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts claims under way and tasks that are not finished.
#[derive(Debug)]
pub(super) struct Gate {
    claims: AtomicUsize,
    most_claims: usize,
    closed: AtomicBool,
    closing: Notify,
    stopping: AtomicBool,
    tasks: AtomicUsize,
    most_tasks: usize,
    idle: Notify,
}

/// What the gate says to a claim.
#[derive(Debug)]
pub(super) enum Admission<'g> {
    /// It may ask the store.
    Admitted(ClaimPass<'g>),
    /// Too many are asking already.
    Busy,
    /// The node is shutting down.
    Draining,
}

/// The right to have one claim under way.
#[derive(Debug)]
pub(super) struct ClaimPass<'g>(&'g Gate);

/// A task that is not finished. A shutdown waits for it.
#[derive(Debug)]
pub(super) struct Tracked(Arc<Gate>);

impl Gate {
    pub(super) fn new(most_claims: usize, most_tasks: usize) -> Self {
        Self {
            claims: AtomicUsize::new(0),
            most_claims,
            closed: AtomicBool::new(false),
            closing: Notify::new(),
            stopping: AtomicBool::new(false),
            tasks: AtomicUsize::new(0),
            most_tasks,
            idle: Notify::new(),
        }
    }

    /// Asks to have a claim under way.
    pub(super) fn admit(&self) -> Admission<'_> {
        if self.closed.load(Ordering::Acquire) {
            return Admission::Draining;
        }
        // Whoever asks is a task already.
        if self.tasks() > self.most_tasks {
            return Admission::Busy;
        }
        if self.claims.fetch_add(1, Ordering::Relaxed) >= self.most_claims {
            self.claims.fetch_sub(1, Ordering::Relaxed);
            return Admission::Busy;
        }
        Admission::Admitted(ClaimPass(self))
    }

    /// Whether there is room for claims. If not, nobody is left to wait either.
    pub(super) fn is_crowded(&self) -> bool {
        self.claims.load(Ordering::Relaxed) >= self.most_claims
    }

    /// Counts a task that a shutdown has to wait for.
    pub(super) fn track(self: &Arc<Self>) -> Tracked {
        self.tasks.fetch_add(1, Ordering::AcqRel);
        Tracked(Arc::clone(self))
    }

    /// How many tasks are not finished.
    pub(super) fn tasks(&self) -> usize {
        self.tasks.load(Ordering::Acquire)
    }

    /// Lets nothing new begin.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.notify_waiters();
    }

    /// Waits until nothing new may begin: waits are shed first.
    pub(super) async fn closed(&self) {
        loop {
            let mut rung = std::pin::pin!(self.closing.notified());
            rung.as_mut().enable();
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            rung.await;
        }
    }

    /// Notes that the time to finish is over.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Whether the time to finish is over, also for what begins only now.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Waits until no task is left.
    pub(super) async fn idle(&self) {
        loop {
            let mut rung = std::pin::pin!(self.idle.notified());
            rung.as_mut().enable();
            if self.tasks() == 0 {
                return;
            }
            rung.await;
        }
    }
}

impl Drop for ClaimPass<'_> {
    fn drop(&mut self) {
        self.0.claims.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if self.0.tasks.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_limited_and_given_back() {
        let gate = Arc::new(Gate::new(1, 1));
        let Admission::Admitted(pass) = gate.admit() else { panic!("there is room for one") };
        assert!(matches!(gate.admit(), Admission::Busy));
        assert!(gate.is_crowded());
        drop(pass);
        assert!(matches!(gate.admit(), Admission::Admitted(_)));
        gate.close();
        assert!(matches!(gate.admit(), Admission::Draining));
    }

    #[tokio::test]
    async fn a_shutdown_waits_for_the_last_task() {
        let gate = Arc::new(Gate::new(1, 1));
        let tracked = gate.track();
        let waiting = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(tracked);
        waiting.await.unwrap();
    }
}
