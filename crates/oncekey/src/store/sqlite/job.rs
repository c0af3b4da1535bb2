//! Operations on their way through the writer thread, and how many of them share a transaction.

use std::collections::VecDeque;

use oncekey_core::StoreError;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::op::{Op, Reply};

/// The most operations in one transaction: at about 20 µs each, 5 ms of holding the write lock.
pub(super) const MOST_OPERATIONS: usize = 256;
/// The most bytes of bodies in one transaction, so that large answers do not delay the claims
/// behind them by more than a few milliseconds.
const MOST_BYTES: usize = 512 * 1024;

/// An operation and who waits for its reply.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) op: Op,
    pub(super) reply: oneshot::Sender<Result<Reply, StoreError>>,
    /// Given back when the job is answered, not when it is taken from the queue.
    _place: OwnedSemaphorePermit,
}

/// Takes as much from the front as belongs into one transaction.
pub(super) fn take_batch(waiting: &mut VecDeque<Job>) -> Vec<Job> {
    let mut bytes = 0;
    let mut count = 0;
    for job in waiting.iter().take(MOST_OPERATIONS) {
        bytes += job.op.size();
        if count > 0 && bytes > MOST_BYTES {
            break;
        }
        count += 1;
    }
    waiting.drain(..count).collect()
}

/// Gives everybody their reply.
pub(super) fn answer(batch: Vec<Job>, replies: Vec<Result<Reply, StoreError>>) {
    debug_assert_eq!(batch.len(), replies.len(), "every caller gets its own reply");
    for (job, reply) in batch.into_iter().zip(replies) {
        // A caller that has gone away does not need its reply.
        drop(job.reply.send(reply));
    }
}

/// Tells everybody the same.
pub(super) fn answer_all(batch: Vec<Job>, error: &StoreError) {
    let copy = || StoreError::new(error.kind(), error.to_string());
    let replies = batch.iter().map(|_| Err(copy())).collect();
    answer(batch, replies);
}

impl Job {
    /// An operation that has a place in its lane until it is answered.
    pub(super) const fn new(
        op: Op,
        reply: oneshot::Sender<Result<Reply, StoreError>>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self { op, reply, _place: place }
    }
}
