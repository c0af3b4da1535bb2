//! `Idempotency-Key` for axum, hyper and everything else that speaks tower.
//!
//! What happens to a request, in this order:
//!
//! 1. No rule applies (a safe method, a method outside of the rule, mode `off`), or there is no
//!    key and none is needed: it passes through untouched.
//! 2. A missing or malformed key is refused with 400. A key may stand in a header, a query or a
//!    JSON body; in the last case the body is read first.
//! 3. The scope is found; if it cannot be, 403.
//! 4. The whole body is read; over the limit 413, broken off 400. Nothing has been claimed so far.
//! 5. The [engine](crate::engine) claims the key. Whoever gets it runs the service, in a task of
//!    its own; everybody else gets the same answer, waits for it, or is told why there is none.
//!
//! ```
//! use std::sync::Arc;
//!
//! use axum::Router;
//! use axum::routing::post;
//! use oncekey::clock::SystemClock;
//! use oncekey::core::MemoryStore;
//! use oncekey::engine::Engine;
//! use oncekey::layer::{IdempotencyLayer, Rule, ScopeFrom};
//! # use axum::body::Body;
//! # use axum::http::{HeaderName, Request};
//! # use tower::ServiceExt as _;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::new(Arc::new(MemoryStore::new(Arc::new(SystemClock))))?;
//! let layer = IdempotencyLayer::builder(engine)
//!     .scope(ScopeFrom::header(HeaderName::from_static("x-tenant")))
//!     .rule(Rule::new("POST /charges").required())
//!     .build();
//! let app = Router::new().route("/charges", post(async || "charged")).layer(layer);
//! # let charge = || {
//! #     let request = Request::post("/charges").header("x-tenant", "acme");
//! #     request.header("idempotency-key", "8e03978e-40d5").body(Body::empty())
//! # };
//! # let first = app.clone().oneshot(charge()?).await?;
//! # assert!(!first.headers().contains_key("idempotent-replayed"));
//! # let second = app.clone().oneshot(charge()?).await?;
//! # assert_eq!(second.headers()["idempotent-replayed"], "true");
//! # Ok(())
//! # }
//! ```
//!
//! # Where to put it
//!
//! Inside of authentication, because the scope has to be verified, and because a client whose
//! access was taken away must not get an old answer. Inside of CORS, compression and request ids,
//! which belong to one exchange; what they add to a response is added to replays too. Outside of
//! everything that must not happen twice. In axum, outside of `nest`, or with
//! [`LayerBuilder::original_uri`].
//!
//! # What to know
//!
//! - Requests with a key are held in memory, and so are their answers, up to the limits of the
//!   policy. An answer that is larger, a stream or an upgrade is passed on and not kept: its
//!   retry is told that the work ran.
//! - Any other answer is sent when it is complete. A handler that writes slowly for minutes should
//!   say `text/event-stream`, or have no rule.
//! - A client that hangs up stops nothing.
//! - A duplicate that waits holds the readiness of a service that it will not call. Put limits of
//!   concurrency outside of the layer.
//! - Request trailers are dropped.
//! - The service's error, as opposed to an answer with an error status, counts as no answer: under
//!   the class `once` the outcome is then unknown. A service that forwards requests can say more
//!   with [`Undelivered`].
//!
//! `docs/reference/wire.md` has every header and status; `docs/reference/problems.md` the errors.

mod body;
mod collect;
mod context;
mod exact;
mod future;
mod headers;
#[expect(clippy::module_inception, reason = "layer.rs, service.rs: the names of every layer")]
mod layer;
mod meters;
mod outcome;
mod replay;
mod respond;
mod rule;
mod scope;
mod seldom;
mod service;
mod source;
mod status;
mod subject;
mod trace;
mod undelivered;
mod visit;
mod work;

pub use self::body::{RequestBody, ResponseBody};
pub use self::context::IdempotencyContext;
pub use self::future::ResponseFuture;
pub use self::headers::EXPOSED_HEADERS;
pub use self::layer::{IdempotencyLayer, KeyHash, LayerBuilder, LayerError};
pub use self::outcome::{Outcome, Outcomes};
pub use self::rule::{Mode, Rule, WeakKeys};
pub use self::scope::{NoScope, ScopeFrom};
pub use self::service::Idempotency;
pub use self::source::{KeySource, SourceError};
pub use self::trace::OriginalTrace;
pub use self::undelivered::Undelivered;
pub use self::work::is_stream;
