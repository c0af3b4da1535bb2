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

use super::json_path::{JsonPath, OpenPaths, Selected};
use super::scan::{Letters, MAX_DEPTH, Scanner};

/// Longer numbers, and exponents of more digits, are infinite, zero or an error for some parsers.
const MAX_NUMBER_LENGTH: usize = 64;
const MAX_EXPONENT_DIGITS: usize = 2;
/// The members of a small body have room to change places without another allocation. A large one is
/// given that room only if it needs it.
const SMALL: usize = 4 * 1024;
/// Room for the members of most bodies, so that the list is made once.
const MEMBERS: usize = 16;

/// The canonical form of `body` without what `ignore` selects, or `None` if there is any doubt.
pub(super) fn canonical(body: &[u8], ignore: &[JsonPath]) -> Option<Vec<u8>> {
    let mut writer = Writer {
        scan: Scanner::new(body)?,
        out: Vec::with_capacity(if body.len() <= SMALL { 2 * body.len() } else { body.len() }),
        members: Vec::with_capacity(MEMBERS),
        ignore: OpenPaths::new(ignore),
    };
    writer.scan.skip_white_space();
    let all = writer.ignore.all();
    writer.value(0, all)?;
    writer.scan.skip_white_space();
    writer.scan.is_at_end().then_some(writer.out)
}

struct Writer<'b> {
    scan: Scanner<'b>,
    out: Vec<u8>,
    /// The members of all open objects, innermost last.
    members: Vec<Member>,
    ignore: OpenPaths<'b>,
}

/// One member, as ranges of what was written.
struct Member {
    start: usize,
    name_end: usize,
    end: usize,
    ignored: Selected,
}

/// Whether a member may mean something else at another place. Json.NET and its like read metadata
/// such as `$type` only at the start of an object.
fn has_meaning_by_place(quoted_name: &[u8]) -> bool {
    matches!(quoted_name, [b'"', b'$' | b'@', ..] | [b'"', b'_', b'_', ..])
}

impl Writer<'_> {
    /// Writes the value at the cursor, inside of `depth` containers. `paths` are the ignored ones
    /// that lead through this value.
    fn value(&mut self, depth: usize, paths: Range<usize>) -> Option<()> {
        match self.scan.peek()? {
            b'{' => self.object(depth, paths),
            b'[' => self.array(depth, paths),
            b'"' => {
                let start = self.out.len();
                self.scan.string(&mut self.out)?;
                // Old ASP.NET reads `\/Date(0)\/` as a date and `/Date(0)/` as a string.
                (!self.out[start..].starts_with(b"\"/Date(")).then_some(())
            }
            b't' | b'f' | b'n' => {
                let word = self.scan.word()?;
                self.out.extend_from_slice(word);
                Some(())
            }
            b'-' | b'0'..=b'9' => self.number(),
            _ => None,
        }
    }

    fn object(&mut self, depth: usize, paths: Range<usize>) -> Option<()> {
        if depth == MAX_DEPTH {
            return None;
        }
        let first = self.members.len();
        let mut names = Letters::Printable;
        self.take(b'{')?;
        let inside = self.out.len();
        self.scan.skip_white_space();
        if self.scan.peek()? != b'}' {
            loop {
                let start = self.out.len();
                let name = self.scan.string(&mut self.out)?;
                let name_end = self.out.len();
                if name == Letters::Odd || has_meaning_by_place(&self.out[start..name_end]) {
                    names = Letters::Odd;
                }
                self.scan.skip_white_space();
                self.take(b':')?;
                self.scan.skip_white_space();
                let name = &self.out[start..name_end];
                let (below, ignored) = self.ignore.enter(depth, &paths, Some(name), |_| ());
                self.value(depth + 1, below)?;
                self.ignore.leave(&paths);
                self.members.push(Member { start, name_end, end: self.out.len(), ignored });
                self.scan.skip_white_space();
                if self.scan.peek()? != b',' {
                    break;
                }
                self.take(b',')?;
                self.scan.skip_white_space();
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
        self.scan.skip_white_space();
        if self.scan.peek()? != b']' {
            loop {
                let (below, ignored) = self.ignore.enter(depth, &paths, None, |_| ());
                self.value(depth + 1, below)?;
                self.ignore.leave(&paths);
                if ignored == Selected::Yes {
                    // Paths have no indices, so all elements are ignored or none is.
                    self.out.truncate(inside);
                }
                self.scan.skip_white_space();
                if self.scan.peek()? != b',' {
                    break;
                }
                self.take(b',')?;
                self.scan.skip_white_space();
            }
        }
        self.take(b']')
    }

    /// Brings the members of the innermost object into order and leaves out the ignored ones.
    fn settle(&mut self, first: usize, inside: usize, names: Letters) -> Option<()> {
        // Swift takes canonically equivalent names for equal, Go folds case beyond ASCII, and C
        // stops at NUL. A single member cannot be confused with another one.
        if names == Letters::Odd && self.members.len() - first > 1 {
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
        let is_ignored = |member: &Member| member.ignored == Selected::Yes;
        if !was_sorted || members.iter().any(is_ignored) {
            // Behind what was written, in their new order, and then into its place.
            let written = self.out.len();
            self.out.reserve(written - inside);
            for member in members.iter().filter(|member| !is_ignored(member)) {
                if self.out.len() > written {
                    self.out.push(b',');
                }
                self.out.extend_from_within(member.start..member.end);
            }
            self.out.drain(inside..written);
        }
        self.members.truncate(first);
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        let number = self.scan.number()?;
        if number.place.len() > MAX_NUMBER_LENGTH || number.exponent_digits > MAX_EXPONENT_DIGITS {
            return None;
        }
        self.out.extend_from_slice(self.scan.slice(number.place));
        Some(())
    }

    fn take(&mut self, wanted: u8) -> Option<()> {
        self.scan.take(wanted)?;
        self.out.push(wanted);
        Some(())
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
