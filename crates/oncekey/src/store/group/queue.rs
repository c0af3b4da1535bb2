//! What waits for a writer, by rank, and which keys are under way.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncekey_core::{ErrorKind, KeyId, StoreError};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use super::{Answers, Company, Limits, Mixing, Operation};

/// Operations that wait, and what is known of those under way.
#[derive(Debug)]
pub(super) struct Queue<O: Operation> {
    state: Mutex<State<O>>,
    /// Tells one writer that there is something to take.
    something: Notify,
    limits: Limits,
}

/// Operations that are under way together. Dropping it, even by a panic, frees their keys; whoever
/// has no answer then hears that nobody knows.
#[derive(Debug)]
pub(super) struct Batch<O: Operation> {
    operations: Vec<O>,
    callers: Vec<Option<Caller<O>>>,
    queue: Arc<Queue<O>>,
}

type Caller<O> = oneshot::Sender<Result<<O as Operation>::Reply, StoreError>>;

#[derive(Debug)]
struct State<O: Operation> {
    /// One queue for each rank.
    ranks: Vec<VecDeque<Waiting<O>>>,
    /// The keys of every batch under way.
    busy: HashSet<KeyId>,
    /// How many batches are under way, and how many operations in them.
    batches: usize,
    flying: usize,
    is_closed: bool,
}

#[derive(Debug)]
struct Waiting<O: Operation> {
    operation: O,
    caller: Caller<O>,
    since: Instant,
}

/// Whether a batch may begin.
enum Turn {
    Now,
    /// When there are more of them, or this time has come.
    Later(Instant),
    /// There is nothing to do.
    Never,
}

/// The longest that an operation waits for company. A batch that is under way is over by then, unless
/// something is wrong with it, and then nobody shall wait for it. It is the resolution of the timer.
const COMPANY: Duration = Duration::from_millis(2);

impl<O: Operation> Queue<O> {
    pub(super) fn new(limits: Limits) -> Self {
        let ranks = (0..O::RANKS).map(|_| VecDeque::new()).collect();
        let state = State { ranks, busy: HashSet::new(), batches: 0, flying: 0, is_closed: false };
        Self { state: Mutex::new(state), something: Notify::new(), limits }
    }

    /// Adds an operation, unless too many of its rank wait already.
    pub(super) fn put(
        &self,
        operation: O,
    ) -> Result<oneshot::Receiver<Result<O::Reply, StoreError>>, StoreError> {
        let (caller, reply) = oneshot::channel();
        let since = Instant::now();
        let mut state = self.lock();
        let rank = operation.rank();
        if state.ranks[rank].len() >= self.limits.queue {
            return Err(StoreError::new(
                ErrorKind::Unavailable,
                format!(
                    "{} calls wait for the store already: it is too slow or not there",
                    self.limits.queue
                ),
            ));
        }
        state.ranks[rank].push_back(Waiting { operation, caller, since });
        drop(state);
        self.something.notify_one();
        Ok(reply)
    }

    /// Waits for operations and takes as many as a batch may hold. `None` when there are none and
    /// never will be.
    pub(super) async fn take(self: &Arc<Self>) -> Option<Batch<O>> {
        loop {
            // Made before the look, so that whatever comes after it is not missed.
            let something = self.something.notified();
            let turn = {
                let mut state = self.lock();
                let turn = state.turn(&self.limits);
                if matches!(turn, Turn::Now)
                    && let Some(batch) = self.gather(&mut state)
                {
                    return Some(batch);
                }
                if state.is_closed && state.ranks.iter().all(VecDeque::is_empty) {
                    drop(state);
                    // The next writer wants to go home, too.
                    self.something.notify_one();
                    return None;
                }
                turn
            };
            match turn {
                Turn::Later(until) => drop(timeout_at(until, something).await),
                Turn::Now | Turn::Never => something.await,
            }
            // Whoever was woken together with the first caller puts its operation first.
            tokio::task::yield_now().await;
        }
    }

    /// Takes what may go together, the lowest rank first and each rank in its order.
    fn gather(self: &Arc<Self>, state: &mut State<O>) -> Option<Batch<O>> {
        let now = Instant::now();
        let mut room = Room::new(self.limits);
        let (mut operations, mut callers) = (Vec::new(), Vec::new());
        let State { ranks, busy, .. } = &mut *state;
        for rank in ranks.iter_mut() {
            let mut later = VecDeque::new();
            while let Some(waiting) = rank.pop_front() {
                if now.saturating_duration_since(waiting.since) >= self.limits.patience {
                    // Nobody may be there to hear it.
                    let _ = waiting.caller.send(Err(StoreError::new(
                        ErrorKind::Unavailable,
                        "the store was too slow: this call waited and was given back untried",
                    )));
                    continue;
                }
                if waiting.operation.ids().any(|id| busy.contains(&id)) {
                    later.push_back(waiting);
                    continue;
                }
                if !room.admits(&waiting.operation) {
                    later.push_back(waiting);
                    break;
                }
                busy.extend(waiting.operation.ids());
                operations.push(waiting.operation);
                callers.push(Some(waiting.caller));
            }
            // What was passed over comes before what was not looked at.
            later.append(rank);
            *rank = later;
            if self.limits.mixing == Mixing::Apart && !operations.is_empty() {
                break;
            }
        }
        if operations.is_empty() {
            return None;
        }
        // For another writer, if one is idle. If all keys are busy it finds nothing and waits.
        if ranks.iter().any(|rank| !rank.is_empty()) {
            self.something.notify_one();
        }
        state.batches += 1;
        state.flying += operations.len();
        Some(Batch { operations, callers, queue: Arc::clone(self) })
    }

    /// Lets the writers finish what waits and then end.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.something.notify_waiters();
        self.something.notify_one();
    }

    /// A panic while holding this lock cannot leave more than an operation without an answer.
    fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O: Operation> State<O> {
    /// Nobody waits if nothing is under way. Beside another batch, one that holds a single operation
    /// would cost the server as much as one that holds a dozen, and the dozen is a moment away: all who
    /// are under way come back, if they have more to do.
    fn turn(&self, limits: &Limits) -> Turn {
        let Some(first) = self.ranks.iter().filter_map(VecDeque::front).map(|w| w.since).min()
        else {
            return Turn::Never;
        };
        let waiting: usize = self.ranks.iter().map(VecDeque::len).sum();
        let enough = match limits.company {
            Company::None => 0,
            // Never more than leaves work for the others.
            Company::OneIn(part) => ((waiting + self.flying) / part).min(limits.batch / 2),
        };
        let until = first + COMPANY;
        match self.batches == 0 || self.is_closed || waiting >= enough || until <= Instant::now() {
            true => Turn::Now,
            false => Turn::Later(until),
        }
    }
}

impl<O: Operation> Batch<O> {
    pub(super) fn operations(&self) -> &[O] {
        &self.operations
    }

    /// Answers the callers from `first` on. One that is gone hears nothing.
    pub(super) fn answer(&mut self, first: usize, answers: Answers<O>) {
        for (caller, answer) in self.callers.iter_mut().skip(first).zip(answers) {
            if let Some(caller) = caller.take() {
                let _ = caller.send(answer);
            }
        }
    }

    /// Tells everybody from `first` on what went wrong. Whoever is alone gets the cause with it; of
    /// several, each hears the text alone: what a server says may quote values of the others.
    pub(super) fn fail(&mut self, first: usize, error: StoreError) {
        let errors = match self.callers.len().saturating_sub(first) {
            1 => vec![Err(error)],
            several => {
                let one = |_| Err(StoreError::new(error.kind(), error.to_string()));
                (0..several).map(one).collect()
            }
        };
        self.answer(first, errors);
    }
}

impl<O: Operation> Drop for Batch<O> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.batches -= 1;
        state.flying -= self.operations.len();
        for id in self.operations.iter().flat_map(Operation::ids) {
            state.busy.remove(&id);
        }
        let is_waited_for = state.ranks.iter().any(|rank| !rank.is_empty()) || state.is_closed;
        drop(state);
        if is_waited_for {
            self.queue.something.notify_one();
        }
    }
}

/// How much a batch still takes.
struct Room {
    left: usize,
    bytes: usize,
    is_empty: bool,
}

impl Room {
    fn new(limits: Limits) -> Self {
        Self { left: limits.batch, bytes: limits.bytes, is_empty: true }
    }

    /// Makes room for `operation` if there is some. The first always fits, whatever its size.
    fn admits(&mut self, operation: &impl Operation) -> bool {
        let size = operation.size();
        if self.left == 0 || (size > self.bytes && !self.is_empty) {
            return false;
        }
        self.is_empty = false;
        self.left -= 1;
        self.bytes = self.bytes.saturating_sub(size);
        true
    }
}
