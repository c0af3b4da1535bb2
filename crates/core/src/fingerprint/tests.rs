//! Tables of requests and of what their fingerprints must tell apart. What holds for *all* requests
//! is in `properties.rs`; `JsonPath` and `Places` have tests of their own.

use super::canonical::canonical;
use super::*;

const JSON: &[u8] = b"application/json";

pub(super) fn subject(body: &[u8]) -> Subject<'_> {
    Subject {
        method: "POST",
        path: b"/v1/payments",
        query: None,
        content_type: Some(JSON),
        headers: &[],
        body,
    }
}

pub(super) fn fingerprint(subject: &Subject<'_>) -> Fingerprint {
    Fingerprint::v1(subject, &FingerprintRules::default()).0
}

fn of_json(body: impl AsRef<[u8]>) -> Fingerprint {
    fingerprint(&subject(body.as_ref()))
}

pub(super) fn form(body: impl AsRef<[u8]>) -> Option<String> {
    canonical(body.as_ref(), &[]).map(|form| String::from_utf8(form).unwrap())
}

pub(super) fn ignoring(paths: &[&str]) -> FingerprintRules {
    let ignore_json = paths.iter().map(|path| JsonPath::parse(path).unwrap()).collect();
    FingerprintRules { ignore_json, ..FingerprintRules::default() }
}

/// I22, I25: version 1 never changes silently. The expected digests were computed with Python's
/// hashlib and hmac from the written layout, not with this code.
#[test]
fn version_one_stays_what_it_is() {
    let empty = Subject { content_type: None, ..subject(b"") };
    let text = Subject {
        query: Some(b"a=1&b=2"),
        content_type: Some(b"text/plain"),
        headers: &[("X-A", b"1"), ("Accept-Language", b"de"), ("x-a", b"2")],
        ..subject(b"hello")
    };
    let json = subject(br#" { "b": [true, null, "\u00e9\/"], "amount": 1.50 } "#);
    let pepper = Pepper::new(b"0123456789abcdef0123456789abcdef").unwrap();
    let keyed = FingerprintRules { pepper: Some(pepper), ..FingerprintRules::default() };
    let hex = |fingerprint: Fingerprint| fingerprint.to_string();
    assert_eq!(
        hex(fingerprint(&empty)),
        "v1:f07a0db54e8d3105e075bfc3affe8062f34c0ce6855d5f686bcc2cbf7e05cd38"
    );
    assert_eq!(
        hex(fingerprint(&text)),
        "v1:7d3658b47106a47dc766472b0565e486f7e1c7ced2493105021024c08c57c5a2"
    );
    assert_eq!(
        hex(fingerprint(&json)),
        "v1:b82f62bbad68be8189d6f2146be6640cf97e5a804bad983b666d9c4ec9a2dec1"
    );
    assert_eq!(
        hex(Fingerprint::v1(&json, &keyed).0),
        "v1:aca9fa236939b2248e0be316d2d983fc8556c49b66d1a5765044d09c63a566b9"
    );

    let (_, places) = Fingerprint::v1(&json, &FingerprintRules::default());
    let mut encoded = String::new();
    write_hex(&mut encoded, &places.encode()).unwrap();
    assert_eq!(encoded, PLACES);
}

const PLACES: &str = "0107066d6574686f6453f6955f0470617468a29c96aa0c636f6e74656e742d74797065290f2afd0c626f64793a2f616d6f756e74f53d80a009626f64793a2f622f30a9ab47e009626f64793a2f622f311cc20c3709626f64793a2f622f32acde626a";

/// I25: a version that we do not know is never computed, so it can never be equal.
#[test]
fn unknown_versions_fail_closed() {
    let rules = FingerprintRules::default();
    assert_eq!(
        Fingerprint::under(FINGERPRINT_VERSION, &subject(b"{}"), &rules),
        Ok(Fingerprint::v1(&subject(b"{}"), &rules))
    );
    for version in [0, 2, 255] {
        assert_eq!(
            Fingerprint::under(version, &subject(b"{}"), &rules),
            Err(UnknownVersion { version })
        );
    }
    let now = of_json("{}");
    assert_eq!(Fingerprint::from_parts(now.version(), *now.digest()), now);
    assert_ne!(Fingerprint::from_parts(2, *now.digest()), now);
}

/// I24: every part that the upstream could act on counts, and absent is not empty.
#[test]
fn every_part_counts() {
    let base = Subject { query: Some(b"a=1"), headers: &[("x-a", b"1")], ..subject(b"{}") };
    let changed = [
        Subject { method: "PUT", ..base },
        Subject { method: "post", ..base },
        Subject { path: b"/v1/payment", ..base },
        Subject { path: b"/v1/payments/", ..base },
        Subject { path: b"/v1//payments", ..base },
        Subject { path: b"/v1/%70ayments", ..base },
        Subject { query: None, ..base },
        Subject { query: Some(b""), ..base },
        Subject { query: Some(b"a=2"), ..base },
        Subject { query: Some(b"a=%31"), ..base },
        Subject { path: b"/v1/payments?a=1", query: None, ..base },
        Subject { content_type: None, ..base },
        Subject { content_type: Some(b""), ..base },
        Subject { content_type: Some(b"text/plain"), ..base },
        Subject { content_type: Some(b"application/json; charset=utf-8"), ..base },
        Subject { content_type: Some(b"Application/JSON"), ..base },
        Subject { headers: &[], ..base },
        Subject { headers: &[("x-a", b"")], ..base },
        Subject { headers: &[("x-a", b"2")], ..base },
        Subject { headers: &[("x-b", b"1")], ..base },
        Subject { headers: &[("x-a", b"1"), ("x-a", b"1")], ..base },
        Subject { headers: &[("x-a", b"1"), ("content-encoding", b"identity")], ..base },
        Subject { body: b"", ..base },
        Subject { body: b"[]", ..base },
    ];
    for (index, one) in changed.iter().enumerate() {
        assert_ne!(fingerprint(one), fingerprint(&base), "{one:?}");
        for other in &changed[index + 1..] {
            assert_ne!(fingerprint(one), fingerprint(other), "{one:?} {other:?}");
        }
    }
}

/// I24: the case and the order of header names carry no meaning; the order of lines does.
#[test]
fn headers_are_compared_by_name() {
    let of = |headers: &[(&str, &[u8])]| fingerprint(&Subject { headers, ..subject(b"{}") });
    let lines = of(&[("x-a", b"1"), ("x-b", b"2"), ("x-b", b"3")]);
    assert_eq!(lines, of(&[("X-B", b"2"), ("X-A", b"1"), ("x-b", b"3")]));
    assert_ne!(lines, of(&[("x-a", b"1"), ("x-b", b"3"), ("x-b", b"2")]));
}

/// I24: equal values in another spelling are the same request: reliability.md, section 3.3.
#[test]
fn spelling_does_not_count() {
    let rows = [
        // Member order, at all levels.
        (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#),
        (r#"{"a":[{"x":1,"y":2}],"B":3}"#, r#"{"B":3,"a":[{"y":2,"x":1}]}"#),
        (r#"{"userIdB":1,"useridA":2}"#, r#"{"useridA":2,"userIdB":1}"#),
        // White space.
        ("{\"a\":[1,2]}", " {\t\"a\" :\r\n[ 1 , 2 ] } \n"),
        ("[]", "[ ]"),
        ("{}", "{ }"),
        ("1", " 1 "),
        // Escaped and raw characters.
        (r#"["/"]"#, r#"["\/"]"#),
        ("[\"\u{e9}\"]", r#"["\u00e9"]"#),
        ("[\"\u{e9}\"]", r#"["\u00E9"]"#),
        ("[\"\u{1f600}\"]", r#"["\ud83d\ude00"]"#),
        (r#"["\n\t\b\f\r"]"#, r#"["\u000a\u0009\u0008\u000C\u000d"]"#),
        (r#"["\"\\"]"#, r#"["\u0022\u005c"]"#),
        ("[\"\u{7f}\"]", r#"["\u007f"]"#),
        (r#"{"a":1,"b":2}"#, r#"{"b":2,"\u0061":1}"#),
        // One member cannot be confused with another, whatever its name is.
        ("{\"\u{e9}\":1}", r#"{ "\u00e9" : 1 }"#),
    ];
    for (a, b) in rows {
        assert!(form(a).is_some(), "{a}");
        assert_eq!(of_json(a), of_json(b), "{a} {b}");
    }
}

/// I24: whatever some parser tells apart is told apart: reliability.md, section 3.3.
#[test]
fn values_count_to_the_last_digit() {
    let groups: &[&[&str]] = &[
        // Numbers by their literal text: nothing is rounded, nothing is folded.
        &[
            "[1]", "[1.0]", "[1e0]", "[1E0]", "[1e+0]", "[1e-0]", "[1.00]", "[10e-1]", "[\"1\"]",
            "[-1]",
        ],
        &[
            "[0]", "[-0]", "[0.0]", "[-0.0]", "[0e1]", "[false]", "[null]", "[\"\"]", "[]", "[[]]",
            "[{}]",
        ],
        &["[0.1]", "[0.1000000000000000055]", "[0.10]", "[1e-1]"],
        &["[9007199254740992]", "[9007199254740993]", "[9007199254740992.0]"],
        &["[1e400]", "[1e401]", "[1e-400]", "[1e-401]", "[0]"],
        // Text: case, forms of Unicode, invisible characters, white space inside.
        &[
            "[\"a\"]",
            "[\"A\"]",
            "[\"a \"]",
            "[\" a\"]",
            "[\"a\\u0000\"]",
            "[\"a\\u200b\"]",
            "[\"\\\\u0061\"]",
        ],
        &["[\"\u{e9}\"]", "[\"e\u{301}\"]"],
        &[
            "[\"\\ufffd\"]",
            "[\"\\ud800\"]",
            "[\"\\udc00\"]",
            "[\"\\ud800\\ud800\"]",
            "[\"\\ufffe\"]",
        ],
        // Shape.
        &["[1,2]", "[2,1]", "[12]", "[\"1,2\"]", "[[1],2]", "[1,[2]]", "[[1,2]]", "[1,2,null]"],
        &["{}", "[]", "null", "{\"a\":null}", "{\"a\":{}}", "{\"a\":[]}", "\"\"", "\"{}\"", ""],
        &[
            "{\"a\":1}",
            "{\"A\":1}",
            "{\"a \":1}",
            "{\"a\":{\"a\":1}}",
            "{\"a\":1,\"b\":1}",
            "{\"b\":1}",
        ],
        &["{\"a\":{\"b\":1},\"c\":2}", "{\"a\":{\"b\":1,\"c\":2}}", "{\"a\":{},\"b\":1,\"c\":2}"],
        // Duplicates keep their order, because the first or the last may win.
        &["{\"a\":1,\"a\":2}", "{\"a\":2,\"a\":1}", "{\"a\":1}", "{\"a\":2}"],
        &["{\"a\":1,\"\\u0061\":2}", "{\"\\u0061\":2,\"a\":1}", "{\"a\":1}", "{\"a\":2}"],
        &["{\"a\":1,\"A\":2}", "{\"A\":2,\"a\":1}", "{\"a\":2,\"A\":1}"],
        &["{\"\u{e9}\":1,\"e\u{301}\":2}", "{\"e\u{301}\":2,\"\u{e9}\":1}"],
        &["{\"k\":1,\"\u{212a}\":2}", "{\"\u{212a}\":2,\"k\":1}"],
        &["{\"a\\u0000b\":1,\"a\\u0000c\":2}", "{\"a\\u0000c\":2,\"a\\u0000b\":1}"],
    ];
    for group in groups {
        for (index, one) in group.iter().enumerate() {
            for other in &group[index + 1..] {
                assert_ne!(of_json(one), of_json(other), "{one} {other}");
            }
        }
    }
}

/// What some parsers take and others refuse, or read in another way.
const ODD_BODIES: &[&[u8]] = &[
    b"",
    b" ",
    // Not UTF-8, or marked as such.
    b"[\"\xff\"]",
    b"[\"\xc0\xaf\"]",
    b"[\"\xed\xa0\x80\"]",
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\0}\0",
    b"\xfe\xff\0{\0}",
    b"\0\0\xfe\xff\0\0\0{\0\0\0}",
    // Duplicates: plain, by escapes, by case, by normalisation; at any depth.
    b"{\"a\":1,\"a\":1}",
    b"{\"a\":1,\"\\u0061\":1}",
    b"{\"a\":1,\"b\":0,\"A\":1}",
    "{\"\u{e9}\":1,\"e\u{301}\":2}".as_bytes(),
    "{\"\u{e9}\":1,\"b\":2}".as_bytes(),
    b"{\"\\u00e9\":1,\"b\":2}",
    b"{\"\\u0000\":1,\"b\":2}",
    b"{\"\x7f\":1,\"b\":2}",
    b"[{\"x\":{\"a\":1,\"a\":1}}]",
    // Numbers that are none, or not for everyone.
    b"[01]",
    b"[-01]",
    b"[+1]",
    b"[.5]",
    b"[1.]",
    b"[-]",
    b"[1e]",
    b"[1e+]",
    b"[1.e1]",
    b"[--1]",
    b"[0x10]",
    b"[NaN]",
    b"[Infinity]",
    b"[-Infinity]",
    b"[1_000]",
    b"[1e400]",
    b"[1e-400]",
    b"[1e001]",
    "[\u{661}]".as_bytes(),
    // Strings that are none.
    b"[\"\\ud800\"]",
    b"[\"\\udc00\"]",
    b"[\"\\ud800\\u0041\"]",
    b"[\"\\ud800x\"]",
    b"[\"\\ud800\\ue000\"]",
    b"[\"\\ud800\\udbff\"]",
    b"[\"\\ud800\"",
    b"[\"a\nb\"]",
    b"[\"\0\"]",
    b"[\"\\x41\"]",
    b"[\"\\u12\"]",
    b"[\"\\u+123\"]",
    b"['a']",
    b"[\"a]",
    b"[\"\\\"]",
    b"[\"\\u{41}\"]",
    // Structure that is none.
    b"[1,]",
    b"[,1]",
    b"[1 2]",
    b"[",
    b"]",
    b"[1}",
    b"{\"a\":1,}",
    b"{\"a\"}",
    b"{\"a\" 1}",
    b"{a:1}",
    b"{1:1}",
    b"{,}",
    b"{\"a\":}",
    b"{\"a\":1 \"b\":2}",
    b"{",
    b"}",
    b"{}{}",
    b"{} {}",
    b"1 2",
    b"{}x",
    b"{}\0",
    b"\x0c{}",
    b"\xc2\xa0{}",
    b"\x0b1",
    // Comments and words.
    b"/**/{}",
    b"{}//x",
    b"[1/**/]",
    b"#x\n{}",
    b"True",
    b"nul",
    b"nulll",
    b"undefined",
    b"truefalse",
];

/// I24: what parsers disagree about has no canonical form: reliability.md, section 3.3.
#[test]
fn odd_bodies_are_compared_byte_by_byte() {
    for body in ODD_BODIES {
        assert_eq!(form(body), None, "{}", body.escape_ascii());
    }
    assert_eq!(form("9".repeat(64)), Some("9".repeat(64)));
    for digits in [65, 400] {
        assert_eq!(form("9".repeat(digits)), None);
    }
    assert_eq!(form(format!("1{}", "0".repeat(400))), None);
}

/// I24: a body without a canonical form still has a fingerprint, of exactly its bytes.
#[test]
fn bodies_without_a_form_differ_in_every_byte() {
    assert_eq!(of_json(r#"{"a":1,"a":2}"#), of_json(r#"{"a":1,"a":2}"#));
    assert_ne!(of_json(r#"{"a":1,"a":2}"#), of_json(r#"{"a":1, "a":2}"#));
    // The raw bytes of one body may be the canonical form of another, and still differ from it.
    let raw = FingerprintRules { json: JsonBodies::Raw, ..FingerprintRules::default() };
    assert_ne!(Fingerprint::v1(&subject(b"{}"), &raw).0, of_json("{}"));
}

/// I24: only JSON is read as JSON. Forms, XML, protobuf and CBOR that mean the same are bytes.
#[test]
fn other_content_types_are_compared_byte_by_byte() {
    let equal = |content_type: Option<&[u8]>, a: &[u8], b: &[u8]| {
        let of = |body| fingerprint(&Subject { content_type, ..subject(body) });
        of(a) == of(b)
    };
    let json: &[&[u8]] = &[
        b"application/json",
        b"Application/JSON",
        b" application/json ",
        b"application/json;charset=utf-8",
        b"application/json; charset=\"UTF-8\"",
        b"application/json; version=2",
        b"application/problem+json",
        b"application/vnd.api+json; ext=\"a\"",
        b"image/x+json",
    ];
    for content_type in json {
        assert!(
            equal(Some(content_type), b"{\"a\":1}", b"{ \"a\":1}"),
            "{}",
            content_type.escape_ascii()
        );
    }
    let other: &[&[u8]] = &[
        b"",
        b"text/plain",
        b"text/json-ish",
        b"application/jsonp",
        b"application/json-seq",
        b"application/x-ndjson",
        b"json",
        b"+json",
        b"application/json, text/plain",
        b"text/plain, application/a+json",
        b"application/json charset=utf-8",
        // In another charset an escape and its raw bytes are different characters.
        b"application/json; charset=utf-16",
        b"application/json; charset=latin1",
        b"application/json; charset=utf-8; charset=utf-7",
        b"application/json; charset*=utf-16",
        b"application/json; x=\"; charset=utf-16",
        b"application/json;charset = utf-8",
        b"application/x-www-form-urlencoded",
        b"application/xml",
        b"application/cbor",
    ];
    for content_type in other {
        assert!(
            !equal(Some(content_type), b"{\"a\":1}", b"{ \"a\":1}"),
            "{}",
            content_type.escape_ascii()
        );
    }
    assert!(!equal(None, b"{\"a\":1}", b"{ \"a\":1}"));
    let form = Some(&b"application/x-www-form-urlencoded"[..]);
    assert!(!equal(form, b"a=1&b=2", b"b=2&a=1"));
    assert!(!equal(form, b"a=%20", b"a=+"));
    assert!(!equal(Some(b"application/xml"), b"<a/>", b"<a></a>"));
    assert!(!equal(Some(b"application/x-protobuf"), b"\x08\x01", b"\x08\x81\x00"));
    assert!(!equal(Some(b"application/cbor"), b"\x01", b"\x18\x01"));
}

/// I24: a body that is still encoded is no JSON, whatever it looks like.
#[test]
fn encoded_bodies_are_compared_byte_by_byte() {
    let equal = |encoding: &[u8]| {
        let headers: &[(&str, &[u8])] = &[("Content-Encoding", encoding)];
        let of = |body| fingerprint(&Subject { headers, ..subject(body) });
        of(b"{\"a\":1}") == of(b"{ \"a\":1}")
    };
    assert!(equal(b""));
    assert!(equal(b"Identity"));
    assert!(!equal(b"gzip"));
    assert!(!equal(b"identity, rot13"));
}

/// I24: depth is bounded long before the stack is.
#[test]
fn deep_bodies_are_compared_byte_by_byte() {
    let arrays = |depth| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    assert_eq!(form(arrays(64)), Some(arrays(64)));
    assert_eq!(form(objects(64)), Some(objects(64)));
    for depth in [65, 10_000, 1_000_000] {
        assert_eq!(form(arrays(depth)), None);
        assert_eq!(form(objects(depth)), None);
        assert_eq!(form("[".repeat(depth)), None);
    }
}

/// I24: a million members, in the worst order and with names that collide in many a hash table,
/// are sorted and not searched.
#[test]
fn wide_bodies_take_no_quadratic_time() {
    let numbered = |order: &mut dyn Iterator<Item = u32>| {
        let members: Vec<String> = order.map(|name| format!("\"{name:07}\":0")).collect();
        format!("{{{}}}", members.join(","))
    };
    let (up, down) = (numbered(&mut (0..1_000_000)), numbered(&mut (0..1_000_000).rev()));
    assert_eq!(of_json(up), of_json(down));

    // All combinations of two strings that collide in the hash of Java, and in others like it.
    let colliding = |order: &mut dyn Iterator<Item = u32>| {
        let name =
            |bits: u32| (0..12).map(move |bit| if bits >> bit & 1 == 0 { "Aa" } else { "BB" });
        let members: Vec<String> =
            order.map(|bits| format!("\"{}\":0", name(bits).collect::<String>())).collect();
        format!("{{{}}}", members.join(","))
    };
    assert_eq!(of_json(colliding(&mut (0..4096))), of_json(colliding(&mut (0..4096).rev())));

    let nulls = format!("[{}null]", "null,".repeat(1_000_000));
    assert_eq!(form(&nulls).as_deref(), Some(&*nulls));
    // Members that all share a long beginning, in an object at every level.
    let mut nested = String::from("1");
    for level in 0..64 {
        nested = format!("{{\"{1}b\":{level},\"{1}a\":{0}}}", nested, "x".repeat(1000));
    }
    assert!(form(&nested).is_some());
}

/// I24: ignored members change nothing, and everything beside them still does.
#[test]
fn ignored_members_are_left_out() {
    let equal = |paths: &[&str], a: &str, b: &str| {
        let rules = ignoring(paths);
        let (one, places) = Fingerprint::v1(&subject(a.as_bytes()), &rules);
        let (two, others) = Fingerprint::v1(&subject(b.as_bytes()), &rules);
        // The places have to agree with the fingerprint, or they would name what is ignored.
        assert_eq!(one == two, places == others, "{a} {b}");
        one == two
    };
    let same: &[(&[&str], &str, &str)] = &[
        (&["$.ts"], r#"{"ts":1,"a":1}"#, r#"{"a":1,"ts":2}"#),
        (&["$.ts"], r#"{"ts":1,"a":1}"#, r#"{"a":1}"#),
        (&["$.ts"], r#"{"ts":{"x":[1]}}"#, "{}"),
        (&["$.ts"], r#"{"\u0074s":1}"#, "{}"),
        (&["$.a.b"], r#"{"a":{"b":1,"c":2}}"#, r#"{"a":{"c":2,"b":9}}"#),
        (&["$.items[*].ts"], r#"{"items":[{"ts":1},{"ts":2,"x":1}]}"#, r#"{"items":[{},{"x":1}]}"#),
        (&["$[*].ts"], r#"[{"ts":1},2]"#, r#"[{"ts":3},2]"#),
        (&["$.a[*]"], r#"{"a":[1,2,3]}"#, r#"{"a":[]}"#),
        (&["$.a[*]"], r#"{"a":[1],"b":[1,[2]]}"#, r#"{"b":[1,[2]],"a":[{},[3]]}"#),
        (&["$.*.ts"], r#"{"a":{"ts":1},"b":{"ts":2}}"#, r#"{"b":{},"a":{}}"#),
        (&["$['odd name']"], r#"{"odd name":1,"a":1}"#, r#"{"a":1}"#),
        (&["$['a\"b']"], r#"{"a\"b":1,"a":1}"#, r#"{"a":1}"#),
        (&["$.ts", "$.a.ts"], r#"{"ts":1,"a":{"ts":1}}"#, r#"{"a":{}}"#),
        (&["$.a", "$.a.b"], r#"{"a":{"b":1}}"#, "{}"),
    ];
    for (paths, a, b) in same {
        assert!(equal(paths, a, b), "{paths:?} {a} {b}");
    }
    let different: &[(&[&str], &str, &str)] = &[
        (&["$.ts"], r#"{"ts":1,"a":1}"#, r#"{"ts":1,"a":2}"#),
        (&["$.ts"], r#"{"a":{"ts":1}}"#, r#"{"a":{"ts":2}}"#),
        (&["$.ts"], r#"{"TS":1}"#, r#"{"TS":2}"#),
        (&["$.ts"], r#"[{"ts":1}]"#, r#"[{"ts":2}]"#),
        (&["$.a.b"], r#"{"a":[{"b":1}]}"#, r#"{"a":[{"b":2}]}"#),
        (&["$.a.b"], r#"{"a":{"b":1},"c":{"b":1}}"#, r#"{"a":{"b":1},"c":{"b":2}}"#),
        (&["$.a.b"], r#"{"a":{"b":1}}"#, r#"{"a":1}"#),
        (&["$.a.b"], r#"{"a":{"b":1}}"#, "{}"),
        (&["$.items[*].ts"], r#"{"items":[{"ts":1},{}]}"#, r#"{"items":[{"ts":1}]}"#),
        // Without a canonical form nothing can be ignored, not even if the reason is.
        (&["$.ts"], r#"{"ts":1,"a":1,"a":1}"#, r#"{"ts":2,"a":1,"a":1}"#),
        (&["$.ts"], r#"{"ts":1,"TS":1}"#, r#"{"ts":2,"TS":1}"#),
        (&["$.ts"], r#"{"ts":{"a":1,"a":1}}"#, r#"{"ts":{"a":2,"a":1}}"#),
    ];
    for (paths, a, b) in different {
        assert!(!equal(paths, a, b), "{paths:?} {a} {b}");
    }
}

/// T6: with a pepper, a body cannot be guessed from its fingerprint or its places.
#[test]
fn peppers_key_fingerprints_and_places() {
    let of = |secret: &str| {
        let pepper = Some(Pepper::new(secret).unwrap());
        Fingerprint::v1(&subject(b"{\"a\":1}"), &FingerprintRules { pepper, ..ignoring(&[]) })
    };
    let plain = Fingerprint::v1(&subject(b"{\"a\":1}"), &FingerprintRules::default());
    let (one, two) = (of("0123456789abcdef"), of("0123456789abcdeF"));
    assert!(one.0 != two.0 && one.0 != plain.0);
    assert!(one.1 != two.1 && one.1 != plain.1);
    assert_eq!(one.1.differing(&two.1), ["method", "path", "content-type", "body:/a"]);
}

/// I24: metadata that some parsers read only at the start of an object is not moved, and strings
/// that some parsers tell apart by their spelling have no canonical form.
#[test]
fn what_some_parsers_read_by_place_or_spelling_is_compared_byte_by_byte() {
    let fingerprint = |body: &str| {
        let subject = Subject {
            method: "POST",
            path: b"/",
            query: None,
            content_type: Some(b"application/json"),
            headers: &[],
            body: body.as_bytes(),
        };
        Fingerprint::v1(&subject, &FingerprintRules::default()).0
    };
    for (one, other) in [
        (r#"{"$type":"Refund","amount":5}"#, r#"{"amount":5,"$type":"Refund"}"#),
        (r#"{"a":{"$id":"1","b":2}}"#, r#"{"a":{"b":2,"$id":"1"}}"#),
        (r#"{"@type":"x","b":2}"#, r#"{"b":2,"@type":"x"}"#),
        (r#"{"__type":"x","b":2}"#, r#"{"b":2,"__type":"x"}"#),
        (r#"{"__proto__":1,"a":2}"#, r#"{"a":2,"__proto__":1}"#),
        (r#"{"\u0024type":"x","b":2}"#, r#"{"b":2,"$type":"x"}"#),
        (r#"{"at":"\/Date(0)\/"}"#, r#"{"at":"/Date(0)/"}"#),
    ] {
        assert_ne!(fingerprint(one), fingerprint(other), "{one} and {other}");
    }
    let reordered = (r#"{"_a":1,"b":2}"#, r#"{"b":2,"_a":1}"#);
    assert_eq!(fingerprint(reordered.0), fingerprint(reordered.1), "an ordinary name");
}
