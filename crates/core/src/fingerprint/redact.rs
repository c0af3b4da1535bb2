//! A JSON body without what must not be kept.
//!
//! The selected values become `null` and every other byte stays as it was: order, white space and
//! the spelling of numbers included. That is why nothing is parsed and printed again.
//!
//! What is not surely JSON is not redacted at all. A parser that reads something else than we do
//! could find the secret where we saw none, and then the answer must not be kept.

use std::ops::Range;

use super::json_path::{JsonPath, OpenPaths, Selected};
use super::scan::{MAX_DEPTH, Scanner};

/// What is left of a body, and which paths found something in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Redaction<'p> {
    /// The body with `null` where something was selected.
    pub body: Vec<u8>,
    /// The paths that selected at least one value, each once, in the order in which they were
    /// given. Empty means that the body is as it was.
    pub paths: Vec<&'p JsonPath>,
}

/// Replaces every value that one of `paths` selects by `null`.
///
/// Returns `None` if there is any doubt about what the body says: if it is not JSON or not UTF-8,
/// if it is nested too deeply, or if an object has two members of one name, even if they differ in
/// case. The caller knows from its content type that the body is meant to be JSON.
#[must_use]
pub fn redact_json<'p>(body: &[u8], paths: &'p [JsonPath]) -> Option<Redaction<'p>> {
    let reader = Reader::read(body, paths)?;
    let found = paths.iter().zip(&reader.found);
    Some(Redaction {
        body: cut_out(body, &reader.cuts),
        paths: found.filter(|(_, found)| **found == Selected::Yes).map(|(path, _)| path).collect(),
    })
}

/// What a path leads to in a body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Found<'b> {
    /// One value, as it was written.
    Value(&'b [u8]),
    /// Nothing.
    Nothing,
    /// The body is not surely JSON, as in [`redact_json`], or there are several values.
    Doubt,
}

/// Looks for the one value that `path` selects. As strict as [`redact_json`]: two parsers that read
/// a body differently must not find two different values.
#[must_use]
pub fn find_json<'b>(body: &'b [u8], path: &JsonPath) -> Found<'b> {
    let Some(reader) = Reader::read(body, std::slice::from_ref(path)) else { return Found::Doubt };
    match &reader.cuts[..] {
        [] => Found::Nothing,
        [only] => Found::Value(&body[only.clone()]),
        [_, _, ..] => Found::Doubt,
    }
}

struct Reader<'b> {
    scan: Scanner<'b>,
    /// Where strings go that nobody wants.
    scratch: Vec<u8>,
    open: OpenPaths<'b>,
    /// For each path, whether it selected anything.
    found: Vec<Selected>,
    /// What is replaced: places of the body, in order, none inside of another.
    cuts: Vec<Range<usize>>,
}

impl<'b> Reader<'b> {
    /// Reads all of a body, or nothing if there is any doubt about it.
    fn read(body: &'b [u8], paths: &'b [JsonPath]) -> Option<Self> {
        let mut reader = Self {
            scan: Scanner::new(body)?,
            scratch: Vec::new(),
            open: OpenPaths::new(paths),
            found: vec![Selected::No; paths.len()],
            cuts: Vec::new(),
        };
        reader.scan.skip_white_space();
        let all = reader.open.all();
        reader.value(0, &all)?;
        reader.scan.skip_white_space();
        reader.scan.is_at_end().then_some(reader)
    }

    /// Reads the value at the cursor, inside of `depth` containers.
    fn value(&mut self, depth: usize, paths: &Range<usize>) -> Option<()> {
        match self.scan.peek()? {
            b'{' => self.object(depth, paths),
            b'[' => self.array(depth, paths),
            b'"' => {
                self.scratch.clear();
                self.scan.string(&mut self.scratch).map(drop)
            }
            b't' | b'f' | b'n' => self.scan.word().map(drop),
            b'-' | b'0'..=b'9' => self.scan.number().map(drop),
            _ => None,
        }
    }

    fn object(&mut self, depth: usize, paths: &Range<usize>) -> Option<()> {
        if depth == MAX_DEPTH {
            return None;
        }
        let mut names = Vec::new();
        self.scan.take(b'{')?;
        self.scan.skip_white_space();
        if self.scan.peek()? != b'}' {
            loop {
                let mut name = Vec::new();
                self.scan.string(&mut name)?;
                self.scan.skip_white_space();
                self.scan.take(b':')?;
                self.scan.skip_white_space();
                self.child(depth, paths, Some(&name))?;
                name.make_ascii_lowercase();
                names.push(name);
                self.scan.skip_white_space();
                if self.scan.peek()? != b',' {
                    break;
                }
                self.scan.take(b',')?;
                self.scan.skip_white_space();
            }
        }
        names.sort_unstable();
        let is_unique = names.windows(2).all(|pair| pair[0] != pair[1]);
        self.scan.take(b'}').filter(|()| is_unique)
    }

    fn array(&mut self, depth: usize, paths: &Range<usize>) -> Option<()> {
        if depth == MAX_DEPTH {
            return None;
        }
        self.scan.take(b'[')?;
        self.scan.skip_white_space();
        if self.scan.peek()? != b']' {
            loop {
                self.child(depth, paths, None)?;
                self.scan.skip_white_space();
                if self.scan.peek()? != b',' {
                    break;
                }
                self.scan.take(b',')?;
                self.scan.skip_white_space();
            }
        }
        self.scan.take(b']')
    }

    /// Reads a member or an element, and marks it to be cut out if a path ends there. It is read
    /// to its end even then: half a secret that is followed by nonsense is no JSON.
    fn child(&mut self, depth: usize, paths: &Range<usize>, name: Option<&[u8]>) -> Option<()> {
        let found = &mut self.found;
        let mark = |index: usize| found[index] = Selected::Yes;
        let (below, selected) = self.open.enter(depth, paths, name, mark);
        let (start, cuts) = (self.scan.at(), self.cuts.len());
        self.value(depth + 1, &below)?;
        self.open.leave(paths);
        if selected == Selected::Yes {
            // What was cut out of the inside goes with the whole.
            self.cuts.truncate(cuts);
            self.cuts.push(start..self.scan.at());
        }
        Some(())
    }
}

fn cut_out(body: &[u8], cuts: &[Range<usize>]) -> Vec<u8> {
    let mut rest = Vec::with_capacity(body.len());
    let mut kept = 0;
    for cut in cuts {
        rest.extend_from_slice(&body[kept..cut.start]);
        rest.extend_from_slice(b"null");
        kept = cut.end;
    }
    rest.extend_from_slice(&body[kept..]);
    rest
}

/// Bodies hold personal data, so `Debug` shows the size alone.
impl std::fmt::Debug for Found<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Value(text) => write!(out, "Value({} bytes)", text.len()),
            Self::Nothing => out.write_str("Nothing"),
            Self::Doubt => out.write_str("Doubt"),
        }
    }
}

/// Bodies hold personal data, so `Debug` shows the size alone.
impl std::fmt::Debug for Redaction<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { body, paths } = self;
        write!(out, "Redaction(body of {} bytes, {} paths)", body.len(), paths.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn paths(texts: &[&str]) -> Vec<JsonPath> {
        texts.iter().map(|text| JsonPath::parse(text).unwrap()).collect()
    }

    /// The body after redaction and the paths that found something.
    fn redacted(body: &str, texts: &[&str]) -> Option<(String, Vec<String>)> {
        let paths = paths(texts);
        let redaction = redact_json(body.as_bytes(), &paths)?;
        let found = redaction.paths.iter().map(ToString::to_string).collect();
        Some((String::from_utf8(redaction.body).unwrap(), found))
    }

    #[test]
    fn selected_values_become_null_and_nothing_else_changes() {
        let rows: &[(&str, &[&str], &str, &[&str])] = &[
            (
                "{ \"card\" : {\"number\":\"4111\",\n\"last4\":\"1111\"} , \"amount\": 1.50e+2 }\n",
                &["$.card.number"],
                "{ \"card\" : {\"number\":null,\n\"last4\":\"1111\"} , \"amount\": 1.50e+2 }\n",
                &["$.card.number"],
            ),
            (
                r#"{"z":1,"items":[{"s":"x"},{"s":[1,{"t":2}]},7],"a":2}"#,
                &["$.items[*].s", "$.nowhere"],
                r#"{"z":1,"items":[{"s":null},{"s":null},7],"a":2}"#,
                &["$.items[*].s"],
            ),
            // Elements stay elements, so that nobody's index moves.
            (r"[1,[2], {}]", &["$[*]"], r"[null,null, null]", &["$[*]"]),
            // A path inside of another one.
            (r#"{"a":{"b":1,"c":2}}"#, &["$.a.b", "$.a"], r#"{"a":null}"#, &["$.a.b", "$.a"]),
            // The name counts, however it is spelled, and case counts too.
            (
                r#"{"n\u0061me":"x","Nam":"y"}"#,
                &["$.name", "$.nam"],
                r#"{"n\u0061me":null,"Nam":"y"}"#,
                &["$.name"],
            ),
            (
                r#"{"$type":"T","@id":1,"größe":2}"#,
                &["$['größe']"],
                r#"{"$type":"T","@id":1,"größe":null}"#,
                &["$['größe']"],
            ),
            // A null is redacted like any other value, or its absence would tell.
            (r#"{"secret":null}"#, &["$.secret"], r#"{"secret":null}"#, &["$.secret"]),
            ("\"text\"", &["$.a"], "\"text\"", &[]),
            (" {} ", &["$.*"], " {} ", &[]),
            (
                r#"{"n":123456789012345678901234567890e4000}"#,
                &["$.a"],
                r#"{"n":123456789012345678901234567890e4000}"#,
                &[],
            ),
        ];
        for (body, texts, expected, found) in rows {
            let (rest, by) = redacted(body, texts).unwrap_or_else(|| panic!("{body}"));
            assert_eq!(
                (rest.as_str(), by),
                (*expected, found.iter().map(|f| (*f).to_owned()).collect())
            );
        }
    }

    #[test]
    fn one_value_is_found_and_anything_doubtful_is_not() {
        let path = |text| JsonPath::parse(text).unwrap();
        for (body, at, expected) in [
            (r#"{"a":{"k":"x y"}}"#, "$.a.k", Found::Value(b"\"x y\"")),
            (r#"{"a":{"k":null}}"#, "$.a.k", Found::Value(b"null")),
            (r#"{"a":{"other":1}}"#, "$.a.k", Found::Nothing),
            (r#"{"a":"k"}"#, "$.a.k", Found::Nothing),
            (r#"{"k":"x","k":"y"}"#, "$.k", Found::Doubt),
            (r#"{"k":"x","K":"y"}"#, "$.k", Found::Doubt),
            (r#"{"k":"x"}}"#, "$.k", Found::Doubt),
            ("k=x", "$.k", Found::Doubt),
            (r#"{"a":1,"b":2}"#, "$.*", Found::Doubt),
        ] {
            assert_eq!(find_json(body.as_bytes(), &path(at)), expected, "{body}");
        }
    }

    /// F55 in spirit: what is not surely understood is not kept.
    #[test]
    fn whatever_leaves_a_doubt_is_not_redacted() {
        let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
        let doubtful = [
            "",
            " ",
            "{",
            "{\"a\":}",
            "{\"a\":1,}",
            "[1,]",
            "{\"a\":1}}",
            "nul",
            "01",
            "1 2",
            "'a'",
            "{a:1}",
            "\u{feff}{}",
            "{\"a\":\"\n\"}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\ud800\"}",
            "{\"a\":1,\"a\":2}",
            "{\"a\":1,\"A\":2}",
            "{\"b\":{\"a\":1,\"\\u0061\":2}}",
            "// {}",
            "data: {}\n\n",
            "{}\n{}",
            ")]}',\n{}",
            &deep,
        ];
        for body in doubtful {
            assert_eq!(redacted(body, &["$.a"]), None, "{body}");
        }
        assert_eq!(redact_json(b"{\"a\":\"\xff\"}", &paths(&["$.a"])), None);
        let fine = format!("{}1{}", "[".repeat(64), "]".repeat(64));
        assert!(redacted(&fine, &["$.a"]).is_some());
    }

    #[test]
    fn debug_output_hides_the_body() {
        let paths = paths(&["$.a"]);
        let redaction = redact_json(br#"{"b":"canary"}"#, &paths).unwrap();
        assert!(!format!("{redaction:?}").contains("canary"));
    }

    fn json() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a\"\\\\é\n]{0,3}".prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[abc]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// What redaction means, told by a parser: the oracle.
    fn blank(value: &mut Value, steps: &[&str]) -> bool {
        let Some((step, rest)) = steps.split_first() else {
            *value = Value::Null;
            return true;
        };
        let children: Vec<&mut Value> = match value {
            Value::Object(members) => members
                .iter_mut()
                .filter(|(name, _)| *step == "*" || name == step)
                .map(|(_, child)| child)
                .collect(),
            Value::Array(elements) if *step == "*" => elements.iter_mut().collect(),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Vec::new(),
        };
        let blanked = children.into_iter().map(|child| blank(child, rest));
        blanked.filter(|is_blanked| *is_blanked).count() > 0
    }

    proptest! {
        #[test]
        fn redaction_agrees_with_a_parser(
            value in json(),
            steps in vec(prop_oneof!["[abc]", Just("*".to_owned())], 1..4),
            pretty in any::<bool>(),
        ) {
            let text: String = steps.iter().fold("$".to_owned(), |path, step| {
                if step == "*" { path + "[*]" } else { path + "." + step }
            });
            let body = if pretty {
                serde_json::to_vec_pretty(&value).unwrap()
            } else {
                serde_json::to_vec(&value).unwrap()
            };
            let mut expected = value;
            let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
            let found = blank(&mut expected, &steps);
            let paths = paths(&[&text]);
            let redaction = redact_json(&body, &paths).unwrap();
            let read: Value = serde_json::from_slice(&redaction.body).unwrap();
            prop_assert_eq!(read, expected);
            prop_assert_eq!(!redaction.paths.is_empty(), found);
        }

        /// No bytes make the reader panic, and what it takes is JSON for a strict parser too.
        #[test]
        fn any_bytes_are_json_or_refused(body in "[\\[\\]{}\",:0-9eE.+\\-tfnaulrse\\\\ \u{e9}]{0,24}") {
            if let Some(redaction) = redact_json(body.as_bytes(), &paths(&["$.a"]))
                && let Err(error) = serde_json::from_slice::<Value>(&redaction.body)
            {
                // It wants to store the number, and we only read over it.
                prop_assert!(error.to_string().contains("number out of range"), "{}", error);
            }
        }
    }
}
