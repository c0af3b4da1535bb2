//! What stands behind a request that asks for another protocol, or that is the last one.

use super::{Expected, NEXT, Table, bare, post};

pub(super) fn fill(table: &mut Table) {
    let get = |fields: &str| bare("GET /chat HTTP/1.1", &format!("Host: a\r\n{fields}"));
    for fields in [
        "Connection: upgrade\r\nUpgrade: websocket\r\n",
        "Upgrade: websocket\r\nConnection: Upgrade\r\n",
        "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n",
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        "Upgrade: websocket\r\n",
        "UPGRADE: anything\r\n",
        "Upgrade:\r\n",
        "Connection: close\r\nUpgrade: websocket\r\n",
        "Upgrade: websocket\r\nUpgrade: h2c\r\n",
    ] {
        table.held(fields, get(fields), "");
        let odd = [&get(fields)[..], b"\x81\x05hello"].concat();
        table.held(&format!("{fields}, then another protocol"), odd, "");
        let bad = [&get(fields)[..], b"GET /\n\n"].concat();
        table.held(&format!("{fields}, then a bad request"), bad, "");
        let body = format!("{fields}Content-Length: 5\r\n");
        table.held(&format!("{fields}, with a body"), post(&body, "hello"), "hello");
        let chunks = format!("{fields}Transfer-Encoding: chunked\r\n");
        let chunks = post(&chunks, "5\r\nhello\r\n0\r\n\r\n");
        table.held(&format!("{fields}, with chunks"), chunks, "hello");
        let old = bare("GET / HTTP/1.0", fields);
        table.held(&format!("{fields}, in HTTP/1.0"), old, "");
    }
    let tunnel = bare("CONNECT a.example:443 HTTP/1.1", "Host: a.example:443\r\n");
    table.held("CONNECT", &tunnel, "");
    table.held("CONNECT, then TLS", [&tunnel[..], b"\x16\x03\x01"].concat(), "");
    let six = bare("CONNECT [::1]:443 HTTP/1.1", "Host: [::1]:443\r\nContent-Length: 0\r\n");
    table.held("CONNECT to an address", six, "");
    let bytes = [NEXT, &get("Upgrade: x\r\n"), NEXT].concat();
    let expected = Expected::Held { bodies: vec![Vec::new(); 2] };
    table.push("an upgrade in the middle", bytes, expected);
    last(table);
    unfinished(table);
}

/// Nobody reads what stands behind the last request, so nobody is blamed for it.
fn last(table: &mut Table) {
    for (line, fields) in [
        ("GET / HTTP/1.1", "Connection: close\r\n"),
        ("GET / HTTP/1.1", "connection: x, CLOSE ,y\r\n"),
        ("GET / HTTP/1.1", "Connection: keep-alive, close\r\n"),
        ("GET / HTTP/1.1", "Connection: close\r\nConnection: keep-alive\r\n"),
        ("GET / HTTP/1.0", ""),
        ("GET / HTTP/1.0", "Connection: x\r\n"),
        ("GET / HTTP/1.0", "Connection: keep-alive, close\r\n"),
    ] {
        let request = bare(line, &format!("Host: a\r\n{fields}"));
        table.held(&format!("{line}, {fields}"), &request, "");
        let odd = [&request[..], b"\0\n"].concat();
        table.held(&format!("{line}, {fields}, then nonsense"), odd, "");
    }
}

/// Whoever falls silent in the middle of a request is not answered by the framing.
fn unfinished(table: &mut Table) {
    let whole = [
        ("a length", post("Content-Length: 5\r\n", "hello")),
        ("chunks", super::chunked("5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n")),
        ("an expectation", post("Expect: 100-continue\r\nContent-Length: 5\r\n", "hello")),
    ];
    for (name, request) in whole {
        for missing in [1, 2, 3, 5, 8, 12, 20, 40] {
            let bytes = [NEXT, &request[..request.len() - missing]].concat();
            let expected = Expected::Held { bodies: vec![Vec::new()] };
            table.push(&format!("{name}, without its last {missing} bytes"), bytes, expected);
        }
    }
}
