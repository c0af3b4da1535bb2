//! Many callers that call as fast as they are answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncekey_bench::clock::Stopwatch;
use oncekey_bench::stats::Sample;
use tokio::task::JoinSet;

/// What a call says about the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Go on.
    More,
    /// There is nothing left to do; this call did nothing.
    Dry,
}

/// A call that finds its answer without waiting never gives way to other tasks by itself, so
/// every caller does so after this many calls: often enough that all of them run, rarely enough
/// that it is not what is measured.
const GIVE_WAY: usize = 16;

/// Has `callers` tasks make `call` for `span`. Each call gets a number of its own, from zero on.
///
/// The first eighth of the time warms up and does not count. What is under way when the time is
/// up is waited for and counts: behind one slow server, the last caller in the queue may wait for
/// longer than the whole span.
pub(crate) async fn drive<C, F>(callers: usize, span: Duration, call: C) -> Sample
where
    C: Fn(usize) -> F + Send + Sync + 'static,
    F: Future<Output = Next> + Send,
{
    let call = Arc::new(call);
    let tickets = Arc::new(AtomicUsize::new(0));
    let watch = Stopwatch::start();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (call, tickets) = (Arc::clone(&call), Arc::clone(&tickets));
        tasks.spawn(async move {
            let mut calls = Vec::new();
            while watch.elapsed() < span {
                let ticket = tickets.fetch_add(1, Ordering::Relaxed);
                let began = watch.elapsed();
                if call(ticket).await == Next::Dry {
                    break;
                }
                calls.push((began, watch.elapsed()));
                if calls.len() % GIVE_WAY == 0 {
                    tokio::task::yield_now().await;
                }
            }
            calls
        });
    }
    let calls: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    let ended = calls.iter().map(|(_, end)| *end).max().unwrap_or_default();
    let warm = span.min(ended) / 8;
    let counted = calls.into_iter().filter(|(_, end)| *end > warm);
    let latencies: Vec<_> = counted.map(|(began, end)| end - began).collect();
    Sample::new(latencies.len(), ended - warm, latencies)
}
