//! Paths that select what a fingerprint ignores, or what is not kept, in JSON bodies.
//!
//! A small part of RFC 9535: names and wildcards, each one level deeper than the last. Indices,
//! slices, filters and `..` are left out on purpose. A path that ignores more than its author thought
//! lets two different requests share an answer, so it has to be readable at a glance.
//!
//! ```
//! use oncekey_core::fingerprint::JsonPath;
//!
//! for path in ["$.client_timestamp", "$.meta.sent", "$.items[*].ts", "$['odd name']"] {
//!     assert!(JsonPath::parse(path).is_ok());
//! }
//! assert!(JsonPath::parse("$..ts").is_err());
//! ```

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use thiserror::Error;

use super::scan::write_string;

/// A parsed path, for example `$.items[*].ts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath {
    text: String,
    segments: Vec<Segment>,
}

/// The paths that lead through the value at which a reader of a body is.
#[derive(Debug)]
pub(super) struct OpenPaths<'p> {
    paths: &'p [JsonPath],
    /// For every open value, the indices of the paths that lead through it; innermost last.
    open: Vec<usize>,
}

/// Whether a path ends at a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selected {
    Yes,
    No,
}

/// One level of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// The member of this name, spelled canonically with quotes: bodies are compared like that.
    Name(Vec<u8>),
    /// Every member or element.
    Any,
}

impl JsonPath {
    /// Reads a path.
    ///
    /// # Errors
    ///
    /// If the path is not made of `$` and at least one of `.name`, `['name']`, `.*` and `[*]`.
    pub fn parse(path: &str) -> Result<JsonPath, JsonPathError> {
        let mut cursor = Cursor { path, at: 0 };
        if !cursor.take('$') {
            return Err(cursor.error("`$`, which stands for the whole body"));
        }
        let mut segments = Vec::new();
        while cursor.peek().is_some() {
            segments.push(cursor.segment()?);
        }
        if segments.is_empty() {
            return Err(cursor.error("`.name`, because the whole body cannot be ignored"));
        }
        Ok(JsonPath { text: path.to_owned(), segments })
    }

    /// The path as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<'p> OpenPaths<'p> {
    pub(super) fn new(paths: &'p [JsonPath]) -> Self {
        Self { paths, open: (0..paths.len()).collect() }
    }

    /// The open paths of the whole body.
    pub(super) fn all(&self) -> Range<usize> {
        0..self.paths.len()
    }

    /// Goes to a child, inside of `depth` containers, of a value with these open paths: a member
    /// by its quoted canonical name, or an element. Returns the open paths of the child, and
    /// whether a path ends at it; `ends` is told the index of each that does.
    pub(super) fn enter(
        &mut self,
        depth: usize,
        paths: &Range<usize>,
        name: Option<&[u8]>,
        mut ends: impl FnMut(usize),
    ) -> (Range<usize>, Selected) {
        let mut selected = Selected::No;
        for open in paths.clone() {
            let index = self.open[open];
            let segments = &self.paths[index].segments;
            let leads_here = match (&segments[depth], name) {
                (Segment::Any, _) => true,
                (Segment::Name(wanted), Some(name)) => name == wanted,
                (Segment::Name(_), None) => false,
            };
            if leads_here && segments.len() == depth + 1 {
                selected = Selected::Yes;
                ends(index);
            } else if leads_here {
                self.open.push(index);
            }
        }
        (paths.end..self.open.len(), selected)
    }

    /// Comes back to the value with these open paths.
    pub(super) fn leave(&mut self, paths: &Range<usize>) {
        self.open.truncate(paths.end);
    }
}

impl FromStr for JsonPath {
    type Err = JsonPathError;

    fn from_str(path: &str) -> Result<JsonPath, JsonPathError> {
        JsonPath::parse(path)
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Where a path breaks off, and what would be allowed there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected {expected} at offset {position} of the path")]
pub struct JsonPathError {
    /// The offset in bytes, counted from 0.
    pub position: usize,
    /// What is allowed there.
    pub expected: &'static str,
}

struct Cursor<'p> {
    path: &'p str,
    at: usize,
}

impl Cursor<'_> {
    fn segment(&mut self) -> Result<Segment, JsonPathError> {
        if self.take('.') {
            return if self.take('*') { Ok(Segment::Any) } else { self.short_name() };
        }
        if !self.take('[') {
            return Err(self.error("`.name`, `['name']` or `[*]`"));
        }
        let segment = match self.peek() {
            Some('*') => {
                self.at += 1;
                Segment::Any
            }
            Some(quote @ ('\'' | '"')) => {
                self.at += 1;
                Segment::Name(self.quoted_name(quote)?)
            }
            Some(_) | None => {
                return Err(
                    self.error("a quoted name or `*` (indices and filters are not allowed)")
                );
            }
        };
        if self.take(']') { Ok(segment) } else { Err(self.error("`]`")) }
    }

    /// RFC 9535, `member-name-shorthand`.
    fn short_name(&mut self) -> Result<Segment, JsonPathError> {
        let rest = &self.path[self.at..];
        let allowed = |(at, c): (usize, char)| {
            c == '_' || c.is_ascii_alphabetic() || !c.is_ascii() || (at > 0 && c.is_ascii_digit())
        };
        let end =
            rest.char_indices().find(|next| !allowed(*next)).map_or(rest.len(), |next| next.0);
        if end == 0 {
            return Err(self.error("a name or `*` (quote names that start oddly: `['2nd']`)"));
        }
        self.at += end;
        if !matches!(self.peek(), None | Some('.' | '[')) {
            return Err(
                self.error("`.`, `[` or the end (quote names with other characters: `['a-b']`)")
            );
        }
        Ok(Segment::Name(canonical_name(&rest[..end])))
    }

    fn quoted_name(&mut self, quote: char) -> Result<Vec<u8>, JsonPathError> {
        let mut name = String::new();
        loop {
            match self.peek() {
                Some(c) if c == quote => {
                    self.at += 1;
                    return Ok(canonical_name(&name));
                }
                Some('\\') => {
                    self.at += 1;
                    name.push(self.escape(quote)?);
                }
                Some(c) if c >= ' ' => {
                    self.at += c.len_utf8();
                    name.push(c);
                }
                Some(_) | None => return Err(self.error("the closing quote of the name")),
            }
        }
    }

    fn escape(&mut self, quote: char) -> Result<char, JsonPathError> {
        let escaped = match self.peek() {
            Some(c) if c == quote || matches!(c, '\\' | '/') => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                self.at += 1;
                return self.unicode_escape();
            }
            Some(_) | None => return Err(self.error("an escape of JSON")),
        };
        self.at += 1;
        Ok(escaped)
    }

    fn unicode_escape(&mut self) -> Result<char, JsonPathError> {
        let first = self.hex_unit()?;
        if let Some(character) = char::from_u32(first) {
            return Ok(character);
        }
        let paired = first < 0xdc00 && self.take('\\') && self.take('u');
        let second = if paired { self.hex_unit()? } else { 0 };
        match second.checked_sub(0xdc00) {
            Some(low) if low < 0x400 => char::from_u32(0x10000 + ((first - 0xd800) << 10) + low),
            Some(_) | None => None,
        }
        .ok_or_else(|| self.error("the other half of a surrogate pair"))
    }

    fn hex_unit(&mut self) -> Result<u32, JsonPathError> {
        let digits = self.path.get(self.at..self.at + 4).unwrap_or_default();
        if digits.len() != 4 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(self.error("four hexadecimal digits"));
        }
        self.at += 4;
        u32::from_str_radix(digits, 16).map_err(|_| self.error("four hexadecimal digits"))
    }

    fn peek(&self) -> Option<char> {
        self.path[self.at..].chars().next()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn error(&self, expected: &'static str) -> JsonPathError {
        JsonPathError { position: self.at, expected }
    }
}

fn canonical_name(name: &str) -> Vec<u8> {
    let mut canonical = Vec::with_capacity(name.len() + 2);
    write_string(&mut canonical, name);
    canonical
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segments(path: &str) -> Vec<String> {
        let path = JsonPath::parse(path).unwrap();
        path.segments
            .iter()
            .map(|segment| match segment {
                Segment::Name(name) => String::from_utf8(name.clone()).unwrap(),
                Segment::Any => "*".to_owned(),
            })
            .collect()
    }

    #[test]
    fn paths_are_names_and_wildcards() {
        let rows: &[(&str, &[&str])] = &[
            ("$.client_timestamp", &["\"client_timestamp\""]),
            ("$.a.b", &["\"a\"", "\"b\""]),
            ("$.items[*].ts", &["\"items\"", "*", "\"ts\""]),
            ("$.*['x'].*", &["*", "\"x\"", "*"]),
            ("$['odd name']", &["\"odd name\""]),
            ("$[\"odd name\"]", &["\"odd name\""]),
            ("$['it\\'s \"x\"']", &["\"it's \\\"x\\\"\""]),
            ("$['']", &["\"\""]),
            ("$['*']", &["\"*\""]),
            ("$['\\n\\/\\\\']", &["\"\\n/\\\\\""]),
            ("$['\\u00e9\\ud83d\\ude00']", &["\"\u{e9}\u{1f600}\""]),
            ("$.\u{e9}2", &["\"\u{e9}2\""]),
        ];
        for (path, expected) in rows {
            assert_eq!(segments(path), *expected, "{path}");
            assert_eq!(JsonPath::parse(path).unwrap().to_string(), *path);
        }
    }

    #[test]
    fn errors_say_where_and_what() {
        let rows = [
            ("", 0, "`$`"),
            ("a.b", 0, "`$`"),
            ("$", 1, "the whole body cannot be ignored"),
            ("$a", 1, "`.name`"),
            ("$ .a", 1, "`.name`"),
            ("$.", 2, "a name"),
            ("$..a", 2, "a name"),
            ("$.a.", 4, "a name"),
            ("$.2nd", 2, "['2nd']"),
            ("$.a-b", 3, "['a-b']"),
            ("$.a b", 3, "['a-b']"),
            ("$[0]", 2, "indices"),
            ("$[?@.a]", 2, "filters"),
            ("$[", 2, "a quoted name"),
            ("$[*", 3, "`]`"),
            ("$['a'", 5, "`]`"),
            ("$['a','b']", 5, "`]`"),
            ("$['a", 4, "closing quote"),
            ("$['a\n']", 4, "closing quote"),
            ("$['\\x']", 4, "escape"),
            ("$['\\\"']", 4, "escape"),
            ("$['\\u12']", 5, "hexadecimal"),
            ("$['\\u+123']", 5, "hexadecimal"),
            ("$['\\ud800']", 9, "surrogate"),
            ("$['\\udc00']", 9, "surrogate"),
            ("$['\\ud800\\u0041']", 15, "surrogate"),
        ];
        for (path, position, expected) in rows {
            let error = JsonPath::parse(path).unwrap_err();
            assert_eq!(error.position, position, "{path}: {error}");
            assert!(error.to_string().contains(expected), "{path}: {error}");
        }
    }

    proptest! {
        /// I24: no text makes the parser panic, and a quoted name selects exactly that name.
        #[test]
        fn any_text_is_a_path_or_an_error(text in "\\$?[\\[\\].*'\"\\\\uda8c0\u{e9}]{0,12}", name in any::<String>()) {
            let _ = JsonPath::parse(&text);
            let quoted = String::from_utf8(canonical_name(&name)).unwrap();
            prop_assert_eq!(segments(&format!("$[{quoted}]")), [quoted]);
        }
    }
}
