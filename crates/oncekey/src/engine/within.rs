//! A limit on how long something may take, free of charge for what is there at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Waits for `future` for as long as `longest`; `None` if it took longer.
///
/// Most calls to a store in memory, and all replays from a local file, are ready at the first poll.
/// A timer for each of them would cost more than some of them. The future stays where it is, because
/// every move of a large one makes whoever waits for it larger.
///
/// # Cancellation
/// What took too long is not polled again: the caller drops it.
pub(super) async fn within<F: Future>(
    longest: Duration,
    mut future: Pin<&mut F>,
) -> Option<F::Output> {
    match poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
        Poll::Ready(output) => Some(output),
        // In a box, because a timer is large, and everything that could need one would carry it.
        Poll::Pending => Box::pin(tokio::time::timeout(longest, future)).await.ok(),
    }
}
