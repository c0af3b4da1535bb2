//! What is saved of an answer, and how an answer is made of it again.
//!
//! All header lines are saved, in order and as often as they came, except those that belong to one
//! exchange and would be wrong or dangerous in another: credentials and challenges, cookies,
//! framing, clocks, counters, traces, CORS and our own. The same list is applied on the way out, so
//! that a record of another version cannot bring back what this one would not save.
//!
//! Trailers and the trace of the first request are saved as header lines with names that begin
//! with `oncekey-`; no line with such a name is ever taken from a response or sent in one.
//!
//! Nothing is transcoded: an answer that was compressed for the first client is replayed
//! compressed. Put compression outside of this layer.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, ETAG, LOCATION};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body;
use oncekey_core::saved::HeaderError;
use oncekey_core::{Headers, Saved};

use super::body::ResponseBody;
use super::headers;

/// Lines whose names begin so are ours.
const RESERVED: &str = "oncekey-";
const TRAILER: &str = "oncekey-trailer-";
const TRACEPARENT: &str = "oncekey-traceparent";

/// Written by the engine when it redacts an answer. A service that sends it means something else.
const REDACTED: &str = "idempotency-redacted";

/// Lines that most answers have and that are saved: names that are known need no look at their letters.
const COMMON: [HeaderName; 4] = [CONTENT_TYPE, LOCATION, CACHE_CONTROL, ETAG];

/// A W3C trace parent has 55 characters; later versions may have a few more.
const LONGEST_TRACEPARENT: usize = 128;

/// A saved answer that no server of ours can have saved.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damaged;

/// An answer made of a saved one.
pub(super) struct Restored<B: Body> {
    pub(super) response: Response<ResponseBody<B>>,
    /// The trace of the request that ran, for a span: never for the wire.
    pub(super) traceparent: Option<String>,
}

/// Whether an answer with this status has a body (RFC 9110, sections 15.3.5, 15.3.6 and 15.4.5).
pub(super) fn has_body(status: StatusCode) -> bool {
    !status.is_informational()
        && status != StatusCode::NO_CONTENT
        && status != StatusCode::RESET_CONTENT
        && status != StatusCode::NOT_MODIFIED
}

/// What is saved of an answer.
///
/// # Errors
/// If a header line has bytes that no line can have, which a response cannot hold.
pub(super) fn save(
    head: &Parts,
    body: Bytes,
    trailers: Option<&HeaderMap>,
    traceparent: Option<&HeaderValue>,
) -> Result<Saved, HeaderError> {
    // Room for all of them and a trace, so that it is made once: it is kept for as long as the answer.
    let room = head.headers.iter().map(|(name, value)| 8 + name.as_str().len() + value.len());
    let trace = traceparent.map_or(0, |trace| 8 + TRACEPARENT.len() + trace.len());
    let mut headers = Headers::with_capacity(room.sum::<usize>() + trace);
    let nominated = nominated(&head.headers);
    for (name, value) in &head.headers {
        let saved = COMMON.contains(name) || (is_replayed(name.as_str()) && *name != REDACTED);
        if saved && !nominated.contains(name) {
            headers.push(name.as_str().as_bytes(), value.as_bytes())?;
        }
    }
    for (name, value) in trailers.into_iter().flatten() {
        if is_replayed(name.as_str()) {
            headers.push(format!("{TRAILER}{name}").as_bytes(), value.as_bytes())?;
        }
    }
    if let Some(trace) = traceparent.filter(|trace| trace.len() <= LONGEST_TRACEPARENT) {
        headers.push(TRACEPARENT.as_bytes(), trace.as_bytes())?;
    }
    Ok(Saved { status: head.status.as_u16(), headers, body })
}

/// Makes an answer of a saved one and checks every line again.
///
/// # Errors
/// If a line or the status could not be sent. The answer is then not replayed at all: one that
/// lacks a line is another answer.
pub(super) fn restore<B: Body>(saved: &Saved) -> Result<Restored<B>, Damaged> {
    let status = StatusCode::from_u16(saved.status).map_err(|_| Damaged)?;
    if status.is_informational() {
        return Err(Damaged);
    }
    // Room for what the layer adds, so that the map is made once.
    let mut headers = HeaderMap::with_capacity(saved.headers.len() + headers::MARKS);
    let mut trailers = HeaderMap::new();
    let mut traceparent = None;
    for (name, value) in saved.headers.iter() {
        let name = HeaderName::from_bytes(name).map_err(|_| Damaged)?;
        let value = HeaderValue::from_bytes(value).map_err(|_| Damaged)?;
        let text = name.as_str();
        if let Some(of_trailer) = text.strip_prefix(TRAILER) {
            let name = HeaderName::from_bytes(of_trailer.as_bytes()).map_err(|_| Damaged)?;
            if is_replayed(name.as_str()) {
                trailers.try_append(name, value).map_err(|_| Damaged)?;
            }
        } else if text == TRACEPARENT {
            traceparent = value.to_str().ok().map(str::to_owned);
        } else if is_replayed(text) {
            headers.try_append(name, value).map_err(|_| Damaged)?;
        }
    }
    let trailers = (!trailers.is_empty()).then_some(trailers);
    let body = if has_body(status) { saved.body.clone() } else { Bytes::new() };
    if has_body(status) && trailers.is_none() {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    let mut response = Response::new(ResponseBody::whole(body, trailers));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(Restored { response, traceparent })
}

/// Whether a header line is part of the answer rather than of one exchange.
pub(super) fn is_replayed(name: &str) -> bool {
    let single = match name {
        // Credentials and challenges. What was given to one client must not be given to another,
        // and a challenge answers a request that is over.
        "authorization"
        | "authentication-info"
        | "www-authenticate"
        | "cookie"
        | "cookie2"
        | "set-cookie"
        | "set-cookie2"
        | "authentication-control"
        | "optional-www-authenticate"
        | "x-csrf-token"
        | "x-xsrf-token" => false,
        // Framing and hop-by-hop (RFC 9110, section 7.6.1). The length is computed anew.
        "connection" | "content-length" | "http2-settings" | "keep-alive" | "te"
        | "transfer-encoding" | "upgrade" => false,
        // Clocks and caches on the way.
        "date" | "age" => false,
        // Counters of the first client's quota.
        "ratelimit" | "x-rate-limit" | "x-ratelimit" => false,
        // Traces and ids of the first exchange; ours is sent as `Original-Request`.
        "traceparent"
        | "tracestate"
        | "traceresponse"
        | "baggage"
        | "b3"
        | "request-id"
        | "x-request-id"
        | "correlation-id"
        | "x-correlation-id"
        | "x-trace-id"
        | "server-timing"
        | "uber-trace-id"
        | "x-amzn-trace-id"
        | "x-amzn-requestid"
        | "x-cloud-trace-context" => false,
        // Our own, which are about one exchange.
        "idempotency-key"
        | "idempotent-replayed"
        | "idempotency-status"
        | "idempotency-policy"
        | "original-request" => false,
        _ => true,
    };
    // CORS lines answer the origin of the first request; the layer outside computes them again.
    let families =
        ["access-control-", "proxy-", "ratelimit-", "x-ratelimit-", "x-rate-limit-", "x-b3-"];
    single && !name.starts_with(RESERVED) && !families.iter().any(|family| name.starts_with(family))
}

/// The names that `Connection` makes hop-by-hop. Fields that describe the body cannot be among
/// them: without those the body is another one.
fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| !name.as_str().starts_with("content-"))
        .collect()
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    type Plain = Full<Bytes>;

    fn head(status: u16, lines: &[(&str, &[u8])]) -> Parts {
        let mut response = Response::builder().status(status);
        for (name, value) in lines {
            response = response.header(*name, HeaderValue::from_bytes(value).unwrap());
        }
        response.body(()).unwrap().into_parts().0
    }

    fn saved(status: u16, lines: &[(&str, &[u8])]) -> Saved {
        save(&head(status, lines), Bytes::from_static(b"body"), None, None).unwrap()
    }

    fn names(saved: &Saved) -> Vec<&str> {
        saved.headers.iter().map(|(name, _)| std::str::from_utf8(name).unwrap()).collect()
    }

    fn lines(headers: &HeaderMap) -> Vec<(&str, &[u8])> {
        headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
    }

    #[test]
    fn what_is_saved_without_a_look_at_its_letters_is_saved_with_one() {
        assert!(COMMON.iter().all(|name| is_replayed(name.as_str()) && *name != REDACTED));
    }

    /// I12: order, repetition, commas, empty values and odd bytes survive.
    #[test]
    fn header_lines_are_replayed_in_order_and_as_often_as_they_came() {
        let given: &[(&str, &[u8])] = &[
            ("content-type", b"text/plain"),
            ("link", b"</a>; rel=\"x\", </b>"),
            ("link", b"</c>"),
            ("x-odd", b"caf\xe9\t \xff"),
            ("x-empty", b""),
            ("vary", b"*"),
            ("cache-control", b"no-store"),
            ("location", b"/charges/1"),
            ("retry-after", b"7"),
        ];
        let restored = restore::<Plain>(&saved(201, given)).unwrap();
        let mut expected = given.to_vec();
        expected.push(("content-length", b"4"));
        assert_eq!(lines(restored.response.headers()), expected);
        assert_eq!(restored.response.status(), 201);
    }

    /// T10 and I39: what belongs to one exchange is not saved.
    #[test]
    fn lines_of_one_exchange_are_not_saved() {
        for name in [
            "set-cookie",
            "authorization",
            "www-authenticate",
            "proxy-authenticate",
            "proxy-authentication-info",
            "authentication-info",
            "connection",
            "keep-alive",
            "transfer-encoding",
            "upgrade",
            "te",
            "proxy-connection",
            "content-length",
            "date",
            "age",
            "ratelimit",
            "ratelimit-policy",
            "x-ratelimit-remaining",
            "traceparent",
            "tracestate",
            "x-request-id",
            "request-id",
            "x-b3-traceid",
            "access-control-allow-origin",
            "access-control-expose-headers",
            "idempotency-key",
            "idempotent-replayed",
            "idempotency-status",
            "original-request",
            "oncekey-traceparent",
            "oncekey-trailer-etag",
            "oncekey-anything",
            "idempotency-redacted",
        ] {
            let saved = saved(200, &[(name, b"x"), ("x-kept", b"y")]);
            assert_eq!(names(&saved), ["x-kept"], "{name}");
        }
    }

    /// I39: a nominated line is not saved, but the body keeps its description.
    #[test]
    fn lines_that_connection_nominates_are_not_saved() {
        let saved = saved(
            200,
            &[
                ("connection", b"close, X-Secret ,content-type"),
                ("connection", b"x-other,, b@d"),
                ("x-secret", b"1"),
                ("x-other", b"1"),
                ("content-type", b"text/plain"),
                ("x-kept", b"1"),
            ],
        );
        assert_eq!(names(&saved), ["content-type", "x-kept"]);
    }

    /// I42: trailers come back as trailers, and never as headers.
    #[tokio::test]
    async fn trailers_come_back_behind_the_body() {
        let mut trailers = HeaderMap::new();
        trailers.append("grpc-status", HeaderValue::from_static("0"));
        trailers.append("x-twice", HeaderValue::from_static("1"));
        trailers.append("x-twice", HeaderValue::from_static("2"));
        trailers.append("set-cookie", HeaderValue::from_static("secret"));
        let head = head(200, &[("content-type", b"application/grpc")]);
        let saved = save(&head, Bytes::from_static(b"abc"), Some(&trailers), None).unwrap();
        let restored = restore::<Plain>(&saved).unwrap().response;
        assert_eq!(lines(restored.headers()), [("content-type", &b"application/grpc"[..])]);
        let collected = restored.into_body().collect().await.unwrap();
        trailers.remove("set-cookie");
        assert_eq!(collected.trailers(), Some(&trailers));
        assert_eq!(collected.to_bytes(), "abc");
    }

    #[test]
    fn the_trace_of_the_first_request_is_kept_off_the_wire() {
        let trace = HeaderValue::from_static("00-0af7651916cd43dd8448eb211c80319c-b7ad6b71-01");
        let saved = save(&head(200, &[]), Bytes::new(), None, Some(&trace)).unwrap();
        let restored = restore::<Plain>(&saved).unwrap();
        assert_eq!(restored.traceparent.as_deref(), Some(trace.to_str().unwrap()));
        assert_eq!(lines(restored.response.headers()), [("content-length", &b"0"[..])]);
        let endless = HeaderValue::try_from("x".repeat(129)).unwrap();
        let saved = save(&head(200, &[]), Bytes::new(), None, Some(&endless)).unwrap();
        assert!(saved.headers.is_empty());
    }

    /// I42: statuses without a body have none on replay, whatever was saved.
    #[test]
    fn statuses_without_a_body_are_replayed_without() {
        for status in [204, 205, 304] {
            let restored = restore::<Plain>(&saved(status, &[("etag", b"e")])).unwrap().response;
            assert!(restored.body().is_end_stream(), "{status}");
            assert_eq!(lines(restored.headers()), [("etag", &b"e"[..])]);
        }
    }

    /// I40: a damaged record is not replayed with a line less, it is not replayed.
    #[test]
    fn what_could_not_have_been_saved_is_not_replayed() {
        for status in [0, 99, 100, 101, 199, 1000] {
            let saved = Saved { status, ..saved(200, &[]) };
            assert_eq!(restore::<Plain>(&saved).map(|_| ()).unwrap_err(), Damaged, "{status}");
        }
        let mut headers = Headers::new();
        headers.push(b"oncekey-trailer-", b"x").unwrap();
        let saved = Saved { headers, ..saved(200, &[]) };
        assert_eq!(restore::<Plain>(&saved).map(|_| ()).unwrap_err(), Damaged);
    }

    /// I40: a record of another version does not bring back what this one would not save.
    #[test]
    fn lines_of_one_exchange_are_not_sent_even_if_they_were_saved() {
        let mut headers = Headers::new();
        for name in ["Set-Cookie", "Transfer-Encoding", "content-length", "ONCEKEY-x", "X-Kept"] {
            headers.push(name.as_bytes(), b"1").unwrap();
        }
        let saved = Saved { headers, ..saved(200, &[]) };
        let restored = restore::<Plain>(&saved).unwrap().response;
        let expected = [("x-kept", &b"1"[..]), ("content-length", b"4")];
        assert_eq!(lines(restored.headers()), expected);
    }
}
