//! Which bytes may stand where.

/// RFC 9110, section 5.6.2: methods, field names and chunk extensions are made of these.
const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    // Two counters, because a constant cannot be indexed by a byte without a cast.
    let (mut byte, mut index) = (0_u8, 0);
    while byte < 0x7f {
        table[index] = byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.')
            || matches!(byte, b'^'..=b'`' | b'|' | b'~');
        byte += 1;
        index += 1;
    }
    table
};

/// How many bytes at the front are a token.
pub(super) fn token_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !TOKEN[usize::from(*byte)]).unwrap_or(bytes.len())
}

/// Whether all of it is one token.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && token_length(bytes) == bytes.len()
}

/// Whether it has a byte that a field value cannot have: a control character other than a tab.
///
/// Bytes above 127 are allowed as RFC 9110, section 5.5 allows them: old clients send names in
/// Latin-1, and no server ends a line at one.
pub(super) fn has_control(bytes: &[u8]) -> bool {
    // Without an early way out, so that the compiler looks at many bytes at once.
    bytes
        .iter()
        .fold(false, |found, byte| found | ((*byte < b' ') & (*byte != b'\t')) | (*byte == 0x7f))
}

/// Whether it is only what may stand in a request target: visible ASCII without the quotation
/// mark, angle brackets and the backslash. Browsers send the other bytes that RFC 3986 forbids,
/// such as `|` and `{`, so those pass here.
pub(super) fn is_target(bytes: &[u8]) -> bool {
    bytes.iter().fold(true, |fine, byte| {
        let odd = matches!(*byte, b'"' | b'<' | b'>' | b'\\');
        fine & (*byte > b' ') & (*byte < 0x7f) & !odd
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_seventy_seven_bytes_to_choose_from() {
        assert_eq!(TOKEN.iter().filter(|allowed| **allowed).count(), 10 + 26 + 26 + 15);
        for byte in *b"\"(),/:;<=>?@[\\]{} \t\r\n\0\x7f\x80\xff" {
            assert!(!is_token(&[byte]), "{byte}");
        }
    }

    #[test]
    fn only_controls_are_kept_out_of_values() {
        for byte in 0..=u8::MAX {
            let control = byte.is_ascii_control() && byte != b'\t';
            assert_eq!(has_control(&[b'a', byte, b'z']), control, "{byte}");
        }
    }
}
