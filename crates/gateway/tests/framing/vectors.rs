//! What clients send over HTTP/1, and what must become of it: data, for whoever reads requests.
//!
//! Included by `#[path]` from the tests of the sieve, and from tests that send the same bytes to a
//! gateway over a socket. The expectations hold for the default limits. The request that should
//! follow, [`NEXT`], stands behind most vectors: whoever finds the end of the first one at another
//! place reads that one wrongly too.

mod chunks;
mod coding;
mod controls;
mod fields;
mod host;
mod length;
mod lines;
mod pipeline;
mod sizes;
mod switch;
mod target;

/// Bytes from a client.
#[derive(Clone, Debug)]
pub(crate) struct Vector {
    /// What is special about them; no two have the same.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) expected: Expected,
}

/// What must become of them. Bodies are those of whole requests, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// All of it is read: one request for each body.
    Accepted { bodies: Vec<Vec<u8>> },
    /// These requests are read. What follows them is kept from everybody, for now or for ever, and
    /// the client is not blamed.
    Held { bodies: Vec<Vec<u8>> },
    /// These requests are read, the next one is refused, and nothing behind it is read.
    Refused { bodies: Vec<Vec<u8>>, status: u16, by: &'static str },
}

/// The request that follows.
pub(crate) const NEXT: &[u8] = b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n";

/// Every vector.
pub(crate) fn all() -> Vec<Vector> {
    let mut table = Table { group: "", vectors: Vec::new() };
    length::fill(table.group("length"));
    coding::fill(table.group("coding"));
    chunks::fill(table.group("chunks"));
    lines::fill(table.group("lines"));
    controls::fill(table.group("controls"));
    target::fill(table.group("target"));
    host::fill(table.group("host"));
    fields::fill(table.group("fields"));
    switch::fill(table.group("switch"));
    sizes::fill(table.group("sizes"));
    pipeline::fill(table.group("pipeline"));
    table.vectors
}

/// Collects vectors.
struct Table {
    group: &'static str,
    vectors: Vec<Vector>,
}

impl Table {
    fn group(&mut self, group: &'static str) -> &mut Self {
        self.group = group;
        self
    }

    fn push(&mut self, name: &str, bytes: Vec<u8>, expected: Expected) {
        // As it would be written in a test, so that no odd byte ends up in a terminal.
        let name = format!("{}: {}", self.group, name.escape_debug());
        self.vectors.push(Vector { name, bytes, expected });
    }

    /// One request that is read with this body, and [`NEXT`].
    fn fine(&mut self, name: &str, request: impl AsRef<[u8]>, body: impl AsRef<[u8]>) {
        let bodies = vec![body.as_ref().to_vec(), Vec::new()];
        self.push(name, [request.as_ref(), NEXT].concat(), Expected::Accepted { bodies });
    }

    /// One request that is read with this body, and [`NEXT`], which is not.
    fn held(&mut self, name: &str, request: impl AsRef<[u8]>, body: impl AsRef<[u8]>) {
        let bodies = vec![body.as_ref().to_vec()];
        self.push(name, [request.as_ref(), NEXT].concat(), Expected::Held { bodies });
    }

    /// One request that is refused, and [`NEXT`].
    fn bad(&mut self, name: &str, request: impl AsRef<[u8]>, by: &'static str) {
        let expected = Expected::Refused { bodies: Vec::new(), status: status(by), by };
        self.push(name, [request.as_ref(), NEXT].concat(), expected);
    }
}

/// What clients get to see for each reason.
pub(crate) fn status(by: &str) -> u16 {
    match by {
        "line_too_long" => 414,
        "too_many_fields" | "head_too_large" | "too_many_trailers" | "trailers_too_large" => 431,
        "expectation" => 417,
        "body_too_large" | "extensions_too_large" => 413,
        "coding_unknown" => 501,
        "version" => 505,
        _ => 400,
    }
}

/// A request with these field lines, each with its end, and whatever follows its head.
fn post(fields: impl AsRef<[u8]>, rest: impl AsRef<[u8]>) -> Vec<u8> {
    let start = b"POST /pay HTTP/1.1\r\nHost: a\r\n";
    [start, fields.as_ref(), b"\r\n", rest.as_ref()].concat()
}

/// A request without a body, from its request line and its field lines.
fn bare(line: &str, fields: &str) -> Vec<u8> {
    format!("{line}\r\n{fields}\r\n").into_bytes()
}

/// A chunked request with this body, framing and all.
fn chunked(rest: impl AsRef<[u8]>) -> Vec<u8> {
    post("Transfer-Encoding: chunked\r\n", rest)
}
