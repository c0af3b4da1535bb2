//! The service: pass through, or tell the keyed story.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::body::ResponseBody;
use super::future::ResponseFuture;
use super::layer::{Admission, Config};
use super::status;
use super::visit::Visit;
use super::work::{Brought, Work};

/// A service that is safe to retry. Made by [`IdempotencyLayer`](super::IdempotencyLayer).
///
/// A request that no rule applies to reaches the inner service as it is, and its answer comes back
/// as it is. Everything else is read, claimed, run in a task of its own, recorded and answered.
#[derive(Clone, Debug)]
pub struct Idempotency<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> Idempotency<S> {
    pub(super) fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
    }
}

impl<S, B, RB> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<B>, Response = Response<RB>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    RB: Body<Data = Bytes> + Send + 'static,
    RB::Error: Send + 'static,
{
    type Response = Response<ResponseBody<RB>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, RB, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Without taking the request apart, which costs as much as the look at it.
        let admission = self.config.admit_by_headers(&request);
        if let Some(Admission::Pass) = admission {
            return ResponseFuture::pass(self.inner.call(request));
        }
        let (parts, body) = request.into_parts();
        match admission.unwrap_or_else(|| self.config.admit(&parts)) {
            Admission::Pass => {
                ResponseFuture::pass(self.inner.call(Request::from_parts(parts, body)))
            }
            Admission::Status => {
                let config = Arc::clone(&self.config);
                ResponseFuture::keyed(async move { Ok(status::answer(&config, &parts).await) })
            }
            Admission::Keyed(rule) => {
                // The one that said it is ready goes into the story; a clone may not be.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                let limits = rule.shared_policy().limits;
                let visit = Visit::new(Arc::clone(&self.config), rule, &parts);
                // In a box, because it is handed down through half a dozen futures.
                let body = Brought::Unread(body);
                let work = Box::new(Work { service: ready, parts, body, limits });
                ResponseFuture::keyed(visit.tell(work))
            }
        }
    }
}
