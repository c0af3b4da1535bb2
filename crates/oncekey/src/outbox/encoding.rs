//! Bytes as text.

/// Two digits for each byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    digits.chunks(2).map(|pair| Some((value(pair[0])? << 4) | value(pair[1])?)).collect()
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648, with padding.
pub(super) fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for place in 0..4_usize {
            let letter = usize::try_from((bits >> (18 - 6 * place)) & 63).unwrap_or(0);
            out.push(if place > chunk.len() { '=' } else { char::from(LETTERS[letter]) });
        }
    }
    out
}

/// The same back. Padding may be missing, and nothing else.
pub(super) fn unbase64(text: &str) -> Option<Vec<u8>> {
    let letters = text.trim_end_matches('=').as_bytes();
    if text.len() - letters.len() > 2 || letters.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(letters.len() / 4 * 3 + 2);
    for chunk in letters.chunks(4) {
        let mut bits = 0_u32;
        for place in 0..4 {
            let value = match chunk.get(place) {
                Some(letter) => LETTERS.iter().position(|known| known == letter)?,
                None => 0,
            };
            bits = (bits << 6) | u32::try_from(value).ok()?;
        }
        out.extend(bits.to_be_bytes().into_iter().skip(1).take(chunk.len() - 1));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 4648.
    #[test]
    fn bytes_are_written_as_others_write_them() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, text) in vectors {
            assert_eq!(base64(plain.as_bytes()), text);
            assert_eq!(unbase64(text).as_deref(), Some(plain.as_bytes()));
            assert_eq!(unhex(&hex(plain.as_bytes())).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(unbase64("Zg==="), None);
        assert_eq!(unbase64("Z"), None);
        assert_eq!(unbase64("Z g="), None);
        assert_eq!(hex(&[0, 0xff, 0x1e]), "00ff1e");
    }
}
