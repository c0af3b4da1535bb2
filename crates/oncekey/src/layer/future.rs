//! The future of a response.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use super::body::ResponseBody;

type Boxed<B, E> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<B>>, E>> + Send>>;

pin_project! {
    /// The service's own future for a request that passes through, or the story of a keyed one.
    ///
    /// Only the latter is boxed: most requests of most services carry no key.
    pub struct ResponseFuture<F, B: Body, E> {
        #[pin]
        kind: Kind<F, B, E>,
    }
}

pin_project! {
    #[project = Projection]
    enum Kind<F, B: Body, E> {
        Pass { #[pin] future: F },
        Keyed { future: Boxed<B, E> },
    }
}

impl<F, B: Body, E> ResponseFuture<F, B, E> {
    pub(super) fn pass(future: F) -> Self {
        Self { kind: Kind::Pass { future } }
    }

    pub(super) fn keyed(
        future: impl Future<Output = Result<Response<ResponseBody<B>>, E>> + Send + 'static,
    ) -> Self {
        Self { kind: Kind::Keyed { future: Box::pin(future) } }
    }
}

impl<F, B, E> Future for ResponseFuture<F, B, E>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            Projection::Pass { future } => {
                let response = ready!(future.poll(cx));
                Poll::Ready(response.map(|response| response.map(ResponseBody::new)))
            }
            Projection::Keyed { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, B: Body, E> fmt::Debug for ResponseFuture<F, B, E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.kind {
            Kind::Pass { .. } => "ResponseFuture::Pass",
            Kind::Keyed { .. } => "ResponseFuture::Keyed",
        })
    }
}
