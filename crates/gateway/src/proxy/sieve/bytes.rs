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
    // Most names are letters and dashes up to their colon.
    let (mut length, mut seen) = (0, 0);
    for word in bytes.as_chunks().0 {
        let letters = letters_of(word);
        length += letters;
        if letters < word.len() {
            break;
        }
    }
    while let Some(byte) = bytes.get(length) {
        let class = CLASS[usize::from(*byte)];
        if class == 0 {
            break;
        }
        seen |= class;
        length += 1;
    }
    let spelling = if seen & UNDERSCORE == 0 { Spelling::Plain } else { Spelling::Underscored };
    Token { length, spelling }
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

/// In each byte of a word a one, and in each byte of a word its highest bit.
const EACH: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = EACH << 7;

/// Not zero if one of eight bytes is a control character. A byte next to one may be marked too,
/// because subtraction borrows from it; no control character is missed.
fn marks_of(bytes: &[u8; 8]) -> u64 {
    let word = u64::from_le_bytes(*bytes);
    let below_space = word.wrapping_sub(EACH * 0x20) & !word;
    let not_delete = word ^ (EACH * 0x7f);
    let delete = not_delete.wrapping_sub(EACH) & !not_delete;
    (below_space | delete) & HIGH
}

/// How many of eight bytes, from the first one on, are letters or dashes.
fn letters_of(bytes: &[u8; 8]) -> usize {
    let word = u64::from_le_bytes(*bytes);
    // Without the highest bits no sum reaches the next byte, so that each byte is judged exactly.
    let low = word & !HIGH;
    let lower = low | (EACH * 0x20);
    let from_a = lower + EACH * (0x80 - 0x61);
    let beyond_z = lower + EACH * (0x80 - 0x7b);
    let not_dash = (low ^ (EACH * 0x2d)) + EACH * 0x7f;
    let letters = ((from_a & !beyond_z) | !not_dash) & !word & HIGH;
    let bits = (letters ^ HIGH).trailing_zeros();
    usize::try_from(bits / 8).unwrap_or_default()
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
    fn a_token_ends_at_the_first_byte_that_is_in_none() {
        for byte in 0..=u8::MAX {
            for length in 1..40 {
                let at = 11 % length;
                let mut bytes = b"Content-Type-azAZ".repeat(3)[..length].to_vec();
                bytes[at] = byte;
                let Token { length: found, spelling } = token(&bytes);
                let end = if is_token(&[byte]) { length } else { at };
                assert_eq!(found, end, "{byte} at {at} of {length}");
                assert_eq!(spelling == Spelling::Underscored, byte == b'_');
            }
        }
    }

    #[test]
    fn letters_and_dashes_are_counted_at_every_place() {
        for byte in 0..=u8::MAX {
            for at in 0..8 {
                let mut bytes = *b"aZ-zA-mQ";
                bytes[at] = byte;
                let letter = byte.is_ascii_alphabetic() || byte == b'-';
                assert_eq!(letters_of(&bytes), if letter { 8 } else { at }, "{byte} at {at}");
            }
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
