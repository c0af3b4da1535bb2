//! Other fields: their names, twins of protected ones, `Connection`, and what merely looks odd.

use super::{Table, post};

/// Lines without a name that is a token.
const NAMELESS: &str = "\
: y|X|X |X : y|X\t: y|X y: z|X(: y|X): y|X,: y|X/: y|X;: y|X<: y|X=: y|X>: y|X?: y|X@: y|X[: y|X\\: y|\
X]: y|X{: y|X}: y|\"X\": y|caf\u{e9}: y|\u{200b}X: y|X\u{a0}: y|GET /smuggled HTTP/1.1|=|::";

/// Lines that are right, odd as they look.
const ODD: &[&str] = &[
    "X:",
    "X: ",
    "X:y",
    "X:\ty",
    "X: y ",
    "X: a:b",
    "X: ::",
    "X: \"",
    "X: \\",
    "X: caf\u{e9}",
    "X: <script>",
    "X: ' OR 1",
    "!#$%&'*+-.^_`|~0aZ: y",
    "0: y",
    "api_key: y",
    "x_custom_field: y",
    "Connection: close-not",
    "Connection: keep-alive",
    "Connection: Keep-Alive, X-Tenant",
    "Connection: ,x,,y,",
    "Connection:",
    "Connection: x\r\nConnection: y",
    "Connection: idempotency-key, authorization, host, content-length, x-tenant",
    "X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4",
    "Content-Encoding: gzip, gzip, br",
    "Content-Type: multipart/form-data",
    "Keep-Alive: timeout=5",
    "Proxy-Connection: close",
    "Expect: 100-continue",
    "Expect: 100-Continue",
    "Expect:100-continue ",
    "Idempotency-Key: k",
    "Idempotency-Key: k\r\nIdempotency-Key: l",
    "X-Content-Length: 99",
    "Content-Length-X: 99",
];

/// Names that could be taken for others.
const TWINS: &str = "\
content_length Content_Length transfer_encoding idempotency_key Idempotency_Key x_idempotency_key \
X_Idempotency-Key x_forwarded_for X-Forwarded_For x_forwarded-proto X_FORWARDED_HOST \
x-forwarded_tenant proxy_authorization x_real_ip content_type content_encoding x_api_key \
keep_alive idempotency_attempt x_original_url";

/// What nobody can be expected to do.
const EXPECTATIONS: &[&str] = &[
    "",
    "100-continue, 100-continue",
    "100-continue, x",
    "x",
    "200-ok",
    "100",
    "100-continue;q=1",
    "\"100-continue\"",
    "100_continue",
    "x=y",
    "100 -continue",
];

pub(super) fn fill(table: &mut Table) {
    for field in NAMELESS.split('|') {
        table.bad(field, post(format!("{field}\r\n"), ""), "field_name");
        let later = post(format!("A: b\r\n{field}\r\nC: d\r\n"), "");
        table.bad(&format!("{field}, between others"), later, "field_name");
    }
    for field in ODD {
        let request = post(format!("{field}\r\nContent-Length: 5\r\n"), "hello");
        table.fine(field, request, "hello");
    }
    for twin in TWINS.split(' ') {
        table.bad(twin, post(format!("{twin}: 5\r\n"), ""), "twin");
        let among = post(format!("X: y\r\n{twin}: 5\r\nZ: z\r\n"), "");
        table.bad(&format!("{twin}, between others"), among, "twin");
    }
    for value in ["x y", "close;x", "\"close\"", "close\u{a0}", "x, y z", "close, @", "caf\u{e9}"] {
        let request = post(format!("Connection: {value}\r\n"), "");
        table.bad(&format!("Connection: {value}"), request, "connection");
    }
    for value in EXPECTATIONS {
        for fields in [format!("Expect: {value}\r\n"), format!("expect:{value}\r\nX: y\r\n")] {
            table.bad(&fields, post(&fields, ""), "expectation");
        }
    }
    let twice = "Expect: 100-continue\r\nExpect: 100-continue\r\n";
    table.bad("Expect twice", post(twice, ""), "expectation");
}
