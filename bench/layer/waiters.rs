//! Ten thousand requests that wait for one key: what they weigh, whether they slow down others,
//! and how soon they are answered.

use std::fs;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use oncekey::core::policy::{InFlight, Limits, Policy};
use oncekey_bench::Result;
use oncekey_bench::stats::{median, median_ratio};
use oncekey_bench::table::{Table, count};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::drive::{Callers, send, together};
use crate::ours;
use crate::service::{Desk, Operation};
use crate::{Plan, clock};

/// As many as a storm of duplicates may bring.
const WAITERS: usize = 10_000;
/// Keys before the first measurement, and the most in each of the three that follow. A map of
/// records that doubles while we measure would be taken for a slowdown: it does so at 57 344 and
/// at 114 688 keys.
const WARM: usize = 58_000;
const MOST: usize = 18_000;

/// What was found, round by round.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// Bytes by which the process grew while they came.
    growth: Vec<f64>,
    /// Nanoseconds for one new key without them and with them, on the wall and of processor time.
    without: Vec<[f64; 2]>,
    with: Vec<[f64; 2]>,
    /// How long it took until all of them had their answer, in milliseconds.
    answered: Vec<f64>,
}

impl Crowd {
    /// Measures. Comes before everything else of the program: memory that was used before would
    /// be used again, and not be seen.
    pub(crate) fn measure(plan: &Plan) -> Result<Self> {
        let mut crowd = Self::default();
        for round in 1..=plan.rounds {
            eprintln!("{WAITERS} waiters: round {round} of {}", plan.rounds);
            crowd.round(plan.requests.min(MOST))?;
        }
        Ok(crowd)
    }

    fn round(&mut self, requests: usize) -> Result<()> {
        let runtime = Callers::Many.runtime()?;
        runtime.block_on(async {
            let desk = Desk::new();
            let service = ours::dress(desk.routes(), ours::memory(), policy());
            new_keys(&service, 1..WARM).await;
            let series = |number: usize| {
                let first = WARM + number * requests;
                first..first + requests
            };
            let before = new_keys(&service, series(0)).await;
            let empty = resident()?;
            let waiters = come(&service, &desk).await;
            self.growth.push(resident()? - empty);
            self.with.push(new_keys(&service, series(1)).await);
            self.answered.push(leave(&desk, waiters).await.as_secs_f64() * 1e3);
            // Before and after, because the store grows all the time.
            let after = new_keys(&service, series(2)).await;
            self.without.push([0, 1].map(|place| f64::midpoint(before[place], after[place])));
            Ok(())
        })
    }

    /// The memory for all of them: the most of any round, as later rounds reuse what earlier
    /// ones left.
    pub(crate) fn megabytes(&self) -> f64 {
        self.growth.iter().copied().fold(0.0, f64::max) / 1e6
    }

    /// How many times as much processor time a new key takes beside them. All cores are busy, so
    /// that is the throughput, and what else runs on the machine is not in it.
    pub(crate) fn slowdown(&self) -> f64 {
        let cpu = |all: &[[f64; 2]]| all.iter().map(|[_, cpu]| *cpu).collect::<Vec<_>>();
        median_ratio(cpu(&self.with), cpu(&self.without))
    }

    pub(crate) fn text(&self) -> String {
        let answered = median(self.answered.iter().copied());
        let figure = |all: &[[f64; 2]], place: usize| median(all.iter().map(|both| both[place]));
        let mut table = Table::new(&["10 000 waiters", "new key ns", "cpu ns", "per second"]);
        for (name, all) in [("without", &self.without), ("beside them", &self.with)] {
            let (wall, cpu) = (figure(all, 0), figure(all, 1));
            table.add(vec![name.to_owned(), count(wall), count(cpu), count(1e9 / wall)]);
        }
        let megabytes = self.megabytes();
        format!("{}{megabytes:.1} MB; all answered {answered:.0} ms after the end\n", table.text())
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "waiters": WAITERS,
            "growth_bytes": self.growth,
            "new_key_without_ns": self.without,
            "new_key_with_ns": self.with,
            "answered_ms": self.answered,
        })
    }
}

/// Everybody may wait, and longer than a run takes.
fn policy() -> Policy {
    let in_flight = InFlight::Wait(Duration::from_secs(600));
    let limits = Limits { waiters_per_key: WAITERS, waiters: WAITERS, ..Limits::default() };
    Policy { in_flight, limits, ..Policy::default() }
}

/// Nanoseconds for a new key, with 64 callers.
async fn new_keys(service: &Router, numbers: Range<usize>) -> [f64; 2] {
    let requests = numbers.len() as f64;
    let began = clock::times();
    together(service, StatusCode::CREATED, Operation::New, numbers).await;
    let ended = clock::times();
    [0, 1].map(|place| (ended[place] - began[place]) as f64 / requests)
}

/// Starts the request that is held and everybody who waits for it, and returns when all wait.
async fn come(service: &Router, desk: &Desk) -> JoinSet<StatusCode> {
    let mut requests = JoinSet::new();
    let mut first = service.clone();
    requests.spawn(async move { send(&mut first, Operation::Conflict.request(0)).await });
    desk.begun().await;
    let arrived = Arc::new((AtomicUsize::new(0), Notify::new()));
    for _ in 0..WAITERS {
        let (mut service, arrived) = (service.clone(), Arc::clone(&arrived));
        requests.spawn(async move {
            let mut answer = pin!(send(&mut service, Operation::Conflict.request(0)));
            let mut looked = false;
            std::future::poll_fn(|context| {
                let polled = answer.as_mut().poll(context);
                // Nothing but the flight makes such a request wait.
                if !std::mem::replace(&mut looked, true) {
                    assert!(polled.is_pending(), "a duplicate waits");
                    if arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == WAITERS {
                        arrived.1.notify_one();
                    }
                }
                polled
            })
            .await
        });
    }
    arrived.1.notified().await;
    requests
}

/// Lets the held request end. How long it takes until everybody has the answer.
async fn leave(desk: &Desk, waiters: JoinSet<StatusCode>) -> Duration {
    let began = clock::wall();
    desk.let_end(1);
    let statuses = waiters.join_all().await;
    let span = clock::wall() - began;
    assert_eq!(statuses.len(), WAITERS + 1);
    assert!(statuses.iter().all(|status| *status == StatusCode::CREATED), "all get the answer");
    span
}

/// How much memory the process has, in bytes.
fn resident() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kilobytes.ok_or("the system does not say how much memory it gave us")?.parse::<f64>()?
        * 1024.0)
}
