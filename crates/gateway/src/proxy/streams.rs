//! A connection of HTTP/2, and what the sieve is for HTTP/1: heads that two servers could read
//! differently go no further.
//!
//! Where messages end is said by frames, so nothing can be smuggled behind one here. But most
//! upstreams get the request over HTTP/1, so it must be one that can be written there.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::attendance::{Activity, Attendant, Taken};
use super::connection::{Deadlines, blame};
use super::front::{Front, Peer, Told, is_conversation, refuse};
use super::paced::Paced;
use super::sieve::{
    Limits, Violation, check_method, check_path, is_authority, is_protected, length,
};
use super::strict::{Executed, Pace, Verdict, Why, document, note};
use crate::stop::Stop;

/// What common servers allow for one client, and more than any client needs.
const STREAMS: u32 = 100;
/// A client that does not answer a ping for this long has gone.
const PING: Duration = Duration::from_secs(20);
/// How much of an answer may wait behind the back of whoever attends its stream: what the slowest client
/// takes in the time that is left to it at the end.
const AHEAD: usize = 64 * 1024;

/// Serves a connection until one of both sides ends it.
pub(super) async fn serve<I>(
    front: Arc<Front>,
    io: I,
    peer: Peer,
    deadlines: Deadlines,
    stop: Stop,
) -> hyper::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Activity::default();
    let attendant = Attendant { activity: activity.clone(), longest: deadlines.idle };
    let pace = Pace { head: deadlines.head, body: deadlines.body, ..Pace::default() };
    let service = service_fn(move |request: Request<Incoming>| {
        let (front, peer) = (Arc::clone(&front), peer.clone());
        async move {
            let converses = is_conversation(request.headers());
            let response = answer(front, peer, request, pace).await;
            Ok::<_, Infallible>(match converses {
                true => response.map(Taken::unattended),
                false => response.map(Taken::new),
            })
        }
    });
    let connection = http2::Builder::new(attendant)
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(deadlines.max_head).unwrap_or(u32::MAX))
        .max_send_buf_size(AHEAD)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = &mut connection => return ended,
        () = stop.raised() => {}
        () = activity.idle(deadlines.idle) => {}
    }
    // Answers that are under way come to their end; nothing more is taken.
    connection.as_mut().graceful_shutdown();
    let longest = match activity.is_fresh() {
        // Somebody who has not even said that it speaks HTTP/2 need not be waited for.
        true => deadlines.head,
        false => deadlines.idle,
    };
    tokio::select! {
        biased;
        ended = &mut connection => ended,
        // All streams are over. Whoever has not taken the last piece of an answer by now never will.
        () = activity.over(longest) => Ok(()),
    }
}

async fn answer(
    front: Arc<Front>,
    peer: Peer,
    request: Request<Incoming>,
    pace: Pace,
) -> Response<Told> {
    let (mut head, body) = request.into_parts();
    if let Err(violation) = check(&head, Limits::default().fields) {
        let why = Why::Refused(violation);
        note(why);
        return without_connection(refuse(why.status(), document(why, Executed::No)));
    }
    join_cookies(&mut head.headers);
    let verdict = Verdict::default();
    let body = Paced::new(body, pace, verdict.clone());
    let response = front.answer(peer, Request::from_parts(head, body)).await;
    let Some(end) = verdict.end() else { return response };
    note(end.why);
    without_connection(blame(response, Some(end)))
}

/// HTTP/2 has no such field: the stream ends, and the connection goes on.
fn without_connection(mut response: Response<Told>) -> Response<Told> {
    response.headers_mut().remove(CONNECTION);
    response
}

/// Whether a head can be written as HTTP/1 and is read alike by everybody. What the HTTP library has
/// refused already is not looked at again: fields of a connection, control characters, a length
/// that is not that of the body. It takes a length that is said twice, or with zeros before it.
fn check(head: &Parts, most_fields: usize) -> Result<(), Violation> {
    if head.headers.len() > most_fields {
        return Err(Violation::TooManyFields);
    }
    check_method(head.method.as_str().as_bytes())?;
    check_host(head)?;
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    if let Some(value) = lengths.next() {
        length(value.as_bytes())?;
    }
    if lengths.next().is_some() {
        return Err(Violation::LengthRepeated);
    }
    let path = head.uri.path_and_query().map_or("", |path| path.as_str());
    match (&head.method, path) {
        // Refused for another reason, and it has no path.
        (&Method::CONNECT, _) | (&Method::OPTIONS, "*") => {}
        _ => check_path(path.as_bytes())?,
    }
    let is_twin = |name: &str| name.contains('_') && is_protected(name.as_bytes());
    if head.headers.keys().any(|name| is_twin(name.as_str())) {
        return Err(Violation::Twin);
    }
    let expectations = head.headers.get_all(EXPECT).iter();
    match expectations.map(HeaderValue::as_bytes).all(|all| all.eq_ignore_ascii_case(CONTINUE)) {
        true => Ok(()),
        false => Err(Violation::Expectation),
    }
}

const CONTINUE: &[u8] = b"100-continue";

/// There is one host, whether it stands in `:authority` or in `Host` (RFC 9113, section 8.3.1).
fn check_host(head: &Parts) -> Result<(), Violation> {
    let mut lines = head.headers.get_all(HOST).iter();
    let (line, more) = (lines.next(), lines.next());
    if more.is_some() {
        return Err(Violation::HostRepeated);
    }
    let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let host = match (authority, line.map(HeaderValue::as_bytes)) {
        (None, None) => return Err(Violation::HostMissing),
        (Some(one), Some(other)) if !one.eq_ignore_ascii_case(other) => {
            return Err(Violation::HostDiffers);
        }
        (Some(host), _) | (None, Some(host)) => host,
    };
    if is_authority(host) { Ok(()) } else { Err(Violation::Host) }
}

/// Cookies may come in crumbs here, and elsewhere only in one line (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(whole) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(COOKIE, whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(uri: &str, lines: &[(&'static str, &'static str)]) -> Parts {
        let mut request = Request::builder().method("POST").uri(uri);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn what_could_be_read_differently_goes_no_further() {
        let checked = |uri, lines: &[_]| check(&head(uri, lines), 3);
        assert_eq!(checked("http://api:80/a?b", &[("host", "API:80"), ("x", "1")]), Ok(()));
        assert_eq!(checked("/a", &[("host", "api")]), Ok(()));
        for (uri, lines, expected) in [
            ("/a", &[][..], Violation::HostMissing),
            ("http://api/a", &[("host", "other")], Violation::HostDiffers),
            ("http://api/a", &[("host", "api"), ("host", "api")], Violation::HostRepeated),
            ("http://u@api/a", &[], Violation::Host),
            ("http://api/a\"b", &[], Violation::TargetByte),
            ("http://api/a", &[("idempotency_key", "k")], Violation::Twin),
            ("http://api/a", &[("expect", "a miracle")], Violation::Expectation),
            ("http://api/a", &[("content-length", "010")], Violation::Length),
            ("http://api/a", &[("content-length", "")], Violation::Length),
            (
                "http://api/a",
                &[("content-length", "5"), ("content-length", "5")],
                Violation::LengthRepeated,
            ),
            (
                "http://api/",
                &[("a", ""), ("b", ""), ("c", ""), ("d", "")],
                Violation::TooManyFields,
            ),
        ] {
            assert_eq!(checked(uri, lines), Err(expected), "{uri} {lines:?}");
        }
    }

    #[test]
    fn a_method_in_lower_case_goes_no_further() {
        for method in ["post", "Post", "pROPFIND"] {
            let mut head = head("http://api/a", &[]);
            head.method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(check(&head, 3), Err(Violation::MethodCase), "{method}");
        }
    }

    #[test]
    fn crumbs_become_one_cookie() {
        let mut headers = head("/", &[("cookie", "a=1"), ("x", "1"), ("cookie", "b=2")]).headers;
        join_cookies(&mut headers);
        assert_eq!(headers.get_all(COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    }
}
