//! Chunks: sizes, extensions, ends and trailers, each at several places.

use super::{Table, chunked};

/// Lines before a chunk of five bytes, with what is wrong with them.
const SIZES: &[(&str, &str)] = &[
    ("", "chunk_size"),
    (" 5", "chunk_size"),
    ("5 ", "chunk_size"),
    ("5\t", "chunk_size"),
    ("\t5", "chunk_size"),
    ("+5", "chunk_size"),
    ("-5", "chunk_size"),
    ("-1", "chunk_size"),
    ("0x5", "chunk_size"),
    ("5h", "chunk_size"),
    ("5,", "chunk_size"),
    ("5.", "chunk_size"),
    ("5 5", "chunk_size"),
    ("\"5\"", "chunk_size"),
    ("5\0", "chunk_size"),
    ("\u{0}5", "chunk_size"),
    ("5\u{b}", "chunk_size"),
    ("5\u{ff}", "chunk_size"),
    ("\u{665}", "chunk_size"),
    (";a", "chunk_size"),
    ("5 ;a", "chunk_size"),
    ("5:a", "chunk_size"),
    ("00000000000000005", "chunk_size"),
    ("8000000000000000", "chunk_size"),
    ("FFFFFFFFFFFFFFFF", "chunk_size"),
    ("10000000000000005", "chunk_size"),
    ("FFFFFFFFFFFFFFFF1", "chunk_size"),
    ("5;", "extension"),
    ("5;;a", "extension"),
    ("5; a", "extension"),
    ("5;a ", "extension"),
    ("5;a =b", "extension"),
    ("5;a= b", "extension"),
    ("5;a=", "extension"),
    ("5;=b", "extension"),
    ("5;a=\"b", "extension"),
    ("5;a=\"b\"c", "extension"),
    ("5;a=\"b\\", "extension"),
    ("5;a=\"\0\"", "extension"),
    ("5;a\0", "extension"),
    ("5;a=b,c", "extension"),
    ("5;a=\"b\r\n\"", "extension"),
    ("5;a=\"b\n\"", "bare_lf"),
    ("5;a=\"b\r\"", "bare_cr"),
    ("5;a\nb", "bare_lf"),
    ("5;a\rb", "bare_cr"),
    ("5\r", "bare_cr"),
    ("5\rX", "bare_cr"),
    ("5\n", "bare_lf"),
];

/// What may stand before a chunk of five bytes.
const FINE_SIZES: &[&str] = &[
    "5",
    "05",
    "0000000000000005",
    "5;a",
    "5;a;b",
    "5;a=b",
    "5;a=\"b c\"",
    "5;a=\"\\\"\\\\\"",
    "5;a=\";\t=\"",
    "5;a=\"\u{e9}\"",
    "5;!#$%&'*+-.^_`|~=1",
];

/// What may stand where a CRLF has to stand behind five bytes of data.
const ENDS: &[&str] = &["", "\n", "\r", "\r\r\n", " \r\n", "X\r\n", "\0\r\n", "\n\r", "6"];

pub(super) fn fill(table: &mut Table) {
    for size in FINE_SIZES {
        for (place, body, data) in places(size, "\r\n") {
            table.fine(&format!("{place}, size {size}"), chunked(body), data);
        }
    }
    for (size, by) in SIZES {
        for (place, body, _) in places(size, "\r\n") {
            table.bad(&format!("{place}, size {size}"), chunked(body), by);
        }
    }
    for end in ENDS {
        for (place, body, _) in places("5", end) {
            let by = "chunk_end";
            table.bad(&format!("{place}, data ends with {end}"), chunked(body), by);
        }
    }
    for (name, body, by) in [
        ("more data than announced", "3\r\nhello\r\n0\r\n\r\n", "chunk_end"),
        ("less data than announced", "7\r\nhello\r\n0\r\n\r\n", "chunk_end"),
        ("a size in hexadecimal is more than it looks", "10\r\nhello\r\n0\r\n\r\n", "chunk_end"),
        ("an end with LF alone", "0\r\n\n", "bare_lf"),
        ("an end with LF alone behind LF alone", "0\n\n", "bare_lf"),
        ("an end with CR CR LF", "0\r\n\r\r\n", "bare_cr"),
        ("an end that is no size", "00x\r\n\r\n", "chunk_size"),
        ("an end with a space", "0 \r\n\r\n", "chunk_size"),
        ("an end with many zeros", "00000000000000000\r\n\r\n", "chunk_size"),
    ] {
        table.bad(name, chunked(body), by);
    }
    table.fine("nothing but an end", chunked("0\r\n\r\n"), "");
    table.fine("an end with zeros", chunked("000\r\n\r\n"), "");
    table.fine("an end with an extension", chunked("0;a=b\r\n\r\n"), "");
    table.fine("upper case", chunked("A\r\n0123456789\r\n0\r\n\r\n"), "0123456789");
    table.fine("lower case", chunked("a\r\n0123456789\r\n0\r\n\r\n"), "0123456789");
    table.fine("lines in data", chunked("4\r\n\r\n\r\n\r\n0\r\n\r\n"), "\r\n\r\n");
    table.fine(
        "many small ones",
        chunked("1\r\nx\r\n".repeat(1_000) + "0\r\n\r\n"),
        "x".repeat(1_000),
    );
    trailers(table);
}

/// A body with this line before a chunk and this behind its data, and the data if both are right.
fn places(size: &str, end: &str) -> [(&'static str, String, &'static str); 3] {
    let odd = format!("{size}\r\nhello{end}");
    [
        ("only chunk", format!("{odd}0\r\n\r\n"), "hello"),
        ("second chunk", format!("3\r\nabc\r\n{odd}0\r\n\r\n"), "abchello"),
        ("first of three", format!("{odd}3\r\nabc\r\n1\r\n!\r\n0\r\n\r\n"), "helloabc!"),
    ]
}

fn trailers(table: &mut Table) {
    let body = |trailers: &str| chunked(format!("5\r\nhello\r\n0\r\n{trailers}\r\n"));
    for trailer in
        ["X-Sum: 1\r\n", "X-Sum:\r\n", "Digest: a\r\nServer-Timing: b\r\n", "x_sum: 1\r\n"]
    {
        table.fine(&format!("trailers {trailer}"), body(trailer), "hello");
    }
    for name in [
        "Content-Length",
        "Transfer-Encoding",
        "Host",
        "Authorization",
        "Cookie",
        "Idempotency-Key",
        "idempotency_key",
        "X-Idempotency-Key",
        "Connection",
        "TE",
        "Trailer",
        "Upgrade",
        "Expect",
        "Content-Type",
        "Content-Encoding",
        "Content-Range",
        "Forwarded",
        "X-Forwarded-For",
        "x_forwarded_proto",
        "Proxy-Authorization",
        "Cache-Control",
        "Max-Forwards",
        "Range",
        "CONTENT_LENGTH",
        "X-Api-Key",
        "Keep-Alive",
    ] {
        for before in ["", "X-Sum: 1\r\n"] {
            let trailers = format!("{before}{name}: 5\r\n");
            table.bad(&format!("trailers {trailers}"), body(&trailers), "trailer_name");
        }
    }
    for (trailers, by) in [
        ("X-Sum\r\n", "field_name"),
        ("X-Sum : 1\r\n", "field_name"),
        (": 1\r\n", "field_name"),
        (" X-Sum: 1\r\n", "fold"),
        ("X-Sum: 1\r\n 2\r\n", "fold"),
        ("X-Sum: 1\0\r\n", "field_value"),
        ("X-Sum: 1\n", "bare_lf"),
        ("X-Sum: 1\rY: 2\r\n", "bare_cr"),
        ("GET /smuggled HTTP/1.1\r\n", "field_name"),
    ] {
        table.bad(&format!("trailers {trailers}"), body(trailers), by);
    }
}
