//! What of a request is written, and in how many pieces.

use super::super::script::{Piece, Pieces, Script};
use super::*;
use crate::lettering::Letters;

fn data(text: &str) -> Piece {
    Piece::Data(text.into())
}

/// Writes a request; gives what was written.
fn write(script: &Script, request: Request<Pieces>) -> Result<String, Fault> {
    let mut stream = script.stream();
    let mut sending = Sending::default();
    sending.start(Box::new(request));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    for _ in 0..10_000 {
        assert!(!sending.is_done());
        if let Poll::Ready(written) = sending.poll(&mut cx, &mut stream) {
            written?;
            assert!(sending.is_done() && sending.out.capacity() <= KEPT);
            assert_eq!(stream.written(), script.got().len() as u64);
            return Ok(script.got());
        }
    }
    panic!("it never ends: {}", script.got());
}

fn request(lines: &[(&'static str, &'static str)], list: &[Piece]) -> Request<Pieces> {
    let mut request = Request::post("/a?b").body(Pieces::default()).unwrap();
    let mut letters = Letters::default();
    for (name, value) in lines {
        letters.note(name.as_bytes());
        let value = http::HeaderValue::from_static(value);
        request.headers_mut().append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
    }
    request.body_mut().list = list.iter().cloned().collect();
    if let Some(lettering) = letters.finish() {
        request.extensions_mut().insert(lettering);
    }
    request
}

#[test]
fn a_body_is_framed_as_its_head_says_or_as_is_known_of_it() {
    let body = [data("hel"), Piece::Later, data(""), data("lo"), Piece::Later];
    let chunked = "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
    let top = "POST /a?b HTTP/1.1\r\n";
    for (lines, list, length, expected) in [
        (
            &[("Host", "a"), ("content-length", "5")][..],
            &body[..],
            None,
            "Host: a\r\ncontent-length: 5\r\n\r\nhello".to_owned(),
        ),
        (&[("host", "a")], &body, Some(5), "host: a\r\ncontent-length: 5\r\n\r\nhello".to_owned()),
        (
            &[("host", "a")],
            &body,
            None,
            format!("host: a\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"),
        ),
        (
            &[("Transfer-ENCODING", "chunked"), ("X", "")],
            &body,
            None,
            format!("X:\r\nTransfer-ENCODING: chunked\r\n\r\n{chunked}"),
        ),
        (&[("CONTENT-length", "0")], &[], None, "CONTENT-length: 0\r\n\r\n".to_owned()),
        (&[("host", "a")], &[], None, "host: a\r\n\r\n".to_owned()),
        (&[], &[Piece::Later], None, "transfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned()),
        (
            &[],
            &[data("x"), Piece::Trailers],
            None,
            "transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n".to_owned(),
        ),
        // Lines of one name stand together, each in its own letters.
        (
            &[("X-b", "1"), ("A", "2"), ("x-B", "3")],
            &[],
            None,
            "X-b: 1\r\nx-B: 3\r\nA: 2\r\n\r\n".to_owned(),
        ),
    ] {
        for at_once in [usize::MAX, 1, 7] {
            let mut request = request(lines, list);
            request.body_mut().length = length;
            let written = write(&Script::new([]).at_once(at_once), request).unwrap();
            assert_eq!(written, format!("{top}{expected}"), "{at_once} at once");
        }
    }
}

/// Zeros are octal to some servers, and of two lines they take different ones.
#[test]
fn a_length_is_said_once_and_as_everybody_reads_it() {
    let hello = [data("hello")];
    for (lines, list, expected) in [
        (&[("content-length", "005")][..], &hello[..], "content-length: 5\r\n\r\nhello"),
        (
            &[("content-length", "5"), ("content-length", "5")],
            &hello,
            "content-length: 5\r\n\r\nhello",
        ),
        (
            &[("content-length", "+5")],
            &hello,
            "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        (&[("content-length", "")], &[], "\r\n"),
        (&[("content-length", "00")], &[], "\r\n"),
    ] {
        let written = write(&Script::new([]), request(lines, list)).unwrap();
        assert_eq!(written, format!("POST /a?b HTTP/1.1\r\n{expected}"), "{lines:?}");
    }
}

/// Over HTTP/2 nobody knows at the head of a GET whether it has a body.
#[test]
fn a_body_that_a_get_leaves_open_is_announced_only_if_it_is_there() {
    let chunks = "transfer-encoding: chunked\r\n\r\n";
    for (list, expected) in [
        (&[data("")][..], "\r\n".to_owned()),
        (&[data(""), data("x")], format!("{chunks}1\r\nx\r\n0\r\n\r\n")),
        (&[data("x")], format!("{chunks}1\r\nx\r\n0\r\n\r\n")),
        (&[data("x"), Piece::Later, data("y")], format!("{chunks}1\r\nx\r\n1\r\ny\r\n0\r\n\r\n")),
        // One that is not there yet is not waited for.
        (&[Piece::Later, data("")], format!("{chunks}0\r\n\r\n")),
    ] {
        let mut request = request(&[], list);
        *request.method_mut() = Method::GET;
        let written = write(&Script::new([]), request).unwrap();
        assert_eq!(written, format!("GET /a?b HTTP/1.1\r\n{expected}"), "{list:?}");
    }
}

#[test]
fn the_first_line_has_the_path_and_nothing_else() {
    for (uri, line) in [
        ("/", "/"),
        ("*", "*"),
        ("/a//b/../%2F?c=d&e", "/a//b/../%2F?c=d&e"),
        ("http://a?b", "/?b"),
    ] {
        let mut request = request(&[], &[]);
        *request.uri_mut() = uri.parse().unwrap();
        *request.method_mut() = http::Method::OPTIONS;
        let written = write(&Script::new([]), request).unwrap();
        assert_eq!(written, format!("OPTIONS {line} HTTP/1.1\r\n\r\n"));
    }
}

#[test]
fn a_small_body_that_is_there_leaves_with_its_head() {
    let script = Script::new([]);
    write(&script, request(&[("content-length", "5")], &[data("hello")])).unwrap();
    assert_eq!(script.writes(), 1);
}

#[test]
fn a_large_body_is_the_same_however_little_is_taken_at_once() {
    let large = "x".repeat(100_000);
    let list = [data(&large), data("y"), Piece::Later, data(&large)];
    for at_once in [usize::MAX, 999, SMALL] {
        let sized = write(
            &Script::new([]).at_once(at_once),
            request(&[("content-length", "200001")], &list),
        );
        let body = format!("{large}y{large}");
        assert!(sized.unwrap().ends_with(&format!("\r\n\r\n{body}")), "{at_once}");
        let chunked = write(&Script::new([]).at_once(at_once), request(&[], &list)).unwrap();
        let body = format!("186A0\r\n{large}\r\n1\r\ny\r\n186A0\r\n{large}\r\n0\r\n\r\n");
        assert!(chunked.ends_with(&format!("\r\n\r\n{body}")), "{at_once}");
    }
}

#[test]
fn a_body_with_another_length_than_its_head_says_is_a_fault_and_never_sent_on() {
    for list in [&[data("hell")][..], &[data("hello!")], &[data("hel"), data("lo!")]] {
        let script = Script::new([]);
        let ended = write(&script, request(&[("content-length", "5")], list));
        assert!(matches!(ended, Err(Fault::BodyLength)));
        assert_eq!(script.got(), "", "nothing was written before the body was looked at");
    }
    let broken =
        write(&Script::new([]), request(&[("content-length", "5")], &[data("hel"), Piece::Broken]));
    assert!(matches!(broken, Err(Fault::Body(_))));
}

#[test]
fn the_line_before_a_chunk_is_its_size() {
    for size in [1, 9, 10, 15, 16, 255, 256, 4_096, 100_000, usize::MAX] {
        let mut line = Vec::new();
        write_hex(&mut line, size);
        assert_eq!(line, format!("{size:X}\r\n").as_bytes());
    }
}
