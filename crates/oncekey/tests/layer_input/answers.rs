//! 3.4 of the study of bad inputs: what the service answers.

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use oncekey::core::Policy;
use oncekey::core::policy::{Keep, Limits, Retain, Statuses, Verdict};

use crate::rig::{KEY, Rig, data, frames, layer, pieces, post, required};

/// What a retry meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    Replay,
    RunsAgain,
    Unknown,
    NotRetained,
}

/// Sends a request and its retry. Checks what the retry meets, and returns what the first got.
async fn check(rig: &Rig, expected: Retry, row: &str) -> crate::rig::Seen {
    let first = rig.send(post(KEY, "{}")).await;
    let second = rig.send(post(KEY, "{}")).await;
    let runs = if expected == Retry::RunsAgain { 2 } else { 1 };
    assert_eq!(rig.runs(), runs, "{row}");
    assert_eq!(second.is_replay(), expected == Retry::Replay, "{row}");
    match expected {
        Retry::Replay => {
            assert_eq!(second.status, first.status, "{row}");
            assert_eq!(second.body, first.body, "{row}");
            assert_eq!(second.trailers, first.trailers, "{row}");
            assert_eq!(first.header("idempotency-status"), "oncekey; executed; ttl=86400");
        }
        Retry::RunsAgain => assert_eq!(second.status, first.status, "{row}"),
        Retry::Unknown => second.assert_refused(409, "idempotency_outcome_unknown", "unknown"),
        Retry::NotRetained => {
            second.assert_refused(409, "idempotency_response_not_retained", "yes");
            assert_eq!(second.problem()["original_status"], first.status.as_u16(), "{row}");
        }
    }
    first
}

fn status(status: u16, body: &'static str) -> Rig {
    Rig::answering(move || Response::builder().status(status).body(Body::from(body)).unwrap())
}

/// I20: which answers are kept is a pure function of the status.
#[tokio::test]
async fn every_status_meets_its_fate() {
    let mut rows = vec![];
    for kept in [
        200, 201, 202, 203, 206, 300, 301, 302, 307, 308, 400, 402, 404, 405, 406, 410, 411, 412,
        413, 414, 415, 416, 417, 418, 422, 424, 426, 428, 431, 451, 500, 501, 505, 507, 511, 599,
        600, 999,
    ] {
        rows.push((kept, "body", Retry::Replay));
    }
    for empty in [204, 205, 304] {
        rows.push((empty, "", Retry::Replay));
        rows.push((empty, "a body that no server sends", Retry::Replay));
    }
    for released in [401, 403, 407, 409, 421, 423, 425, 429, 503] {
        rows.push((released, "body", Retry::RunsAgain));
    }
    for unclear in [408, 502, 504, 100, 102, 103, 199] {
        rows.push((unclear, "body", Retry::Unknown));
    }
    rows.push((101, "", Retry::NotRetained));
    for (number, body, expected) in rows {
        let row = format!("{number} with {body:?}");
        let first = check(&status(number, body), expected, &row).await;
        assert_eq!(first.status.as_u16(), number, "the first caller gets what came: {row}");
        let without = matches!(number, 204 | 205 | 304);
        assert_eq!(first.text(), if without { "" } else { body }, "{row}");
    }
}

/// Answers that were given back say so, and so does everything else that is not kept (I13).
#[tokio::test]
async fn the_first_caller_is_told_what_is_not_kept() {
    for (number, recorded) in [(429, "released"), (502, "unknown"), (101, "tombstone")] {
        let seen = status(number, "").send(post(KEY, "{}")).await;
        let expected = format!("oncekey; executed; recorded={recorded}");
        assert_eq!(seen.header("idempotency-status"), expected);
        assert_eq!(seen.header("original-request"), seen.header("request-id"));
    }
}

#[tokio::test]
async fn a_route_may_keep_other_statuses() {
    let keep = Keep::default().rule(Statuses::only(429), Verdict::Keep).unwrap();
    let policy = Policy { keep, ..Policy::default() };
    let rig = Rig::new(layer().rule(required().policy(policy).unwrap()), |_, _| {
        Box::pin(async { Ok(Response::builder().status(429).body(Body::empty())?) })
    });
    check(&rig, Retry::Replay, "429 kept").await;
}

/// I12: every line, in order, as often as it came, except those of one exchange.
#[tokio::test]
async fn header_lines_come_back_as_they_came() {
    let lines: &[(&str, &[u8])] = &[
        ("content-type", b"text/plain"),
        ("content-type", b"text/html"),
        ("location", b"charges/1"),
        ("link", b"</a>; rel=\"x,y\", </b>"),
        ("link", b"</c>"),
        ("vary", b"*"),
        ("cache-control", b"no-store"),
        ("content-encoding", b"br"),
        ("etag", b"W/\"1\""),
        ("digest", b"sha-256=abc"),
        ("x-latin", b"caf\xe9"),
        ("x-empty", b""),
        ("retry-after", b"3"),
    ];
    let of_one_exchange: &[(&str, &[u8])] = &[
        ("set-cookie", b"session=1"),
        ("www-authenticate", b"Basic"),
        ("connection", b"close, x-secret"),
        ("x-secret", b"1"),
        ("date", b"Tue, 15 Nov 1994 08:12:31 GMT"),
        ("x-ratelimit-remaining", b"7"),
        ("x-request-id", b"theirs"),
        ("traceparent", b"00-1-2-01"),
        ("access-control-allow-origin", b"https://example.com"),
        ("oncekey-trailer-x", b"forged"),
        ("oncekey-traceparent", b"forged"),
    ];
    let rig = Rig::answering(move || {
        let mut response = Response::new(Body::from("body"));
        for (name, value) in lines.iter().chain(of_one_exchange) {
            let value = HeaderValue::from_bytes(value).unwrap();
            response.headers_mut().append(*name, value);
        }
        response
    });
    let first = check(&rig, Retry::Replay, "lines").await;
    let replay = rig.send(post(KEY, "{}")).await;
    for (name, value) in of_one_exchange {
        assert_eq!(first.headers[*name], HeaderValue::from_bytes(value).unwrap(), "{name}");
        assert!(!replay.headers.contains_key(*name), "{name}");
    }
    let ours = |name: &str| name.starts_with("idempoten") || name.ends_with("request-id");
    let kept: Vec<_> = replay
        .headers
        .iter()
        .filter(|(name, _)| !ours(name.as_str()) && *name != "original-request")
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    assert_eq!(kept, [lines, &[("content-length", b"4")]].concat());
    assert_eq!(replay.trailers, None);
}

/// T10: a thousand cookies go to the first caller and to nobody else.
#[tokio::test]
async fn cookies_are_not_replayed_however_many_there_are() {
    let rig = Rig::answering(|| {
        let mut response = Response::new(Body::empty());
        for n in 0..1_000 {
            let cookie = HeaderValue::try_from(format!("c{n}={}", "x".repeat(100))).unwrap();
            response.headers_mut().append("set-cookie", cookie);
        }
        response
    });
    let first = check(&rig, Retry::Replay, "cookies").await;
    assert_eq!(first.headers.get_all("set-cookie").iter().count(), 1_000);
}

/// A small limit, so that rows need no megabytes.
fn small() -> Policy {
    let limits = Limits { saved_body: 10, saved_headers: 100, ..Limits::default() };
    Policy { limits, ..Policy::default() }
}

/// I18: an answer that cannot be kept reaches its caller whole, and its retry never runs.
#[tokio::test]
async fn answers_that_cannot_be_kept_are_passed_on_and_never_run_again() {
    type Answer = fn() -> Response<Body>;
    let rows: &[(&str, Answer, Retry, &str)] = &[
        ("fits", || Response::new(Body::from("0123456789")), Retry::Replay, "0123456789"),
        ("large", || Response::new(Body::from("0123456789a")), Retry::NotRetained, "0123456789a"),
        (
            "large in pieces",
            || Response::new(pieces(["01234", "56789", "abc", "def"])),
            Retry::NotRetained,
            "0123456789abcdef",
        ),
        (
            "events",
            || {
                let events = pieces(["data: 1\n\n", "data: 2\n\n"]);
                Response::builder()
                    .header("content-type", "text/event-stream")
                    .body(events)
                    .unwrap()
            },
            Retry::NotRetained,
            "data: 1\n\ndata: 2\n\n",
        ),
        (
            "large head",
            || {
                Response::builder()
                    .header("x-large", "x".repeat(100))
                    .body(Body::from("b"))
                    .unwrap()
            },
            Retry::NotRetained,
            "b",
        ),
    ];
    for (row, answer, expected, body) in rows {
        let rig = Rig::new(layer().rule(required().policy(small()).unwrap()), move |_, _| {
            let response = answer();
            Box::pin(async move { Ok(response) })
        });
        let first = check(&rig, *expected, row).await;
        assert_eq!(first.text(), *body, "{row}");
    }
}

/// I43: an answer of any size reaches its caller, and is not held in memory.
#[tokio::test]
async fn a_hundred_megabytes_are_passed_on() {
    const PIECE: &str = match std::str::from_utf8(&[b'x'; 64 * 1024]) {
        Ok(piece) => piece,
        Err(_) => panic!("ASCII is UTF-8"),
    };
    let rig = Rig::answering(|| Response::new(pieces(std::iter::repeat_n(PIECE, 1_600))));
    let first = check(&rig, Retry::NotRetained, "100 MB").await;
    assert_eq!(first.body.len(), 1_600 * PIECE.len());
}

/// A stream reaches its client while it is still being written.
#[tokio::test]
async fn a_stream_is_not_held_back() {
    use http_body_util::BodyExt as _;
    let rig_layer = layer().rule(required()).build();
    let endless = tower::service_fn(|_: Request<Body>| async {
        let body = pieces(std::iter::repeat("data: tick\n\n"));
        Response::builder().header("content-type", "text/event-stream").body(body)
    });
    let service = tower::ServiceBuilder::new().layer(rig_layer).service(endless);
    let response = tower::ServiceExt::oneshot(service, post(KEY, "{}")).await.unwrap();
    let mut body = response.into_body();
    for _ in 0..3 {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "data: tick\n\n");
    }
}

/// I14: an answer that broke off, or is not as long as it says, is not an answer.
#[tokio::test]
async fn a_truncated_answer_is_never_kept() {
    let rig = Rig::answering(|| Response::new(frames([Ok(data("half of")), Err("reset")])));
    let first = check(&rig, Retry::Unknown, "cut").await;
    assert_eq!((first.text(), first.cut), ("half of", true), "the caller gets what came");

    for length in ["3", "5", "x"] {
        let rig = Rig::answering(move || {
            Response::builder().header("content-length", length).body(Body::from("four")).unwrap()
        });
        check(&rig, Retry::Unknown, length).await;
    }
    let exact =
        || Response::builder().header("content-length", "4").body(Body::from("four")).unwrap();
    check(&Rig::answering(exact), Retry::Replay, "exact").await;
}

/// I42: what a gRPC service says at the end of its answer is replayed at the end.
#[tokio::test]
async fn trailers_are_replayed_as_trailers() {
    let trailers = HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    )]);
    let sent = trailers.clone();
    let rig = Rig::answering(move || {
        let frames = frames([Ok(data("message")), Ok(http_body::Frame::trailers(sent.clone()))]);
        Response::builder().header("content-type", "application/grpc").body(frames).unwrap()
    });
    let first = check(&rig, Retry::Replay, "trailers").await;
    assert_eq!(first.trailers, Some(trailers));
    assert!(!rig.send(post(KEY, "{}")).await.headers.contains_key("content-length"));
}

#[tokio::test]
async fn an_answer_of_which_only_the_status_is_kept_is_not_replayed() {
    let rig = Rig::under(Policy { retain: Retain::StatusOnly, ..Policy::default() });
    let first = check(&rig, Retry::NotRetained, "status only").await;
    assert_eq!(first.text(), "run 1");
    assert_eq!(first.header("idempotency-status"), "oncekey; executed; recorded=tombstone");
}

/// A tunnel is passed on, and not opened twice.
#[tokio::test]
async fn a_tunnel_is_not_opened_twice() {
    let rig = Rig::counting(layer().rule(required().methods([Method::CONNECT])));
    let connect = || {
        let request = Request::connect("example.com:443").header("idempotency-key", KEY);
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(rig.send(connect()).await.status, 201);
    let second = rig.send(connect()).await;
    second.assert_refused(409, "idempotency_response_not_retained", "yes");
    assert_eq!(rig.runs(), 1);
}
