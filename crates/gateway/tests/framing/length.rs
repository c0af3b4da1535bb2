//! `Content-Length`: how it is written, how often, and beside what.

use super::{Table, bare, post};

/// Values that are not one plain number, as they stand behind the colon.
const MALFORMED: &[&str] = &[
    "",
    " ",
    " +3",
    " -0",
    " -3",
    " 0x10",
    " 1e2",
    "  5",
    " 5 ",
    "\t5",
    " 5\t",
    " 5,5",
    " 5, 5",
    " 5,",
    " ,5",
    " 05",
    " 00",
    " 5 5",
    " 5;a=b",
    " \"5\"",
    " five",
    " 5.0",
    " 5_0",
    " 5h",
    " 5\u{85}",
    " 9223372036854775808",
    " 18446744073709551615",
    " 18446744073709551616",
    " 18446744073709551621",
    " 1111111111111111111111111111111111111111",
    " \u{665}",
    " \u{ff15}",
];

pub(super) fn fill(table: &mut Table) {
    for (name, fields) in [
        ("one space", "Content-Length: 5\r\n"),
        ("no space", "Content-Length:5\r\n"),
        ("lower case", "content-length: 5\r\n"),
        ("upper case", "CONTENT-LENGTH: 5\r\n"),
        ("behind another", "X: y\r\nContent-Length: 5\r\n"),
        ("before another", "Content-Length: 5\r\nX: y\r\n"),
    ] {
        table.fine(name, post(fields, "hello"), "hello");
    }
    table.fine("zero", post("Content-Length: 0\r\n", ""), "");
    table.fine("none", post("", ""), "");
    for value in MALFORMED {
        let field = format!("Content-Length:{value}\r\n");
        for (place, fields) in [
            ("first", format!("{field}X: y\r\nZ: z\r\n")),
            ("between", format!("X: y\r\n{field}Z: z\r\n")),
            ("last", format!("X: y\r\nZ: z\r\n{field}")),
        ] {
            table.bad(&format!("{place}, value {value}"), post(fields, "hello"), "length");
        }
    }
    for (name, fields) in [
        ("twice, the same", "Content-Length: 5\r\nContent-Length: 5\r\n"),
        ("twice, different", "Content-Length: 5\r\nContent-Length: 6\r\n"),
        ("twice, apart", "Content-Length: 5\r\nX: y\r\ncontent-length: 5\r\n"),
        ("twice, zero first", "Content-Length: 0\r\nContent-Length: 5\r\n"),
        ("twice, zero last", "Content-Length: 5\r\nContent-Length: 0\r\n"),
        ("three times", "Content-Length: 5\r\nContent-Length: 5\r\nContent-Length: 5\r\n"),
    ] {
        table.bad(name, post(fields, "hello"), "length_repeated");
    }
    beside_chunks(table);
    methods(table);
}

fn beside_chunks(table: &mut Table) {
    for length in ["0", "3", "5"] {
        for coding in ["Transfer-Encoding: chunked", "transfer-encoding:CHUNKED"] {
            let length = format!("Content-Length: {length}");
            for (first, last) in [(&length[..], coding), (coding, &length[..])] {
                for between in ["", "X: y\r\n"] {
                    let fields = format!("{first}\r\n{between}{last}\r\n");
                    let request = post(&fields, "0\r\n\r\n");
                    table.bad(&fields, request, "length_and_coding");
                }
            }
        }
    }
}

/// Bodies are framed the same whatever the method, except where there is none.
fn methods(table: &mut Table) {
    for method in ["GET", "HEAD", "DELETE", "PUT", "PATCH", "OPTIONS", "M-SEARCH"] {
        for version in ["1.1", "1.0"] {
            let line = format!("{method} /x HTTP/{version}");
            let fields = "Host: a\r\nConnection: keep-alive\r\nContent-Length: 5\r\n";
            let request = [&bare(&line, fields)[..], b"hello"].concat();
            table.fine(&format!("{line} with a body"), request, "hello");
        }
    }
    for fields in ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"] {
        for line in ["TRACE / HTTP/1.1", "CONNECT a:1 HTTP/1.1"] {
            let host = if line.starts_with('C') { "a:1" } else { "a" };
            let request = bare(line, &format!("Host: {host}\r\n{fields}"));
            table.bad(&format!("{line}, {fields}"), request, "body_not_allowed");
        }
    }
    table.fine("TRACE without a body", bare("TRACE / HTTP/1.1", "Host: a\r\n"), "");
    let empty = "Host: a\r\nContent-Length: 0\r\n";
    table.fine("TRACE with an empty body", bare("TRACE / HTTP/1.1", empty), "");
}
