//! A service behind the layer on a real port, and levers on both sides of the layer: handlers that
//! stop until they are told to go on, and doors that count who came and who left early.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::middleware::{Next, from_fn};
use axum::routing::any;
use http::{HeaderName, Request, Response};
use oncekey::clock::SystemClock;
use oncekey::core::{MemoryStore, Policy, Store};
use oncekey::engine::Engine;
use oncekey::layer::{IdempotencyLayer, LayerBuilder, Rule, ScopeFrom};
use oncekey::store::sqlite::SqliteStore;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::wire::{Ask, Client, Seen};

/// Where the records of a row are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keeper {
    Memory,
    Sqlite,
}

/// A store, and its folder for as long as it is needed.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) store: Arc<dyn Store>,
    _folder: Option<TempDir>,
}

/// A server with the layer in front of a handler.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) doors: Doors,
    runs: Arc<AtomicUsize>,
    _kept: Option<Kept>,
}

/// What a handler answers. It gets the number of the run, from 1.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Stands in front of the layer and counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doors(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Requests whose future was dropped before it had an answer.
    left: watch::Sender<usize>,
}

/// The handler's side of a stage.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    reached: mpsc::UnboundedSender<usize>,
    open: watch::Receiver<bool>,
}

/// The row's side of a stage.
#[derive(Debug)]
pub(crate) struct Director {
    reached: mpsc::UnboundedReceiver<usize>,
    open: watch::Sender<bool>,
}

impl Keeper {
    pub(crate) fn keep(self) -> Kept {
        match self {
            Self::Memory => {
                let store = Arc::new(MemoryStore::new(Arc::new(SystemClock)));
                Kept { store, _folder: None }
            }
            Self::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                let store = Arc::new(SqliteStore::open(folder.path().join("keys.db")).unwrap());
                Kept { store, _folder: Some(folder) }
            }
        }
    }
}

/// A layer as a careful service has it: a verified tenant, a key on every payment, status URLs.
pub(crate) fn layer(engine: Engine, policy: Policy) -> LayerBuilder {
    IdempotencyLayer::builder(engine)
        .scope(ScopeFrom::header(HeaderName::from_static("x-tenant")))
        .rule(Rule::new("POST /payments").required().policy(policy).unwrap())
        .status_path("/.idempotency/keys/")
        .unwrap()
}

impl Server {
    /// A server of axum with a store of its own.
    pub(crate) async fn start(
        keeper: Keeper,
        policy: Policy,
        serve: impl Fn(usize, Request<Body>) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let kept = keeper.keep();
        let server = Self::start_on(Arc::clone(&kept.store), policy, serve).await;
        Self { _kept: Some(kept), ..server }
    }

    /// A server of axum on a store.
    pub(crate) async fn start_on(
        store: Arc<dyn Store>,
        policy: Policy,
        serve: impl Fn(usize, Request<Body>) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let engine = Engine::new(store).unwrap();
        let (runs, doors) = (Arc::new(AtomicUsize::new(0)), Doors::default());
        let (count, serve) = (Arc::clone(&runs), Arc::new(serve));
        let handler = any(move |request: Request<Body>| {
            serve(count.fetch_add(1, Ordering::SeqCst) + 1, request)
        });
        let outside = doors.clone();
        let app = Router::new()
            .route("/payments", handler.clone())
            .route("/refunds", handler)
            .layer(layer(engine.clone(), policy).build())
            .layer(from_fn(move |request, next: Next| outside.clone().pass(request, next)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, engine, doors, runs, _kept: None }
    }

    /// Sends a request on a connection of its own.
    pub(crate) async fn send(&self, ask: &Ask) -> Seen {
        Client::open(self.address).await.ask(ask).await
    }

    /// Sends a request from a task of its own.
    pub(crate) fn begin(&self, ask: &Ask) -> tokio::task::JoinHandle<Seen> {
        let (address, ask) = (self.address, ask.clone());
        tokio::spawn(async move { Client::open(address).await.ask(&ask).await })
    }

    /// How often the handler ran.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Waits until so many requests sit and wait for another one's answer.
    pub(crate) async fn until_waiting(&self, requests: usize) {
        until_waiting(&self.engine, requests).await;
    }
}

/// The engine rings no bell for a request that sits down, so this asks again and again.
pub(crate) async fn until_waiting(engine: &Engine, requests: usize) {
    while engine.load().waiters < requests {
        tokio::task::yield_now().await;
    }
}

impl Doors {
    async fn pass(self, request: Request<Body>, next: Next) -> Response<Body> {
        let inside = Inside(self);
        let response = next.run(request).await;
        std::mem::forget(inside);
        response
    }

    /// Waits until so many requests were given up by the server because their client had gone.
    pub(crate) async fn until_left(&self, requests: usize) {
        let mut left = self.0.left.subscribe();
        left.wait_for(|left| *left >= requests).await.unwrap();
    }
}

/// A request that has no answer yet.
struct Inside(Doors);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.0.left.send_modify(|left| *left += 1);
    }
}

/// A stage with its curtain down.
pub(crate) fn stage() -> (Stage, Director) {
    let (reached, reached_by) = mpsc::unbounded_channel();
    let (open, opened) = watch::channel(false);
    (Stage { reached, open: opened }, Director { reached: reached_by, open })
}

impl Stage {
    /// Says that the handler got to `mark`.
    pub(crate) fn reach(&self, mark: usize) {
        // A row that has seen enough has gone.
        let _ = self.reached.send(mark);
    }

    /// Waits until the row lets the handler go on.
    pub(crate) async fn opened(&mut self) {
        let _ = self.open.wait_for(|open| *open).await;
    }

    /// A payment that is half-way until the row lets it go on.
    pub(crate) fn payment(&self, run: usize) -> Answer {
        let mut stage = self.clone();
        Box::pin(async move {
            stage.reach(run);
            stage.opened().await;
            created(run)
        })
    }
}

impl Director {
    /// Waits until a handler says something.
    pub(crate) async fn reached(&mut self) -> usize {
        self.reached.recv().await.unwrap()
    }

    /// What handlers have said and nobody has listened to.
    pub(crate) fn rest(&mut self) -> Vec<usize> {
        std::iter::from_fn(|| self.reached.try_recv().ok()).collect()
    }

    /// Lets every handler go on.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}

/// The answer of a payment that was made.
pub(crate) fn created(run: usize) -> Response<Body> {
    Response::builder()
        .status(201)
        .header("location", format!("/payments/pay_{run}"))
        .header("content-type", "application/json")
        .body(Body::from(format!("{{\"id\":\"pay_{run}\"}}")))
        .unwrap()
}

/// A handler that answers at once.
pub(crate) fn at_once(run: usize, _: Request<Body>) -> Answer {
    Box::pin(async move { created(run) })
}
