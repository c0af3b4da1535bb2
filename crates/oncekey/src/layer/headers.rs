//! What the layer writes into responses.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, Entry, LINK,
    RETRY_AFTER,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};
use http_body::Body;
use oncekey_core::Key;

use super::body::ResponseBody;
use super::outcome::Outcome;
use super::rule::Rule;
use crate::engine::{Recorded, RequestId};
use crate::problem::{self, Executed, Problem, Retryable};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_POLICY: HeaderName = HeaderName::from_static("idempotency-policy");
const IDEMPOTENCY_STATUS: HeaderName = HeaderName::from_static("idempotency-status");
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const ORIGINAL_REQUEST: HeaderName = HeaderName::from_static("original-request");
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// What a browser's script may read, if it may read anything: the value of
/// `Access-Control-Expose-Headers`.
pub const EXPOSED_HEADERS: &str = "Idempotency-Key, Idempotency-Policy, Idempotency-Redacted, \
     Idempotency-Status, Idempotent-Replayed, Link, Original-Request, Request-Id, Retry-After";

/// Who speaks in `Idempotency-Status`.
const SPEAKER: &str = "oncekey; ";

/// How many lines a mark adds at most, and the length of the body.
pub(super) const MARKS: usize = 8;

/// What a response is marked with.
#[derive(Clone, Copy)]
pub(super) struct Mark<'a> {
    /// The key, if the request has one.
    pub(super) key: Option<&'a Key>,
    /// The id of this request.
    pub(super) request: &'a RequestId,
    /// The id of the request whose answer this is, if somebody knows it.
    pub(super) original: Option<&'a str>,
    /// The rule of the route; a status URL has none.
    pub(super) rule: Option<&'a Rule>,
}

/// The value of `Idempotency-Status`: who speaks, what happened, and the particulars, in the
/// shape of `Cache-Status` (RFC 9211).
pub(super) struct Status {
    outcome: Outcome,
    said: Said,
}

/// What a status says.
enum Said {
    /// Words that are put together for one response.
    Anew(String),
    /// What most responses of a rule say.
    Before(HeaderValue),
}

/// Whether another oncekey says that nobody knows what became of the request, and that a retry does not help.
pub(super) fn is_in_doubt(headers: &HeaderMap) -> bool {
    let status = headers.get(IDEMPOTENCY_STATUS).and_then(|status| status.to_str().ok());
    status.is_some_and(|status| {
        status.starts_with(SPEAKER) && status.ends_with("; executed=unknown; retry=?0")
    })
}

impl Status {
    pub(super) fn new(outcome: Outcome) -> Self {
        // Long enough for every status, so that it grows once.
        let mut text = String::with_capacity(64);
        text.push_str(SPEAKER);
        text.push_str(outcome.word());
        Self { outcome, said: Said::Anew(text) }
    }

    /// A status that was put together before, for another response.
    pub(super) fn known(outcome: Outcome, value: HeaderValue) -> Self {
        Self { outcome, said: Said::Before(value) }
    }

    /// The work ran in this request, and this became of its answer.
    pub(super) fn ran(outcome: Outcome, recorded: Recorded, retention: Duration) -> Self {
        let status = Self::new(outcome);
        match recorded {
            Recorded::Kept => status.with_seconds("ttl", retention),
            Recorded::Tombstone(_)
            | Recorded::Released
            | Recorded::Unknown
            | Recorded::Journalled
            | Recorded::Fenced
            | Recorded::Unrecorded
            | Recorded::Unprotected => status.with("recorded", recorded.label()),
        }
    }

    /// The answer is another request's.
    pub(super) fn replayed(outcome: Outcome, age: Duration, ttl: Duration) -> Self {
        Self::new(outcome).with_seconds("age", age).with_seconds("ttl", ttl)
    }

    /// There is no answer.
    pub(super) fn problem(outcome: Outcome, problem: &Problem) -> Self {
        let Problem { executed, retryable, .. } = problem;
        Self::without(outcome, *executed, *retryable)
    }

    /// There is no answer, or not yet.
    pub(super) fn without(outcome: Outcome, executed: Executed, retryable: Retryable) -> Self {
        let retry = match retryable {
            Retryable::Yes => "?1",
            Retryable::No => "?0",
        };
        Self::new(outcome).with("executed", executed.label()).with("retry", retry)
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        if let Said::Anew(text) = &mut self.said {
            for part in ["; ", name, "=", value] {
                text.push_str(part);
            }
        }
        self
    }

    fn with_seconds(self, name: &str, time: Duration) -> Self {
        // The digits by hand: every replay has two such numbers, and going through a formatter took
        // a twentieth of its time.
        let (mut digits, mut left) = ([b'0'; 20], time.as_secs());
        let mut first = digits.len() - 1;
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + u8::try_from(left % 10).unwrap_or(0);
            left /= 10;
            first = place;
            if left == 0 {
                break;
            }
        }
        self.with(name, std::str::from_utf8(&digits[first..]).expect("digits"))
    }

    pub(super) fn value(self) -> HeaderValue {
        match self.said {
            // Copied, because a buffer with room to spare would need one more allocation.
            Said::Anew(text) => {
                HeaderValue::try_from(text.as_str()).expect("words and numbers of ours")
            }
            Said::Before(value) => value,
        }
    }
}

/// Marks a response.
pub(super) fn mark(headers: &mut HeaderMap, mark: &Mark<'_>, status: Status) {
    headers.reserve(MARKS);
    if let Some(key) = mark.key {
        headers.insert(IDEMPOTENCY_KEY, printable(key.to_field_value()));
    }
    match status.outcome {
        Outcome::Replayed | Outcome::Coalesced => {
            headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        }
        Outcome::Executed
        | Outcome::InProgress
        | Outcome::Mismatch
        | Outcome::MissingKey
        | Outcome::InvalidKey
        | Outcome::InvalidRequest
        | Outcome::Unknown
        | Outcome::NotRetained
        | Outcome::Bypassed
        | Outcome::Unprotected
        | Outcome::StoreUnavailable
        | Outcome::NotDelivered => {}
    }
    // An id that comes from a store is checked like everything that does.
    if let Some(original) = mark.original.and_then(|id| HeaderValue::try_from(id).ok()) {
        headers.insert(ORIGINAL_REQUEST, original);
    }
    if let Entry::Vacant(place) = headers.entry(REQUEST_ID) {
        let id = HeaderValue::try_from(mark.request.as_str());
        place.insert(id.expect("printable ASCII is a field value"));
    }
    headers.insert(IDEMPOTENCY_STATUS, status.value());
    if let Some(rule) = mark.rule {
        headers.insert(IDEMPOTENCY_POLICY, rule.policy_field());
    }
    // Where there is none, nobody decided that scripts of other origins may read headers here.
    if headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS) {
        let ours = HeaderValue::from_static(EXPOSED_HEADERS);
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, ours);
    }
}

/// The response that a problem document makes, yet to be marked.
pub(super) fn problem<B: Body>(problem: &Problem, base: &str) -> Response<ResponseBody<B>> {
    let mut response = json(StatusCode::INTERNAL_SERVER_ERROR, problem.to_json(base));
    if let Ok(status) = StatusCode::from_u16(problem.status) {
        *response.status_mut() = status;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(problem::MEDIA_TYPE));
    // The base was checked when the layer was built, and codes are words of ours.
    let link = format!("<{}>; rel=\"describedby\"", problem.code.type_uri(base));
    headers.insert(LINK, printable(link));
    if let Some(seconds) = problem.retry_after_seconds() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A small JSON response that nobody may keep.
pub(super) fn json<B: Body>(status: StatusCode, document: Vec<u8>) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::whole(Bytes::from(document), None));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Closes a connection whose request was not read to its end. Later versions of HTTP end the
/// stream instead, and forbid the field.
pub(super) fn close(headers: &mut HeaderMap, version: Version) {
    if version <= Version::HTTP_11 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

fn printable(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("printable ASCII is a field value")
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use oncekey_core::Timestamp;
    use oncekey_core::saved::NotKept;

    use super::*;
    use crate::engine::{Refused, Unavailable};
    use crate::entropy::SystemEntropy;
    use crate::problem::DEFAULT_BASE;

    fn marked(mut headers: HeaderMap, original: Option<&str>, status: Status) -> HeaderMap {
        let key = Key::new(b"a \"quoted\" key").unwrap();
        let request = RequestId::new(Timestamp::default(), &SystemEntropy::default());
        let rule = Rule::new("r").required();
        let with = Mark { key: Some(&key), request: &request, original, rule: Some(&rule) };
        mark(&mut headers, &with, status);
        headers
    }

    #[test]
    fn a_replay_says_what_it_is_and_whose() {
        let seconds = Duration::from_secs;
        let status = Status::replayed(Outcome::Replayed, seconds(188), seconds(86_212));
        let headers = marked(HeaderMap::new(), Some("req_1"), status);
        assert_eq!(headers["idempotency-key"], r#""a \"quoted\" key""#);
        assert_eq!(headers["idempotent-replayed"], "true");
        assert_eq!(headers["original-request"], "req_1");
        assert!(headers["request-id"].to_str().unwrap().starts_with("req_"));
        assert_eq!(headers["idempotency-status"], "oncekey; replayed; age=188; ttl=86212");
        assert_eq!(headers["idempotency-policy"], "required; ttl=86400");
    }

    #[test]
    fn a_number_of_seconds_is_written_as_it_is() {
        for seconds in [0, 1, 9, 10, 19, 100, 86_400, 7_776_000, u64::MAX] {
            let time = Duration::from_secs(seconds);
            let status = Status::new(Outcome::Replayed).with_seconds("age", time);
            assert_eq!(status.value(), format!("oncekey; replayed; age={seconds}").as_str());
        }
    }

    /// I13: whoever gets an answer that is not kept is told so.
    #[test]
    fn a_first_answer_says_if_it_is_not_kept() {
        let day = Duration::from_secs(86_400);
        for (recorded, expected) in [
            (Recorded::Kept, "oncekey; executed; ttl=86400"),
            (Recorded::Released, "oncekey; executed; recorded=released"),
            (Recorded::Tombstone(NotKept::Streamed), "oncekey; executed; recorded=tombstone"),
            (Recorded::Unknown, "oncekey; executed; recorded=unknown"),
            (Recorded::Journalled, "oncekey; executed; recorded=journalled"),
            (Recorded::Fenced, "oncekey; executed; recorded=fenced"),
            (Recorded::Unrecorded, "oncekey; executed; recorded=unrecorded"),
        ] {
            let headers =
                marked(HeaderMap::new(), None, Status::ran(Outcome::Executed, recorded, day));
            assert_eq!(headers["idempotency-status"], expected);
            assert!(!headers.contains_key("idempotent-replayed"));
        }
    }

    #[test]
    fn the_services_own_request_id_is_left_alone() {
        let mut headers = HeaderMap::new();
        headers.insert("request-id", HeaderValue::from_static("theirs"));
        let headers = marked(headers, Some("bad\nid"), Status::new(Outcome::Executed));
        assert_eq!(headers["request-id"], "theirs");
        assert!(!headers.contains_key("original-request"), "a damaged id is not sent");
    }

    #[test]
    fn browsers_are_told_about_our_headers_if_they_are_told_anything() {
        let plain = marked(HeaderMap::new(), None, Status::new(Outcome::Executed));
        assert!(!plain.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS));
        let mut headers = HeaderMap::new();
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("etag"));
        let headers = marked(headers, None, Status::new(Outcome::Executed));
        let lines: Vec<_> = headers.get_all(ACCESS_CONTROL_EXPOSE_HEADERS).iter().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], "etag");
        assert!(lines[1].to_str().unwrap().contains("Idempotency-Status"));
    }

    #[test]
    fn a_problem_links_to_its_explanation_and_says_when_to_come_back() {
        let refused = Refused::Unavailable {
            why: Unavailable::Store,
            retry_after: Duration::from_millis(1_200),
        };
        let document = Problem::from(&refused);
        let response = problem::<Full<Bytes>>(&document, DEFAULT_BASE);
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        let link =
            "<https://oncekey.dev/problems#idempotency_store_unavailable>; rel=\"describedby\"";
        assert_eq!(response.headers()[LINK], link);
        let status = Status::problem(Outcome::StoreUnavailable, &document);
        assert_eq!(status.value(), "oncekey; unavailable; executed=no; retry=?1");
    }

    /// I38: a connection whose request was not read is closed, where there is a field for that.
    #[test]
    fn only_http_1_connections_are_closed_by_a_field() {
        for (version, closes) in [
            (Version::HTTP_10, true),
            (Version::HTTP_11, true),
            (Version::HTTP_2, false),
            (Version::HTTP_3, false),
        ] {
            let mut headers = HeaderMap::new();
            close(&mut headers, version);
            assert_eq!(headers.contains_key(CONNECTION), closes, "{version:?}");
        }
    }
}
