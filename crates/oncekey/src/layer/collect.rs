//! Reads bodies into memory, never more than a limit allows.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};

/// What came of reading a request body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// All of it.
    Whole(Bytes),
    /// More than the limit.
    TooLarge,
    /// It broke off, or could not be read.
    Broken,
}

/// What came of reading a response body.
pub(super) enum Collected<B: Body> {
    /// All of it.
    Whole { body: Bytes, trailers: Option<HeaderMap> },
    /// More than the limit: what was read, and what is still to come.
    TooLarge { prefix: VecDeque<Bytes>, rest: Pin<Box<B>> },
    /// It broke off.
    Cut { prefix: Bytes, error: B::Error },
}

/// Reads a request body of at most `limit` bytes.
///
/// Trailers are dropped: they are neither part of the fingerprint nor given to the service, so
/// nothing can act on them. The body is pinned by whoever reads it: a future that takes it and pins it
/// holds it twice, and the story of every keyed request would be too large for the allocator's quick
/// lists.
pub(super) async fn read<B: Body<Data = Bytes>>(mut body: Pin<&mut B>, limit: usize) -> Read {
    if exceeds(body.size_hint().lower(), limit) {
        return Read::TooLarge;
    }
    let mut gathered = Gathered::default();
    loop {
        match poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            None => return Read::Whole(gathered.into_bytes()),
            Some(Err(_)) => return Read::Broken,
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                if gathered.len().saturating_add(data.len()) > limit {
                    return Read::TooLarge;
                }
                gathered.push(data);
            }
        }
    }
}

/// Reads a response body, as long as it has at most `limit` bytes.
pub(super) async fn collect<B: Body<Data = Bytes>>(body: B, limit: usize) -> Collected<B> {
    let mut body = Box::pin(body);
    if exceeds(body.size_hint().lower(), limit) {
        return Collected::TooLarge { prefix: VecDeque::new(), rest: body };
    }
    let mut gathered = Gathered::default();
    let mut trailers = None;
    loop {
        match poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            None => return Collected::Whole { body: gathered.into_bytes(), trailers },
            Some(Err(error)) => return Collected::Cut { prefix: gathered.into_bytes(), error },
            Some(Ok(frame)) => match frame.into_data().map_err(Frame::into_trailers) {
                Ok(data) if gathered.len().saturating_add(data.len()) > limit => {
                    let prefix = [gathered.into_bytes(), data].into_iter().collect();
                    return Collected::TooLarge { prefix, rest: body };
                }
                Ok(data) if gathered.len() == 0 => gathered.push(apart(data)),
                Ok(data) => gathered.push(data),
                Err(Ok(found)) => trailers = Some(found),
                // A kind of frame that we do not know cannot be saved, and so not be replayed.
                Err(Err(_)) => {}
            },
        }
    }
}

/// Frames put together. A body of a single frame, which most are, is not copied; a body of a
/// million frames of one byte does not become a list of a million buffers.
#[derive(Default)]
struct Gathered {
    first: Bytes,
    all: BytesMut,
}

impl Gathered {
    fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    fn push(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        if self.len() == 0 {
            self.first = data;
            return;
        }
        self.all.extend_from_slice(&std::mem::take(&mut self.first));
        self.all.extend_from_slice(&data);
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}

/// Copying so much takes 10 microseconds, of the hundreds that recording it takes. The gateway's
/// connections have buffers of at most 256 KiB: what is larger keeps no more than four times its size.
const COPIED: usize = 64 * 1024;

/// The same bytes in memory of their own, if they are few.
///
/// What a connection gives is a piece of the buffer that it reads into. An answer is kept until it is
/// recorded, and in memory for a minute: for all that time it would keep 8 KiB or more, which nobody
/// counts, and the connection would need a new buffer for its next answer. Measured in the gateway:
/// 350 MB instead of 90 after 40 000 new keys, and a twentieth of the time for each.
fn apart(data: Bytes) -> Bytes {
    if data.len() > COPIED { data } else { Bytes::copy_from_slice(&data) }
}

fn exceeds(length: u64, limit: usize) -> bool {
    usize::try_from(length).map_or(true, |length| length > limit)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll};

    use http::HeaderValue;
    use http_body::SizeHint;

    use super::*;

    /// A body that gives these frames and says what was asked of it.
    struct Script {
        frames: VecDeque<Result<Frame<Bytes>, &'static str>>,
        declared: u64,
        polled: usize,
    }

    fn script(frames: Vec<Result<Frame<Bytes>, &'static str>>) -> Script {
        Script { frames: frames.into(), declared: 0, polled: 0 }
    }

    fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
        Ok(Frame::data(Bytes::from_static(text.as_bytes())))
    }

    impl Body for Script {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            self.polled += 1;
            Poll::Ready(self.frames.pop_front())
        }

        fn size_hint(&self) -> SizeHint {
            let mut hint = SizeHint::new();
            hint.set_lower(self.declared);
            hint
        }
    }

    #[tokio::test]
    async fn a_request_of_exactly_the_limit_is_read() {
        let frames = || vec![data("ab"), data(""), data("cd")];
        assert_eq!(read(pin!(script(frames())), 4).await, Read::Whole(Bytes::from_static(b"abcd")));
        assert_eq!(read(pin!(script(frames())), 3).await, Read::TooLarge);
        assert_eq!(read(pin!(script(vec![])), 0).await, Read::Whole(Bytes::new()));
    }

    #[tokio::test]
    async fn a_request_that_declares_too_much_is_not_read() {
        let declared = Script { declared: 5, ..script(vec![]) };
        assert_eq!(read(pin!(declared), 4).await, Read::TooLarge);
        let absurd = Script { declared: u64::MAX, ..script(vec![]) };
        assert_eq!(read(pin!(absurd), usize::MAX - 1).await, Read::TooLarge);
    }

    #[tokio::test]
    async fn a_request_that_breaks_off_is_broken() {
        assert_eq!(read(pin!(script(vec![data("ab"), Err("reset")])), 9).await, Read::Broken);
    }

    #[tokio::test]
    async fn request_trailers_are_dropped() {
        let frames = vec![data("ab"), Ok(Frame::trailers(HeaderMap::new()))];
        assert_eq!(read(pin!(script(frames)), 9).await, Read::Whole(Bytes::from_static(b"ab")));
    }

    #[tokio::test]
    async fn a_response_keeps_its_trailers() {
        let line = (http::header::ETAG, HeaderValue::from_static("e"));
        let sent = HeaderMap::from_iter([line]);
        let frames = vec![data("ab"), data("cd"), Ok(Frame::trailers(sent.clone()))];
        let Collected::Whole { body, trailers } = collect(script(frames), 4).await else {
            panic!("it is whole")
        };
        assert_eq!((&body[..], trailers), (&b"abcd"[..], Some(sent)));
    }

    /// I18: what was read of a large answer is not lost.
    #[tokio::test]
    async fn a_large_response_is_handed_back_with_its_beginning() {
        let frames = vec![data("ab"), data("cd"), data("ef")];
        let Collected::TooLarge { prefix, rest } = collect(script(frames), 3).await else {
            panic!("it is too large")
        };
        assert_eq!(prefix, [&b"ab"[..], b"cd"]);
        assert_eq!((rest.frames.len(), rest.polled), (1, 2));

        let declared = Script { declared: 4, ..script(vec![data("abcd")]) };
        let Collected::TooLarge { prefix, rest } = collect(declared, 3).await else {
            panic!("it is too large")
        };
        assert_eq!((prefix.len(), rest.polled), (0, 0), "it was not even begun");
    }

    /// I14: an answer that broke off is not an answer.
    #[tokio::test]
    async fn a_response_that_breaks_off_is_cut() {
        let frames = vec![data("ab"), data("cd"), Err("reset")];
        let Collected::Cut { prefix, error } = collect(script(frames), 9).await else {
            panic!("it is cut")
        };
        assert_eq!((&prefix[..], error), (&b"abcd"[..], "reset"));
    }

    #[test]
    fn a_single_frame_is_not_copied() {
        let only = Bytes::from(vec![1; 100]);
        let mut gathered = Gathered::default();
        gathered.push(only.clone());
        gathered.push(Bytes::new());
        assert_eq!(gathered.into_bytes().as_ptr(), only.as_ptr());
    }

    /// An answer that is kept does not keep the buffer of the connection that it came over.
    #[tokio::test]
    async fn a_small_answer_does_not_keep_the_buffer_that_it_came_in() {
        let buffer = Bytes::from(vec![7; 8_192]);
        let frames = vec![Ok(Frame::data(buffer.slice(100..130)))];
        let Collected::Whole { body, .. } = collect(script(frames), 100).await else {
            panic!("it is small enough");
        };
        assert_eq!(body, [7; 30][..]);
        assert!(buffer.is_unique());
    }
}
