//! Base64 for URLs, without padding (RFC 7515, section 2).

/// Decodes; `None` for anything that no encoder writes. Two texts never mean the same bytes.
pub(super) fn base64url(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for character in text.bytes() {
        let digit = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count).ok()?);
            bits &= (1 << count) - 1;
        }
    }
    // Six bits left are a character too many, and what is left of the last one is zero.
    (count < 6 && bits == 0).then_some(bytes)
}

#[cfg(test)]
pub(super) fn to_base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let bits = three.iter().fold(0_usize, |bits, byte| (bits << 8) | usize::from(*byte));
        let digits = [bits >> 18, bits >> 12 & 63, bits >> 6 & 63, bits & 63];
        text.extend(digits[..=chunk.len()].iter().map(|digit| char::from(DIGITS[*digit])));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_else_is() {
        for bytes in [&b""[..], b"a", b"ab", b"abc", b"\xff\xfe\xfd\xfc", &[0; 31]] {
            assert_eq!(base64url(&to_base64url(bytes)).as_deref(), Some(bytes));
        }
        assert_eq!(to_base64url(b"\xfb\xff"), "-_8");
        for wrong in ["A", "AB", "-_9", "+/8", "YQ==", "Y Q", "YQ\n", "é"] {
            assert_eq!(base64url(wrong), None, "{wrong}");
        }
    }
}
