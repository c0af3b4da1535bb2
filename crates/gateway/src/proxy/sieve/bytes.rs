//! Which bytes may stand where.

/// RFC 9110, section 5.6.2: methods, field names and chunk extensions are made of these.
const TOKEN: u8 = 1;
const UNDERSCORE: u8 = 2;

/// What a byte is in a token; zero if it is in none.
const CLASS: [u8; 256] = {
    let mut table = [0; 256];
    // Two counters, because a constant cannot be indexed by a byte without a cast.
    let (mut byte, mut index) = (0_u8, 0);
    while byte < 0x7f {
        if byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.')
            || matches!(byte, b'^'..=b'`' | b'|' | b'~')
        {
            table[index] = if byte == b'_' { TOKEN | UNDERSCORE } else { TOKEN };
        }
        byte += 1;
        index += 1;
    }
    table
};

/// A token at the front of some bytes.
pub(super) struct Token {
    pub(super) length: usize,
    pub(super) spelling: Spelling,
}

/// Whether a token has an underscore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    Plain,
    Underscored,
}

/// Reads a token and notices an underscore on the way, so that names are looked at only once.
pub(super) fn token(bytes: &[u8]) -> Token {
    let mut seen = 0;
    let end = bytes.iter().position(|byte| {
        let class = CLASS[usize::from(*byte)];
        seen |= class;
        class == 0
    });
    let spelling = if seen & UNDERSCORE == 0 { Spelling::Plain } else { Spelling::Underscored };
    Token { length: end.unwrap_or(bytes.len()), spelling }
}

/// How many bytes at the front are a token.
pub(super) fn token_length(bytes: &[u8]) -> usize {
    token(bytes).length
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
    // Values are most of a head, so eight bytes are looked at in a few instructions. A tab raises
    // suspicion too; then all bytes are looked at one by one.
    let suspect = match bytes.last_chunk() {
        Some(last) => {
            let (words, _) = bytes.as_chunks();
            words.iter().fold(marks_of(last), |marks, word| marks | marks_of(word)) != 0
        }
        None => bytes.iter().any(u8::is_ascii_control),
    };
    suspect && bytes.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t')
}

/// Not zero if one of eight bytes is a control character. A byte next to one may be marked too,
/// because subtraction borrows from it; no control character is missed.
fn marks_of(bytes: &[u8; 8]) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = EACH << 7;
    let word = u64::from_le_bytes(*bytes);
    let below_space = word.wrapping_sub(EACH * 0x20) & !word;
    let not_delete = word ^ (EACH * 0x7f);
    let delete = not_delete.wrapping_sub(EACH) & !not_delete;
    (below_space | delete) & HIGH
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
        assert_eq!(CLASS.iter().filter(|class| **class != 0).count(), 10 + 26 + 26 + 15);
        for byte in *b"\"(),/:;<=>?@[\\]{} \t\r\n\0\x7f\x80\xff" {
            assert!(!is_token(&[byte]), "{byte}");
        }
    }

    #[test]
    fn only_controls_are_kept_out_of_values() {
        for byte in 0..=u8::MAX {
            let control = byte.is_ascii_control() && byte != b'\t';
            for length in 1..40 {
                for at in 0..length {
                    let mut bytes = vec![0xe9; length];
                    bytes[at] = byte;
                    assert_eq!(has_control(&bytes), control, "{byte} at {at} of {length}");
                }
            }
        }
    }
}
