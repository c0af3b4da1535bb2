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

use crate::clock::{Span, Stopwatch};
use crate::service::{Desk, Operation};

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

/// Finished keys that are replayed in turns: more than fits into the processor's first cache.
const REPLAYED: usize = 1_000;
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
#[derive(Debug)]
pub(crate) struct Lane {
    front: Front,
    service: Router,
    desk: Desk,
    span: Span,
}

impl Lane {
    /// `dress` puts the layer in front of the service, if there is one.
    pub(crate) fn new(front: Front, dress: impl FnOnce(Router) -> Router) -> Self {
        let desk = Desk::new();
        Self { front, service: dress(desk.routes()), desk, span: Span::default() }
    }

    /// What all requests took together.
    pub(crate) const fn span(&self) -> Span {
        self.span
    }
}

/// Sends `requests` requests to each service and waits for all answers. Must run on the runtime
/// of `callers`.
///
/// The services take turns every few milliseconds: what is looked for is the small difference
/// between them, and a machine that is slow for a while is then slow for all.
///
/// # Panics
/// If a service does not answer as it should: then it is not what we think we measure.
pub(crate) async fn drive(
    lanes: &mut [Lane],
    operation: Operation,
    callers: Callers,
    requests: usize,
) {
    let mut held = JoinSet::new();
    for lane in &*lanes {
        lane.prepare(operation, &mut held).await;
    }
    let turn = callers.turn();
    for first in (0..requests).step_by(turn) {
        let numbers = first..requests.min(first + turn);
        for lane in &mut *lanes {
            lane.take_turn(operation, callers, numbers.clone()).await;
        }
    }
    for lane in lanes {
        let expected = match (lane.front, operation) {
            (Front::Bare, _) | (_, Operation::Get | Operation::NoKey | Operation::New) => requests,
            (Front::Layer, Operation::Replay) => REPLAYED,
            (Front::Layer, Operation::Conflict) => 0,
        };
        assert_eq!(lane.desk.runs(), expected, "the handler runs as often as it should");
        lane.desk.let_end(1);
    }
    for status in held.join_all().await {
        assert_eq!(status, StatusCode::CREATED, "the held request ends well");
    }
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
    /// Makes the keys that the operation needs.
    async fn prepare(&self, operation: Operation, held: &mut JoinSet<StatusCode>) {
        let mut service = self.service.clone();
        match (self.front, operation) {
            (Front::Layer, Operation::Replay) => {
                for number in 0..REPLAYED {
                    send(&mut service, operation.request(number)).await;
                }
            }
            (Front::Layer, Operation::Conflict) => {
                held.spawn(async move { send(&mut service, operation.request(0)).await });
                self.desk.begun().await;
            }
            // Without a layer nobody is held, and the handler costs what it costs elsewhere.
            (Front::Bare, Operation::Conflict) => self.desk.let_end(1 << 40),
            (_, Operation::Get | Operation::NoKey | Operation::New)
            | (Front::Bare, Operation::Replay) => {}
        }
    }

    async fn take_turn(&mut self, operation: Operation, callers: Callers, numbers: Range<usize>) {
        let (front, mut service) = (self.front, self.service.clone());
        let span = match callers {
            Callers::One => {
                let watch = Stopwatch::start();
                for number in numbers {
                    let status = send(&mut service, request(operation, number)).await;
                    assert_eq!(status, expected(front, operation));
                }
                watch.elapsed()
            }
            Callers::Many => together(&service, front, operation, numbers).await,
        };
        self.span.wall += span.wall;
        self.span.cpu += span.cpu;
    }
}

async fn together(
    service: &Router,
    front: Front,
    operation: Operation,
    numbers: Range<usize>,
) -> Span {
    let Range { start, end } = numbers;
    let next = Arc::new(AtomicUsize::new(start));
    let watch = Stopwatch::start();
    let mut callers = JoinSet::new();
    for _ in 0..MANY {
        let (mut service, next) = (service.clone(), Arc::clone(&next));
        callers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    break;
                }
                let status = send(&mut service, request(operation, number)).await;
                assert_eq!(status, expected(front, operation));
                // As a connection does that waits for its next request.
                tokio::task::yield_now().await;
            }
        });
    }
    callers.join_all().await;
    watch.elapsed()
}

fn request(operation: Operation, number: usize) -> Request<Body> {
    match operation {
        Operation::Replay => operation.request(number % REPLAYED),
        Operation::Get | Operation::NoKey | Operation::New | Operation::Conflict => {
            operation.request(number)
        }
    }
}

const fn expected(front: Front, operation: Operation) -> StatusCode {
    match (front, operation) {
        (_, Operation::Get) => StatusCode::OK,
        (Front::Layer, Operation::Conflict) => StatusCode::CONFLICT,
        (_, Operation::NoKey | Operation::New | Operation::Replay)
        | (Front::Bare, Operation::Conflict) => StatusCode::CREATED,
    }
}
