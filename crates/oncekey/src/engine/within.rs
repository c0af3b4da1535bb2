//! A limit on how long something may take, free of charge for what is there at once.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Waits for `future` for as long as `longest`; `None` if it took longer.
///
/// Most calls to a store in memory, and all replays from a local file, are ready at the first poll.
/// A timer for each of them would cost more than some of them.
///
/// # Cancellation
/// What took too long is dropped.
pub(super) async fn within<F: Future>(longest: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => tokio::time::timeout(longest, future).await.ok(),
    }
}
