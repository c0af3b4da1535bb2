//! Requests that meet: duplicates while the first is running, and clients that go away.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use oncekey::core::Policy;
use oncekey::core::policy::InFlight;
use oncekey::layer::LayerBuilder;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::rig::{KEY, Rig, Seen, layer, post, required};

/// A service that runs until it is told to end.
pub(crate) struct Held {
    pub(crate) rig: Rig,
    running: mpsc::Receiver<()>,
    release: watch::Sender<bool>,
}

impl Held {
    pub(crate) fn new(layer: LayerBuilder) -> Self {
        let (release, gate) = watch::channel(false);
        let (started, running) = mpsc::channel(100);
        let rig = Rig::new(layer, move |run, _| {
            let (mut gate, started) = (gate.clone(), started.clone());
            Box::pin(async move {
                started.send(()).await?;
                gate.wait_for(|open| *open).await?;
                let cookie = ("set-cookie", format!("session={run}"));
                let response = Response::builder().status(201).header(cookie.0, cookie.1);
                Ok(response.body(Body::from(format!("run {run}")))?)
            })
        });
        Self { rig, running, release }
    }

    /// Sends a request and waits until it has reached the service.
    pub(crate) async fn begin(&mut self) -> tokio::task::JoinHandle<Seen> {
        let rig = self.rig.clone();
        let task = tokio::spawn(async move { rig.send(post(KEY, "{}")).await });
        self.running.recv().await.unwrap();
        task
    }

    pub(crate) fn release(&self) {
        self.release.send(true).unwrap();
    }
}

fn in_flight(in_flight: InFlight) -> LayerBuilder {
    let policy = Policy { in_flight, ..Policy::default() };
    layer().rule(required().policy(policy).unwrap())
}

/// Twenty duplicates of a running request get its answer; the service ran once.
#[tokio::test]
async fn duplicates_wait_for_the_first_and_get_its_answer() {
    let mut held = Held::new(layer().rule(required()));
    let first = held.begin().await;
    let mut others = JoinSet::new();
    for _ in 0..20 {
        let rig = held.rig.clone();
        others.spawn(async move { rig.send(post(KEY, "{}")).await });
    }
    tokio::task::yield_now().await;
    held.release();
    let first = first.await.unwrap();
    assert_eq!((first.text(), first.header("set-cookie")), ("run 1", "session=1"));
    for seen in others.join_all().await {
        assert_eq!((seen.status.as_u16(), seen.text()), (201, "run 1"));
        assert!(seen.is_replay());
        assert_eq!(seen.header("original-request"), first.header("request-id"));
        assert!(!seen.headers.contains_key("set-cookie"), "the cookie is the first caller's");
    }
    assert_eq!(held.rig.runs(), 1);
}

#[tokio::test]
async fn a_duplicate_that_waits_says_so() {
    let mut held = Held::new(layer().rule(required()));
    let first = held.begin().await;
    let rig = held.rig.clone();
    let mut second = Box::pin(async move { rig.send(post(KEY, "{}")).await });
    // Nothing on its way to the others waits for anything: polled once, it sits with them.
    let waits = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await;
    assert!(waits, "the first is still running");
    held.release();
    let second = second.await;
    assert!(second.header("idempotency-status").starts_with("oncekey; coalesced; age=0; ttl="));
    first.await.unwrap();
}

#[tokio::test]
async fn a_conflict_is_told_at_once_when_to_come_back() {
    let mut held = Held::new(in_flight(InFlight::Conflict));
    let first = held.begin().await;
    let second = held.rig.send(post(KEY, "{}")).await;
    second.assert_refused(409, "idempotency_in_progress", "unknown");
    assert!(second.header("retry-after").parse::<u64>().unwrap() >= 1);
    let problem = second.problem();
    assert_eq!(problem["retryable"], true);
    assert!(problem["retry_after_ms"].as_u64().unwrap() > 0);
    held.release();
    let first = first.await.unwrap();
    assert_eq!(problem["original_request"], first.header("request-id"));
    assert!(held.rig.send(post(KEY, "{}")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn patience_ends_in_a_conflict() {
    let mut held = Held::new(in_flight(InFlight::Wait(Duration::from_secs(10))));
    let first = held.begin().await;
    let second = held.rig.send(post(KEY, "{}")).await;
    second.assert_refused(409, "idempotency_in_progress", "unknown");
    assert_eq!(
        second.header("idempotency-status"),
        "oncekey; in-progress; executed=unknown; retry=?1"
    );
    held.release();
    first.await.unwrap();
}

#[tokio::test]
async fn an_accepted_duplicate_is_told_where_its_answer_will_be() {
    let layer = in_flight(InFlight::Accepted).status_path("/.idempotency/keys/").unwrap();
    let mut held = Held::new(layer);
    let first = held.begin().await;
    let second = held.rig.send(post(KEY, "{}")).await;
    assert_eq!(second.status, 202);
    assert_eq!(second.header("location"), format!("/.idempotency/keys/{KEY}"));
    assert!(second.header("retry-after").parse::<u64>().unwrap() >= 1);
    let ask = || Request::get(second.header("location")).body(Body::empty()).unwrap();
    let running = held.rig.send(ask()).await;
    assert_eq!(
        (running.status.as_u16(), running.header("location")),
        (202, second.header("location"))
    );
    held.release();
    let first = first.await.unwrap();
    let done = held.rig.send(ask()).await;
    assert_eq!((done.status, done.text(), done.is_replay()), (first.status, "run 1", true));
    assert_eq!(done.header("cache-control"), "no-store");
    assert_eq!(held.rig.runs(), 1);
}

#[tokio::test]
async fn without_status_urls_an_accepted_duplicate_is_a_conflict() {
    let mut held = Held::new(in_flight(InFlight::Accepted));
    let first = held.begin().await;
    let second = held.rig.send(post(KEY, "{}")).await;
    second.assert_refused(409, "idempotency_in_progress", "unknown");
    assert!(!second.headers.contains_key("location"));
    held.release();
    first.await.unwrap();
}

/// I41: a client that goes away stops nothing, and its retry gets the answer.
#[tokio::test]
async fn work_goes_on_when_its_client_has_gone() {
    let mut held = Held::new(layer().rule(required()));
    let first = held.begin().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let rig = held.rig.clone();
    let retry = tokio::spawn(async move { rig.send(post(KEY, "{}")).await });
    tokio::task::yield_now().await;
    held.release();
    let retry = retry.await.unwrap();
    assert_eq!((retry.text(), retry.is_replay()), ("run 1", true));
    assert_eq!(held.rig.runs(), 1);
}
