//! The same answers, byte for byte, with and without the gateway.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::OBSERVED;
use crate::common::gateway::Home;
use crate::common::stub::{Arrived, Reply, Stub, Then};
use crate::common::{converse, within};

/// A method, what the upstream answers, and what it does then.
struct Case {
    name: &'static str,
    method: &'static str,
    answer: Vec<u8>,
    then: Then,
}

fn case(name: &'static str, answer: impl Into<Vec<u8>>) -> Case {
    Case { name, method: "POST", answer: answer.into(), then: Then::Keep }
}

fn sized(size: usize) -> Vec<u8> {
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes();
    answer.extend((0..size).map(|at| at.to_le_bytes()[0]));
    answer
}

fn chunked(chunks: &[&str], trailers: &str) -> String {
    let chunks: String =
        chunks.iter().map(|chunk| format!("{:X}\r\n{chunk}\r\n", chunk.len())).collect();
    format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n{chunks}0\r\n{trailers}\r\n"
    )
}

fn cases() -> Vec<Case> {
    let head = |case: Case| Case { method: "HEAD", ..case };
    let get = |case: Case| Case { method: "GET", ..case };
    let closed = |case: Case| Case { then: Then::Close, ..case };
    vec![
        case("nothing", sized(0)),
        case("one byte", sized(1)),
        case("some bytes", sized(1_000)),
        case("a buffer", sized(8_192)),
        case("more than a socket holds", sized(3_000_000)),
        get(case("a get", sized(100))),
        case("chunks", chunked(&["hello", "world"], "")),
        case("no chunk", chunked(&[], "")),
        case("no content", "HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n"),
        case(
            "not modified",
            "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 5\r\n\r\n",
        ),
        case(
            "partial",
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/5\r\nContent-Length: 2\r\n\r\nab",
        ),
        head(case("a head", "HTTP/1.1 200 OK\r\nContent-Length: 500\r\nX-A: b\r\n\r\n")),
        case(
            "repeated lines",
            "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nX-B: 1\r\nSet-Cookie: b=2\r\nX-B: 2\r\nContent-Length: 0\r\n\r\n",
        ),
        case(
            "odd case",
            "HTTP/1.1 200 OK\r\nx-LOWER: a\r\nX-UPPER: B\r\ncontent-LENGTH: 0\r\nETAG: x\r\n\r\n",
        ),
        case("an odd reason", "HTTP/1.1 200 All Fine Here\r\nContent-Length: 0\r\n\r\n"),
        case("an odd status", "HTTP/1.1 299 Mostly\r\nContent-Length: 2\r\n\r\nok"),
        case(
            "a failure",
            "HTTP/1.1 500 Oh\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno",
        ),
        case(
            "a date",
            "HTTP/1.1 200 OK\r\nDate: Tue, 15 Nov 1994 08:12:31 GMT\r\nServer: x/1\r\nContent-Length: 0\r\n\r\n",
        ),
        case(
            "latin letters",
            b"HTTP/1.1 200 OK\r\nX-Name: caf\xe9\r\nContent-Length: 0\r\n\r\n".to_vec(),
        ),
        case("an empty value", "HTTP/1.1 200 OK\r\nX-Empty: \r\nContent-Length: 0\r\n\r\n"),
        case(
            "a long head",
            format!(
                "HTTP/1.1 200 OK\r\nX-Long: {}\r\nContent-Length: 0\r\n\r\n",
                "y".repeat(50_000)
            ),
        ),
        case(
            "events",
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nF\r\ndata: charged\n\n\r\n0\r\n\r\n",
        ),
        closed(case(
            "until the end",
            "HTTP/1.1 200 OK\r\nX-A: b\r\nConnection: close\r\n\r\nall there is",
        )),
        closed(case("cut in its body", "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nonly this")),
        closed(case(
            "cut in a chunk",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n9\r\nwor",
        )),
    ]
}

/// Without what belongs to one connection, which is the gateway's own business. Chunks are joined:
/// where they begin is the business of whoever writes them.
///
/// Three more things are known to differ, because hyper writes answers so. Lines with the same name
/// stand together; the length stands behind the other lines; and a 304 has none. None of it means
/// anything (RFC 9110, 5.3 and 8.6), and everything else stands in its order and its case.
fn masked(answer: &[u8], case: &Case) -> (Vec<Vec<u8>>, Vec<u8>, bool) {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("{}: no head in {}", case.name, answer.escape_ascii()));
    let lines = answer[..end].split(|byte| *byte == b'\n').map(|line| line.trim_ascii().to_vec());
    let hop = |line: &Vec<u8>| {
        let lower = line.to_ascii_lowercase();
        ["connection:", "keep-alive:", "transfer-encoding:", "trailer:"]
            .iter()
            .any(|name| lower.starts_with(name.as_bytes()))
    };
    let all: Vec<Vec<u8>> = lines.collect();
    let chunked =
        all.iter().any(|line| line.to_ascii_lowercase().starts_with(b"transfer-encoding:"));
    let body = &answer[end + 4..];
    let (body, whole) = match chunked && case.method != "HEAD" {
        true => joined(body),
        false => (body.to_vec(), true),
    };
    let bare = answer.starts_with(b"HTTP/1.1 304");
    let kept = all.into_iter().filter(|line| !(hop(line) || bare && is_length(line)));
    (together(kept.collect()), body, whole)
}

fn name(line: &[u8]) -> Vec<u8> {
    line.split(|byte| *byte == b':').next().unwrap_or_default().to_ascii_lowercase()
}

fn is_length(line: &[u8]) -> bool {
    name(line) == b"content-length"
}

/// Each line behind the first one of its name, and the length last.
fn together(lines: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let names: Vec<_> = lines.iter().map(|line| name(line)).collect();
    let mut lines = lines;
    lines
        .sort_by_key(|line| (is_length(line), names.iter().position(|other| *other == name(line))));
    lines
}

fn joined(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(rest) {
        if size == 0 {
            return (body, true);
        }
        rest = &rest[line..];
        let size = usize::try_from(size).unwrap().min(rest.len());
        body.extend_from_slice(&rest[..size]);
        rest = rest.get(size + 2..).unwrap_or_default();
    }
    (body, false)
}

fn find(cases: &[Case], arrived: &Arrived) -> Reply {
    let number: usize = arrived.path().rsplit('/').next().unwrap().parse().unwrap();
    Reply::new(cases[number].answer.clone(), cases[number].then)
}

/// I42 and the promise of observe mode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_the_same_with_and_without_the_gateway() {
    let known = cases();
    let upstream = Stub::start(move |arrived| find(&known, arrived)).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), OBSERVED);
    let gateway = home.run();
    let mut wrong = Vec::new();
    for (number, case) in cases().iter().enumerate() {
        for line in ["", "Idempotency-Key: k\r\n"] {
            let request = format!(
                "{} /case/{number} HTTP/1.1\r\nHost: a\r\nX-Tenant: acme\r\n{line}Content-Length: 2\r\n\r\nhi",
                case.method
            );
            let direct = converse(upstream.address, request.as_bytes()).await;
            let through = converse(gateway.address, request.as_bytes()).await;
            let (direct, through) = (masked(&direct, case), masked(&through, case));
            if direct != through {
                let shown = |(lines, body, whole): &(Vec<Vec<u8>>, Vec<u8>, bool)| {
                    let lines: Vec<String> =
                        lines.iter().map(|line| line.escape_ascii().to_string()).collect();
                    format!("{lines:#?} with {} bytes, whole: {whole}", body.len())
                };
                wrong.push(format!(
                    "{}: {}\ninstead of {}",
                    case.name,
                    shown(&through),
                    shown(&direct)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(upstream.whole().len(), cases().len() * 4, "everything ran");
    assert!(upstream.faults().is_empty(), "{:?}", upstream.faults());
}

/// What the upstream gets is what the client sent, and nothing is added that looks like us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_the_same_with_and_without_the_gateway() {
    let upstream = Stub::start(|_| Reply::ok("")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), OBSERVED);
    let gateway = home.run();
    let requests = [
        "POST /a?b=%20c&d HTTP/1.1\r\nHost: a.example\r\nX-Tenant: t\r\nIdempotency-Key: \"k\"\r\nIdempotency-Attempt: 2\r\nCONTENT-length: 2\r\nAccept-Encoding: gzip, br\r\nX-b: 1\r\nx-B: 2\r\nCookie: a=b\r\nAuthorization: Basic eDp5\r\n\r\nhi",
        "PUT /%2Fx/./y HTTP/1.1\r\nHost: a\r\nX-Tenant: t\r\nuser-AGENT: me\r\nContent-Length: 0\r\n\r\n",
        "POST /c HTTP/1.1\r\nHost: a\r\nX-Tenant: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "DELETE /e HTTP/1.1\r\nhost: a\r\nx-Tenant: t\r\ncontent-length: 2\r\n\r\nhi",
    ];
    for request in requests {
        converse(upstream.address, request.as_bytes()).await;
        converse(gateway.address, request.as_bytes()).await;
        let arrived = upstream.whole();
        let [.., direct, through] = &arrived[..] else { panic!("{request} did not arrive") };
        let own = |line: &&str| !line.to_ascii_lowercase().starts_with("x-forwarded-");
        let mut lines = [direct, through].map(|request| {
            request.head.split("\r\n").filter(own).map(str::to_owned).collect::<Vec<_>>()
        });
        // hyper writes how the body is framed behind everything else.
        lines.iter_mut().for_each(|lines| lines.sort_by_key(|line| line.starts_with("Transfer-")));
        assert_eq!(lines[1], lines[0]);
        assert_eq!(through.body, direct.body);
    }
}

/// A WebSocket, as far as a proxy sees it: an upgrade, and bytes in both directions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_in_another_protocol_passes() {
    let upstream = Stub::start(|_| {
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\nfirst";
        Reply::new(agreed, Then::Echo)
    })
    .await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), OBSERVED);
    let gateway = home.run();
    let mut socket = TcpStream::connect(gateway.address).await.unwrap();
    let ask =
        "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly";
    socket.write_all(ask.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    within("the echo", async {
        while !heard.ends_with(b"firstearly") {
            assert!(socket.read_buf(&mut heard).await.unwrap() > 0, "{}", heard.escape_ascii());
        }
        assert!(heard.starts_with(b"HTTP/1.1 101 "), "{}", heard.escape_ascii());
        socket.write_all(b"\0\xff later").await.unwrap();
        while !heard.ends_with(b"\0\xff later") {
            assert!(socket.read_buf(&mut heard).await.unwrap() > 0, "{}", heard.escape_ascii());
        }
        drop(socket.shutdown().await);
        assert_eq!(socket.read_buf(&mut heard).await.unwrap(), 0);
    })
    .await;
}

/// A client that waits to be told to go on is told, and its body arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_before_its_body_is_told_to_go_on() {
    let upstream = Stub::start(|_| Reply::ok("done")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), OBSERVED);
    let gateway = home.run();
    let mut socket = TcpStream::connect(gateway.address).await.unwrap();
    let head = "POST /a HTTP/1.1\r\nHost: a\r\nX-Tenant: t\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    within("the answer", async {
        while !heard.ends_with(b"\r\n\r\n") {
            assert!(socket.read_buf(&mut heard).await.unwrap() > 0);
        }
        assert_eq!(heard, b"HTTP/1.1 100 Continue\r\n\r\n");
        socket.write_all(b"hello").await.unwrap();
        while !heard.ends_with(b"done") {
            assert!(socket.read_buf(&mut heard).await.unwrap() > 0);
        }
    })
    .await;
    assert_eq!(upstream.whole()[0].body, b"hello");
}
