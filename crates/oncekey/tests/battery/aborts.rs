//! Requests whose future is dropped at every poll: F43, I41.
//!
//! What hyper does when a client goes away, done at every place where it can happen: while the
//! body comes in, during the claim, the send mark, the work, and the completion.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use oncekey::core::{Class, Policy};
use oncekey::engine::Engine;
use oncekey::layer::{Idempotency, ResponseBody};
use tower::{Layer as _, ServiceExt as _};

use crate::scene::{Keeper, layer};

/// Polls a future so many times and then drops it.
struct AbortAt<F> {
    inner: Option<Pin<Box<F>>>,
    polls: usize,
}

impl<F: Future> Future for AbortAt<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            self.inner = None;
        }
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let polled = inner.as_mut().poll(cx);
        self.polls -= 1;
        match polled {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls == 0 => {
                self.inner = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A body that comes in two pieces, each after a pause: a future can be dropped in the middle.
struct InPieces {
    pieces: std::vec::IntoIter<&'static str>,
    paused: bool,
}

impl http_body::Body for InPieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.paused = !self.paused;
        if self.paused {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece =
            self.pieces.next().map(|piece| Frame::data(Bytes::from_static(piece.as_bytes())));
        Poll::Ready(piece.map(Ok))
    }
}

fn request(key: &str) -> Request<Body> {
    let pieces = vec![r#"{"amo"#, r#"unt": 500}"#].into_iter();
    Request::post("/payments")
        .header("x-tenant", "acme")
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Body::new(InPieces { pieces, paused: false }))
        .unwrap()
}

/// Work with await points before and after its effect.
async fn charge(effects: Arc<AtomicUsize>) -> Result<Response<Body>, Infallible> {
    tokio::task::yield_now().await;
    effects.fetch_add(1, Ordering::SeqCst);
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    Ok(Response::builder().status(201).body(Body::from("paid")).unwrap())
}

/// Whatever the class, dropping the caller's future never makes the work run twice and never
/// leaves a key that a retry cannot have.
pub(crate) async fn a_request_dropped_at_any_poll_runs_once_at_most(keeper: Keeper) {
    for class in Class::ALL {
        let kept = keeper.keep();
        let engine = Engine::new(Arc::clone(&kept.store)).unwrap();
        let layer = layer(engine, Policy { class, ..Policy::default() }).build();
        let mut dropped = 0;
        for polls in 0.. {
            assert!(polls < 1_000, "the request never ends");
            let effects = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&effects);
            let service: Idempotency<_> = layer
                .layer(tower::service_fn(move |_: Request<Body>| charge(Arc::clone(&counted))));
            let key = format!("key-of-poll-{polls}");
            let sent = Box::pin(service.clone().oneshot(request(&key)));
            let ended = AbortAt { inner: Some(sent), polls }.await.is_some();
            dropped += usize::from(!ended);
            let again: Response<ResponseBody<Body>> = service.oneshot(request(&key)).await.unwrap();
            assert_eq!(again.status(), 201, "{class:?} after {polls} polls");
            assert_eq!(effects.load(Ordering::SeqCst), 1, "{class:?} after {polls} polls");
            if ended {
                assert_eq!(again.headers()["idempotent-replayed"], "true");
                break;
            }
        }
        assert!(dropped > 3, "a future that ends at once was never dropped");
    }
}
