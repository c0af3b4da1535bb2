//! Which places are named, and what their stored form may be.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Fingerprint, FingerprintRules, KeepPlaces};
use super::*;

fn request<'a>(body: &'a [u8], headers: &'a [(&'a str, &'a [u8])]) -> Subject<'a> {
    let content_type = Some(&b"application/json"[..]);
    Subject { method: "POST", path: b"/pay", query: None, content_type, headers, body }
}

fn places(subject: &Subject<'_>) -> Places {
    Fingerprint::v1(subject, &FingerprintRules::default()).1
}

fn names(body: &str) -> Vec<String> {
    places(&request(body.as_bytes(), &[])).names().skip(3).map(str::to_owned).collect()
}

fn differing(a: &str, b: &str) -> Vec<String> {
    places(&request(a.as_bytes(), &[])).differing(&places(&request(b.as_bytes(), &[])))
}

#[test]
fn two_levels_of_members_have_a_place() {
    let rows: &[(&str, &[&str])] = &[
        ("{\"amount\":1,\"currency\":\"EUR\"}", &["body:/amount", "body:/currency"]),
        ("{\"b\":{\"id\":1,\"a\":{\"x\":[]}},\"a\":[]}", &["body:/a", "body:/b/a", "body:/b/id"]),
        ("[1,{\"x\":2},[3,4]]", &["body:/0", "body:/1/x", "body:/2/0", "body:/2/1"]),
        // Escapes of RFC 6901, and names that nobody can read.
        ("{\"a/b\":1,\"m~n\":2,\"\":3}", &["body:/", "body:/a~1b", "body:/m~0n"]),
        ("{\"x,]}:y\":{\"[{\":\",\"}}", &["body:/x,]}:y/[{"]),
        // Everything else is one place.
        ("{}", &["body"]),
        ("[ ]", &["body"]),
        ("\"text\"", &["body"]),
        ("12", &["body"]),
        ("{\"a\":1,\"a\":2}", &["body"]),
        ("no json", &["body"]),
        ("", &["body"]),
    ];
    for (body, expected) in rows {
        assert_eq!(names(body), *expected, "{body}");
    }
}

#[test]
fn names_that_cannot_be_shown_are_digested() {
    let long = "n".repeat(60);
    for body in [format!("{{\"{long}\":1}}"), "{\"\u{e9}\":1}".into(), "{\"\\\"\":1}".into()] {
        let names = names(&body);
        assert!(names[0].starts_with("body:#") && names[0].len() == 22, "{names:?}");
    }
    // 64 bytes are shown: `body:/` and 58 more.
    assert_eq!(names(&format!("{{\"{}\":1}}", "n".repeat(58)))[0].len(), 64);
    for name in [&*"h".repeat(58), "(more)", "#0123", "\u{e9}"] {
        let places = places(&request(b"{}", &[(name, b"1")]));
        let header = places.names().find(|name| name.starts_with("header:")).unwrap();
        assert!(header.starts_with("header:#") && header.len() == 24, "{header}");
    }
}

#[test]
fn differing_places_are_named_without_values() {
    let rows: &[(&str, &str, &[&str])] = &[
        ("{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}", &[]),
        ("{\"a\":1,\"b\":2}", "{\"a\":1,\"b\":3}", &["body:/b"]),
        ("{\"a\":1}", "{\"a\":1.0,\"b\":2}", &["body:/a", "body:/b"]),
        ("{\"a\":1,\"b\":2}", "{\"a\":1}", &["body:/b"]),
        ("{\"c\":{\"id\":1,\"x\":1}}", "{\"c\":{\"id\":2,\"x\":1}}", &["body:/c/id"]),
        ("{\"c\":{\"d\":{\"e\":1}}}", "{\"c\":{\"d\":{\"e\":2}}}", &["body:/c/d"]),
        ("{\"c\":{\"id\":1}}", "{\"c\":1}", &["body:/c/id", "body:/c"]),
        ("[1,2]", "[1,2,3]", &["body:/2"]),
        ("{\"a\":1}", "[1]", &["body:/a", "body:/0"]),
        // A body with members and a body without differ as a whole.
        ("{\"a\":1,\"b\":1}", "{}", &["body"]),
        ("{\"a\":1,\"b\":1}", "no json", &["body"]),
        ("no json", "nor this", &["body"]),
    ];
    for (a, b, expected) in rows {
        assert_eq!(differing(a, b), *expected, "{a} {b}");
    }
}

#[test]
fn every_part_of_a_request_has_a_place() {
    let one = Subject { query: Some(b"a"), ..request(b"1", &[("X-A", b"1"), ("x-b", b"1")]) };
    let two = Subject {
        method: "PUT",
        path: b"/",
        content_type: Some(b"text/plain"),
        ..request(b"2", &[("x-a", b"2"), ("x-b", b"1"), ("x-c", b"1")])
    };
    assert_eq!(
        places(&one).differing(&places(&two)),
        ["method", "path", "query", "content-type", "header:x-a", "body", "header:x-c"]
    );
    let twice = request(b"1", &[("x-a", b"1"), ("x-a", b"2")]);
    let once = request(b"1", &[("x-a", b"1")]);
    assert_eq!(places(&twice).differing(&places(&once)), ["header:x-a"]);
}

/// A long body has as many places as a record can afford, and the rest shares one. What was
/// merely pushed out by a new member is not named.
#[test]
fn long_bodies_share_the_last_place() {
    let body = |from: usize, to: usize| {
        let members: Vec<String> = (from..to).map(|n| format!("\"m{n:03}\":0")).collect();
        format!("{{{}}}", members.join(","))
    };
    assert_eq!(names(&body(0, MAX_BODY_PLACES)).len(), MAX_BODY_PLACES);
    let long = names(&body(0, 1000));
    assert_eq!(long.len(), MAX_BODY_PLACES + 1);
    assert_eq!(long.last().map(String::as_str), Some(MORE_BODY));
    assert_eq!(differing(&body(0, 1000), &body(0, 1001)), [MORE_BODY]);
    assert_eq!(differing(&body(0, 1000), &body(1, 1000)), [MORE_BODY]);
    assert_eq!(differing(&body(0, MAX_BODY_PLACES), &body(0, 1000)), [MORE_BODY]);
    let changed = body(0, 1000).replace("\"m001\":0", "\"m001\":1");
    assert_eq!(differing(&body(0, 1000), &changed), ["body:/m001"]);

    // Inside of a container, its own name counts too.
    let nested =
        |name: &str| format!("{{\"a\":{},\"{name}\":{{\"x\":1}}}}", body(0, MAX_BODY_PLACES));
    assert_eq!(differing(&nested("b"), &nested("c")), [MORE_BODY]);

    let values: Vec<String> = (0..40).map(|n| format!("x-{n:02}")).collect();
    let headers: Vec<(&str, &[u8])> = values.iter().map(|n| (&**n, &b"1"[..])).collect();
    let all = places(&request(body(0, 1000).as_bytes(), &headers));
    assert!(all.names().count() < MAX_PLACES && all.names().any(|name| name == MORE_HEADERS));
    let fewer = places(&request(body(0, 1000).as_bytes(), &headers[..39]));
    assert_eq!(all.differing(&fewer), [MORE_HEADERS]);
}

#[test]
fn without_places_nothing_differs() {
    let rules = FingerprintRules { places: KeepPlaces::No, ..FingerprintRules::default() };
    let (_, none) = Fingerprint::v1(&request(b"{}", &[]), &rules);
    assert!(none.is_empty());
    assert_eq!(none, Places::default());
    assert_eq!(none.differing(&places(&request(b"1", &[]))), [""; 0]);
    assert_eq!(places(&request(b"1", &[])).differing(&none), [""; 0]);
    assert_eq!(Places::decode(&none.encode()), Ok(none));
}

#[test]
fn damaged_places_are_refused() {
    let good = places(&request(b"{\"a\":1}", &[])).encode();
    assert!(Places::decode(&good).is_ok());
    for length in 0..good.len() {
        assert_eq!(Places::decode(&good[..length]), Err(PlacesError::Damaged), "{length}");
    }
    let with = |index: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[index] = byte;
        Places::decode(&bytes)
    };
    assert_eq!(with(0, 2), Err(PlacesError::UnknownVersion { version: 2 }));
    assert_eq!(with(1, 3), Err(PlacesError::Damaged));
    assert_eq!(with(1, 255), Err(PlacesError::Damaged));
    assert_eq!(with(2, 0), Err(PlacesError::Damaged));
    assert_eq!(with(2, 65), Err(PlacesError::Damaged));
    assert_eq!(with(3, b'\n'), Err(PlacesError::Damaged));
    assert_eq!(with(3, 0xe9), Err(PlacesError::Damaged));
    let twice = b"\x01\x02\x01a12345678\x01a12345678";
    assert_eq!(Places::decode(twice), Err(PlacesError::Damaged));
    let mut longer = good.clone();
    longer.push(0);
    assert_eq!(Places::decode(&longer), Err(PlacesError::Damaged));
}

proptest! {
    /// Stored bytes never make us panic, and what is accepted is kept as it is.
    #[test]
    fn any_bytes_are_places_or_an_error(
        bytes in vec(any::<u8>(), 0..64),
        entries in vec((vec(0x1f_u8..0x80, 0..4), any::<[u8; 8]>()), 0..66),
        flip in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let mut written = vec![1, u8::try_from(entries.len()).unwrap()];
        for (name, digest) in &entries {
            written.push(u8::try_from(name.len()).unwrap());
            written.extend_from_slice(name);
            written.extend_from_slice(digest);
        }
        let mut flipped = written.clone();
        let at = flip.index(flipped.len());
        flipped[at] ^= 1 << bit;
        for bytes in [&bytes, &written, &flipped] {
            if let Ok(places) = Places::decode(bytes) {
                prop_assert_eq!(&places.encode(), bytes);
                prop_assert!(places.differing(&places).is_empty());
                let _ = format!("{places:?} {:?}", places.differing(&Places::default()));
            }
        }
    }
}

/// What is stored does not depend on how it was digested.
#[test]
fn short_and_long_members_are_digested_alike() {
    let long = [b'x'; 2 * PIECE];
    let mut builder = Builder::new(0, None);
    for (name, value) in
        (0..PIECE).flat_map(|name| [0, 1, 7, 8, 9, 2 * PIECE].map(|value| (name, value)))
    {
        let (name, value) = (&long[..name], &long[..value]);
        assert_eq!(builder.digest(name, &[value]), builder.digest_of_many(name, &[value]));
    }
}
