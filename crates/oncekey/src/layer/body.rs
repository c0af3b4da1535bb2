//! The bodies that leave the layer, towards the service and towards the client.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// A request body that may have been read already: what a service behind the layer gets if its
    /// server's own body cannot be made from bytes.
    ///
    /// axum's `Body` can, and so can `Full<Bytes>`; they need nothing. hyper's `Incoming` cannot:
    /// wrap it with [`RequestBody::new`] in front of the layer.
    pub struct RequestBody<B> {
        #[pin]
        kind: RequestKind<B>,
    }
}

pin_project! {
    #[project = RequestProjection]
    enum RequestKind<B> {
        Inner { #[pin] body: B },
        Whole { body: Bytes },
    }
}

pin_project! {
    /// A response body: the service's own, a saved one, or the beginning of the service's own that
    /// was read in the hope that it could be kept, and the rest of it.
    pub struct ResponseBody<B: Body> {
        #[pin]
        kind: ResponseKind<B>,
    }
}

pin_project! {
    #[project = ResponseProjection]
    enum ResponseKind<B: Body> {
        Inner { #[pin] body: B },
        Whole { body: Bytes, trailers: Option<Box<HeaderMap>> },
        Prefixed { prefix: VecDeque<Bytes>, rest: Pin<Box<B>> },
        // An answer that broke off: its client has to see that, as it would have without us.
        Cut { prefix: Bytes, error: Option<B::Error> },
    }
}

impl<B> RequestBody<B> {
    /// A body that has yet to be read.
    #[must_use]
    pub fn new(body: B) -> Self {
        Self { kind: RequestKind::Inner { body } }
    }
}

impl<B> From<Bytes> for RequestBody<B> {
    fn from(body: Bytes) -> Self {
        Self { kind: RequestKind::Whole { body } }
    }
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            RequestProjection::Inner { body } => body.poll_frame(cx),
            RequestProjection::Whole { body } => Poll::Ready(take(body).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            RequestKind::Inner { body } => body.is_end_stream(),
            RequestKind::Whole { body } => body.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            RequestKind::Inner { body } => body.size_hint(),
            RequestKind::Whole { body } => SizeHint::with_exact(body.len() as u64),
        }
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            RequestKind::Inner { .. } => out.write_str("RequestBody::Inner"),
            RequestKind::Whole { body } => write!(out, "RequestBody::Whole({} bytes)", body.len()),
        }
    }
}

impl<B: Body> ResponseBody<B> {
    /// A body as a service made it.
    #[must_use]
    pub fn new(body: B) -> Self {
        Self { kind: ResponseKind::Inner { body } }
    }

    pub(super) fn whole(body: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { kind: ResponseKind::Whole { body, trailers: trailers.map(Box::new) } }
    }

    pub(super) fn prefixed(prefix: VecDeque<Bytes>, rest: Pin<Box<B>>) -> Self {
        Self { kind: ResponseKind::Prefixed { prefix, rest } }
    }

    pub(super) fn cut(prefix: Bytes, error: B::Error) -> Self {
        Self { kind: ResponseKind::Cut { prefix, error: Some(error) } }
    }

    /// Whether the answer broke off.
    pub(super) fn is_cut(&self) -> bool {
        matches!(self.kind, ResponseKind::Cut { .. })
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            ResponseProjection::Inner { body } => body.poll_frame(cx),
            ResponseProjection::Whole { body, trailers } => {
                let trailers = || trailers.take().map(|trailers| Frame::trailers(*trailers));
                Poll::Ready(take(body).or_else(trailers).map(Ok))
            }
            ResponseProjection::Prefixed { prefix, rest } => match prefix.pop_front() {
                Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
                None => rest.as_mut().poll_frame(cx),
            },
            ResponseProjection::Cut { prefix, error } => match take(prefix) {
                Some(frame) => Poll::Ready(Some(Ok(frame))),
                None => Poll::Ready(error.take().map(Err)),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            ResponseKind::Inner { body } => body.is_end_stream(),
            ResponseKind::Whole { body, trailers } => body.is_empty() && trailers.is_none(),
            ResponseKind::Prefixed { prefix, rest } => prefix.is_empty() && rest.is_end_stream(),
            ResponseKind::Cut { prefix, error } => prefix.is_empty() && error.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            ResponseKind::Inner { body } => body.size_hint(),
            ResponseKind::Whole { body, trailers: None } => SizeHint::with_exact(body.len() as u64),
            // A server that knows the length writes `Content-Length`, and then has no place for
            // trailers in HTTP/1.1.
            ResponseKind::Whole { body, trailers: Some(_) } => at_least(body.len()),
            ResponseKind::Prefixed { prefix, rest } => {
                let read: u64 = prefix.iter().map(|data| data.len() as u64).sum();
                let rest = rest.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower().saturating_add(read));
                if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
                    hint.set_upper(upper);
                }
                hint
            }
            ResponseKind::Cut { prefix, .. } => at_least(prefix.len()),
        }
    }
}

impl<B: Body> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match &self.kind {
            ResponseKind::Inner { .. } => "ResponseBody::Inner",
            ResponseKind::Whole { .. } => "ResponseBody::Whole",
            ResponseKind::Prefixed { .. } => "ResponseBody::Prefixed",
            ResponseKind::Cut { .. } => "ResponseBody::Cut",
        })
    }
}

/// All of `body` as one frame, once.
fn take(body: &mut Bytes) -> Option<Frame<Bytes>> {
    (!body.is_empty()).then(|| Frame::data(std::mem::take(body)))
}

fn at_least(length: usize) -> SizeHint {
    let mut hint = SizeHint::new();
    hint.set_lower(length as u64);
    hint
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::HeaderValue;
    use http_body_util::combinators::MapErr;
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    type Plain = ResponseBody<Full<Bytes>>;
    type Failing = MapErr<Full<Bytes>, fn(Infallible) -> &'static str>;

    fn frames<B: Body<Data = Bytes> + Unpin>(mut body: B) -> Vec<Result<Frame<Bytes>, B::Error>> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut frames = Vec::new();
        loop {
            let before = (body.is_end_stream(), body.size_hint());
            match Pin::new(&mut body).poll_frame(&mut cx) {
                Poll::Ready(Some(frame)) => {
                    assert!(!before.0, "a body at its end has a frame");
                    frames.push(frame);
                }
                Poll::Ready(None) => return frames,
                Poll::Pending => unreachable!("nothing here waits"),
            }
        }
    }

    fn text<B: Body<Data = Bytes, Error: fmt::Debug> + Unpin>(body: B) -> String {
        let data = frames(body).into_iter().filter_map(|frame| frame.unwrap().into_data().ok());
        data.map(|data| String::from_utf8(data.to_vec()).unwrap()).collect()
    }

    #[test]
    fn a_whole_body_has_its_exact_length_and_comes_once() {
        let body = Plain::whole(Bytes::from_static(b"abc"), None);
        assert_eq!(body.size_hint().exact(), Some(3));
        assert_eq!(text(body), "abc");
        assert!(Plain::whole(Bytes::new(), None).is_end_stream());
        let body = RequestBody::<Full<Bytes>>::from(Bytes::from_static(b"abc"));
        assert_eq!((body.size_hint().exact(), text(body)), (Some(3), "abc".into()));
    }

    /// I42: trailers need a body without a declared length.
    #[test]
    fn a_whole_body_with_trailers_declares_no_length() {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("e"))]);
        let body = Plain::whole(Bytes::from_static(b"abc"), Some(trailers.clone()));
        assert_eq!((body.size_hint().lower(), body.size_hint().exact()), (3, None));
        let frames: Vec<_> = frames(body).into_iter().map(Result::unwrap).collect();
        assert_eq!(frames[0].data_ref().unwrap(), "abc");
        assert_eq!(frames[1].trailers_ref().unwrap(), &trailers);
        assert_eq!(frames.len(), 2);
    }

    #[test]
    fn a_prefixed_body_is_the_prefix_and_then_the_rest() {
        let prefix = VecDeque::from([Bytes::from_static(b"ab"), Bytes::from_static(b"cd")]);
        let rest = Box::pin(Full::new(Bytes::from_static(b"ef")));
        let body = Plain::prefixed(prefix, rest);
        assert_eq!(body.size_hint().exact(), Some(6));
        assert_eq!(text(body), "abcdef");
    }

    /// I14: a client sees that an answer broke off.
    #[test]
    fn a_cut_body_ends_with_its_error() {
        let body = ResponseBody::<Failing>::cut(Bytes::from_static(b"ab"), "reset");
        assert_eq!(body.size_hint().exact(), None);
        let frames = frames(body);
        assert_eq!(frames[0].as_ref().unwrap().data_ref().unwrap(), "ab");
        assert_eq!(frames[1].as_ref().unwrap_err(), &"reset");
        assert_eq!(frames.len(), 2);
    }

    #[tokio::test]
    async fn the_services_own_body_is_untouched() {
        let body = Plain::new(Full::new(Bytes::from_static(b"abc")));
        assert_eq!(body.size_hint().exact(), Some(3));
        let collected: Result<_, Infallible> = body.collect().await;
        assert_eq!(collected.unwrap().to_bytes(), "abc");
    }

    #[test]
    fn debug_output_hides_bodies() {
        let whole = Bytes::from_static(b"canary");
        let request = RequestBody::<Full<Bytes>>::from(whole.clone());
        let shown = format!("{request:?} {:?}", Plain::whole(whole, None));
        assert!(!shown.contains("canary"), "{shown}");
    }
}
