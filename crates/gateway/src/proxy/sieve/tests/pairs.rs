//! For each reason a request that nothing else is wrong with.
//!
//! Each row holds a request that is refused and the same one with that single mistake mended, which
//! passes whole. So no other rule would have refused the first one: without its rule, it would go
//! on.

use std::collections::HashSet;

use super::super::{Limits, Passed, Sieve, Violation};

/// A request that is refused, and the same one mended.
struct Pair {
    by: Violation,
    bad: String,
    mended: String,
}

/// Small ones, so that what is too long fits a line.
const LIMITS: Limits = Limits {
    line: 40,
    head: 120,
    fields: 4,
    body: 9,
    chunk_line: 12,
    extensions: 12,
    trailers: 24,
    trailer_fields: 2,
};

#[test]
fn each_reason_alone_refuses_a_request() {
    let pairs: Vec<_> = heads().into_iter().chain(bodies()).collect();
    for Pair { by, bad, mended } in &pairs {
        let refused = Sieve::new(LIMITS).pass(bad.as_bytes()).refused;
        assert_eq!(refused, Some(*by), "{bad:?}");
        let passed = Sieve::new(LIMITS).pass(mended.as_bytes());
        assert_eq!(passed, Passed { bytes: mended.len(), refused: None }, "{mended:?}");
    }
    let shown: HashSet<_> = pairs.iter().map(|pair| pair.by).collect();
    let missing: Vec<_> = Violation::ALL.iter().filter(|by| !shown.contains(by)).collect();
    assert!(missing.is_empty(), "no pair for {missing:?}");
    assert_eq!((pairs.len(), shown.len()), (Violation::ALL.len(), Violation::ALL.len()));
}

fn pair(by: Violation, start: &str, bad: &str, mended: &str, end: &str) -> Pair {
    let join = |middle: &str| format!("{start}{middle}{end}");
    Pair { by, bad: join(bad), mended: join(mended) }
}

/// Mistakes in a head.
fn heads() -> Vec<Pair> {
    use Violation as V;
    let line = |by, bad: &str, mended: &str| pair(by, "", bad, mended, "\r\nHost: a\r\n\r\n");
    let get = "GET / HTTP/1.1\r\nHost: a\r\n";
    let field = |by, bad: &str, mended: &str| pair(by, get, bad, mended, "\r\n");
    let host = |by, bad: &str, mended: &str| pair(by, "GET / HTTP/1.1\r\n", bad, mended, "\r\n");
    vec![
        field(V::BareLf, "X: y\n", "X: y\r\n"),
        field(V::BareCr, "X: y\rz\r\n", "X: yz\r\n"),
        field(V::Fold, "X: y\r\n Z: z\r\n", "X: y\r\nZ: z\r\n"),
        pair(V::EmptyLines, "\r\n", "\r\n", "", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        line(V::RequestLine, "GET  / HTTP/1.1", "GET / HTTP/1.1"),
        line(V::Method, "G@T / HTTP/1.1", "GET / HTTP/1.1"),
        line(V::MethodCase, "get / HTTP/1.1", "GET / HTTP/1.1"),
        line(V::LineTooLong, "GET /12345678901234567890123456 HTTP/1.1", "GET / HTTP/1.1"),
        line(V::TargetByte, "GET /\\ HTTP/1.1", "GET /%5C HTTP/1.1"),
        line(V::Fragment, "GET /#a HTTP/1.1", "GET /a HTTP/1.1"),
        line(V::TargetForm, "GET a HTTP/1.1", "GET /a HTTP/1.1"),
        line(V::Version, "GET / HTTP/1.2", "GET / HTTP/1.1"),
        line(V::HostDiffers, "GET http://b/ HTTP/1.1", "GET http://a/ HTTP/1.1"),
        field(V::FieldName, "X : y\r\n", "X: y\r\n"),
        field(V::FieldValue, "X: \0\r\n", "X: 0\r\n"),
        field(V::Twin, "Idempotency_Key: k\r\n", "Idempotency-Key: k\r\n"),
        field(V::TooManyFields, "a:\r\nb:\r\nc:\r\nd:\r\n", "a:\r\nb:\r\nc:\r\n"),
        field(V::HeadTooLarge, &format!("X: {}\r\n", "y".repeat(90)), "X: y\r\n"),
        host(V::HostMissing, "X: y\r\n", "Host: y\r\n"),
        host(V::HostRepeated, "Host: a\r\nHost: a\r\n", "Host: a\r\n"),
        host(V::Host, "Host: u@a\r\n", "Host: a\r\n"),
        field(V::Connection, "Connection: a b\r\n", "Connection: a, b\r\n"),
        field(V::Expectation, "Expect: 101-continue\r\n", "Expect: 100-continue\r\n"),
        field(V::Length, "Content-Length: +0\r\n", "Content-Length: 0\r\n"),
        field(
            V::LengthRepeated,
            "Content-Length: 0\r\nContent-Length: 0\r\n",
            "Content-Length: 0\r\n",
        ),
    ]
}

/// Mistakes in what frames a body, or in the body.
fn bodies() -> Vec<Pair> {
    use Violation as V;
    let post = "POST / HTTP/1.1\r\nHost: a\r\n";
    let coding = |by, bad: &str, mended: &str| pair(by, post, bad, mended, "\r\n0\r\n\r\n");
    let chunked = "Transfer-Encoding: chunked\r\n";
    let start = format!("{post}{chunked}\r\n");
    let chunk = |by, bad: &str, mended: &str| pair(by, &start, bad, mended, "0\r\n\r\n");
    let start = format!("{start}0\r\n");
    let trailer = |by, bad: &str, mended: &str| pair(by, &start, bad, mended, "\r\n");
    let host = format!("Host: a\r\n{chunked}\r\n0\r\n\r\n");
    let line = |by, bad: &str, mended: &str| pair(by, "", bad, mended, &host);
    vec![
        coding(V::LengthAndCoding, &format!("Content-Length: 5\r\n{chunked}"), chunked),
        coding(V::Coding, "Transfer-Encoding: chunked,\r\n", chunked),
        coding(V::CodingUnknown, "Transfer-Encoding: gzip, chunked\r\n", chunked),
        coding(V::CodingRepeated, &chunked.repeat(2), chunked),
        line(V::CodingInOldVersion, "POST / HTTP/1.0\r\n", "POST / HTTP/1.1\r\n"),
        line(V::BodyNotAllowed, "TRACE / HTTP/1.1\r\n", "POST / HTTP/1.1\r\n"),
        chunk(V::BodyTooLarge, "a\r\n0123456789\r\n", "9\r\n012345678\r\n"),
        chunk(V::ChunkSize, "+1\r\nx\r\n", "1\r\nx\r\n"),
        chunk(V::ChunkLineTooLong, "1;a=1234567\r\nx\r\n", "1;a=123456\r\nx\r\n"),
        chunk(V::Extension, "1;a=\r\nx\r\n", "1;a=b\r\nx\r\n"),
        chunk(V::ExtensionsTooLarge, &"1;1234\r\nx\r\n".repeat(3), &"1;1234\r\nx\r\n".repeat(2)),
        chunk(V::ChunkEnd, "1\r\nxx\r\n", "2\r\nxx\r\n"),
        trailer(V::TrailerName, "Host: a\r\n", "Ghost: a\r\n"),
        trailer(V::TooManyTrailers, "a:\r\nb:\r\nc:\r\n", "a:\r\nb:\r\n"),
        trailer(V::TrailersTooLarge, "a: 12345678901234567890\r\n", "a: 1\r\n"),
    ]
}
