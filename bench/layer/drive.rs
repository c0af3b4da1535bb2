//! Sends requests of one kind to one service and says what that took. The peer's program has a
//! copy of this file.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tower::Service as _;

use crate::service::{Desk, Operation, REPLAYED};

/// Who sends the requests, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Callers {
    /// One caller and the service on one thread: every nanosecond is the work of the request.
    One,
    /// 64 callers on a runtime with a thread for each core, as a service has.
    Many,
}

/// Whether a layer is in front of the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// Nothing: every request reaches the handler.
    Bare,
    /// A layer that keeps its promise.
    Layer,
}

/// Reads two counters that only rise. What a request costs is by how much they rise.
pub(crate) type Meter = fn() -> [u64; 2];

/// As many as the throughput of one service needs, and as `bench store` looks at.
const MANY: usize = 64;

impl Callers {
    pub(crate) const ALL: [Self; 2] = [Self::One, Self::Many];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::Many => "64",
        }
    }

    /// Requests between two changes of the service: about a millisecond for each caller that has a
    /// core, so that starting 64 callers costs little of it.
    const fn turn(self) -> usize {
        match self {
            Self::One => 250,
            Self::Many => 2_000,
        }
    }

    pub(crate) fn runtime(self) -> std::io::Result<Runtime> {
        match self {
            Self::One => Builder::new_current_thread().enable_all().build(),
            Self::Many => Builder::new_multi_thread().enable_all().build(),
        }
    }
}

/// One service among those that are measured in turns.
pub(crate) struct Lane {
    front: Front,
    service: Router,
    desk: Desk,
    /// By how much the meter rose for all requests together.
    spent: [u64; 2],
    /// What is dropped when the runtime is gone.
    last: Option<Box<dyn Send + Sync>>,
}

impl Lane {
    /// `dress` puts the layer in front of the service, if there is one.
    pub(crate) fn new(front: Front, dress: impl FnOnce(Router) -> Router) -> Self {
        let desk = Desk::new();
        Self { front, service: dress(desk.routes()), desk, spent: [0; 2], last: None }
    }
}

impl Lane {
    /// Drops `last` when everything else of the measurement is gone.
    pub(crate) fn drop_last(mut self, last: impl Send + Sync + 'static) -> Self {
        self.last = Some(Box::new(last));
        self
    }
}

/// Measures the services that `lanes` makes, on a runtime of their own: by how much the meter rose
/// for each of them.
///
/// # Errors
/// If there is no runtime to be had.
pub(crate) fn measure(
    what: (Operation, Callers),
    requests: usize,
    lanes: impl FnOnce() -> Vec<Lane> + Send + 'static,
    meter: Meter,
) -> std::io::Result<Vec<[u64; 2]>> {
    let runtime = what.1.runtime()?;
    // In a task, as a connection is: what a runtime waits for itself costs a system call each
    // time that it has to wait.
    let measured = runtime.block_on(runtime.spawn(async move {
        let mut lanes = lanes();
        drive(&mut lanes, what, requests, meter).await;
        lanes.into_iter().map(|lane| (lane.spent, lane.last)).unzip()
    }));
    let (spent, last): (_, Vec<_>) =
        measured.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    drop(runtime);
    drop(last);
    Ok(spent)
}

/// Sends `requests` requests to each service and waits for all answers.
///
/// The services take turns every few milliseconds: what is looked for is the small difference
/// between them, and a machine that is slow for a while is then slow for all.
///
/// # Panics
/// If a service does not answer as it should: then it is not what we think we measure.
async fn drive(
    lanes: &mut [Lane],
    (operation, callers): (Operation, Callers),
    requests: usize,
    meter: Meter,
) {
    let mut held = JoinSet::new();
    for lane in &*lanes {
        lane.prepare(operation, requests, &mut held).await;
    }
    let turn = callers.turn();
    for first in (0..requests).step_by(turn) {
        let numbers = first..requests.min(first + turn);
        for lane in &mut *lanes {
            let before = meter();
            lane.take_turn(operation, callers, numbers.clone()).await;
            for ((spent, after), before) in lane.spent.iter_mut().zip(meter()).zip(before) {
                *spent += after - before;
            }
        }
    }
    for lane in lanes {
        let expected = match (lane.front, operation) {
            (Front::Layer, Operation::Again) => REPLAYED,
            (Front::Layer, Operation::Conflict) => 0,
            (Front::Bare | Front::Layer, _) => requests,
        };
        assert_eq!(lane.desk.runs(), expected, "the handler runs as often as it should");
        lane.desk.let_end(1);
    }
    for status in held.join_all().await {
        assert_eq!(status, StatusCode::CREATED, "the held request ends well");
    }
}

/// Has 64 callers send the requests with these numbers.
pub(crate) async fn together(
    service: &Router,
    expected: StatusCode,
    operation: Operation,
    numbers: Range<usize>,
) {
    let Range { start, end } = numbers;
    let next = Arc::new(AtomicUsize::new(start));
    let mut callers = JoinSet::new();
    for _ in 0..MANY {
        let (mut service, next) = (service.clone(), Arc::clone(&next));
        callers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    break;
                }
                let status = send(&mut service, operation.request(number)).await;
                assert_eq!(status, expected);
                // As a connection does that waits for its next request.
                tokio::task::yield_now().await;
            }
        });
    }
    callers.join_all().await;
}

/// Sends one request and reads its answer to the end.
pub(crate) async fn send(service: &mut Router, request: Request<Body>) -> StatusCode {
    let answer = service.call(request).await.unwrap_or_else(|never| match never {});
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("the answer has an end");
    drop(body.to_bytes());
    status
}

impl Lane {
    /// Makes the keys that the operation needs. Callers come together, because a store on a disk
    /// has many commits to share then.
    async fn prepare(&self, operation: Operation, requests: usize, held: &mut JoinSet<StatusCode>) {
        let mut service = self.service.clone();
        match (self.front, operation) {
            (Front::Layer, Operation::Replay) => {
                together(&service, StatusCode::CREATED, operation, 0..requests).await;
            }
            (Front::Layer, Operation::Again) => {
                for _ in ["the work", "the first retry"] {
                    together(&service, StatusCode::CREATED, operation, 0..REPLAYED).await;
                }
            }
            (Front::Layer, Operation::Conflict) => {
                held.spawn(async move { send(&mut service, operation.request(0)).await });
                self.desk.begun().await;
            }
            // Without a layer nobody is held, and the handler costs what it costs elsewhere.
            (Front::Bare, Operation::Conflict) => self.desk.let_end(1 << 40),
            (Front::Bare | Front::Layer, _) => {}
        }
    }

    async fn take_turn(&self, operation: Operation, callers: Callers, numbers: Range<usize>) {
        let (mut service, expected) = (self.service.clone(), expected(self.front, operation));
        match callers {
            Callers::One => {
                for number in numbers {
                    let status = send(&mut service, operation.request(number)).await;
                    assert_eq!(status, expected);
                }
            }
            Callers::Many => together(&service, expected, operation, numbers).await,
        }
    }
}

const fn expected(front: Front, operation: Operation) -> StatusCode {
    match (front, operation) {
        (_, Operation::Get) => StatusCode::OK,
        (_, Operation::SmallUpload | Operation::LargeUpload) => StatusCode::NO_CONTENT,
        (Front::Layer, Operation::Conflict) => StatusCode::CONFLICT,
        (_, Operation::NoKey | Operation::New | Operation::Replay | Operation::Again)
        | (Front::Bare, Operation::Conflict) => StatusCode::CREATED,
    }
}
