//! What holds for all requests, tried on random ones. Bodies are made from a model and written in
//! random spellings, so that equality is known without asking a parser.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::tests::{fingerprint, form, ignoring, subject};
use super::*;

/// A JSON value with its number literals, and objects whose names no parser can confuse.
#[derive(Clone, Debug, PartialEq)]
enum Json {
    Word(&'static str),
    Number(String),
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

fn json() -> impl Strategy<Value = Json> {
    let scalar = prop_oneof![
        prop_oneof![Just("true"), Just("false"), Just("null")].prop_map(Json::Word),
        "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,2})?([eE][+-]?[0-9]{1,2})?".prop_map(Json::Number),
        prop_oneof!["[ab\"\\\\/\n\u{e9}\u{0}\u{1f600}\u{301}]{0,4}", any::<String>()]
            .prop_map(Json::Text),
    ];
    scalar.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Json::Array),
            btree_map("[a-d\"/\\\\~]{0,2}", inner, 0..4).prop_map(Json::Object),
        ]
    })
}

/// Writes a value in one of its many spellings, which the bytes of `choices` decide about.
fn render(value: &Json, choices: &mut dyn Iterator<Item = u8>, out: &mut String) {
    let space = |choices: &mut dyn Iterator<Item = u8>, out: &mut String| {
        out.push_str(["", "", "", " ", "\n", "\t \r"][usize::from(choices.next().unwrap() % 6)]);
    };
    space(choices, out);
    match value {
        Json::Word(word) => out.push_str(word),
        Json::Number(literal) => out.push_str(literal),
        Json::Text(text) => render_text(text, choices, out),
        Json::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                render(element, choices, out);
            }
            space(choices, out);
            out.push(']');
        }
        Json::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            if !members.is_empty() {
                let middle = usize::from(choices.next().unwrap()) % members.len();
                members.rotate_left(middle);
            }
            if choices.next().unwrap() < 128 {
                members.reverse();
            }
            out.push('{');
            for (index, (name, member)) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                space(choices, out);
                render_text(name, choices, out);
                space(choices, out);
                out.push(':');
                render(member, choices, out);
            }
            space(choices, out);
            out.push('}');
        }
    }
    space(choices, out);
}

fn render_text(text: &str, choices: &mut dyn Iterator<Item = u8>, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        let must = character < ' ' || matches!(character, '"' | '\\');
        match choices.next().unwrap() % 4 {
            0 => character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                out.push_str(&format!("\\u{unit:04x}"));
            }),
            1 if character == '\n' => out.push_str("\\n"),
            1 if matches!(character, '"' | '\\' | '/') => out.extend(['\\', character]),
            _ if must => out.push_str(&format!("\\u{:04X}", u32::from(character))),
            _ => out.push(character),
        }
    }
    out.push('"');
}

fn rendered(value: &Json, choices: &[u8]) -> String {
    let mut out = String::new();
    render(value, &mut choices.iter().copied().cycle(), &mut out);
    out
}

/// Replaces the scalar (or empty container) number `index`; false if there are not so many.
fn replace_scalar(value: &mut Json, index: &mut usize, with: &Json) -> bool {
    match value {
        Json::Array(elements) if !elements.is_empty() => {
            elements.iter_mut().any(|element| replace_scalar(element, index, with))
        }
        Json::Object(members) if !members.is_empty() => {
            members.values_mut().any(|member| replace_scalar(member, index, with))
        }
        Json::Word(_) | Json::Number(_) | Json::Text(_) | Json::Array(_) | Json::Object(_) => {
            let found = *index == 0;
            if found {
                *value = with.clone();
            }
            *index = index.wrapping_sub(1);
            found
        }
    }
}

/// The number literals of a text that is known to be JSON, sorted.
fn number_literals(text: &str) -> Vec<String> {
    let mut outside = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '"' {
            outside.push(character);
            continue;
        }
        while let Some(inside) = characters.next() {
            match inside {
                '"' => break,
                '\\' => drop(characters.next()),
                _ => {}
            }
        }
        outside.push(' ');
    }
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    let mut literals: Vec<String> = outside
        .split(|c| !is_number(c))
        .filter(|piece| piece.starts_with(|c: char| c == '-' || c.is_ascii_digit()))
        .map(str::to_owned)
        .collect();
    literals.sort();
    literals
}

fn read(text: &[u8]) -> Option<serde_json::Value> {
    serde_json::from_slice(text).ok()
}

proptest! {
    /// I24: member order, white space and escapes never change a fingerprint or its places.
    #[test]
    fn a_value_has_one_form(
        value in json(), one in vec(any::<u8>(), 1..40), two in vec(any::<u8>(), 1..40),
    ) {
        let (a, b) = (rendered(&value, &one), rendered(&value, &two));
        let canonical = form(&a);
        prop_assert!(canonical.is_some(), "{a}");
        prop_assert_eq!(&canonical, &form(&b));
        prop_assert_eq!(read(canonical.unwrap_or_default().as_bytes()), read(b.as_bytes()));
        let rules = FingerprintRules::default();
        prop_assert_eq!(
            Fingerprint::v1(&subject(a.as_bytes()), &rules),
            Fingerprint::v1(&subject(b.as_bytes()), &rules)
        );
    }

    /// I24: any change of any scalar changes the fingerprint, and some place of the body.
    #[test]
    fn a_changed_scalar_always_counts(
        value in json(), index in 0_usize..12, other in json(), choices in vec(any::<u8>(), 1..40),
    ) {
        let mut changed = value.clone();
        replace_scalar(&mut changed, &mut index.clone(), &other);
        let (a, b) = (rendered(&value, &choices), rendered(&changed, &choices));
        let rules = FingerprintRules::default();
        let (one, places) = Fingerprint::v1(&subject(a.as_bytes()), &rules);
        let (two, others) = Fingerprint::v1(&subject(b.as_bytes()), &rules);
        prop_assert_eq!(value == changed, one == two);
        let names = places.differing(&others);
        prop_assert_eq!(value == changed, names.is_empty());
        prop_assert!(names.iter().all(|name| name.starts_with("body")), "{:?}", names);
    }

    /// I24: whatever has a form is JSON for serde_json too, with the same value before and after;
    /// and bodies that share a form share every number literal.
    #[test]
    fn only_json_has_a_form(
        value in json(),
        choices in vec(any::<u8>(), 1..40),
        edits in vec((any::<prop::sample::Index>(), 0_usize..3, "[\\[\\]{}\",:0-9eE.+\\\\ untrfa-]"), 0..3),
    ) {
        let before = rendered(&value, &choices);
        let mut body = before.clone().into_bytes();
        for (index, kind, with) in edits {
            let at = index.index(body.len() + 1);
            let until = (at + kind.min(1)).min(body.len());
            body.splice(at..until, if kind == 2 { Vec::new() } else { with.into_bytes() });
        }
        if let Some(canonical) = form(&body) {
            let text = String::from_utf8(body.clone()).unwrap();
            prop_assert!(canonical.len() <= body.len());
            prop_assert!(read(&body).is_some(), "{text}");
            prop_assert_eq!(read(&body), read(canonical.as_bytes()));
            prop_assert_eq!(number_literals(&text), number_literals(&canonical));
            prop_assert_eq!(form(&canonical), Some(canonical.clone()));
            if form(&before).as_ref() == Some(&canonical) {
                prop_assert_eq!(read(before.as_bytes()), read(&body));
                prop_assert_eq!(number_literals(&before), number_literals(&text));
            }
        }
    }

    /// I24: no bytes make the parser panic, and it accepts less than serde_json does.
    #[test]
    fn any_bytes_have_a_fingerprint(
        body in prop_oneof![
            vec(any::<u8>(), 0..64),
            "[\\[\\]{}\",:01eE.+\\\\ untrfalse-]{0,24}".prop_map(String::into_bytes),
        ],
    ) {
        let (_, places) = Fingerprint::v1(&subject(&body), &ignoring(&["$.a", "$[*].a"]));
        prop_assert_eq!(Places::decode(&places.encode()), Ok(places));
        if form(&body).is_some() {
            prop_assert!(read(&body).is_some());
        }
    }

    /// I22: two requests share a fingerprint only if they are equal, however the same letters are
    /// divided among the fields.
    #[test]
    fn fields_are_never_confused(a in fields(), b in fields(), same in any::<[bool; 6]>()) {
        // Random requests are hardly ever equal, so some fields are made so.
        let pick = |index: usize, theirs, mine| if same[index] { theirs } else { mine };
        let b = (
            pick(0, a.0.clone(), b.0), pick(1, a.1.clone(), b.1),
            if same[2] { a.2.clone() } else { b.2 }, if same[3] { a.3.clone() } else { b.3 },
            if same[4] { a.4.clone() } else { b.4 }, pick(5, a.5.clone(), b.5),
        );
        let of = |(method, path, query, content_type, headers, body): &Fields| {
            let headers: Vec<(&str, &[u8])> =
                headers.iter().map(|(name, value)| (&**name, value.as_bytes())).collect();
            fingerprint(&Subject {
                method,
                path: path.as_bytes(),
                query: query.as_deref().map(str::as_bytes),
                content_type: content_type.as_deref().map(str::as_bytes),
                headers: &headers,
                body: body.as_bytes(),
            })
        };
        let plain = |mut fields: Fields| {
            fields.4.sort_by(|one, two| one.0.cmp(&two.0));
            fields
        };
        prop_assert_eq!(plain(a.clone()) == plain(b.clone()), of(&a) == of(&b));
    }
}

type Fields = (String, String, Option<String>, Option<String>, Vec<(String, String)>, String);

fn fields() -> impl Strategy<Value = Fields> {
    let text = || "[a\u{0}\u{1}]{0,2}";
    let optional = || proptest::option::of(text());
    (text(), text(), optional(), optional(), vec(("[ab]", text()), 0..3), text())
}
