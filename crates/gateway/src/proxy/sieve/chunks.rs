//! A body in chunks, and its trailers.

use super::bytes::{has_control, is_token, token_length};
use super::field::Field;
use super::lines::{Bound, Lines};
use super::names::is_protected;
use super::{Limits, Step, Violation};

/// A chunked body, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    part: Part,
    lines: Lines,
    /// Bytes of data that were announced.
    data: u64,
    /// Bytes of extensions.
    extensions: usize,
    /// Field lines of trailers.
    trailers: usize,
}

#[derive(Clone, Copy, Debug, Default)]
enum Part {
    /// At the line that says how long the next chunk is.
    #[default]
    Size,
    /// In the data of a chunk, with so many bytes to come.
    Data(u64),
    /// Behind the data of a chunk.
    DataEnd,
    Trailers,
}

/// More hexadecimal digits do not fit 64 bits. Leading zeros count: some clients write sizes with
/// a fixed width, but nobody needs a hundred digits.
const MAX_DIGITS: usize = 16;

impl Chunks {
    pub(super) fn step(&mut self, held: &[u8], limits: &Limits) -> Result<Step, Violation> {
        match &mut self.part {
            Part::Size => self.size(held, limits),
            Part::Data(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(held.len());
                *left -= u64::try_from(here).unwrap_or(*left);
                if *left == 0 {
                    self.part = Part::DataEnd;
                }
                Ok(Step::Pass(here))
            }
            Part::DataEnd => match held {
                [b'\r'] | [] => Ok(Step::Hold),
                [b'\r', b'\n', ..] => {
                    self.part = Part::Size;
                    Ok(Step::Pass(2))
                }
                _ => Err(Violation::ChunkEnd),
            },
            Part::Trailers => self.trailers(held, limits),
        }
    }

    fn size(&mut self, held: &[u8], limits: &Limits) -> Result<Step, Violation> {
        let bound = Bound { bytes: limits.chunk_line, over: Violation::ChunkLineTooLong };
        let Some(line) = self.lines.next(held, &bound)? else { return Ok(Step::Hold) };
        let (size, extensions) = read_size(&held[line])?;
        check_extensions(extensions)?;
        self.extensions += extensions.len();
        if self.extensions > limits.extensions {
            return Err(Violation::ExtensionsTooLarge);
        }
        self.data = self.data.saturating_add(size);
        if self.data > limits.body {
            return Err(Violation::BodyTooLarge);
        }
        self.part = if size == 0 { Part::Trailers } else { Part::Data(size) };
        Ok(Step::Pass(std::mem::take(&mut self.lines).start()))
    }

    fn trailers(&mut self, held: &[u8], limits: &Limits) -> Result<Step, Violation> {
        let bound = Bound { bytes: limits.trailers, over: Violation::TrailersTooLarge };
        while let Some(line) = self.lines.next(held, &bound)? {
            if line.is_empty() {
                return Ok(Step::End(self.lines.start()));
            }
            if self.trailers == limits.trailer_fields {
                return Err(Violation::TooManyTrailers);
            }
            self.trailers += 1;
            if is_protected(Field::read(&held[line])?.name) {
                return Err(Violation::TrailerName);
            }
        }
        Ok(Step::Hold)
    }
}

/// Reads the size of a chunk, and gives what stands behind it in the line.
fn read_size(line: &[u8]) -> Result<(u64, &[u8]), Violation> {
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (digits, rest) = line.split_at(end);
    if rest.contains(&b'\r') {
        return Err(Violation::BareCr);
    }
    // Not even a space: RFC 9112 lets recipients skip it, and some read on at other places then.
    if digits.len() > MAX_DIGITS || !matches!(rest.first(), None | Some(b';')) {
        return Err(Violation::ChunkSize);
    }
    let size = str::from_utf8(digits).ok().and_then(|text| i64::from_str_radix(text, 16).ok());
    Ok((size.ok_or(Violation::ChunkSize)?.unsigned_abs(), rest))
}

/// Checks `*( ";" name [ "=" ( token / quoted-string ) ] )`, without the white space that RFC 9112
/// tells recipients to skip but nobody to send.
fn check_extensions(mut rest: &[u8]) -> Result<(), Violation> {
    while let Some(extension) = rest.strip_prefix(b";") {
        let name = token_length(extension);
        if name == 0 {
            return Err(Violation::Extension);
        }
        rest = &extension[name..];
        if let Some(value) = rest.strip_prefix(b"=") {
            rest = match value.strip_prefix(b"\"") {
                Some(quoted) => behind_quoted(quoted).ok_or(Violation::Extension)?,
                None => {
                    let (token, behind) = value.split_at(token_length(value));
                    if !is_token(token) {
                        return Err(Violation::Extension);
                    }
                    behind
                }
            };
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(Violation::Extension) }
}

/// What stands behind the closing quotation mark.
fn behind_quoted(quoted: &[u8]) -> Option<&[u8]> {
    let mut bytes = quoted.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return (!has_control(&quoted[..at])).then(|| &quoted[at + 1..]),
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_hexadecimal_and_fits_a_signed_number() {
        assert_eq!(read_size(b"0"), Ok((0, &b""[..])));
        assert_eq!(read_size(b"00000000000000aF;x"), Ok((0xaf, &b";x"[..])));
        assert_eq!(read_size(b"7fffffffffffffff"), Ok((u64::MAX / 2, &b""[..])));
        let odd = "|;x| 5|5 |5\t|+5|-5|0x5|5h|5,|5 ;x|\"5\"|5\0|8000000000000000|\
                   FFFFFFFFFFFFFFFF1|00000000000000005";
        for line in odd.split('|') {
            assert_eq!(read_size(line.as_bytes()), Err(Violation::ChunkSize), "{line:?}");
        }
        assert_eq!(read_size(b"5\r"), Err(Violation::BareCr));
        assert_eq!(read_size(b"5;a\rb"), Err(Violation::BareCr));
    }

    #[test]
    fn extensions_are_names_with_optional_values() {
        for fine in ["", ";a", ";a=b", ";a=\"b c\"", ";a=\"\\\"\";b;c=\"\"", ";a=\";\""] {
            assert_eq!(check_extensions(fine.as_bytes()), Ok(()), "{fine}");
        }
        let odd = ";|;;|;=b|;a=|;a=\"|;a=\"b|;a=\"b\\|;a=\"b\\\"|; a|;a |;a =b|;a= b|;a=b c|\
                   ;a=\"b\"c|;a=\"\0\"|;a=\"\\\x7f\"|;ä|;a=ä";
        for extensions in odd.split('|') {
            let checked = check_extensions(extensions.as_bytes());
            assert_eq!(checked, Err(Violation::Extension), "{extensions:?}");
        }
    }
}
