//! Paths that stand for all others which two patterns have in common.
//!
//! In the place of a parameter stands a word that is no literal of any pattern. So a route that takes
//! such a path takes every path of the same length that both patterns are for, unless that one is
//! a literal of a more specific route, which has a path of its own here.

use super::pattern::{Pattern, Segment};

/// Stands for anything: no literal can have a brace in it, unless it is encoded.
const ANYTHING: &str = "{anything}";

/// A path of so many segments that is one of both patterns; `None` if there is none.
pub(crate) fn common_path(one: &Pattern, other: &Pattern, length: usize) -> Option<String> {
    let (ours, others) = (fixed(one, length)?, fixed(other, length)?);
    let mut path = String::new();
    for place in 0..length {
        path.push('/');
        match (literal(ours, place), literal(others, place)) {
            (Some(one), Some(other)) if one != other => return None,
            (Some(literal), _) | (None, Some(literal)) => write(&mut path, literal),
            (None, None) => path.push_str(ANYTHING),
        }
    }
    Some(if path.is_empty() { "/".to_owned() } else { path })
}

/// The segments before a tail, if the pattern has paths of this length.
fn fixed(pattern: &Pattern, length: usize) -> Option<&[Segment]> {
    match pattern.segments() {
        [fixed @ .., Segment::Tail(_)] => (fixed.len() <= length).then_some(fixed),
        all => (all.len() == length).then_some(all),
    }
}

fn literal(segments: &[Segment], place: usize) -> Option<&[u8]> {
    match segments.get(place)? {
        Segment::Literal(literal) => Some(literal),
        Segment::Parameter(_) | Segment::Tail(_) => None,
    }
}

/// Writes a literal as a request has it.
fn write(path: &mut String, literal: &[u8]) {
    for byte in literal {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => path.push(char::from(*byte)),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_path_is_one_of_both_patterns() {
        for (one, other, length, expected) in [
            ("/a", "/a", 1, Some("/a")),
            ("/a", "/b", 1, None),
            ("/a", "/a", 2, None),
            ("/{x}/b", "/c/{y}", 2, Some("/c/b")),
            ("/{x}", "/{rest...}", 1, Some("/{anything}")),
            ("/a/{rest...}", "/{rest...}", 3, Some("/a/{anything}/{anything}")),
            ("/{rest...}", "/{rest...}", 0, Some("/")),
            ("/caf%C3%A9", "/{x}", 1, Some("/caf%C3%A9")),
        ] {
            let parsed = [one, other].map(|text| Pattern::parse(text).unwrap());
            let found = common_path(&parsed[0], &parsed[1], length);
            assert_eq!(found.as_deref(), expected, "{one} {other}");
            if let Some(path) = found {
                assert!(parsed.iter().all(|pattern| pattern.is_for(&path)), "{path}");
            }
        }
    }
}
