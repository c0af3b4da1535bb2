//! Whether a large answer gets in the way of the claims of other keys.

use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{Store as _, Write};
use oncekey::store::sqlite::SqliteStore;
use oncekey_bench::stats::{self, Sample};
use oncekey_bench::table::{Table, count, millis};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::MissedTickBehavior;

use crate::drive::{Next, drive};
use crate::work::{self, Work};
use crate::{Plan, Result, calls, cells};

/// The body that is completed, and how often.
const SIZE: usize = 1024 * 1024;
const EVERY: Duration = Duration::from_millis(50);
/// Callers that claim meanwhile.
pub(crate) const CALLERS: usize = 64;

/// Claims of other keys, alone and beside large answers.
#[derive(Debug, Default)]
pub(crate) struct LargeBody {
    alone: Vec<Sample>,
    beside: Vec<Sample>,
    /// How many large answers were completed beside the claims, per second.
    large: Vec<f64>,
}

impl LargeBody {
    pub(crate) fn measure(runtime: &Runtime, plan: &Plan) -> Result<Self> {
        let mut found = Self::default();
        for round in 1..=plan.rounds {
            eprintln!("round {round} of {}: claims beside answers of 1 MiB", plan.rounds);
            found.alone.push(claims(runtime, plan, None)?.0);
            let (sample, large) = claims(runtime, plan, Some(EVERY))?;
            found.beside.push(sample);
            found.large.push(large);
        }
        Ok(found)
    }

    /// How many times as long claims take beside large answers: the median and the slowest
    /// hundredth.
    pub(crate) fn slowdown(&self) -> (f64, f64) {
        let ratio = |figure: fn(&Sample) -> f64| {
            stats::median_ratio(self.beside.iter().map(figure), self.alone.iter().map(figure))
        };
        (ratio(|sample| sample.p50), ratio(|sample| sample.p99))
    }

    pub(crate) fn text(&self) -> String {
        let mut table =
            Table::new(&["claims at 64 callers", "claims/s", "p50 ms", "p99 ms", "1 MiB/s"]);
        let large = format!("{:.1}", stats::median(self.large.iter().copied()));
        let lines = [("alone", &self.alone, String::new()), ("beside 1 MiB", &self.beside, large)];
        for (name, samples, large) in lines {
            let Sample { rate, p50, p99 } = Sample::median(samples);
            table.add(vec![name.to_owned(), count(rate), millis(p50), millis(p99), large]);
        }
        table.text()
    }

    pub(crate) fn to_json(&self) -> Value {
        let all = |samples: &[Sample]| samples.iter().map(|s| s.to_json()).collect::<Vec<_>>();
        json!({ "alone": all(&self.alone), "beside": all(&self.beside), "large_per_second": self.large })
    }
}

/// Claims new keys, with a large completion at every tick if there is an interval.
fn claims(runtime: &Runtime, plan: &Plan, every: Option<Duration>) -> Result<(Sample, f64)> {
    let path = plan.folder.join("large-body.db");
    let store = Arc::new(SqliteStore::open(&path)?);
    let work = Arc::new(Work::new(1));
    let sample = runtime.block_on(async {
        let large = every.map(|every| {
            let completing = complete_large(Arc::clone(&store), plan.span, every);
            tokio::spawn(completing)
        });
        let call = {
            let store = Arc::clone(&store);
            move |ticket| {
                let (store, work) = (Arc::clone(&store), Arc::clone(&work));
                async move {
                    calls::claim(&*store, &work, ticket).await;
                    Next::More
                }
            }
        };
        let sample = drive(CALLERS, plan.span, call).await;
        let completed = match large {
            Some(task) => task.await?,
            None => 0,
        };
        Ok::<_, tokio::task::JoinError>((sample, completed))
    });
    let (sample, completed) = sample?;
    drop(store);
    cells::remove(&path)?;
    Ok((sample, f64::from(completed) / plan.span.as_secs_f64()))
}

/// Completes a large answer at every tick for `span`; returns how many.
async fn complete_large(store: Arc<SqliteStore>, span: Duration, every: Duration) -> u32 {
    let work = Work::new(2);
    let completion = work::completion_of(SIZE);
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let count = u32::try_from(span.as_millis() / every.as_millis()).unwrap_or(u32::MAX);
    let mut completed = 0;
    let all = async {
        for number in 0..count {
            ticks.tick().await;
            let lease = calls::claim(&*store, &work, number as usize).await;
            let write = store.complete(&lease, &completion).await.expect("the store answers");
            assert_eq!(write, Write::Applied, "nobody else completes this key");
            completed += 1;
        }
    };
    // The claims beside it end at the same time, however many were done by then.
    let _ = tokio::time::timeout(span, all).await;
    completed
}
