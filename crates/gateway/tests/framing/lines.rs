//! Line ends, folds and empty lines, at every line of a request.

use super::{Expected, NEXT, Table, bare, post};

const LINES: [&str; 5] = ["POST /pay HTTP/1.1", "Host: a", "X: y", "Content-Length: 5", ""];

pub(super) fn fill(table: &mut Table) {
    for at in 0..LINES.len() {
        for (end, by) in [("\n", "bare_lf"), ("\n\r", "bare_lf"), ("\r\r\n", "bare_cr")] {
            let request = with_end(at, end);
            table.bad(&format!("line {at} ends with {end}"), request, by);
        }
        // The line goes on behind the CR, whatever the client thought.
        if at + 1 < LINES.len() {
            table.bad(&format!("line {at} ends with CR"), with_end(at, "\r"), "bare_cr");
        }
    }
    table.bad("every line ends with LF", "GET / HTTP/1.1\nHost: a\n\n", "bare_lf");
    folds(table);
    let get = bare("GET / HTTP/1.1", "Host: a\r\n");
    for (before, by) in [
        ("\r\n\r\n", "empty_lines"),
        ("\r\n\r\n\r\n", "empty_lines"),
        ("\n", "bare_lf"),
        ("\r\n\n", "bare_lf"),
        ("\r", "bare_cr"),
        ("\r\r\n", "bare_cr"),
        (" ", "method"),
        (" \r\n", "method"),
        ("\t", "method"),
        ("\0", "method"),
        ("\u{feff}", "method"),
        ("\u{16}\u{3}\u{1}", "method"),
    ] {
        table.bad(&format!("{before} before a request"), [before.as_bytes(), &get].concat(), by);
        let later = [&get[..], before.as_bytes()].concat();
        let expected = Expected::Refused { bodies: vec![Vec::new()], status: 400, by };
        let bytes = [&later[..], NEXT].concat();
        table.push(&format!("{before} behind a request"), bytes, expected);
    }
    table.fine("an empty line before a request", [b"\r\n", &get[..]].concat(), "");
    table.fine("an empty line behind a request", [&get[..], b"\r\n"].concat(), "");
    let body = post("Content-Length: 5\r\n", "hello\r\n");
    table.fine("an empty line behind a body", body, "hello");
    for more in [" ", "\0", "\u{ff}"] {
        let body = post("Content-Length: 5\r\n", format!("hello{more}"));
        let bodies = vec![b"hello".to_vec()];
        let expected = Expected::Refused { bodies, status: 400, by: "method" };
        let bytes = [&body[..], NEXT].concat();
        table.push(&format!("more than the length says: {more}"), bytes, expected);
    }
}

/// A request whose line at this place ends so.
fn with_end(at: usize, end: &str) -> String {
    let mut request = String::new();
    for (place, line) in LINES.iter().enumerate() {
        request += line;
        request += if place == at { end } else { "\r\n" };
    }
    request + "hello"
}

fn folds(table: &mut Table) {
    for space in [" ", "\t", "  ", " \t"] {
        for (place, fields) in [
            ("the first field", format!("{space}X: y\r\n")),
            ("a value", format!("X: y\r\n{space}z\r\n")),
            ("an empty value", format!("X:\r\n{space}z\r\n")),
            ("nothing", format!("X: y\r\n{space}\r\n")),
            ("a field that looks like one", format!("X: y\r\n{space}Content-Length: 5\r\n")),
            ("Content-Length", format!("Content-Length: 5\r\n{space}5\r\n")),
            ("Expect", format!("Expect: 100-continue\r\n{space}x\r\n")),
        ] {
            let request = post(fields, "hello");
            table.bad(&format!("{place} is folded with {space}"), request, "fold");
        }
        let host = bare("GET / HTTP/1.1", &format!("Host: a\r\n{space}b\r\n"));
        table.bad(&format!("Host is folded with {space}"), host, "fold");
        let line = bare("GET / HTTP/1.1", &format!("{space}Host: b\r\nHost: a\r\n"));
        table.bad(&format!("a field begins with {space}"), line, "fold");
    }
}
