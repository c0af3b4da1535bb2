//! A response body that says when it has been handed over, or that it never was.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// A body, and whoever wants to know its end.
    pub(crate) struct Watched<B: Body> {
        #[pin]
        body: B,
        end: Option<End>,
        delivered: Delivered,
        break_off: Option<B::Error>,
    }

    impl<B: Body> PinnedDrop for Watched<B> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(end) = this.end.take() {
                end(*this.delivered);
            }
        }
    }
}

/// Is told how it ended, once.
pub(crate) type End = Box<dyn FnOnce(Delivered) + Send + Sync>;

/// Whether a client got its answer, as far as we can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// All of it was handed to its connection.
    Whole,
    /// The client left, or the answer broke off.
    Partly,
}

impl<B: Body> Watched<B> {
    /// A body whose end nobody waits for.
    pub(crate) fn unwatched(body: B) -> Self {
        Self { body, end: None, delivered: Delivered::Partly, break_off: None }
    }

    /// A body whose end is told to `end`, even if the body is dropped before.
    pub(crate) fn new(body: B, end: End) -> Self {
        let delivered = if body.is_end_stream() { Delivered::Whole } else { Delivered::Partly };
        Self { body, end: Some(end), delivered, break_off: None }
    }
}

impl<B: Body<Data = Bytes>> Body for Watched<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        if let Some(error) = this.break_off.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let polled = this.body.as_mut().poll_frame(cx);
        if this.end.is_some() {
            match &polled {
                Poll::Ready(None) => *this.delivered = Delivered::Whole,
                Poll::Ready(Some(Ok(_))) if this.body.is_end_stream() => {
                    *this.delivered = Delivered::Whole;
                }
                Poll::Ready(Some(_)) | Poll::Pending => {}
            }
        }
        if let Poll::Ready(Some(Err(error))) = polled {
            // hyper throws away what it has not written yet when a body fails. So it is given the
            // time to write: the client has to see how far the answer came, and that it broke off.
            *this.break_off = Some(error);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::{BodyExt as _, Full};

    use super::*;

    fn watched(body: &'static str) -> (Watched<Full<Bytes>>, Arc<Mutex<Vec<Delivered>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let teller = Arc::clone(&told);
        let end: End = Box::new(move |delivered| teller.lock().unwrap().push(delivered));
        (Watched::new(Full::from(body), end), told)
    }

    #[tokio::test]
    async fn a_body_that_is_read_to_its_end_is_delivered() {
        let (body, told) = watched("hello");
        assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
        assert_eq!(*told.lock().unwrap(), [Delivered::Whole]);
    }

    #[test]
    fn a_body_that_is_dropped_before_is_not() {
        let (body, told) = watched("hello");
        drop(body);
        assert_eq!(*told.lock().unwrap(), [Delivered::Partly]);
    }

    #[test]
    fn an_empty_body_is_delivered_with_its_head() {
        let (body, told) = watched("");
        drop(body);
        assert_eq!(*told.lock().unwrap(), [Delivered::Whole]);
    }
}
