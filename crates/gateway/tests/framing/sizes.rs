//! Just within the default limits, and just beyond them.

use super::{Table, bare, chunked, post};

const LINE: usize = 16 * 1024;
const HEAD: usize = 64 * 1024;
const FIELDS: usize = 100;
const CHUNK_LINE: usize = 512;
const EXTENSIONS: usize = 8 * 1024;
const TRAILERS: usize = 8 * 1024;
const TRAILER_FIELDS: usize = 32;

pub(super) fn fill(table: &mut Table) {
    for (name, bytes) in [("at the limit", LINE), ("over the limit", LINE + 1), ("64 kB", 65_536)] {
        let frame = "GET / HTTP/1.1\r\n".len();
        let line = format!("GET /{} HTTP/1.1", "a".repeat(bytes - frame));
        let (name, request) = (format!("request line {name}"), bare(&line, "Host: a\r\n"));
        if bytes <= LINE {
            table.fine(&name, request, "");
        } else {
            table.bad(&name, request, "line_too_long");
        }
    }
    table.bad("a line without an end", "A".repeat(LINE), "line_too_long");
    heads(table);
    chunks(table);
    trailers(table);
}

fn heads(table: &mut Table) {
    let frame = post("X: \r\n", "").len();
    for (name, bytes) in [("at", HEAD), ("over", HEAD + 1), ("far over", 1_000_000)] {
        let request = post(format!("X: {}\r\n", "y".repeat(bytes - frame)), "");
        let name = format!("a head {name} the limit, in one field");
        if bytes <= HEAD {
            table.fine(&name, request, "");
        } else {
            table.bad(&name, request, "head_too_large");
        }
    }
    let long = format!("{}: y\r\n", "x".repeat(HEAD));
    table.bad("a name without an end", post(long, ""), "head_too_large");
    let many = "X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n";
    // `Host` is one of them.
    table.fine("as many fields as may be", post(many.repeat(FIELDS - 1), ""), "");
    table.bad("one field more", post(many.repeat(FIELDS), ""), "too_many_fields");
    table.bad("ten thousand fields", post("a:\r\n".repeat(10_000), ""), "too_many_fields");
}

fn chunks(table: &mut Table) {
    let line = |bytes: usize| format!("1;{}\r\n", "a".repeat(bytes - "1;\r\n".len()));
    let fine = format!("{}x\r\n0\r\n\r\n", line(CHUNK_LINE));
    table.fine("a chunk line at the limit", chunked(fine), "x");
    let over = format!("{}x\r\n0\r\n\r\n", line(CHUNK_LINE + 1));
    table.bad("a chunk line over the limit", chunked(over), "chunk_line_too_long");
    let zeros = format!("{}1\r\nx\r\n0\r\n\r\n", "0".repeat(100_000));
    table.bad("a size with zeros without end", chunked(zeros), "chunk_line_too_long");
    let quoted = format!("1;a=\"{}\"\r\nx\r\n0\r\n\r\n", "b".repeat(100_000));
    table.bad("an extension without end", chunked(quoted), "chunk_line_too_long");
    // 256 bytes of extensions with each chunk.
    let chunk = format!("1;{}\r\nx\r\n", "a".repeat(255));
    let fine = chunk.repeat(EXTENSIONS / 256) + "0\r\n\r\n";
    table.fine("extensions at the limit", chunked(fine), "x".repeat(EXTENSIONS / 256));
    let over = chunk.repeat(EXTENSIONS / 256) + "0;a\r\n\r\n";
    table.bad("extensions over the limit", chunked(over), "extensions_too_large");
    let over = "7fffffffffffffff\r\n";
    let half = "1\r\nx\r\n";
    table.bad("more data than can be counted", chunked(format!("{half}{over}")), "body_too_large");
}

fn trailers(table: &mut Table) {
    let body = |trailers: &str| chunked(format!("0\r\n{trailers}\r\n"));
    let frame = "X: \r\n\r\n".len();
    let field = |bytes: usize| format!("X: {}\r\n", "y".repeat(bytes - frame));
    table.fine("trailers at the limit", body(&field(TRAILERS)), "");
    table.bad("trailers over the limit", body(&field(TRAILERS + 1)), "trailers_too_large");
    table.bad("a trailer without end", body(&field(100_000)), "trailers_too_large");
    table.fine("as many trailers as may be", body(&"X: y\r\n".repeat(TRAILER_FIELDS)), "");
    let over = body(&"X: y\r\n".repeat(TRAILER_FIELDS + 1));
    table.bad("one trailer more", over, "too_many_trailers");
    table.bad("a hundred thousand trailers", body(&"a:\r\n".repeat(100_000)), "too_many_trailers");
}
