//! Many requests in flight, each with a key of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Has `callers` tasks make requests for `span`, and says how many of them were answered in a second,
/// and how long each took. The first eighth warms up and does not count.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(crate) async fn drive<C, F>(
    callers: usize,
    span: Duration,
    call: C,
) -> Result<(usize, Duration, Vec<Duration>), String>
where
    C: Fn(usize) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), String>> + Send,
{
    let (call, tickets) = (Arc::new(call), Arc::new(AtomicUsize::new(0)));
    let began = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..callers {
        let (call, tickets) = (Arc::clone(&call), Arc::clone(&tickets));
        tasks.push(tokio::spawn(async move {
            let mut calls = Vec::new();
            while began.elapsed() < span {
                let at = began.elapsed();
                call(tickets.fetch_add(1, Ordering::Relaxed)).await?;
                calls.push((at, began.elapsed()));
            }
            Ok::<_, String>(calls)
        }));
    }
    let mut calls = Vec::new();
    for task in tasks {
        calls.extend(task.await.map_err(|error| error.to_string())??);
    }
    let warm = span / 8;
    let ended = calls.iter().map(|(_, end)| *end).max().unwrap_or_default();
    let counted: Vec<_> =
        calls.iter().filter(|(_, end)| *end > warm).map(|(at, end)| *end - *at).collect();
    Ok((counted.len(), ended.saturating_sub(warm), counted))
}
