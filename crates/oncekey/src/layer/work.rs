//! The work: the service behind the layer, called once, and what its answer counts as.
//!
//! This runs in a task of the engine, not in the client's: a client that hangs up stops nothing
//! here.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::response::Parts as Head;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use oncekey_core::policy::{Fit, Limits};
use tower_service::Service;

use super::body::ResponseBody;
use super::collect::{Collected, collect};
use super::context::IdempotencyContext;
use super::headers;
use super::replay;
use super::undelivered::Undelivered;
use crate::engine::{Attempt, Finish, NoSend};
use crate::problem::{Executed, Problem};

/// Where the trace of a request stands (W3C Trace Context). A name that is known needs no look at
/// its letters.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A service and the request for it.
pub(super) struct Work<S, B> {
    pub(super) service: S,
    pub(super) parts: Parts,
    pub(super) body: Brought<B>,
    pub(super) limits: Limits,
}

/// The body that a client sent.
pub(super) enum Brought<B> {
    /// As it comes over the wire.
    Unread(B),
    /// The whole of it.
    Read(Bytes),
}

/// What the caller that ran the work gets.
pub(super) enum Ended<B: Body, E> {
    /// The service's answer, cookies and all. In a box, because it is handed up through half a dozen
    /// futures, and each would copy it.
    Answer(Box<Response<ResponseBody<B>>>),
    /// The service's error.
    Failed(E),
    /// The attempt lost its right to act before the service was called.
    NotBegun(NoSend, Earlier),
}

/// Whether an attempt before this one may have done the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// Nobody was at it.
    None,
    /// So "nothing was executed" would be a guess, though this attempt did nothing.
    MayHaveActed,
}

/// What a look at the head of an answer says.
enum Judged<B: Body, E> {
    /// It cannot be kept.
    Ended(Finish<Ended<B, E>>),
    /// It can, if its body is whole and not too large.
    Whole(Head, B),
}

/// What of the request is needed when the answer is there.
struct Asked {
    method: Method,
    traceparent: Option<HeaderValue>,
    limits: Limits,
    earlier: Earlier,
}

impl<S, B> Work<S, B> {
    /// Calls the service, unless the attempt may not act any more.
    pub(super) async fn run<RB>(
        mut self: Box<Self>,
        attempt: Attempt,
    ) -> Finish<Ended<RB, S::Error>>
    where
        S: Service<Request<B>, Response = Response<RB>>,
        B: From<Bytes>,
        RB: Body<Data = Bytes>,
    {
        let earlier = match attempt.is_retry() {
            true => Earlier::MayHaveActed,
            false => Earlier::None,
        };
        if let Err(why) = attempt.send().await {
            return Finish::never_sent(Ended::NotBegun(why, earlier));
        }
        let asked = Asked {
            method: self.parts.method.clone(),
            traceparent: self.parts.headers.get(TRACEPARENT).cloned(),
            limits: self.limits,
            earlier,
        };
        self.parts.extensions.insert(IdempotencyContext::new(attempt));
        let (head, body) = match self.call_service().await {
            Ok(response) => match asked.judge(response) {
                Judged::Ended(finish) => return finish,
                Judged::Whole(head, body) => (head, body),
            },
            // The service may have done something before it failed.
            Err(error) => return Finish::no_answer(Ended::Failed(error)),
        };
        let collected = collect(body, asked.limits.saved_body).await;
        asked.judge_body(head, collected)
    }

    /// Calls the service with what was sent.
    pub(super) fn call_service<RB>(self) -> S::Future
    where
        S: Service<Request<B>, Response = Response<RB>>,
        B: From<Bytes>,
    {
        // The service is one of many clones, and may hold a permit that others wait for: it is gone
        // before anybody waits for the answer.
        let Self { mut service, parts, body, .. } = self;
        let body = match body {
            Brought::Unread(body) => body,
            Brought::Read(body) => B::from(body),
        };
        service.call(Request::from_parts(parts, body))
    }
}

impl<B: Body, E> Ended<B, E> {
    fn answer(response: Response<ResponseBody<B>>) -> Self {
        Self::Answer(Box::new(response))
    }
}

impl Earlier {
    /// Makes a problem that is told of one attempt true of the operation.
    pub(super) fn correct(self, problem: &mut Problem) {
        if self == Self::MayHaveActed && problem.executed == Executed::No {
            problem.executed = Executed::Unknown;
            problem.detail =
                "This attempt did not reach the service, but an earlier one with the same \
                              key may have been executed."
                    .into();
            problem.hint = Some("Retry with the same key. Do not create a new one.");
        }
    }
}

impl Asked {
    /// What an answer counts as. The caller gets the whole of it in any case.
    fn judge<B: Body, E>(&self, mut response: Response<B>) -> Judged<B, E> {
        let undelivered = Undelivered::of(response.extensions());
        if undelivered == Some(Undelivered::NeverSent)
            && let Some(problem) = response.extensions_mut().get_mut::<Problem>()
        {
            self.earlier.correct(problem);
        }
        let status = response.status();
        let untouched = |response: Response<B>| Ended::answer(response.map(ResponseBody::new));
        let connected = self.method == Method::CONNECT && status.is_success();
        Judged::Ended(match undelivered {
            Some(Undelivered::NeverSent) => Finish::never_sent(untouched(response)),
            Some(Undelivered::NoAnswer) => Finish::no_answer(untouched(response)),
            None if status == StatusCode::SWITCHING_PROTOCOLS || connected => {
                Finish::not_kept(status.as_u16(), Fit::Upgraded, untouched(response))
            }
            // Another oncekey stands behind us, and its work broke (I20): we know no more than it does. What
            // else it refuses has a status by which it is judged, because a service may as well pass on
            // what a third one refused to it, after it has acted itself.
            None if status.is_server_error() && headers::is_in_doubt(response.headers()) => {
                Finish::no_answer(untouched(response))
            }
            // No server can send it as an answer, so there is none.
            None if status.is_informational() => Finish::no_answer(untouched(response)),
            None if is_stream(response.headers()) => {
                Finish::not_kept(status.as_u16(), Fit::Streamed, untouched(response))
            }
            None => {
                let (head, body) = response.into_parts();
                return Judged::Whole(head, body);
            }
        })
    }

    fn judge_body<B, E>(&self, mut head: Head, collected: Collected<B>) -> Finish<Ended<B, E>>
    where
        B: Body<Data = Bytes>,
    {
        let status = head.status.as_u16();
        match collected {
            Collected::TooLarge { prefix, rest } => {
                let body = ResponseBody::prefixed(prefix, rest);
                let value = Ended::answer(Response::from_parts(head, body));
                Finish::not_kept(status, Fit::TooLarge, value)
            }
            Collected::Cut { prefix, error } => {
                let body = ResponseBody::cut(prefix, error);
                Finish::no_answer(Ended::answer(Response::from_parts(head, body)))
            }
            Collected::Whole { mut body, trailers } => {
                if !replay::has_body(head.status) && !body.is_empty() {
                    // No server would send it. Without it, first answer and replay are the same.
                    body = Bytes::new();
                    head.headers.remove(CONTENT_LENGTH);
                }
                let whole = is_whole(&head, body.len());
                let saved =
                    replay::save(&head, body.clone(), trailers.as_ref(), self.traceparent.as_ref());
                let body = ResponseBody::whole(body, trailers);
                let value = Ended::answer(Response::from_parts(head, body));
                match saved {
                    _ if !whole => Finish::no_answer(value),
                    Ok(saved) if saved.headers.encoded_len() <= self.limits.saved_headers => {
                        Finish::answered(saved, value)
                    }
                    Ok(_) | Err(_) => Finish::not_kept(status, Fit::TooLarge, value),
                }
            }
        }
    }
}

/// Whether a body is as long as its head says. A shorter one was cut somewhere on its way here.
fn is_whole(head: &Head, length: usize) -> bool {
    if !replay::has_body(head.status) {
        return true;
    }
    let declared = head.headers.get_all(CONTENT_LENGTH);
    let number = |line: &HeaderValue| line.to_str().ok().and_then(|text| text.parse().ok());
    declared.iter().all(|line| number(line) == Some(length))
}

/// Whether an answer is a stream without an end in sight. Waiting for its end would hold it back
/// from its client, so it is passed on as it comes, and never kept.
#[must_use]
pub fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        let essence = essence.trim_ascii();
        essence.eq_ignore_ascii_case(b"text/event-stream")
            || essence.eq_ignore_ascii_case(b"multipart/x-mixed-replace")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, lines: &[(&str, &str)]) -> http::response::Parts {
        let mut response = Response::builder().status(status);
        for (name, value) in lines {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap().into_parts().0
    }

    #[test]
    fn event_streams_are_streams_whatever_their_spelling() {
        for (value, stream) in [
            ("text/event-stream", true),
            ("Text/Event-Stream ; charset=utf-8", true),
            ("multipart/x-mixed-replace; boundary=frame", true),
            ("text/event-streams", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(
                is_stream(&head(200, &[("content-type", value)]).headers),
                stream,
                "{value}"
            );
        }
        assert!(!is_stream(&HeaderMap::new()));
    }

    /// I14: a body that is shorter or longer than declared is not whole.
    #[test]
    fn a_body_of_another_length_than_declared_is_not_whole() {
        for (lines, whole) in [
            (&[][..], true),
            (&[("content-length", "3")], true),
            (&[("content-length", "4")], false),
            (&[("content-length", "2")], false),
            (&[("content-length", "three")], false),
            (&[("content-length", "3"), ("content-length", "4")], false),
        ] {
            assert_eq!(is_whole(&head(200, lines), 3), whole, "{lines:?}");
        }
        assert!(
            is_whole(&head(304, &[("content-length", "9")]), 0),
            "the length of another answer"
        );
    }
}
