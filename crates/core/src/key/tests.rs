use proptest::prelude::*;

use super::*;

fn parse(value: impl AsRef<[u8]>) -> Result<String, KeyError> {
    Key::parse_field(value.as_ref()).map(|key| key.as_str().to_owned())
}

/// I26: what is a key is taken exactly as it came: reliability.md, section 3.1.
#[test]
fn good_fields_give_exactly_these_bytes() {
    let longest = "k".repeat(255);
    let rows: &[(&str, &str)] = &[
        // One byte, and the longest.
        ("k", "k"),
        (&longest, &longest),
        // A structured string, its escapes, and the bare token are the same key.
        ("\"abc\"", "abc"),
        ("abc", "abc"),
        ("\"a\\\"b\\\\c\"", "a\"b\\c"),
        ("\"a,b\"", "a,b"),
        ("\" a \"", " a "),
        // Parameters are ignored.
        ("\"abc\";v=1", "abc"),
        // White space around the value belongs to the line; inside it belongs to the key.
        (" abc\t", "abc"),
        ("\t\"abc\" \t ", "abc"),
        ("a b  c", "a b  c"),
        // Paths, escapes, slots, metacharacters, globs, markup, formulas: just bytes.
        ("../../etc/passwd", "../../etc/passwd"),
        ("%2e%2e%2f", "%2e%2e%2f"),
        ("a:b::c:", "a:b::c:"),
        ("{tag}:1", "{tag}:1"),
        ("';DROP TABLE records;--", "';DROP TABLE records;--"),
        ("redis.call('DEL')", "redis.call('DEL')"),
        ("*)(uid=*))(|(uid=*", "*)(uid=*))(|(uid=*"),
        ("{{7*7}} ${7*7} <%=1%>", "{{7*7}} ${7*7} <%=1%>"),
        ("*?[a-z]", "*?[a-z]"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("javascript:alert(1)", "javascript:alert(1)"),
        ("=cmd|'/C calc'!A0", "=cmd|'/C calc'!A0"),
        ("back\\slash", "back\\slash"),
        // UUIDs of all kinds and keys that are easy to guess. Case is not folded.
        ("00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000"),
        ("c232ab00-9414-11ec-b3c8-9f6bdeced846", "c232ab00-9414-11ec-b3c8-9f6bdeced846"),
        ("017F22E2-79B0-7CC3-98C4-DC0C0C07398F", "017F22E2-79B0-7CC3-98C4-DC0C0C07398F"),
        ("{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}", "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}"),
        ("1", "1"),
        ("test", "test"),
        // Items of RFC 9651 that are no strings are bare keys.
        ("42", "42"),
        ("?1", "?1"),
        (":YWJj:", ":YWJj:"),
        ("a;b=c", "a;b=c"),
    ];
    for (field, expected) in rows {
        assert_eq!(parse(field).as_deref(), Ok(*expected), "{field}");
    }
}

/// I26: what is no key is refused, never repaired: reliability.md, section 3.1.
#[test]
fn bad_fields_are_refused() {
    use KeyError::{Empty, List, Malformed, NotPrintable, TooLong};
    let rows: &[(&[u8], KeyError)] = &[
        (b"", Empty),
        (b"   ", Empty),
        (b" \t ", Empty),
        (b"\"\"", Empty),
        (b"a,b", List),
        (b"a, a", List),
        (b"a,", List),
        (b",", List),
        (b"\"a\",\"b\"", List),
        (b"\"a\" , \"b\"", List),
        (b"\"a\";p=1,\"b\"", List),
        // Unbalanced and misplaced quotes, unknown escapes.
        (b"\"", Malformed { position: 1 }),
        (b"\"a", Malformed { position: 2 }),
        (b"a\"", Malformed { position: 1 }),
        (b"a\"b\"", Malformed { position: 1 }),
        (b"\"a\\\"", Malformed { position: 4 }),
        (b"\"a\\", Malformed { position: 3 }),
        (b"\"a\\n\"", Malformed { position: 3 }),
        (b"\"a\"b", Malformed { position: 3 }),
        (b"\"a\"\"b\"", Malformed { position: 3 }),
        (b"\"a\" \"b\"", Malformed { position: 4 }),
        (b"\"onerror=alert(1)", Malformed { position: 17 }),
        (b"x\"onerror=alert(1)", Malformed { position: 1 }),
        // Tabs, folded lines, control characters.
        (b"a\tb", NotPrintable { position: 1 }),
        (b"\"a\tb\"", NotPrintable { position: 1 }),
        (b"a\r\n b", NotPrintable { position: 1 }),
        (b"a\0", NotPrintable { position: 1 }),
        (b"\0", NotPrintable { position: 0 }),
        (b"a\rb", NotPrintable { position: 1 }),
        (b"a\nb", NotPrintable { position: 1 }),
        (b"a\x7f", NotPrintable { position: 1 }),
        (b"\x1b[31mred", NotPrintable { position: 0 }),
        // Not ASCII: high bytes, overlong UTF-8, a lone surrogate, and text of all kinds.
        (b"a\x80", NotPrintable { position: 1 }),
        (b"\xff", NotPrintable { position: 0 }),
        (b"\xc0\xaf", NotPrintable { position: 0 }),
        (b"\xed\xa0\x80", NotPrintable { position: 0 }),
        ("caf\u{e9}".as_bytes(), NotPrintable { position: 3 }),
        ("cafe\u{301}".as_bytes(), NotPrintable { position: 4 }),
        ("p\u{430}y".as_bytes(), NotPrintable { position: 1 }),
        ("a\u{200b}b".as_bytes(), NotPrintable { position: 1 }),
        ("a\u{202e}b".as_bytes(), NotPrintable { position: 1 }),
        ("\u{1f600}".as_bytes(), NotPrintable { position: 0 }),
        ("\"\u{e9}\"".as_bytes(), NotPrintable { position: 0 }),
    ];
    for (field, expected) in rows {
        assert_eq!(Key::parse_field(field).as_ref(), Err(expected), "{}", field.escape_ascii());
    }
    for length in [256, 257, 1_024, 8_192, 65_536] {
        assert_eq!(parse("k".repeat(length)), Err(TooLong { length }));
        assert_eq!(parse(format!("\"{}\"", "k".repeat(length))), Err(TooLong { length }));
    }
}

/// I26: the length counts what is between the quotes, unescaped.
#[test]
fn quotes_and_escapes_do_not_count() {
    let escaped = format!("\"{}\"", "\\\"".repeat(255));
    assert_eq!(parse(escaped), Ok("\"".repeat(255)));
    assert_eq!(
        parse(format!("\"{}\"", "\\\"".repeat(256))),
        Err(KeyError::TooLong { length: 256 })
    );
}

/// I26: pairs that a kinder parser would take for one key are two keys.
#[test]
fn similar_keys_are_different_keys() {
    let pairs: &[(&[u8], &[u8])] = &[
        (b"abc", b"ABC"),
        (b"abc", b"abc "),
        (b"abc", b" abc"),
        (b"a b", b"a  b"),
        (b"../", b"%2e%2e/"),
        (b"017f22e2", b"017F22E2"),
        (b"1", b"01"),
        (b"1", b"1.0"),
        (b"abc", b"\"abc\""),
    ];
    for (a, b) in pairs {
        assert_ne!(Key::new(a).unwrap(), Key::new(b).unwrap());
    }
    // A client can send a key with a space at its end only in quotes.
    assert_ne!(parse("\"abc \""), parse("abc "));
}

/// I26: only a field that comes exactly once has a key in it.
#[test]
fn repeated_fields_are_refused() {
    let lines = |lines: &[&'static str]| {
        Key::from_field_lines(lines.iter().map(|line| line.as_bytes()))
            .map(|key| key.map(|key| key.as_str().to_owned()))
    };
    assert_eq!(lines(&[]), Ok(None));
    assert_eq!(lines(&["a"]), Ok(Some("a".to_owned())));
    assert_eq!(lines(&[""]), Err(KeyError::Empty));
    assert_eq!(lines(&["a", "a"]), Err(KeyError::Repeated));
    assert_eq!(lines(&["a", "b"]), Err(KeyError::Repeated));
    assert_eq!(lines(&["a", ""]), Err(KeyError::Repeated));
}

/// RFC 9651: parameters of every type are understood and ignored.
#[test]
fn parameters_are_checked_and_ignored() {
    let good = [
        "",
        ";a",
        ";  a",
        ";a;b",
        ";*x.y-z_1=1",
        ";a=1",
        ";a=-1",
        ";a=123456789012345",
        ";a=1.5",
        ";a=-123456789012.125",
        ";a=\"x\\\"y\"",
        ";a=\"\"",
        ";a=tok",
        ";a=*t/x:y",
        ";a=:YWJj:",
        ";a=::",
        ";a=?0",
        ";a=?1",
        ";a=@1659578233",
        ";a=@-1",
        ";a=%\"f%c3%bc\"",
        ";a=%\"\"",
    ];
    for parameters in good {
        let field = format!("\"k\"{parameters}");
        assert_eq!(parse(&field).as_deref(), Ok("k"), "{field}");
    }
    let bad = [
        ";",
        "; ",
        " ;a",
        ";A",
        ";1",
        ";a=",
        ";a =1",
        ";a= 1",
        ";a=-",
        ";a=1234567890123456",
        ";a=1.",
        ";a=1.1234",
        ";a=1234567890123.1",
        ";a=\"x",
        ";a=\"\\x\"",
        ";a=:YW",
        ";a=:Y_W:",
        ";a=?2",
        ";a=?",
        ";a=@",
        ";a=@1.5",
        ";a=%",
        ";a=%x",
        ";a=%\"%C3%BC\"",
        ";a=%\"%c3\"",
        ";a=%\"%f\"",
        ";a=%\"",
        ";a=(1 2)",
        ";a=1x",
        ";a b",
        ";a;;b",
        ";a=\u{e9}",
    ];
    for parameters in bad {
        let field = format!("\"k\"{parameters}");
        assert!(matches!(parse(&field), Err(KeyError::Malformed { .. })), "{field}");
    }
}

/// Keys, principals and peppers reach logs by way of `Debug` and of errors; nothing must be in them.
#[test]
fn nothing_shows_its_content() {
    let key = Key::new(b"secret-key").unwrap();
    assert_eq!(format!("{key:?}"), "Key(10 bytes)");
    assert_eq!(format!("{:?}", Scope::new("secret").unwrap()), "Scope(7 bytes)");
    assert_eq!(format!("{:?}", Scope::shared()), "Scope(0 bytes)");
    let pepper = Pepper::new("secret-secret-secret").unwrap();
    assert_eq!(format!("{pepper:?}"), "Pepper([REDACTED])");
    for field in ["zq,zq", "zq\"", "\"zq", "zq\u{7f}", &"zq".repeat(200)] {
        let error = parse(field).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("zq"), "{error}");
    }
}

/// T1: a principal that was not found never means everybody.
#[test]
fn empty_scopes_are_refused() {
    assert_eq!(Scope::new(""), Err(ScopeError::Empty));
    assert_eq!(Scope::of_parts(&[]), Err(ScopeError::Empty));
    assert_eq!(Scope::of_parts(&[b"", b""]), Err(ScopeError::Empty));
    assert!(Scope::new([0; 1024]).is_ok());
    assert_eq!(Scope::new([0; 1025]), Err(ScopeError::TooLong { length: 1025 }));
    assert!(Scope::of_parts(&[&[0; 1016]]).is_ok());
    assert_eq!(Scope::of_parts(&[&[0; 1017]]), Err(ScopeError::TooLong { length: 1025 }));
}

#[test]
fn encoded_scopes_are_read_back() {
    let scopes = [
        Scope::shared(),
        Scope::new("tenant-7").unwrap(),
        Scope::new([0; 1024]).unwrap(),
        Scope::of_parts(&[b"iss", b"", b"sub"]).unwrap(),
    ];
    for scope in scopes {
        assert_eq!(Scope::from_encoded(scope.as_bytes()).as_ref(), Some(&scope));
    }
    let two_parts = Scope::of_parts(&[b"ab"]).unwrap();
    let no_scopes: [&[u8]; 6] =
        [&[0, 7], &[1], &[2], &[3, 7], &two_parts.as_bytes()[..10], &[2, 0, 0, 0, 0, 0, 0, 0, 0]];
    for bytes in no_scopes {
        assert_eq!(Scope::from_encoded(bytes), None, "{bytes:?}");
    }
    assert_eq!(Scope::from_encoded(&[1; 1026]), None, "too long");
}

#[test]
fn short_peppers_are_refused() {
    assert_eq!(Pepper::new("").err(), Some(PepperError::TooShort { length: 0 }));
    assert_eq!(Pepper::new([7; 15]).err(), Some(PepperError::TooShort { length: 15 }));
    assert!(Pepper::new([7; 16]).is_ok());
}

proptest! {
    /// I26: every key survives its quoted form, and so does the bare form if it has one.
    #[test]
    fn every_key_can_be_sent(text in "[ -~]{1,255}") {
        let key = Key::new(text.as_bytes()).unwrap();
        prop_assert_eq!(key.as_bytes(), text.as_bytes());
        prop_assert_eq!(&Key::parse_field(key.to_field_value().as_bytes()).unwrap(), &key);
        if text.trim() == text && !text.contains([',', '"']) {
            prop_assert_eq!(&Key::parse_field(text.as_bytes()).unwrap(), &key);
        }
    }

    /// I26: no bytes make the parser panic, and what it accepts is a key.
    #[test]
    fn any_bytes_are_a_key_or_an_error(
        value in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..300),
            "\"[a\\\\\"]{0,4}\"[; a=?:@%\"\\\\,0-9.]{0,12}".prop_map(String::into_bytes),
        ],
    ) {
        if let Ok(key) = Key::parse_field(&value) {
            prop_assert!((1..=255).contains(&key.as_bytes().len()));
            prop_assert!(key.as_bytes().iter().all(|byte| (0x20..=0x7e).contains(byte)));
        }
    }

    /// I22: different parts are different scopes, whatever bytes are in them.
    #[test]
    fn parts_are_never_confused(
        a in proptest::collection::vec(proptest::collection::vec(0_u8..3, 0..4), 1..5),
        b in proptest::collection::vec(proptest::collection::vec(0_u8..3, 0..4), 1..5),
    ) {
        let scope = |parts: &[Vec<u8>]| {
            Scope::of_parts(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
        };
        if let (Ok(one), Ok(two)) = (scope(&a), scope(&b)) {
            prop_assert_eq!(a == b, one == two);
            prop_assert_eq!(Scope::from_encoded(one.as_bytes()), Some(one.clone()));
            // Nor can somebody who chooses a whole scope imitate parts.
            prop_assert_ne!(Scope::new(one.as_bytes()).unwrap(), one.clone());
            prop_assert_ne!(Scope::new(&one.as_bytes()[1..]).unwrap(), one);
        }
    }
}
