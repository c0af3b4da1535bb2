//! The quoted form of a key: an RFC 9651 String with parameters.
//!
//! We know no parameter, so they are ignored; but they are parsed, because whatever follows a
//! closing quote unchecked could as well be a second key. Section numbers are those of RFC 9651.
//! A general parser of structured fields is not used: it refuses the bare keys that real clients
//! send, and we need one type of item.

use crate::key::{KeyError, is_printable};

/// Unquotes `value`, which starts with a quote and has no white space around it.
pub(super) fn quoted(value: &[u8]) -> Result<Vec<u8>, KeyError> {
    let mut cursor = Cursor { value, at: 0 };
    let key = cursor.string()?;
    cursor.parameters()?;
    cursor.skip_spaces();
    match cursor.peek() {
        None => Ok(key),
        Some(b',') => Err(KeyError::List),
        Some(_) => Err(cursor.malformed()),
    }
}

struct Cursor<'v> {
    value: &'v [u8],
    at: usize,
}

impl Cursor<'_> {
    /// Section 4.2.5.
    fn string(&mut self) -> Result<Vec<u8>, KeyError> {
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            match self.next()? {
                b'"' => return Ok(text),
                b'\\' => match self.next()? {
                    escaped @ (b'"' | b'\\') => text.push(escaped),
                    _ => return Err(self.malformed_before()),
                },
                byte if is_printable(byte) => text.push(byte),
                _ => return Err(KeyError::NotPrintable { position: text.len() }),
            }
        }
    }

    /// Section 4.2.3.2.
    fn parameters(&mut self) -> Result<(), KeyError> {
        while self.peek() == Some(b';') {
            self.at += 1;
            self.skip_spaces();
            match self.next()? {
                b'a'..=b'z' | b'*' => {}
                _ => return Err(self.malformed_before()),
            }
            self.skip_while(
                |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'),
            );
            if self.peek() == Some(b'=') {
                self.at += 1;
                self.bare_item()?;
            }
        }
        Ok(())
    }

    /// Section 4.2.3.1.
    fn bare_item(&mut self) -> Result<(), KeyError> {
        match self.peek() {
            Some(b'-' | b'0'..=b'9') => self.number().map(drop),
            Some(b'"') => self.string().map(drop),
            Some(b'*' | b'a'..=b'z' | b'A'..=b'Z') => {
                self.skip_while(is_token);
                Ok(())
            }
            Some(b':') => self.byte_sequence(),
            Some(b'?') => {
                self.at += 1;
                match self.next()? {
                    b'0' | b'1' => Ok(()),
                    _ => Err(self.malformed_before()),
                }
            }
            Some(b'@') => {
                self.at += 1;
                match self.number()? {
                    Number::Integer => Ok(()),
                    Number::Decimal => Err(self.malformed_before()),
                }
            }
            Some(b'%') => self.display_string(),
            Some(_) | None => Err(self.malformed()),
        }
    }

    /// Section 4.2.4: 15 digits, or 12 before and 3 after the point.
    fn number(&mut self) -> Result<Number, KeyError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let whole = self.skip_while(|byte| byte.is_ascii_digit());
        if !(1..=15).contains(&whole) {
            return Err(self.malformed());
        }
        if self.peek() != Some(b'.') {
            return Ok(Number::Integer);
        }
        self.at += 1;
        let fraction = self.skip_while(|byte| byte.is_ascii_digit());
        if whole > 12 || !(1..=3).contains(&fraction) {
            return Err(self.malformed());
        }
        Ok(Number::Decimal)
    }

    /// Section 4.2.7. Padding may be missing there, so only the alphabet is checked.
    fn byte_sequence(&mut self) -> Result<(), KeyError> {
        self.expect(b':')?;
        self.skip_while(
            |byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'+' | b'/' | b'='),
        );
        self.expect(b':')
    }

    /// Section 4.2.10.
    fn display_string(&mut self) -> Result<(), KeyError> {
        self.expect(b'%')?;
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            match self.next()? {
                b'"' => break,
                b'%' => {
                    let high = self.hex_digit()?;
                    let low = self.hex_digit()?;
                    text.push(high * 16 + low);
                }
                byte if is_printable(byte) => text.push(byte),
                _ => return Err(self.malformed_before()),
            }
        }
        std::str::from_utf8(&text).map(drop).map_err(|_| self.malformed_before())
    }

    fn hex_digit(&mut self) -> Result<u8, KeyError> {
        match self.next()? {
            digit @ b'0'..=b'9' => Ok(digit - b'0'),
            digit @ b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(self.malformed_before()),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.value.get(self.at).copied()
    }

    fn next(&mut self) -> Result<u8, KeyError> {
        let byte = self.peek().ok_or_else(|| self.malformed())?;
        self.at += 1;
        Ok(byte)
    }

    fn expect(&mut self, wanted: u8) -> Result<(), KeyError> {
        if self.next()? == wanted { Ok(()) } else { Err(self.malformed_before()) }
    }

    fn skip_spaces(&mut self) {
        self.skip_while(|byte| byte == b' ');
    }

    fn skip_while(&mut self, accept: impl Fn(u8) -> bool) -> usize {
        let rest = &self.value[self.at..];
        let length = rest.iter().position(|byte| !accept(*byte)).unwrap_or(rest.len());
        self.at += length;
        length
    }

    fn malformed(&self) -> KeyError {
        KeyError::Malformed { position: self.at }
    }

    /// The same for the byte that was just taken.
    fn malformed_before(&self) -> KeyError {
        KeyError::Malformed { position: self.at.saturating_sub(1) }
    }
}

enum Number {
    Integer,
    Decimal,
}

/// `tchar` of RFC 9110 section 5.6.2, and the two that section 4.2.6 adds.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}
