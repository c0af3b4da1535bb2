//! Reads the smallest parts of JSON: strings, numbers, words, white space.
//!
//! Who reads a body for its canonical form and who reads it to redact it must agree about what a
//! name is, down to the last escape. So there is one scanner, and it decides about letters alone:
//! what a body *means* is up to its callers.

use std::ops::Range;

/// The deepest nesting: the bound of our stack, and of what parsers take without being asked to.
pub(super) const MAX_DEPTH: usize = 64;

/// A place in a body.
#[derive(Clone, Debug)]
pub(super) struct Scanner<'b> {
    body: &'b [u8],
    at: usize,
}

/// What a string is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letters {
    /// ASCII from space to tilde.
    Printable,
    /// Anything else, too.
    Odd,
}

/// A number as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) place: Range<usize>,
    pub(super) exponent_digits: usize,
}

impl<'b> Scanner<'b> {
    /// Begins at the start of `body`, or not at all if it is not UTF-8.
    ///
    /// Checked once for all strings. It leaves a byte order mark, which no value starts with.
    pub(super) fn new(body: &'b [u8]) -> Option<Self> {
        std::str::from_utf8(body).ok()?;
        Some(Self { body, at: 0 })
    }

    /// How many bytes have been read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The bytes at `place`.
    pub(super) fn slice(&self, place: Range<usize>) -> &'b [u8] {
        &self.body[place]
    }

    /// Returns true if and only if everything has been read.
    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.body.len()
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    /// Reads exactly this byte.
    pub(super) fn take(&mut self, wanted: u8) -> Option<()> {
        if self.peek()? != wanted {
            return None;
        }
        self.at += 1;
        Some(())
    }

    pub(super) fn skip_white_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Reads `true`, `false` or `null`.
    pub(super) fn word(&mut self) -> Option<&'static [u8]> {
        let words: [&'static [u8]; 3] = [b"true", b"false", b"null"];
        let word = words.into_iter().find(|word| self.body[self.at..].starts_with(word))?;
        self.at += word.len();
        Some(word)
    }

    /// Reads a string and writes its canonical spelling, with quotes.
    pub(super) fn string(&mut self, out: &mut Vec<u8>) -> Option<Letters> {
        if self.peek()? != b'"' {
            return None;
        }
        let mut letters = Letters::Printable;
        // Everything up to the next escape is copied in one go.
        let mut copied = self.at;
        self.at += 1;
        loop {
            self.at += plain_prefix(&self.body[self.at..]);
            match self.peek()? {
                b'"' => break,
                b'\\' => {
                    out.extend_from_slice(&self.body[copied..self.at]);
                    let character = self.escape()?;
                    if !matches!(character, ' '..='~') {
                        letters = Letters::Odd;
                    }
                    write_character(out, character);
                    copied = self.at;
                }
                0x00..=0x1f => return None,
                0x20..=0x7e => self.at += 1,
                0x7f..=0xff => {
                    letters = Letters::Odd;
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        out.extend_from_slice(&self.body[copied..self.at]);
        Some(letters)
    }

    pub(super) fn number(&mut self) -> Option<Number> {
        let start = self.at;
        let mut exponent_digits = 0;
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
            exponent_digits = self.digits()?;
        }
        Some(Number { place: start..self.at, exponent_digits })
    }

    fn digits(&mut self) -> Option<usize> {
        let rest = &self.body[self.at..];
        let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += count;
        (count > 0).then_some(count)
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
}

/// How many bytes at the start of `text` mean themselves inside of a string: ASCII from space to tilde,
/// without quote and backslash.
///
/// Looks at eight bytes at a time, because most of a body is such text.
pub(super) fn plain_prefix(text: &[u8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const TOPS: u64 = u64::from_le_bytes([0x80; 8]);
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    let mut at = 0;
    while let Some(chunk) = text[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        // The top bit of the first byte that is less than `bound` is set, and none before it.
        let less = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & TOPS;
        let equal = |byte: u8| less(word ^ (ONES * u64::from(byte)), 1);
        let others = word & TOPS | less(word, 0x20) | equal(b'"') | equal(b'\\') | equal(0x7f);
        if others != 0 {
            // Bytes are counted from the lowest, whatever the machine prefers.
            return at + (others.trailing_zeros() / 8) as usize;
        }
        at += chunk.len();
    }
    at + text[at..].iter().position(|byte| !is_plain(byte)).unwrap_or(text.len() - at)
}

/// Writes one string in its canonical spelling, with quotes.
pub(super) fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    text.chars().for_each(|character| write_character(out, character));
    out.push(b'"');
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte, at every place of a word and of the rest, against the plain rule.
    #[test]
    fn plain_text_ends_at_the_first_byte_that_is_something_else() {
        for length in 0..20 {
            assert_eq!(plain_prefix(&vec![b'a'; length]), length);
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    for before in [b' ', b'~', b'!', b'#', b'[', b']'] {
                        let mut text = vec![b'"'; length];
                        text[..at].fill(before);
                        text[at] = byte;
                        let plain = matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
                        let expected = if plain { at + 1 } else { at };
                        assert_eq!(plain_prefix(&text), expected, "{byte:#x} at {at} of {length}");
                    }
                }
            }
        }
    }
}
