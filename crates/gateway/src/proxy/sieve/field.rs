//! One field line.

use super::Violation;
use super::bytes::{Spelling, Token, has_control, token};

/// A field line that is right by itself.
pub(super) struct Field<'b> {
    pub(super) name: &'b [u8],
    /// How the name is spelled.
    pub(super) spelling: Spelling,
    /// All that stands behind the colon, white space too: where a body ends must not depend on
    /// who trims what.
    pub(super) value: &'b [u8],
}

impl<'b> Field<'b> {
    /// Reads a line that was cut off at its CRLF.
    pub(super) fn read(line: &'b [u8]) -> Result<Self, Violation> {
        let Token { length, spelling } = token(line);
        match line.get(length) {
            Some(b':') if length > 0 => {}
            Some(b' ' | b'\t') if length == 0 => return Err(Violation::Fold),
            Some(b'\r') => return Err(Violation::BareCr),
            Some(_) | None => return Err(Violation::FieldName),
        }
        let (name, value) = (&line[..length], &line[length + 1..]);
        if has_control(value) {
            return Err(control(value));
        }
        Ok(Self { name, spelling, value })
    }

    /// The value without the white space around it.
    pub(super) fn trimmed(&self) -> &'b [u8] {
        self.value.trim_ascii()
    }
}

/// What to call the control character in a value. A CR that stands alone has a name of its own,
/// because some servers end lines there.
#[cold]
fn control(value: &[u8]) -> Violation {
    if value.contains(&b'\r') { Violation::BareCr } else { Violation::FieldValue }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(&[u8], &[u8]), Violation> {
        Field::read(line.as_bytes()).map(|field| (field.name, field.trimmed()))
    }

    #[test]
    fn a_field_is_a_token_a_colon_and_anything_printable() {
        assert_eq!(read("Accept:*/*"), Ok((&b"Accept"[..], &b"*/*"[..])));
        assert_eq!(read("x: \t a:b\t"), Ok((&b"x"[..], &b"a:b"[..])));
        assert_eq!(read("x:"), Ok((&b"x"[..], &b""[..])));
        assert_eq!(read("x: größe"), Ok((&b"x"[..], "größe".as_bytes())));
    }

    #[test]
    fn each_malformed_line_has_its_reason() {
        for line in ["x", ":v", "x :v", "x\t:v", "a b:v", "a(b:v", "ä:v", "a\0:v"] {
            assert_eq!(read(line), Err(Violation::FieldName), "{line:?}");
        }
        assert_eq!(read(" x:v"), Err(Violation::Fold));
        assert_eq!(read("\tx:v"), Err(Violation::Fold));
        assert_eq!(read("x\r:v"), Err(Violation::BareCr));
        assert_eq!(read("x:a\rb"), Err(Violation::BareCr));
        assert_eq!(read("x:a\0b"), Err(Violation::FieldValue));
        assert_eq!(read("x:a\x7f"), Err(Violation::FieldValue));
    }
}
