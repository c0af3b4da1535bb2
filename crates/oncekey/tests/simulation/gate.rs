//! The gate of a node: while it is shut, nothing of the node runs.
//!
//! Everything that a node does goes through its gate: the requests that it serves and every task
//! that its engine spawns. Shutting the gate for a while is SIGSTOP or a long garbage collection;
//! shutting it for ever is kill -9. In neither case does a destructor run: what a dead node was
//! doing is kept until the history has been judged.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use oncekey::engine::Spawn;

use crate::log::{Life, Log, What};
use crate::time::SimTime;

/// The gate of one life of a node: from its start to its crash.
pub(crate) struct Gate {
    pub(crate) life: Life,
    log: Log,
    time: SimTime,
    inside: Mutex<Inside>,
}

/// How tasks are started.
#[derive(Clone)]
pub(crate) struct GateSpawner {
    pub(crate) gate: Arc<Gate>,
    pub(crate) detached: Detached,
}

/// Whether a task outlives the request in which it was spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detached {
    Yes,
    /// A planted bug: the task ends with the request, as a handler does that hyper drops.
    No,
}

struct Inside {
    state: State,
    waiting: Vec<Waker>,
    /// Tasks that have not ended.
    live: usize,
    asleep: Duration,
    /// The request that is being polled just now.
    serving: Option<Tie>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Shut { since: Duration },
    Dead,
}

/// What ends with a request, if the spawner ties tasks to requests.
#[derive(Default)]
struct Tied {
    over: bool,
    waiting: Vec<Waker>,
}

type Tie = Arc<Mutex<Tied>>;

/// What a task has to do with a request.
#[derive(Clone)]
enum Role {
    /// Nothing: it lives as long as it likes.
    Free,
    /// It serves one.
    Serves(Tie),
    /// It ends with one.
    TiedTo(Tie),
}

/// A future that runs only while its node does.
pub(crate) struct Gated<F> {
    gate: Arc<Gate>,
    inner: Option<Pin<Box<F>>>,
    role: Role,
}

impl Gate {
    pub(crate) fn new(life: Life, log: Log, time: SimTime) -> Arc<Self> {
        let inside = Inside {
            state: State::Open,
            waiting: Vec::new(),
            live: 0,
            asleep: Duration::ZERO,
            serving: None,
        };
        Arc::new(Self { life, log, time, inside: Mutex::new(inside) })
    }

    /// Stops everything, until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        let since = self.time.now();
        let mut inside = self.inside();
        if inside.state == State::Open {
            inside.state = State::Shut { since };
        }
    }

    /// Goes on where it stopped.
    pub(crate) fn resume(&self) {
        let now = self.time.now();
        let woken = {
            let mut inside = self.inside();
            let State::Shut { since } = inside.state else { return };
            inside.asleep += now.saturating_sub(since);
            inside.state = State::Open;
            std::mem::take(&mut inside.waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Stops everything for ever.
    pub(crate) fn kill(&self) {
        self.inside().state = State::Dead;
    }

    pub(crate) fn is_open(&self) -> bool {
        self.inside().state == State::Open
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.inside().state == State::Dead
    }

    /// How many of its tasks have not ended.
    pub(crate) fn live(&self) -> usize {
        self.inside().live
    }

    /// How long it has been paused, all in all.
    pub(crate) fn asleep(&self) -> Duration {
        self.inside().asleep
    }

    /// Serves a request: a task of this node that others may be tied to.
    pub(crate) fn serve<F>(self: &Arc<Self>, request: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.start(request, Role::Serves(Tie::default()));
    }

    fn start<F>(self: &Arc<Self>, task: F, role: Role)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // After the history has been judged, destructors may try to start something.
        if self.log.is_closed() {
            return;
        }
        self.inside().live += 1;
        let gate = Arc::clone(self);
        tokio::spawn(Gated { gate, inner: Some(Box::pin(task)), role });
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the waker of somebody who came while the gate was shut.
    fn is_shut_for(&self, waker: &Waker) -> bool {
        let mut inside = self.inside();
        match inside.state {
            State::Open => false,
            State::Shut { .. } => {
                inside.waiting.push(waker.clone());
                true
            }
            State::Dead => true,
        }
    }
}

impl Spawn for GateSpawner {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let role = match (self.detached, self.gate.inside().serving.clone()) {
            (Detached::No, Some(tie)) => Role::TiedTo(tie),
            (Detached::No, None) | (Detached::Yes, _) => Role::Free,
        };
        self.gate.start(task, role);
    }
}

impl<F: Future<Output = ()>> Gated<F> {
    /// Returns true if and only if the request that this task is tied to is over.
    fn is_cut_off(&self, waker: &Waker) -> bool {
        let Role::TiedTo(tie) = &self.role else { return false };
        let mut tied = tie.lock().unwrap_or_else(PoisonError::into_inner);
        if !tied.over {
            tied.waiting.push(waker.clone());
        }
        tied.over
    }

    fn end(&mut self) {
        if self.inner.take().is_none() {
            return;
        }
        self.gate.inside().live -= 1;
        if let Role::Serves(tie) = &self.role {
            let woken = {
                let mut tied = tie.lock().unwrap_or_else(PoisonError::into_inner);
                tied.over = true;
                std::mem::take(&mut tied.waiting)
            };
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

impl<F: Future<Output = ()>> Future for Gated<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.gate.is_shut_for(context.waker()) {
            return Poll::Pending;
        }
        if this.is_cut_off(context.waker()) {
            this.end();
            return Poll::Ready(());
        }
        let Some(inner) = this.inner.as_mut() else { return Poll::Ready(()) };
        if let Role::Serves(tie) = &this.role {
            this.gate.inside().serving = Some(Arc::clone(tie));
        }
        let polled = catch_unwind(AssertUnwindSafe(|| inner.as_mut().poll(context)));
        this.gate.inside().serving = None;
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => {
                this.end();
                Poll::Ready(())
            }
            Err(_) => {
                this.gate.log.note(What::Escaped(this.gate.life));
                this.end();
                Poll::Ready(())
            }
        }
    }
}

impl<F> Drop for Gated<F> {
    fn drop(&mut self) {
        // Only the end of the runtime drops a task that has not ended, after the log is closed.
        debug_assert!(
            self.inner.is_none() || self.gate.log.is_closed() || std::thread::panicking()
        );
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Gate({:?})", self.life)
    }
}

impl fmt::Debug for GateSpawner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "GateSpawner({:?})", self.gate)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::yield_now;

    use super::*;

    /// Counts its polls.
    #[derive(Clone, Default)]
    struct Counted(Arc<AtomicUsize>);

    impl Counted {
        async fn run(self) {
            let _dropped = self.clone();
            loop {
                self.0.fetch_add(1, Ordering::SeqCst);
                yield_now().await;
            }
        }

        fn polls(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn gate() -> (Arc<Gate>, Log) {
        let time = SimTime::begin();
        let log = Log::new(time);
        (Gate::new(Life { node: 0, life: 1 }, log.clone(), time), log)
    }

    /// I31: a paused node does nothing, and goes on where it was.
    #[tokio::test(start_paused = true)]
    async fn nothing_runs_behind_a_shut_gate() {
        let (gate, log) = gate();
        let task = Counted::default();
        gate.serve(task.clone().run());
        yield_now().await;
        gate.pause();
        let before = task.polls();
        for _ in 0..9 {
            yield_now().await;
        }
        assert_eq!(task.polls(), before);
        tokio::time::sleep(Duration::from_secs(5)).await;
        gate.resume();
        yield_now().await;
        yield_now().await;
        assert!(task.polls() > before);
        assert_eq!(gate.asleep(), Duration::from_secs(5));
        log.close();
    }

    /// F2: a killed node runs no destructor.
    #[tokio::test(start_paused = true)]
    async fn nothing_of_a_dead_node_is_dropped() {
        let (gate, log) = gate();
        let task = Counted::default();
        gate.serve(task.clone().run());
        yield_now().await;
        gate.kill();
        yield_now().await;
        assert_eq!(Arc::strong_count(&task.0), 3, "ours, the task's, and the one in its frame");
        assert_eq!(gate.live(), 1);
        log.close();
    }

    /// 29: the planted bug does what it says.
    #[tokio::test(start_paused = true)]
    async fn a_tied_task_ends_with_its_request() {
        let (gate, log) = gate();
        let spawner = GateSpawner { gate: Arc::clone(&gate), detached: Detached::No };
        let task = Counted::default();
        let tied = task.clone();
        gate.serve(async move { spawner.spawn(Box::pin(tied.run())) });
        for _ in 0..9 {
            yield_now().await;
        }
        assert_eq!(gate.live(), 0);
        log.close();
    }
}
