//! Group commit for stores behind a network: many callers, few commits.
//!
//! A commit costs a sync of the server's disk and a round trip, whatever it holds. So callers put
//! their operations into a queue, and a few writer tasks, each with a connection of its own, take
//! what has gathered and run it as one batch. A lone operation leaves at once, and where batches are
//! cheap nobody ever waits for company. While a batch is under way the next one gathers by itself,
//! and so batches grow with load.
//!
//! - Operations of a lower rank go first: what ends an attempt before what begins one, or else a
//!   storm of claims would let the leases of work that is done lapse.
//! - Two operations on one key are never under way at the same time. The later one waits: so no
//!   batch meets itself, and no two batches of a process wait for each other's row locks.
//! - A caller that goes away changes nothing: its operation runs, or does not, like the others.
//! - After an error everybody hears what is known. If the server refused the batch, its operations
//!   are run one by one, so that one bad row costs nobody else anything. If nobody knows what became
//!   of it, everybody hears [`Ambiguous`](ErrorKind::Ambiguous), and the connection is dropped.

mod queue;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::{ErrorKind, KeyId, StoreError};
use tokio::time::{sleep, timeout};

use self::queue::{Batch, Queue};

/// The callers' end. Dropping it lets the writers finish what is queued and then end.
#[derive(Debug)]
pub(crate) struct Group<O: Operation>(Arc<Queue<O>>);

/// What a caller wants done.
pub(crate) trait Operation: fmt::Debug + Send + Sync + 'static {
    /// What it gets.
    type Reply: fmt::Debug + Send + 'static;

    /// How many ranks there are.
    const RANKS: usize;

    /// Below [`RANKS`](Self::RANKS); the lowest goes first. Every rank has a queue of its own.
    fn rank(&self) -> usize;

    /// The keys that it touches.
    fn ids(&self) -> impl Iterator<Item = KeyId>;

    /// Roughly how many bytes it adds to a batch.
    fn size(&self) -> usize;
}

/// How batches reach the store.
pub(crate) trait Backend: Send + Sync + 'static {
    /// What a batch is made of.
    type Op: Operation;
    /// What a batch runs on.
    type Connection: Send;

    /// Opens a connection for a writer.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, StoreError>> + Send;

    /// Runs operations as one batch, none of which touches a key of another, in any order that
    /// suits the store. Must answer each, in the order in which they are given.
    ///
    /// The future is dropped if it takes too long, and the connection with it.
    fn run(
        &self,
        connection: &mut Self::Connection,
        batch: &[Self::Op],
    ) -> impl Future<Output = Result<Answers<Self::Op>, Failure>> + Send;
}

/// The answers to a batch, in its order.
pub(crate) type Answers<O> = Vec<Result<<O as Operation>::Reply, StoreError>>;

/// Why there are no answers to a batch.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store refused it and nothing has changed. The connection is good.
    Refused(StoreError),
    /// The connection was gone before anything was sent. Nothing has changed.
    NotSent(StoreError),
    /// Nobody knows what has changed. The connection must not be used again.
    Unknown(StoreError),
}

/// What bounds a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How many batches may be under way at the same time, each on a connection of its own.
    pub(crate) writers: usize,
    /// The most operations in a batch.
    pub(crate) batch: usize,
    /// The most bytes in a batch, unless a single operation has more.
    pub(crate) bytes: usize,
    /// The most operations of a rank that wait.
    pub(crate) queue: usize,
    /// Whether a batch that begins beside another one waits for more operations.
    pub(crate) company: Company,
    /// Whether a batch holds operations of several ranks.
    pub(crate) mixing: Mixing,
    /// How long an operation waits for its turn before it is given back untried.
    pub(crate) patience: Duration,
    /// How long opening a connection may take.
    pub(crate) connect: Duration,
    /// How long a batch may take.
    pub(crate) run: Duration,
}

/// Whether operations of several ranks share a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mixing {
    /// No: for a store that runs each kind of operation as one statement.
    Apart,
    /// Yes: for a store that runs a batch as one transaction.
    Together,
}

/// Whether a batch that begins beside another one waits for more operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// No: for a store whose batches cost as much as they hold.
    None,
    /// Until it holds one in so many of all that wait or are under way, for a few milliseconds at
    /// most: for a store whose smallest batch costs as much as a dozen operations.
    OneIn(usize),
}

/// The first pause after a connection could not be opened, and the longest. The first is about a
/// restart of a pooler, the longest keeps a fleet from hammering a server that is coming up.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

impl<O: Operation> Group<O> {
    /// Starts the writers on the runtime of the caller.
    pub(crate) fn start<B: Backend<Op = O>>(backend: &Arc<B>, limits: Limits) -> Self {
        let queue = Arc::new(Queue::new(limits));
        for _ in 0..limits.writers.max(1) {
            let writer = Writer {
                backend: Arc::clone(backend),
                queue: Arc::clone(&queue),
                limits,
                connection: None,
                pause: Duration::ZERO,
            };
            tokio::spawn(writer.work());
        }
        Self(queue)
    }

    /// Has `operation` done.
    ///
    /// # Cancellation
    /// Dropping the future does not take the operation back.
    pub(crate) async fn ask(&self, operation: O) -> Result<O::Reply, StoreError> {
        let reply = self.0.put(operation)?;
        // The sender is dropped only by a writer that died or a runtime that shuts down.
        reply.await.unwrap_or_else(|_| {
            Err(StoreError::new(
                ErrorKind::Ambiguous,
                "the store was closed while the call was under way",
            ))
        })
    }
}

impl<O: Operation> Drop for Group<O> {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Writer<B: Backend> {
    backend: Arc<B>,
    queue: Arc<Queue<B::Op>>,
    limits: Limits,
    connection: Option<B::Connection>,
    /// How long to wait before the next attempt to connect.
    pause: Duration,
}

impl<B: Backend> Writer<B> {
    async fn work(mut self) {
        while let Some(mut batch) = self.queue.take().await {
            self.serve(&mut batch).await;
        }
    }

    /// Runs a batch and answers everybody in it.
    async fn serve(&mut self, batch: &mut Batch<B::Op>) {
        match self.run_with_a_second_try(batch.operations()).await {
            Ok(answers) => batch.answer(0, answers),
            Err(Failure::Refused(_)) if batch.operations().len() > 1 => {
                self.serve_singly(batch).await;
            }
            Err(failure) => batch.fail(0, failure.into()),
        }
    }

    /// Runs the operations of a batch that was refused one by one. When the connection is lost on
    /// the way, the rest is given back untried: everybody has waited long enough.
    async fn serve_singly(&mut self, batch: &mut Batch<B::Op>) {
        for place in 0..batch.operations().len() {
            match self.run_with_a_second_try(&batch.operations()[place..=place]).await {
                Ok(answers) => batch.answer(place, answers),
                Err(Failure::Refused(error)) => batch.answer(place, vec![Err(error)]),
                Err(failure @ (Failure::NotSent(_) | Failure::Unknown(_))) => {
                    batch.answer(place, vec![Err(failure.into())]);
                    let untried = StoreError::new(
                        ErrorKind::Unavailable,
                        "the connection to the store was lost before this call was tried",
                    );
                    return batch.fail(place + 1, untried);
                }
            }
        }
    }

    /// A connection that was idle may have been closed by the server or a pooler meanwhile, or turn
    /// out to be of no use. That shows only when it is used, and is no reason to fail anybody: another
    /// one is tried, unless there is none to be had.
    async fn run_with_a_second_try(
        &mut self,
        operations: &[B::Op],
    ) -> Result<Answers<B::Op>, Failure> {
        match self.run(operations).await {
            Err(Failure::NotSent(_)) if self.pause.is_zero() => self.run(operations).await,
            ended => ended,
        }
    }

    async fn run(&mut self, operations: &[B::Op]) -> Result<Answers<B::Op>, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await.map_err(Failure::NotSent)?,
        };
        let ended = timeout(self.limits.run, self.backend.run(&mut connection, operations)).await;
        let ended = ended.unwrap_or_else(|_| {
            Err(Failure::Unknown(StoreError::new(
                ErrorKind::Ambiguous,
                format!("the store did not answer within {:?}", self.limits.run),
            )))
        });
        // Everything else has left the connection as it was found.
        if matches!(ended, Ok(_) | Err(Failure::Refused(_))) {
            self.connection = Some(connection);
        }
        if let Ok(answers) = &ended {
            debug_assert_eq!(answers.len(), operations.len(), "every operation has an answer");
        }
        ended
    }

    async fn connect(&mut self) -> Result<B::Connection, StoreError> {
        sleep(self.pause).await;
        let connected = timeout(self.limits.connect, self.backend.connect()).await;
        let connected = connected.unwrap_or_else(|_| {
            Err(StoreError::new(
                ErrorKind::Unavailable,
                format!("no connection to the store within {:?}", self.limits.connect),
            ))
        });
        let (first, longest) = PAUSES;
        self.pause = match &connected {
            Ok(_) => Duration::ZERO,
            Err(_) => (self.pause * 2).clamp(first, longest),
        };
        connected
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) | Failure::NotSent(error) => error,
            // Whatever the store made of it: the caller must ask again.
            Failure::Unknown(error) if error.kind() == ErrorKind::Ambiguous => error,
            Failure::Unknown(error) => {
                Self::new(ErrorKind::Ambiguous, error.to_string()).with_source(error)
            }
        }
    }
}
