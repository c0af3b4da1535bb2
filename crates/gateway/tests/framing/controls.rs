//! Bytes that are not printable ASCII, in every part of a request.

use super::Table;

/// One of each kind.
const BYTES: &[u8] = &[
    0x00, 0x01, 0x07, 0x08, b'\t', 0x0b, 0x0c, b'\r', 0x0e, 0x1b, 0x1f, b' ', 0x7f, 0x80, 0x85,
    0xa0, 0xff,
];

/// A part of a request, and what is wrong if an odd byte stands there.
struct Part {
    name: &'static str,
    before: &'static str,
    behind: &'static str,
    by: fn(u8) -> Option<&'static str>,
}

const PARTS: &[Part] = &[
    Part {
        name: "method",
        before: "PO",
        behind: "ST / HTTP/1.1\r\nHost: a\r\n\r\n",
        by: |byte| Some(lone_cr_or(byte, if byte == b' ' { "request_line" } else { "method" })),
    },
    Part {
        name: "target",
        before: "POST /a",
        behind: "b HTTP/1.1\r\nHost: a\r\n\r\n",
        by: |byte| {
            Some(lone_cr_or(byte, if byte == b' ' { "request_line" } else { "target_byte" }))
        },
    },
    Part {
        name: "query",
        before: "POST /?a",
        behind: "b HTTP/1.1\r\nHost: a\r\n\r\n",
        by: |byte| {
            Some(lone_cr_or(byte, if byte == b' ' { "request_line" } else { "target_byte" }))
        },
    },
    Part {
        name: "version",
        before: "POST / HTTP/",
        behind: "1.1\r\nHost: a\r\n\r\n",
        by: |byte| Some(lone_cr_or(byte, "request_line")),
    },
    Part {
        name: "end of the request line",
        before: "POST / HTTP/1.1",
        behind: "\r\nHost: a\r\n\r\n",
        by: |byte| Some(lone_cr_or(byte, "request_line")),
    },
    Part {
        name: "field name",
        before: "POST / HTTP/1.1\r\nHost: a\r\nX-",
        behind: "Y: z\r\n\r\n",
        by: |byte| Some(lone_cr_or(byte, "field_name")),
    },
    Part {
        name: "before a colon",
        before: "POST / HTTP/1.1\r\nHost: a\r\nX",
        behind: ": z\r\n\r\n",
        by: |byte| Some(lone_cr_or(byte, "field_name")),
    },
    Part {
        name: "field value",
        before: "POST / HTTP/1.1\r\nHost: a\r\nX: y",
        behind: "z\r\n\r\n",
        by: control,
    },
    Part {
        name: "start of a field value",
        before: "POST / HTTP/1.1\r\nHost: a\r\nX:",
        behind: "z\r\n\r\n",
        by: control,
    },
    Part {
        name: "end of a field value",
        before: "POST / HTTP/1.1\r\nHost: a\r\nX: z",
        behind: "\r\n\r\n",
        by: control,
    },
    Part {
        name: "host",
        before: "POST / HTTP/1.1\r\nHost: a",
        behind: "b\r\n\r\n",
        by: |byte| control(byte).or(Some("host")),
    },
    Part {
        name: "connection option",
        before: "POST / HTTP/1.1\r\nHost: a\r\nConnection: x",
        behind: "y\r\n\r\n",
        by: |byte| control(byte).or(Some("connection")),
    },
    Part {
        name: "expectation",
        before: "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-",
        behind: "continue\r\n\r\n",
        by: |byte| control(byte).or(Some("expectation")),
    },
    Part {
        name: "trailer value",
        before: "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y",
        behind: "z\r\n\r\n",
        by: control,
    },
    Part {
        name: "chunk extension",
        before: "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0;a",
        behind: "b\r\n\r\n",
        by: |byte| Some(lone_cr_or(byte, "extension")),
    },
    Part {
        name: "quoted chunk extension",
        before: "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0;a=\"",
        behind: "\"\r\n\r\n",
        by: |byte| control(byte).map(|by| if by == "field_value" { "extension" } else { by }),
    },
];

pub(super) fn fill(table: &mut Table) {
    for part in PARTS {
        for byte in BYTES {
            let name = format!("{byte:#04x} in {}", part.name);
            let request = [part.before.as_bytes(), &[*byte], part.behind.as_bytes()].concat();
            match (part.by)(*byte) {
                Some(by) => table.bad(&name, request, by),
                None => table.fine(&name, request, ""),
            }
        }
    }
}

fn lone_cr_or(byte: u8, by: &'static str) -> &'static str {
    if byte == b'\r' { "bare_cr" } else { by }
}

/// What is wrong with a byte in a value: nothing, if it is a space, a tab or beyond ASCII.
fn control(byte: u8) -> Option<&'static str> {
    let control = byte.is_ascii_control() && byte != b'\t';
    control.then(|| lone_cr_or(byte, "field_value"))
}
