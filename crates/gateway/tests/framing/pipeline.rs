//! A hundred requests in a row, with one bad among them.

use super::{Expected, Table, bare, chunked, post, status};

const REQUESTS: usize = 100;

/// Requests that are refused, each for a reason of another part of the sieve.
fn bad_ones() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("bare_lf", b"GET / HTTP/1.1\nHost: a\n\n".to_vec()),
        ("method", b"\x16\x03\x01\x02\x00".to_vec()),
        ("host_missing", bare("GET / HTTP/1.1", "")),
        ("length_repeated", post("Content-Length: 1\r\nContent-Length: 1\r\n", "x")),
        (
            "length_and_coding",
            post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ),
        ("coding_unknown", post("Transfer-Encoding: gzip\r\n", "")),
        ("chunk_end", chunked("1\r\nxy\r\n0\r\n\r\n")),
        ("trailer_name", chunked("0\r\nContent-Length: 5\r\n\r\n")),
        ("version", bare("GET / HTTP/3.0", "Host: a\r\n")),
    ]
}

pub(super) fn fill(table: &mut Table) {
    let (bytes, bodies) = row(REQUESTS);
    table.push("a hundred", bytes, Expected::Accepted { bodies });
    for (by, bad) in bad_ones() {
        for place in [0, 1, 2, 49, 50, 51, 98, 99] {
            let (before, bodies) = row(place);
            let (behind, _) = row(REQUESTS - 1 - place);
            let bytes = [&before[..], &bad, &behind].concat();
            let expected = Expected::Refused { bodies, status: status(by), by };
            table.push(&format!("{by} behind {place}"), bytes, expected);
        }
    }
    for place in [0, 1, 50, 99] {
        let (before, mut bodies) = row(place);
        let (behind, _) = row(REQUESTS - 1 - place);
        let upgrade = bare("GET / HTTP/1.1", "Host: a\r\nUpgrade: x\r\n");
        bodies.push(Vec::new());
        let bytes = [&before[..], &upgrade, &behind].concat();
        // Nothing stands behind the last one, so nothing is held.
        let expected = if behind.is_empty() {
            Expected::Accepted { bodies }
        } else {
            Expected::Held { bodies }
        };
        table.push(&format!("an upgrade behind {place}"), bytes, expected);
    }
}

/// So many good requests of all kinds, and their bodies.
fn row(requests: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let kinds = [
        (bare("GET /a HTTP/1.1", "Host: a\r\n"), ""),
        (post("Content-Length: 5\r\n", "hello"), "hello"),
        (chunked("5\r\nhello\r\n0\r\n\r\n"), "hello"),
        (post(format!("Content-Length: {}\r\n", smuggled.len()), smuggled), smuggled),
        (chunked(format!("{:x};a=b\r\n{smuggled}\r\n0\r\nX: y\r\n\r\n", smuggled.len())), smuggled),
        (bare("\r\nDELETE /a HTTP/1.1", "Host: a\r\n"), ""),
    ];
    let chosen = (0..requests).map(|at| &kinds[at % kinds.len()]);
    let bytes = chosen.clone().flat_map(|(request, _)| request.iter().copied()).collect();
    (bytes, chosen.map(|(_, body)| body.as_bytes().to_vec()).collect())
}
