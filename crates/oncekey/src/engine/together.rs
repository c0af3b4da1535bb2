//! Several futures at once, in the task of whoever waits for them.

use std::future::poll_fn;
use std::task::Poll;

/// Runs `futures`, as many at once as there are, and returns what came of each, in their order.
///
/// # Cancellation
/// All of them are dropped.
pub(super) async fn together<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (place, output) in futures.iter_mut().zip(&mut outputs) {
            if let Some(future) = place
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
                *place = None;
            }
        }
        match futures.iter().all(Option::is_none) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
