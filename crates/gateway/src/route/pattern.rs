//! Which requests a route is for, as OpenAPI writes it: `POST /v1/charges/{id}/capture`.
//!
//! A segment is a literal, a parameter (`{id}`: one segment that is not empty) or, at the end, a
//! tail (`{rest...}`: nothing or everything that follows). There are no regular expressions: who
//! reads a configuration must see at a glance which requests are protected.
//!
//! Literals match without regard to ASCII case and after percent-decoding, and a slash at the end
//! of a path does not count. Many frameworks read paths like that; one that does not answers 404,
//! and protection of a request that does nothing does no harm.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use http::Method;

use super::path::{decoded, segments};

/// Methods and a path with places for anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    methods: Methods,
    segments: Vec<Segment>,
}

/// Which methods a route is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Methods {
    /// The pattern does not say; another setting does.
    Unsaid,
    /// Every one: `*`.
    Any,
    /// These.
    Only(Vec<Method>),
}

/// One part of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// These bytes, decoded and in lower case.
    Literal(Box<[u8]>),
    /// Anything but nothing.
    Parameter(Box<str>),
    /// Nothing, or everything that follows.
    Tail(Box<str>),
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct PatternError {
    /// Which bytes of the text are wrong.
    pub(crate) at: Range<usize>,
    message: String,
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let wrong = |at, message: &str| Err(PatternError { at, message: message.to_owned() });
        let (before, start) = match (text.starts_with('/'), text.split_once(' '), text.find('/')) {
            (true, _, _) => ("", 0),
            (false, Some((before, path)), _) => (before, text.len() - path.trim_start().len()),
            (false, None, Some(slash)) => {
                return wrong(slash..slash + 1, "a space stands between methods and path");
            }
            (false, None, None) => {
                return wrong(0..text.len(), "a pattern has a path, such as `POST /v1/charges`");
            }
        };
        let methods = Methods::parse(before)?;
        let path = &text[start..];
        if !path.starts_with('/') {
            let message = "a path begins with a slash, and methods have no spaces between them";
            return wrong(start..text.len(), message);
        }
        let trimmed = path.strip_suffix('/').unwrap_or(path);
        let mut found = Vec::new();
        let mut at = start + 1;
        for part in trimmed.split('/').skip(1) {
            let span = at..at + part.len();
            if matches!(found.last(), Some(Segment::Tail(_))) {
                return wrong(span, "nothing follows a tail such as `{rest...}`");
            }
            found.push(Segment::parse(part, &span)?);
            at = span.end + 1;
        }
        Ok(Self { text: text.to_owned(), methods, segments: found })
    }

    /// The methods as they are written.
    pub(crate) const fn methods(&self) -> &Methods {
        &self.methods
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The path as it is written.
    pub(crate) fn path(&self) -> &str {
        &self.text[self.text.find('/').unwrap_or(0)..]
    }

    /// Whether a path is one of the pattern's, told the slow and obvious way.
    pub(crate) fn is_for(&self, path: &str) -> bool {
        let Some(mut parts) = segments(path) else { return false };
        for segment in &self.segments {
            let fits = match (segment, parts.next()) {
                (Segment::Tail(_), _) => return true,
                (Segment::Literal(literal), Some(part)) => same(literal, part).is_eq(),
                (Segment::Parameter(_), Some(part)) => !part.is_empty(),
                (Segment::Literal(_) | Segment::Parameter(_), None) => false,
            };
            if !fits {
                return false;
            }
        }
        parts.next().is_none()
    }

    /// Which of two patterns is more specific, the lesser one, and the first place where they
    /// differ. Patterns that differ nowhere are for the same paths.
    pub(crate) fn compare(&self, other: &Self) -> (Ordering, usize) {
        let (ours, others) = (&self.segments, &other.segments);
        let ranks = ours.iter().zip(others).map(|(a, b)| a.rank().cmp(&b.rank()));
        match ranks.enumerate().find(|(_, order)| order.is_ne()) {
            Some((place, order)) => (order, place),
            None => (ours.len().cmp(&others.len()), ours.len().min(others.len())),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl Methods {
    fn parse(text: &str) -> Result<Self, PatternError> {
        match text {
            "" => return Ok(Self::Unsaid),
            "*" => return Ok(Self::Any),
            _ => {}
        }
        let mut methods = Vec::new();
        let mut at = 0;
        for name in text.split(',') {
            let span = at..at + name.len();
            at = span.end + 1;
            let method =
                method(name).map_err(|message| PatternError { at: span.clone(), message })?;
            if methods.contains(&method) {
                let message = format!("`{name}` is there twice");
                return Err(PatternError { at: span, message });
            }
            methods.push(method);
        }
        Ok(Self::Only(methods))
    }

    /// Whether a method is among them.
    pub(crate) fn contain(&self, method: &Method) -> bool {
        match self {
            Self::Any => true,
            Self::Only(methods) => methods.contains(method),
            Self::Unsaid => false,
        }
    }

    /// Whether a request could not tell which of two to take. A named method goes before `*`.
    pub(crate) fn collide(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, Self::Any) => true,
            (Self::Only(ours), Self::Only(others)) => {
                ours.iter().any(|method| others.contains(method))
            }
            (Self::Any | Self::Only(_) | Self::Unsaid, _) => false,
        }
    }
}

impl fmt::Display for Methods {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsaid => Ok(()),
            Self::Any => out.write_str("*"),
            Self::Only(methods) => {
                let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
                out.write_str(&names.join(","))
            }
        }
    }
}

/// Reads a method. They are case-sensitive (RFC 9110, section 9.1), so `post` would match nothing.
pub(crate) fn method(name: &str) -> Result<Method, String> {
    let upper = name.trim().to_ascii_uppercase();
    if name != upper {
        return Err(format!("methods are written in capitals and without spaces: `{upper}`"));
    }
    Method::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is not a method"))
}

impl Segment {
    fn parse(part: &str, span: &Range<usize>) -> Result<Self, PatternError> {
        let wrong = |message: String| Err(PatternError { at: span.clone(), message });
        let inner = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
        if let Some(name) = inner {
            let (name, make): (_, fn(Box<str>) -> Self) = match name.strip_suffix("...") {
                Some(name) => (name, Self::Tail),
                None => (name, Self::Parameter),
            };
            let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_word) {
                return wrong("a parameter has a name of letters, digits, `_` and `-`".to_owned());
            }
            return Ok(make(name.into()));
        }
        if let Some(name) = part.strip_prefix(':') {
            return wrong(format!("a parameter is written `{{{name}}}`"));
        }
        if part.contains(['{', '}']) {
            return wrong("a parameter is a whole segment: `{id}` between two slashes".to_owned());
        }
        if part.is_empty() {
            return wrong("two slashes follow each other; requests do not either".to_owned());
        }
        literal(part).map_or_else(wrong, |literal| Ok(Self::Literal(literal)))
    }

    const fn rank(&self) -> u8 {
        match self {
            Self::Literal(_) => 0,
            Self::Parameter(_) => 1,
            Self::Tail(_) => 2,
        }
    }

    /// The word for what it is.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Literal(_) => "a literal",
            Self::Parameter(_) => "a parameter",
            Self::Tail(_) => "a tail",
        }
    }
}

/// A literal as it is compared. What a path cannot hold, or what means something to some upstream,
/// is refused: it would never match, or not what its author thought.
fn literal(part: &str) -> Result<Box<[u8]>, String> {
    const PLAIN: &[u8] = b"-._~!$&'()+,=:@%";
    if part.contains('*') {
        return Err("patterns are no globs and no regular expressions: use `{name}` for one \
                    segment and `{rest...}` for the rest"
            .to_owned());
    }
    let odd = |c: &char| c.is_ascii() && !c.is_ascii_alphanumeric() && !is_plain(*c, PLAIN);
    if let Some(odd) = part.chars().find(odd) {
        return Err(format!("a path is matched without `{}`", odd.escape_default()));
    }
    let bytes: Vec<u8> = decoded(part.as_bytes()).map(|byte| byte.to_ascii_lowercase()).collect();
    match bytes.as_slice() {
        b"." | b".." => Err("`.` and `..` are resolved before a path is matched".to_owned()),
        _ => Ok(bytes.into()),
    }
}

fn is_plain(c: char, plain: &[u8]) -> bool {
    u8::try_from(c).is_ok_and(|byte| plain.contains(&byte))
}

/// Compares a literal with a segment as it came, without making a copy.
pub(super) fn same(literal: &[u8], raw: &[u8]) -> Ordering {
    literal.iter().copied().cmp(decoded(raw).map(|byte| byte.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_for(pattern: &str, path: &str) -> bool {
        Pattern::parse(pattern).unwrap().is_for(path)
    }

    #[test]
    fn a_pattern_is_methods_and_a_path() {
        let pattern = Pattern::parse("POST,PATCH /v1/charges/{id}/capture").unwrap();
        assert_eq!(pattern.methods(), &Methods::Only(vec![Method::POST, Method::PATCH]));
        assert_eq!(pattern.path(), "/v1/charges/{id}/capture");
        assert_eq!(pattern.segments().len(), 4);
        assert_eq!(Pattern::parse("* /x").unwrap().methods(), &Methods::Any);
        assert_eq!(Pattern::parse("/x").unwrap().methods(), &Methods::Unsaid);
        assert_eq!(Pattern::parse("/").unwrap().segments(), []);
    }

    #[test]
    fn what_is_no_pattern_is_refused_at_its_place() {
        for (text, at, advice) in [
            ("", 0..0, "a path"),
            ("POST", 0..4, "a path"),
            ("POST/v1", 4..5, "a space"),
            ("post /v1", 0..4, "`POST`"),
            ("POST,PATCh /v1", 5..10, "`PATCH`"),
            ("POST v1/charges", 5..15, "begins with a slash"),
            ("POST,POST /v1", 5..9, "twice"),
            ("POST /v1//x", 9..9, "two slashes"),
            ("POST /v1/:id", 9..12, "`{id}`"),
            ("POST /v1/{id}.json", 9..18, "whole segment"),
            ("POST /v1/{}", 9..11, "a name"),
            ("POST /{rest...}/x", 16..17, "nothing follows"),
            ("POST /v1/.*", 9..11, "no regular expressions"),
            ("POST /v1/[a-z]", 9..14, "without `[`"),
            ("POST /v1/../x", 9..11, "resolved"),
            ("POST /v1/%2e%2E/x", 9..15, "resolved"),
            ("POST /v1?x=1", 6..12, "without `?`"),
        ] {
            let error = Pattern::parse(text).unwrap_err();
            assert_eq!(error.at, at, "{text}");
            assert!(error.to_string().contains(advice), "{text}: {error}");
        }
    }

    #[test]
    fn a_parameter_is_one_segment_and_a_tail_is_any_number() {
        for (pattern, path, expected) in [
            ("/v1/charges", "/v1/charges", true),
            ("/v1/charges", "/V1/Charges/", true),
            ("/v1/charges", "/v1/%63harges", true),
            ("/v1/charges", "/v1/charge", false),
            ("/v1/charges", "/v1/charges/x", false),
            ("/v1/{id}", "/v1/a%2Fb", true),
            ("/v1/{id}", "/v1/a/b", false),
            ("/v1/{id}", "/v1/", false),
            ("/v1/{id}", "/v1//", false),
            ("/v1/{rest...}", "/v1", true),
            ("/v1/{rest...}", "/v1/a/b", true),
            ("/{rest...}", "/", true),
            ("/", "/", true),
            ("/", "*", false),
            ("/{rest...}", "*", false),
        ] {
            assert_eq!(is_for(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_literal_goes_before_a_parameter_and_a_parameter_before_a_tail() {
        let compare =
            |a: &str, b: &str| Pattern::parse(a).unwrap().compare(&Pattern::parse(b).unwrap());
        assert_eq!(compare("/v1/charges", "/v1/{id}"), (Ordering::Less, 1));
        assert_eq!(compare("/v1/{id}", "/v1/{rest...}"), (Ordering::Less, 1));
        assert_eq!(compare("/v1/{a}/x", "/v1/y/{b}"), (Ordering::Greater, 1));
        assert_eq!(compare("/v1", "/v1/{rest...}"), (Ordering::Less, 1));
        assert_eq!(compare("/v1/{a}", "/v1/{b}").0, Ordering::Equal);
    }
}
