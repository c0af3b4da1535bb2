//! 3.3 of the study of bad inputs: JSON that means the same, or only looks as if it did.
//!
//! The rule is: a false 422 is possible, a false replay is not.

use axum::body::Body;
use http::Request;

use crate::rig::{KEY, Rig, layer, post, required};

/// Sends two bodies under one key. Returns whether the second was a replay; if not, it must be
/// a 422.
async fn is_same(first: &[u8], second: &[u8], content_type: &str) -> bool {
    let rig = Rig::counting(layer().rule(required()));
    let request = |body: &[u8]| {
        let mut request = post(KEY, body.to_vec());
        request.headers_mut().insert("content-type", content_type.parse().unwrap());
        request
    };
    assert_eq!(rig.send(request(first)).await.status, 201);
    let second = rig.send(request(second)).await;
    assert_eq!(rig.runs(), 1, "never a second run");
    if !second.is_replay() {
        second.assert_refused(422, "idempotency_key_reused", "no");
    }
    second.is_replay()
}

#[tokio::test]
async fn json_that_means_the_same_is_the_same() {
    let rows: &[(&str, &str)] = &[
        (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#),
        (r#"{"a":1}"#, "{ \"a\" :\n\t1 }\r\n"),
        (r#"{"a":"x"}"#, r#"{"\u0061":"\u0078"}"#),
        (r#"{"a":"/"}"#, r#"{"a":"\/"}"#),
        (r#"{"a":{"c":1,"b":[1,2]}}"#, r#"{"a":{"b":[1,2],"c":1}}"#),
    ];
    for (first, second) in rows {
        assert!(is_same(first.as_bytes(), second.as_bytes(), "application/json").await, "{first}");
    }
    assert!(is_same(b"{\"a\":1}", b" {\"a\":1}", "application/vnd.api+json; charset=utf-8").await);
}

/// I24: what two parsers could take for different values is different.
#[tokio::test]
async fn json_that_may_mean_something_else_is_something_else() {
    let rows: &[(&str, &str)] = &[
        ("1", "1.0"),
        ("1", "1e0"),
        ("0", "-0"),
        ("0.1", "0.10000000000000000555"),
        ("9007199254740992", "9007199254740993"),
        ("1e400", "1e401"),
        ("1e-400", "0"),
        ("[1,2]", "[2,1]"),
        (r#"{"a":null}"#, "{}"),
        (r#"{"a":1}"#, r#"{"a":"1"}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":1}"#),
        (r#"{"a":1,"\u0061":2}"#, r#"{"a":2,"\u0061":1}"#),
        ("{\"\u{e9}\":1}", "{\"e\u{301}\":1}"),
        (r#"{"a":"\ud800"}"#, r#"{"a":"\ud801"}"#),
        (r#"{"a":"\ud800"}"#, "{\"a\":\"\u{fffd}\"}"),
        (r#"{"__proto__":{"x":1},"a":1}"#, r#"{"a":1,"__proto__":{"x":1}}"#),
        ("{} {}", "{}"),
        ("[1,]", "[1]"),
        ("{/**/}", "{}"),
        ("NaN", "null"),
        ("+1", "1"),
        (".5", "0.5"),
        ("1.", "1"),
        ("01", "1"),
        ("0x10", "16"),
        ("", "{}"),
    ];
    for (first, second) in rows {
        let same = is_same(first.as_bytes(), second.as_bytes(), "application/json").await;
        assert!(!same, "{first} and {second}");
    }
}

/// Bodies without a canonical form are compared byte by byte, and replayed.
#[tokio::test]
async fn odd_bodies_are_compared_byte_by_byte() {
    let deep = [vec![b'['; 10_000], vec![b']'; 10_000]].concat();
    let members: Vec<String> = (0..50_000).map(|n| format!("\"k{n}\":{n}")).collect();
    let many = format!("{{{}}}", members.join(","));
    let digits = "7".repeat(400);
    let rows: &[&[u8]] = &[
        b"",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"{\"a\":\"\xc3\x28\"}",
        b"{\"a\":1,\"a\":1}",
        b"{} {}",
        b"// comment\n{}",
        digits.as_bytes(),
        &deep,
        many.as_bytes(),
    ];
    for body in rows {
        let shown = String::from_utf8_lossy(&body[..body.len().min(30)]).into_owned();
        assert!(is_same(body, body, "application/json").await, "{shown}");
        let longer = [body, &b" x"[..]].concat();
        assert!(!is_same(body, &longer, "application/json").await, "{shown}");
    }
}

#[tokio::test]
async fn what_is_not_json_is_compared_byte_by_byte() {
    for content_type in [
        "application/x-www-form-urlencoded",
        "text/plain",
        "application/xml",
        "application/json; charset=utf-16",
        "application/cbor",
    ] {
        assert!(!is_same(b"{\"a\":1}", b"{\"a\": 1}", content_type).await, "{content_type}");
        assert!(is_same(b"{\"a\":1}", b"{\"a\":1}", content_type).await, "{content_type}");
    }
    assert!(!is_same(b"a=1&b=2", b"b=2&a=1", "application/x-www-form-urlencoded").await);
}

/// An encoded body is not JSON yet, and a request may have no type at all.
#[tokio::test]
async fn an_encoded_body_and_a_body_without_a_type_are_bytes() {
    for encoding in [Some("gzip"), None] {
        let rig = Rig::counting(layer().rule(required()));
        let request = |body: &'static str| {
            let mut request = Request::post("/charges").header("idempotency-key", KEY);
            if let Some(encoding) = encoding {
                request = request.header("content-encoding", encoding);
                request = request.header("content-type", "application/json");
            }
            request.body(Body::from(body)).unwrap()
        };
        rig.send(request("{\"a\":1}")).await;
        let seen = rig.send(request("{\"a\": 1}")).await;
        seen.assert_refused(422, "idempotency_key_reused", "no");
        assert!(rig.send(request("{\"a\":1}")).await.is_replay());
    }
}
