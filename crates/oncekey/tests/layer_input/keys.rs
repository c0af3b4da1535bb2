//! 3.1 of the study of bad inputs: the key header.

use axum::body::Body;
use http::{HeaderName, HeaderValue, Method, Request, Response};
use oncekey::layer::{KeySource, Mode, Rule};

use crate::rig::{KEY, Rig, layer, post, required};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Runs,
    Missing,
    Invalid,
}

fn with_lines(lines: &[(&str, &[u8])]) -> Request<Body> {
    let mut request = Request::post("/charges");
    for (name, value) in lines {
        request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
    }
    request.body(Body::from("{}")).unwrap()
}

async fn check(rig: &Rig, lines: &[(&str, &[u8])], fate: Fate) {
    let before = rig.runs();
    let first = rig.send(with_lines(lines)).await;
    match fate {
        Fate::Runs => {
            assert_eq!(first.status, 201, "{lines:?}: {}", first.text());
            let again = rig.send(with_lines(lines)).await;
            assert!(again.is_replay(), "{lines:?}");
            assert_eq!(rig.runs(), before + 1, "{lines:?}");
        }
        Fate::Missing => first.assert_refused(400, "idempotency_key_missing", "no"),
        Fate::Invalid => first.assert_refused(400, "idempotency_key_invalid", "no"),
    }
    if fate != Fate::Runs {
        assert_eq!(rig.runs(), before, "{lines:?}");
        assert!(!first.headers.contains_key("idempotency-key"), "nothing is echoed");
    }
}

fn of_length(length: usize) -> Vec<u8> {
    b"0123456789abcdef".iter().copied().cycle().take(length).collect()
}

#[tokio::test]
async fn keys_of_every_length_meet_their_fate() {
    let rig = Rig::counting(layer().rule(required()));
    for (length, fate) in [
        (0, Fate::Invalid),
        (1, Fate::Runs),
        (255, Fate::Runs),
        (256, Fate::Invalid),
        (257, Fate::Invalid),
        (1_024, Fate::Invalid),
        (8_192, Fate::Invalid),
        (65_536, Fate::Invalid),
    ] {
        check(&rig, &[("idempotency-key", &of_length(length))], fate).await;
    }
    check(&rig, &[], Fate::Missing).await;
}

#[tokio::test]
async fn keys_of_every_spelling_meet_their_fate() {
    let rig = Rig::counting(layer().rule(required()));
    let rows: &[(&[u8], Fate)] = &[
        (b"   ", Fate::Invalid),
        (b"\t", Fate::Invalid),
        (b"\"\"", Fate::Invalid),
        (b"\"a\"", Fate::Runs),
        (b"\"b\\\"\\\\\"", Fate::Runs),
        (b"\"c\";v=1;w", Fate::Runs),
        (b"\"d, e\"", Fate::Runs),
        (b"\"d\", \"e\"", Fate::Invalid),
        (b"d,e", Fate::Invalid),
        (b"\"d", Fate::Invalid),
        (b"d\"", Fate::Invalid),
        (b"d\"e", Fate::Invalid),
        (b"\"d\"e", Fate::Invalid),
        (b"\"d\\n\"", Fate::Invalid),
        (b"\"d\";V=1", Fate::Invalid),
        (b"bare token", Fate::Runs),
        (b"in\tner", Fate::Invalid),
        (b"\"in\tner\"", Fate::Invalid),
        (b"\x80", Fate::Invalid),
        (b"\xff\xfe", Fate::Invalid),
        (b"\xc0\xaf", Fate::Invalid),
        (b"\xed\xa0\x80", Fate::Invalid),
        ("caf\u{e9}".as_bytes(), Fate::Invalid),
        ("cafe\u{301}".as_bytes(), Fate::Invalid),
        ("p\u{430}ypal".as_bytes(), Fate::Invalid),
        ("zero\u{200b}width".as_bytes(), Fate::Invalid),
        ("\u{202e}bidi".as_bytes(), Fate::Invalid),
        ("\u{1f600}".as_bytes(), Fate::Invalid),
        (b"../../etc/passwd", Fate::Runs),
        (b"%2e%2e%2f", Fate::Runs),
        (b"a:b:c:d", Fate::Runs),
        (b"{tag}key", Fate::Runs),
        (b"'; DROP TABLE oncekey_records; --", Fate::Runs),
        (b"redis.call('FLUSHALL')", Fate::Runs),
        (b"*)(uid=*))(|(uid=*", Fate::Runs),
        (b"{{7*7}}${7*7}", Fate::Runs),
        (b"*?[a-z]", Fate::Runs),
        (b"<script>alert(1)</script>", Fate::Runs),
        (b"javascript:alert(1)", Fate::Runs),
        (b"=cmd|' /C calc'!A0", Fate::Runs),
        (b"\"onerror=alert(1)", Fate::Invalid),
        (b"00000000-0000-0000-0000-000000000000", Fate::Runs),
        (b"C232AB00-9414-11EC-B3C8-9F6BDECED846", Fate::Runs),
        (b"017f22e2-79b0-7cc3-98c4-dc0c0c07398f", Fate::Runs),
        (b"{8e03978e-40d5-43e8-bc93-6894a57f9324}", Fate::Runs),
        (b"1", Fate::Runs),
        (b"test", Fate::Runs),
    ];
    for (value, fate) in rows {
        check(&rig, &[("idempotency-key", value)], *fate).await;
    }
}

#[tokio::test]
async fn a_repeated_header_holds_no_key() {
    let rig = Rig::counting(layer().rule(required()));
    let name = "idempotency-key";
    check(&rig, &[(name, b"a"), (name, b"a")], Fate::Invalid).await;
    check(&rig, &[(name, b"a"), (name, b"b")], Fate::Invalid).await;
    check(&rig, &[(name, b"a"), (name, b"")], Fate::Invalid).await;
}

/// I26: keys are compared exactly, and quotes are not part of them.
#[tokio::test]
async fn keys_that_differ_are_different_and_quotes_do_not_count() {
    for (one, other, same) in [
        ("abc", "ABC", false),
        ("\"abc\"", "\"abc \"", false),
        ("\"abc\"", "\" abc\"", false),
        ("abc", "abd", false),
        ("abc", "abcabc", false),
        ("a/b", "a%2Fb", false),
        ("{a}b", "{a}c", false),
        ("abc", "\"abc\"", true),
        ("abc", "  abc  ", true),
        ("\"abc\"", "\"abc\";p=1", true),
        ("a\\b", "\"a\\\\b\"", true),
    ] {
        let rig = Rig::counting(layer().rule(required()));
        rig.send(post(one, "{}")).await;
        let second = rig.send(post(other, "{}")).await;
        assert_eq!(second.is_replay(), same, "{one} and {other}");
        assert_eq!(rig.runs(), if same { 1 } else { 2 }, "{one} and {other}");
    }
}

#[tokio::test]
async fn a_key_anywhere_else_is_no_key() {
    let rig = Rig::counting(layer().rule(required()));
    for name in ["x-idempotency-key", "idempotency_key", "idempotency-key-2", "idempotencykey"] {
        check(&rig, &[(name, b"abc")], Fate::Missing).await;
    }
    let query = Request::post("/charges?idempotency-key=abc").body(Body::empty()).unwrap();
    rig.send(query).await.assert_refused(400, "idempotency_key_missing", "no");
    assert_eq!(rig.runs(), 0);
}

/// I39: a client cannot talk a proxy or us out of its key.
#[tokio::test]
async fn a_key_that_connection_names_is_still_a_key() {
    let rig = Rig::counting(layer().rule(required()));
    let nominated: &[u8] = b"close, idempotency-key, authorization, host";
    check(&rig, &[("connection", nominated), ("idempotency-key", b"abc")], Fate::Runs).await;
}

#[tokio::test]
async fn an_alias_is_a_key_if_the_rule_names_it() {
    let names = ["idempotency-key", "paypal-request-id"].map(HeaderName::from_static);
    let rig = Rig::counting(layer().rule(required().key_headers(names)));
    check(&rig, &[("paypal-request-id", b"one")], Fate::Runs).await;
    check(&rig, &[("idempotency-key", b"two"), ("paypal-request-id", b"\"two\"")], Fate::Runs)
        .await;
    check(&rig, &[("idempotency-key", b"a"), ("paypal-request-id", b"b")], Fate::Invalid).await;
    check(&rig, &[("x-idempotency-key", b"a")], Fate::Missing).await;
}

/// A body that was read for its key goes to the service as it came.
#[tokio::test]
async fn a_key_in_a_body_is_a_key_if_the_rule_names_it() {
    let sources = [KeySource::Json("$.meta.key".parse().unwrap())];
    let rule = |mode| Rule::new("r").mode(mode).key_sources(sources.clone());
    let echo = |mode| {
        Rig::new(layer().rule(rule(mode)), |_, request: Request<Body>| {
            Box::pin(async move { Ok(Response::new(request.into_body())) })
        })
    };
    let send = |body: &str| {
        let request = Request::post("/charges").header("content-type", "application/json");
        request.body(Body::from(body.to_owned())).unwrap()
    };
    let keyed = r#"{"meta":{"key":"8e03978e-40d5-43e8"},"amount":1}"#;
    for mode in [Mode::Optional, Mode::Required] {
        let rig = echo(mode);
        let first = rig.send(send(keyed)).await;
        let again = rig.send(send(keyed)).await;
        assert_eq!((first.body, again.body), (keyed.into(), keyed.into()));
        assert_eq!((rig.runs(), again.headers.contains_key("idempotent-replayed")), (1, true));
        let keyless = rig.send(send("{}")).await;
        match mode {
            Mode::Optional => assert_eq!((keyless.body, rig.runs()), (b"{}".to_vec(), 2)),
            Mode::Required | Mode::Off => assert_eq!(keyless.status, 400),
        }
    }
}

/// Keys on methods outside of the rule are ignored, and safe methods never have a rule.
#[tokio::test]
async fn keys_mean_nothing_where_no_rule_applies() {
    let methods = [Method::POST, Method::DELETE, Method::GET];
    let rig = Rig::counting(layer().rule(required().methods(methods)));
    for (method, ruled) in [
        (Method::GET, false),
        (Method::HEAD, false),
        (Method::OPTIONS, false),
        (Method::PUT, false),
        (Method::PATCH, false),
        (Method::POST, true),
        (Method::DELETE, true),
    ] {
        let request = || {
            let request = Request::builder().method(method.clone()).uri("/charges");
            request.header("idempotency-key", method.as_str()).body(Body::empty()).unwrap()
        };
        let before = rig.runs();
        let first = rig.send(request()).await;
        let second = rig.send(request()).await;
        assert_eq!(rig.runs() - before, if ruled { 1 } else { 2 }, "{method}");
        assert_eq!(second.is_replay(), ruled, "{method}");
        let touched = first.headers.keys().any(|name| name.as_str().starts_with("idempoten"));
        assert_eq!(touched, ruled, "{method}: an answer that passed through is untouched");
    }
}

#[tokio::test]
async fn modes_say_whether_a_key_is_needed() {
    for (mode, without, with) in [(Mode::Off, 2, 2), (Mode::Optional, 2, 1), (Mode::Required, 0, 1)]
    {
        let rig = Rig::counting(layer().rule(required().mode(mode)));
        let keyless = || Request::post("/charges").body(Body::empty()).unwrap();
        rig.send(keyless()).await;
        rig.send(keyless()).await;
        assert_eq!(rig.runs(), without, "{mode} without a key");
        let rig = Rig::counting(layer().rule(required().mode(mode)));
        rig.send(post(KEY, "{}")).await;
        rig.send(post(KEY, "{}")).await;
        assert_eq!(rig.runs(), with, "{mode} with a key");
    }
}

/// T31 and I52: a refusal repeats no byte of the key that it refuses.
#[tokio::test]
async fn a_refused_key_is_not_repeated() {
    let rig = Rig::counting(layer().rule(required()));
    let seen = rig.send(post("canary, canary", "{}")).await;
    seen.assert_refused(400, "idempotency_key_invalid", "no");
    assert!(!seen.text().contains("canary") && !format!("{:?}", seen.headers).contains("canary"));
}

#[tokio::test]
async fn an_answer_says_what_happened() {
    let rig = Rig::counting(layer().rule(required()));
    let first = rig.send(post(KEY, "{}")).await;
    assert_eq!(first.header("idempotency-key"), format!("\"{KEY}\""));
    assert_eq!(first.header("idempotency-status"), "oncekey; executed; ttl=86400");
    assert_eq!(first.header("idempotency-policy"), "required; ttl=86400");
    assert_eq!(first.header("original-request"), first.header("request-id"));
    assert!(!first.is_replay());

    let second = rig.send(post(KEY, "{}")).await;
    assert!(second.is_replay());
    assert_eq!(second.header("original-request"), first.header("request-id"));
    assert_ne!(second.header("request-id"), first.header("request-id"));
    assert!(second.header("idempotency-status").starts_with("oncekey; replayed; age=0; ttl=8"));
    assert_eq!((second.status, second.text()), (first.status, first.text()));
}
