//! Lines that end with CRLF, in bytes that come in pieces.

use std::ops::Range;

use memchr::memchr;

use super::Violation;

/// Finds line after line in what is held back, and remembers how far it has looked.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Where the line begins that has not ended yet.
    start: usize,
    looked: usize,
}

/// How far lines may reach from the first byte that is held back, and what it is called if they
/// reach further.
pub(super) struct Bound {
    pub(super) bytes: usize,
    pub(super) over: Violation,
}

impl Lines {
    /// Where the next line stands, without its end. Nothing if it has not ended yet.
    ///
    /// What is too long is noticed before anything else, because that does not depend on how much
    /// of the line is here.
    pub(super) fn next(
        &mut self,
        held: &[u8],
        bound: &Bound,
    ) -> Result<Option<Range<usize>>, Violation> {
        let found = memchr(b'\n', &held[self.looked..]).map(|at| self.looked + at);
        if found.unwrap_or(held.len()) >= bound.bytes {
            return Err(bound.over);
        }
        let Some(newline) = found else {
            self.looked = held.len();
            return Ok(None);
        };
        let line = self.start..newline;
        self.start = newline + 1;
        self.looked = self.start;
        match held[line.clone()].last() {
            Some(b'\r') => Ok(Some(line.start..newline - 1)),
            Some(_) | None => Err(Violation::BareLf),
        }
    }

    /// Where the next line begins, which is where the last one ended.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// How far the bytes were looked at.
    pub(super) fn looked(&self) -> usize {
        self.looked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound { bytes: 8, over: Violation::HeadTooLarge };

    #[test]
    fn lines_come_one_by_one_and_the_last_one_when_it_has_ended() {
        let mut lines = Lines::default();
        assert_eq!(lines.next(b"a\r\n\r\nbc", &BOUND), Ok(Some(0..1)));
        assert_eq!(lines.next(b"a\r\n\r\nbc", &BOUND), Ok(Some(3..3)));
        assert_eq!(lines.next(b"a\r\n\r\nbc", &BOUND), Ok(None));
        assert_eq!((lines.start(), lines.looked()), (5, 7));
    }

    #[test]
    fn a_line_ends_with_both_bytes() {
        for bytes in [&b"a\n"[..], b"\n", b"\r\r\n\n"] {
            let mut lines = Lines::default();
            let last = (0..3).map(|_| lines.next(bytes, &BOUND)).find(Result::is_err);
            assert_eq!(last, Some(Err(Violation::BareLf)));
        }
    }

    #[test]
    fn the_bound_holds_for_the_byte_that_ends_the_line() {
        assert_eq!(Lines::default().next(b"123456\r\n", &BOUND), Ok(Some(0..6)));
        assert_eq!(Lines::default().next(b"1234567\r\n", &BOUND), Err(Violation::HeadTooLarge));
        assert_eq!(Lines::default().next(b"1234567", &BOUND), Ok(None));
        assert_eq!(Lines::default().next(b"12345678", &BOUND), Err(Violation::HeadTooLarge));
    }
}
