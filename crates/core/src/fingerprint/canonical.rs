//! The canonical form of a JSON body, if it surely has one.
//!
//! The form is JSON itself: members in the order of their names, no white space, every string in its
//! shortest spelling, every number exactly as it was written. It is never longer than the body.
//!
//! Parsers disagree about much that looks like JSON: which of two equal members wins, whether `1`
//! is `1.0`, whether case counts in names. Two bodies may share a form only if *every* parser reads
//! the same from both, so whatever parsers disagree about has no form here, and is compared byte by
//! byte. RFC 8785 is no alternative: it rounds numbers to doubles, which makes two payments one.
//!
//! The body is read once and written once. Members are sorted when their object ends, and mostly
//! they are in order already or are moved as a whole: the cost is O(n log n) for a bounded depth.

use std::cmp::Ordering;
use std::ops::Range;

use super::json_path::{JsonPath, Segment};

/// The deepest nesting: the bound of our stack, and of what parsers take without being asked to.
const MAX_DEPTH: usize = 64;

/// Longer numbers, and exponents of more digits, are infinite, zero or an error for some parsers.
const MAX_NUMBER_LENGTH: usize = 64;
const MAX_EXPONENT_DIGITS: usize = 2;

/// The canonical form of `body` without what `ignore` selects, or `None` if there is any doubt.
pub(super) fn canonical(body: &[u8], ignore: &[JsonPath]) -> Option<Vec<u8>> {
    // Checked once for all strings. It leaves a byte order mark, which no value starts with.
    std::str::from_utf8(body).ok()?;
    let mut writer = Writer {
        body,
        at: 0,
        out: Vec::with_capacity(body.len()),
        members: Vec::new(),
        moved: Vec::new(),
        ignore,
        open_paths: (0..ignore.len()).collect(),
    };
    writer.skip_white_space();
    writer.value(0, 0..ignore.len())?;
    writer.skip_white_space();
    (writer.at == body.len()).then_some(writer.out)
}

/// Writes one string in its canonical spelling, with quotes.
pub(super) fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    text.chars().for_each(|character| write_character(out, character));
    out.push(b'"');
}

struct Writer<'b> {
    body: &'b [u8],
    at: usize,
    out: Vec<u8>,
    /// The members of all open objects, innermost last.
    members: Vec<Member>,
    /// Where members go while they change places; kept for the next object.
    moved: Vec<u8>,
    ignore: &'b [JsonPath],
    /// For every open value, the ignored paths that lead through it; innermost last.
    open_paths: Vec<usize>,
}

/// One member, as ranges of what was written.
struct Member {
    start: usize,
    name_end: usize,
    end: usize,
    ignored: bool,
}

/// What decides about the order of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Printable,
    Odd,
}

/// Whether a member may mean something else at another place. Json.NET and its like read metadata
/// such as `$type` only at the start of an object.
fn has_meaning_by_place(quoted_name: &[u8]) -> bool {
    [&b"\"$"[..], b"\"@", b"\"__"].iter().any(|prefix| quoted_name.starts_with(prefix))
}

impl Writer<'_> {
    /// Writes the value at the cursor, inside of `depth` containers. `paths` are those of
    /// `open_paths` that lead through this value.
    fn value(&mut self, depth: usize, paths: Range<usize>) -> Option<()> {
        match self.peek()? {
            b'{' => self.object(depth, paths),
            b'[' => self.array(depth, paths),
            b'"' => {
                let start = self.out.len();
                self.string()?;
                // Old ASP.NET reads `\/Date(0)\/` as a date and `/Date(0)/` as a string.
                (!self.out[start..].starts_with(b"\"/Date(")).then_some(())
            }
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            b'-' | b'0'..=b'9' => self.number(),
            _ => None,
        }
    }

    fn object(&mut self, depth: usize, paths: Range<usize>) -> Option<()> {
        if depth == MAX_DEPTH {
            return None;
        }
        let first = self.members.len();
        let mut names = Name::Printable;
        self.take(b'{')?;
        let inside = self.out.len();
        self.skip_white_space();
        if self.peek()? != b'}' {
            loop {
                let start = self.out.len();
                let name = self.string()?;
                let name_end = self.out.len();
                if name == Name::Odd || has_meaning_by_place(&self.out[start..name_end]) {
                    names = Name::Odd;
                }
                self.skip_white_space();
                self.take(b':')?;
                self.skip_white_space();
                let ignored = self.enter(depth, paths.clone(), Some(&(start..name_end)));
                self.value(depth + 1, paths.end..self.open_paths.len())?;
                self.open_paths.truncate(paths.end);
                self.members.push(Member { start, name_end, end: self.out.len(), ignored });
                self.skip_white_space();
                if self.peek()? != b',' {
                    break;
                }
                self.take(b',')?;
                self.skip_white_space();
            }
        }
        self.settle(first, inside, names)?;
        self.take(b'}')
    }

    fn array(&mut self, depth: usize, paths: Range<usize>) -> Option<()> {
        if depth == MAX_DEPTH {
            return None;
        }
        self.take(b'[')?;
        let inside = self.out.len();
        self.skip_white_space();
        if self.peek()? != b']' {
            loop {
                let ignored = self.enter(depth, paths.clone(), None);
                self.value(depth + 1, paths.end..self.open_paths.len())?;
                self.open_paths.truncate(paths.end);
                if ignored {
                    // Paths have no indices, so all elements are ignored or none is.
                    self.out.truncate(inside);
                }
                self.skip_white_space();
                if self.peek()? != b',' {
                    break;
                }
                self.take(b',')?;
                self.skip_white_space();
            }
        }
        self.take(b']')
    }

    /// Brings the members of the innermost object into order and leaves out the ignored ones.
    fn settle(&mut self, first: usize, inside: usize, names: Name) -> Option<()> {
        // Swift takes canonically equivalent names for equal, Go folds case beyond ASCII, and C
        // stops at NUL. A single member cannot be confused with another one.
        if names == Name::Odd && self.members.len() - first > 1 {
            return None;
        }
        let out = &self.out;
        let order = |a: &Member, b: &Member| {
            compare_names(&out[a.start..a.name_end], &out[b.start..b.name_end])
        };
        let members = &mut self.members[first..];
        let sorted = |members: &[Member]| {
            members.windows(2).all(|pair| order(&pair[0], &pair[1]) == Ordering::Less)
        };
        let was_sorted = sorted(members);
        if !was_sorted {
            members.sort_unstable_by(order);
            // Still not sorted means two equal names, and which of them wins is anybody's guess.
            if !sorted(members) {
                return None;
            }
        }
        if !was_sorted || members.iter().any(|member| member.ignored) {
            self.moved.clear();
            for member in members.iter().filter(|member| !member.ignored) {
                if !self.moved.is_empty() {
                    self.moved.push(b',');
                }
                self.moved.extend_from_slice(&out[member.start..member.end]);
            }
            self.out.truncate(inside);
            self.out.extend_from_slice(&self.moved);
        }
        self.members.truncate(first);
        Some(())
    }

    /// Opens the ignored paths that go on below a child; true if one of them ends at it.
    fn enter(&mut self, depth: usize, paths: Range<usize>, name: Option<&Range<usize>>) -> bool {
        let mut ignored = false;
        for open in paths {
            let index = self.open_paths[open];
            let segments = self.ignore[index].segments();
            let selected = match (&segments[depth], name) {
                (Segment::Any, _) => true,
                (Segment::Name(wanted), Some(name)) => self.out[name.clone()] == **wanted,
                (Segment::Name(_), None) => false,
            };
            if selected && segments.len() == depth + 1 {
                ignored = true;
            } else if selected {
                self.open_paths.push(index);
            }
        }
        ignored
    }

    fn string(&mut self) -> Option<Name> {
        if self.peek()? != b'"' {
            return None;
        }
        let mut name = Name::Printable;
        // Everything up to the next escape is copied in one go.
        let mut copied = self.at;
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => {
                    self.out.extend_from_slice(&self.body[copied..self.at]);
                    let character = self.escape()?;
                    if !matches!(character, ' '..='~') {
                        name = Name::Odd;
                    }
                    write_character(&mut self.out, character);
                    copied = self.at;
                }
                0x00..=0x1f => return None,
                0x20..=0x7e => self.at += 1,
                0x7f..=0xff => {
                    name = Name::Odd;
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        self.out.extend_from_slice(&self.body[copied..self.at]);
        Some(name)
    }

    fn escape(&mut self) -> Option<char> {
        let kind = *self.body.get(self.at + 1)?;
        self.at += 2;
        Some(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex_unit()?;
                if !(0xd800..0xdc00).contains(&first) {
                    // A low surrogate without a high one is no character either.
                    return char::from_u32(first);
                }
                if self.body.get(self.at..self.at + 2)? != b"\\u" {
                    return None;
                }
                self.at += 2;
                let second = self.hex_unit()?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
                return char::from_u32(0x10000 + ((first - 0xd800) << 10) + second);
            }
            _ => return None,
        })
    }

    fn hex_unit(&mut self) -> Option<u32> {
        let digits = self.body.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |unit, digit| Some(unit * 16 + char::from(*digit).to_digit(16)?))
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        // A zero stands alone: what follows it in `01` is not a comma, and fails there.
        match self.peek()? {
            b'0' => self.at += 1,
            _ => drop(self.digits()?),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits()? > MAX_EXPONENT_DIGITS {
                return None;
            }
        }
        if self.at - start > MAX_NUMBER_LENGTH {
            return None;
        }
        self.out.extend_from_slice(&self.body[start..self.at]);
        Some(())
    }

    fn digits(&mut self) -> Option<usize> {
        let rest = &self.body[self.at..];
        let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += count;
        (count > 0).then_some(count)
    }

    fn literal(&mut self, word: &[u8]) -> Option<()> {
        if !self.body[self.at..].starts_with(word) {
            return None;
        }
        self.at += word.len();
        self.out.extend_from_slice(word);
        Some(())
    }

    fn take(&mut self, wanted: u8) -> Option<()> {
        if self.peek()? != wanted {
            return None;
        }
        self.at += 1;
        self.out.push(wanted);
        Some(())
    }

    fn skip_white_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }
}

/// Orders names as if they were lower case. Names that differ only in case are equal here, because
/// they are for parsers that fold it, and then their order decides which one wins.
fn compare_names(a: &[u8], b: &[u8]) -> Ordering {
    match a.iter().zip(b).find(|(a, b)| !a.eq_ignore_ascii_case(b)) {
        Some((a, b)) => a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase()),
        None => a.len().cmp(&b.len()),
    }
}

/// Writes a character of a string in its shortest spelling, as RFC 8785 does.
fn write_character(out: &mut Vec<u8>, character: char) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let short = match character {
        '"' | '\\' => character,
        '\u{8}' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\u{c}' => 'f',
        '\r' => 'r',
        '\0'..='\u{1f}' => {
            let code = character as usize;
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', HEX[code >> 4], HEX[code & 15]]);
            return;
        }
        _ => {
            let mut buffer = [0; 4];
            out.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
            return;
        }
    };
    out.push(b'\\');
    out.extend_from_slice(short.encode_utf8(&mut [0; 4]).as_bytes());
}
