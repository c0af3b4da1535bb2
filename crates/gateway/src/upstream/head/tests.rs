//! The heads of answers, as a table.

use super::*;

fn head(lines: &str) -> Result<Head, Fault> {
    let bytes = format!("HTTP/1.1 {lines}\r\n\r\nbody");
    let parsed = read(bytes.as_bytes(), Asked::Other)?;
    assert_eq!(parsed.bytes, bytes.len() - 4, "{lines}");
    Ok(parsed.head.unwrap())
}

fn framing(lines: &str) -> (Framing, After) {
    let head = head(lines).unwrap_or_else(|fault| panic!("{lines}: {fault}"));
    (head.framing, head.after)
}

#[test]
fn each_head_says_where_its_answer_ends_and_what_becomes_of_the_connection() {
    use After::{Close, Next};
    use Framing::{Chunked, Empty, Sized, Switched, UntilClose};
    for (lines, expected) in [
        ("200 OK\r\ncontent-length: 5", (Sized(5), Next)),
        ("200 OK\r\ncontent-length: 0", (Empty, Next)),
        ("200 OK\r\ncontent-length: 18446744073709551615", (Sized(u64::MAX), Next)),
        ("200 OK\r\ntransfer-encoding: chunked", (Chunked, Next)),
        ("200 OK\r\nTransfer-Encoding: Chunked \r\nconnection: close", (Chunked, Close)),
        ("200 OK\r\nx: y", (UntilClose, Close)),
        ("200 OK\r\ntransfer-encoding: identity", (UntilClose, Close)),
        ("200 OK\r\ntransfer-encoding: identity\r\ncontent-length: 5", (Sized(5), Close)),
        ("200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: Chunked", (Chunked, Close)),
        ("200 OK\r\ncontent-length: 5\r\nConnection: keep-alive, CLOSE", (Sized(5), Close)),
        ("200 OK\r\ncontent-length: 5\r\nconnection: x\r\nconnection: close", (Sized(5), Close)),
        // Said twice, the same: read so, and not read from again.
        ("200 OK\r\ncontent-length: 5\r\ncontent-length: 5", (Sized(5), Close)),
        ("200 OK\r\ncontent-length: 5, 5", (Sized(5), Close)),
        ("200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked", (Chunked, Close)),
        ("204 None\r\ncontent-length: 0", (Empty, Next)),
        // Whoever says that there is a body may send one.
        ("204 None\r\ncontent-length: 5", (Empty, Close)),
        ("204 None\r\ntransfer-encoding: chunked", (Empty, Close)),
        ("304 Same\r\ntransfer-encoding: chunked", (Empty, Next)),
        ("101 Switch\r\nupgrade: x", (Switched, Close)),
    ] {
        assert_eq!(framing(lines), expected, "{lines}");
    }
    let old = |lines: &str| {
        let bytes = format!("HTTP/1.0 200 OK\r\n{lines}\r\n\r\n");
        read(bytes.as_bytes(), Asked::Other).map(|parsed| parsed.head.unwrap())
    };
    assert_eq!(old("content-length: 5").unwrap().after, Close);
    assert_eq!(old("content-length: 5\r\nconnection: Keep-Alive").unwrap().after, Next);
    assert!(matches!(old("transfer-encoding: chunked"), Err(Fault::Framing)));
    let parsed = read(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Asked::Head).unwrap();
    assert_eq!(parsed.head.unwrap().framing, Empty);
}

#[test]
fn an_answer_whose_end_nobody_can_tell_is_refused() {
    for lines in [
        "content-length: 5\r\ncontent-length: 6",
        "content-length: 5, 6",
        "content-length: five",
        "content-length: -5",
        "content-length: +5",
        "content-length: 5 5",
        "content-length: ",
        "content-length: 5,",
        "content-length: 0x5",
        "content-length: 18446744073709551616",
        "transfer-encoding: gzip",
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: chunked, chunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: gzip",
        "transfer-encoding: gzip\r\ntransfer-encoding: chunked",
        "transfer-encoding: identity\r\ntransfer-encoding: chunked",
        "transfer-encoding: xchunked",
        "transfer-encoding: ",
    ] {
        let refused = head(&format!("200 OK\r\n{lines}"));
        assert!(matches!(refused, Err(Fault::Framing)), "{lines}: {refused:?}");
    }
}

/// A length that was said twice goes on once.
#[test]
fn a_repeated_length_becomes_one_number() {
    for lines in ["content-length: 5, 5", "content-length: 5\r\ncontent-length: 5"] {
        let head = head(&format!("200 OK\r\n{lines}")).unwrap();
        let lengths = head.response.headers().get_all(CONTENT_LENGTH);
        assert_eq!(lengths.iter().collect::<Vec<_>>(), ["5"], "{lines}");
    }
}

/// The length that is not true does not go on.
#[test]
fn a_length_beside_chunks_is_taken_out() {
    let head = head("200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked").unwrap();
    assert!(!head.response.headers().contains_key(CONTENT_LENGTH));
}

#[test]
fn what_is_no_head_is_refused() {
    for bytes in [
        &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 1000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx y: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx : 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\rb\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 O\0K\r\n\r\n",
        b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\xff\xff",
    ] {
        let refused = read(bytes, Asked::Other);
        assert!(matches!(refused, Err(Fault::Head(_))), "{} {refused:?}", bytes.escape_ascii());
    }
    for status in ["000", "099"] {
        let refused = head(&format!("{status} x"));
        assert!(matches!(refused, Err(Fault::Status)), "{refused:?}");
    }
}

#[test]
fn a_head_is_read_when_its_last_byte_has_come_and_not_before() {
    let whole = b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\nHTTP/1.1 201 Made\r\nX-A: b\r\ncontent-length: 1\r\n\r\n";
    for end in 0..whole.len() {
        let parsed = read(&whole[..end], Asked::Other).unwrap();
        assert!(parsed.head.is_none(), "{end}");
        // What is read of interim answers is over, whatever comes next.
        let again = read(&whole[parsed.bytes..], Asked::Other).unwrap();
        assert_eq!(again.head.unwrap().response.status(), 201, "{end}");
    }
    let parsed = read(whole, Asked::Other).unwrap();
    assert_eq!((parsed.bytes, parsed.head.unwrap().framing), (whole.len(), Framing::Sized(1)));
}

#[test]
fn an_answer_may_have_many_lines_but_not_endlessly_many() {
    for (count, ok) in [(0, true), (FEW, true), (FEW + 1, true), (100, true), (101, true)]
        .into_iter()
        .chain([(MAX_FIELDS, true), (MAX_FIELDS + 1, false)])
    {
        let bytes = format!("HTTP/1.1 200 OK\r\n{}\r\n", "set-cookie: a=b\r\n".repeat(count));
        match read(bytes.as_bytes(), Asked::Other) {
            Ok(parsed) => {
                assert!(ok, "{count}");
                assert_eq!(parsed.head.unwrap().response.headers().len(), count);
            }
            Err(fault) => assert!(!ok, "{count}: {fault}"),
        }
    }
}

#[test]
fn values_are_what_was_sent_without_the_white_space_around_them() {
    let head =
        head("299 Mostly\r\nX-Empty:\r\nX-Space: \t \r\nx-name:  caf\u{e9} au lait \t").unwrap();
    let value = |name: &str| head.response.headers()[name].as_bytes().to_vec();
    assert_eq!(value("x-empty"), b"");
    assert_eq!(value("x-space"), b"");
    assert_eq!(value("x-name"), "caf\u{e9} au lait".as_bytes());
    let reason = head.response.extensions().get::<ReasonPhrase>().unwrap();
    assert_eq!(reason.as_bytes(), b"Mostly");
}
