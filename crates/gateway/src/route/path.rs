//! How the path of a request is read, and in how many ways an upstream might read it.
//!
//! `/v1//charges`, `/v1/./charges`, `/v1%2Fcharges`, `/v1\charges` and `/v1/charges;a=1` are one
//! place to some servers and different places to others. We pass a path on as it came, so we cannot
//! know. A request with such a path is looked up in every way that we know of, and the strictest
//! route wins: nobody gets around a protected route by spelling. Refusing such paths was rejected;
//! clients that put `//` behind a base URL are common and honest.

/// The parts of a path between its slashes, as they came. `None` if it is no path.
pub(super) fn segments(path: &str) -> Option<impl Iterator<Item = &[u8]>> {
    let path = inside(path)?;
    let parts = path.split(|byte| *byte == b'/');
    // Splitting nothing gives one empty part.
    Some(parts.skip(usize::from(path.is_empty())))
}

/// A path without the slash at its beginning and one at its end.
pub(super) fn inside(path: &str) -> Option<&[u8]> {
    let path = path.as_bytes().strip_prefix(b"/")?;
    Some(path.strip_suffix(b"/").unwrap_or(path))
}

/// Decodes percent-encoding (RFC 3986, section 2.1). A sign that begins no code stands for itself.
pub(super) fn decoded(raw: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = raw;
    std::iter::from_fn(move || {
        let (byte, length) = match code(rest) {
            Some(byte) => (byte, 3),
            None => (*rest.first()?, 1),
        };
        rest = &rest[length..];
        Some(byte)
    })
}

/// The byte that a percent-code at the beginning stands for.
fn code(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Whether servers may disagree about a path. Errs on the side of yes; allocates nothing, because
/// every request is asked.
pub(crate) fn is_odd(path: &str) -> bool {
    let bytes = path.as_bytes();
    let odd = |(at, byte): (usize, &u8)| match byte {
        b'\\' | b';' => true,
        b'%' => code(&bytes[at..]).is_none_or(|byte| b"/\\.;%\0".contains(&byte)),
        // `//`, `/.` and `/..`; names such as `.well-known` are looked at again.
        b'/' => bytes.get(at + 1).is_some_and(|next| b"/.".contains(next)),
        _ => false,
    };
    bytes.iter().enumerate().any(odd)
}

/// What some servers do to a path before they look at it, in the order in which they do it.
type Change = fn(&[u8]) -> Vec<u8>;
const CHANGES: [Change; 6] =
    [decode_twice, cut_at_zero, slash_every_separator, drop_parameters, merge_slashes, walk_dots];

/// Odd paths up to this length are read in every way. Honest ones are shorter; an attacker could
/// keep a core busy for milliseconds with each longer one.
pub(super) const READABLE: usize = 2_048;

/// Every way to read an odd path: with each selection of the changes that change it.
pub(super) fn readings(path: &str) -> Vec<Vec<u8>> {
    let mut found = vec![path.as_bytes().to_vec()];
    for change in CHANGES {
        for at in 0..found.len() {
            let changed = change(&found[at]);
            // At most doubled by each change: sixty-four readings of the oddest path.
            if changed != found[at] {
                found.push(changed);
            }
        }
    }
    found
}

/// `%252e` becomes `%2e`, as behind two servers that both decode.
fn decode_twice(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((byte, after)) = rest.split_first() {
        out.push(*byte);
        rest = if code(rest) == Some(b'%') { &rest[3..] } else { after };
    }
    out
}

/// What follows a zero byte is not there for a server that is written in C.
fn cut_at_zero(path: &[u8]) -> Vec<u8> {
    let cut = (0..path.len()).find(|at| code(&path[*at..]) == Some(0));
    path[..cut.unwrap_or(path.len())].to_vec()
}

/// `%2F`, `%5C` and `\` become slashes.
fn slash_every_separator(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((byte, after)) = rest.split_first() {
        let coded = matches!(code(rest), Some(b'/' | b'\\'));
        out.push(if coded || *byte == b'\\' { b'/' } else { *byte });
        rest = if coded { &rest[3..] } else { after };
    }
    out
}

/// `/a;x=1/b` becomes `/a/b`, as Java servers read it.
fn drop_parameters(path: &[u8]) -> Vec<u8> {
    rebuilt(path, |part, parts| {
        let end = (0..part.len()).find(|at| part[*at] == b';' || code(&part[*at..]) == Some(b';'));
        parts.push(&part[..end.unwrap_or(part.len())]);
    })
}

/// `/a//b` becomes `/a/b`.
fn merge_slashes(path: &[u8]) -> Vec<u8> {
    rebuilt(path, |part, parts| {
        if !part.is_empty() {
            parts.push(part);
        }
    })
}

/// Resolves `.` and `..`, coded ones too (RFC 3986, section 5.2.4).
fn walk_dots(path: &[u8]) -> Vec<u8> {
    rebuilt(path, |part, parts| {
        if decoded(part).eq(*b".") {
            return;
        }
        if decoded(part).eq(*b"..") {
            parts.pop();
            return;
        }
        parts.push(part);
    })
}

/// The path that is left when `keep` has taken what it wants of each part.
fn rebuilt<'p>(path: &'p [u8], mut keep: impl FnMut(&'p [u8], &mut Vec<&'p [u8]>)) -> Vec<u8> {
    let mut parts = Vec::new();
    for part in path.split(|byte| *byte == b'/').skip(1) {
        keep(part, &mut parts);
    }
    let mut out = Vec::with_capacity(path.len());
    for part in &parts {
        out.push(b'/');
        out.extend_from_slice(part);
    }
    if out.is_empty() { vec![b'/'] } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> Vec<String> {
        readings(path).into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    }

    #[test]
    fn ordinary_paths_are_not_odd() {
        for path in ["/", "/v1/charges", "/v1/charges/", "/a%20b", "/caf%C3%A9", "/a.b/c..d"] {
            assert!(!is_odd(path), "{path}");
            if !path.ends_with('/') {
                assert_eq!(read(path), [path], "there is one way to read it");
            }
        }
    }

    #[test]
    fn every_spelling_of_a_place_is_read_as_that_place() {
        for path in [
            "//v1/charges",
            "/v1//charges",
            "/v1/./charges",
            "/v1/x/../charges",
            "/v1/%2e/charges",
            "/v1/x/%2E./charges",
            "/v1%2Fcharges",
            "/v1%5ccharges",
            "/v1\\charges",
            "/v1/charges;a=1",
            "/v1;b/charges%3Ba=1",
            "/v1/charges%00.png",
            "/v1/x/..;/charges",
            "/v1/x%2f..%2fcharges",
            "/v1/%252e/charges",
            "/x/..//v1/charges",
        ] {
            assert!(is_odd(path), "{path}");
            assert!(read(path).contains(&"/v1/charges".to_owned()), "{path}: {:?}", read(path));
        }
    }

    #[test]
    fn servers_that_change_only_a_part_are_thought_of_too() {
        let found = read("/a%2Fb//c");
        for reading in ["/a%2Fb//c", "/a/b//c", "/a%2Fb/c", "/a/b/c"] {
            assert!(found.contains(&reading.to_owned()), "{reading}: {found:?}");
        }
        assert!(read("/a%252f;x//../%00b").len() <= 64);
    }

    #[test]
    fn a_percent_sign_that_begins_no_code_stands_for_itself() {
        for raw in ["%", "%4", "%zz", "100%"] {
            assert!(decoded(raw.as_bytes()).eq(raw.bytes()), "{raw}");
        }
        assert!(decoded(b"%41%zz").eq(*b"A%zz"));
    }
}
