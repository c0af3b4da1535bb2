//! The two fields that say where a body ends.
//!
//! Stricter than RFC 9112 where servers are known to differ: at most one space stands before the
//! value and nothing behind it, because they differ in what they trim, and a length has no leading
//! zeros, because some read those as octal.

use super::Violation;
use super::bytes::is_token;

/// Reads the value of `Content-Length`.
pub(in crate::proxy) fn length(value: &[u8]) -> Result<u64, Violation> {
    let digits = value.strip_prefix(b" ").unwrap_or(value);
    let (plain, zero) = (digits.iter().all(u8::is_ascii_digit), digits == b"0");
    if !plain || (digits.starts_with(b"0") && !zero) {
        return Err(Violation::Length);
    }
    // Signed, because many count bytes so.
    let number = str::from_utf8(digits).ok().and_then(|text| text.parse::<i64>().ok());
    number.map(i64::unsigned_abs).ok_or(Violation::Length)
}

/// Checks that the value of `Transfer-Encoding` is `chunked` and nothing else.
pub(super) fn coding(value: &[u8]) -> Result<(), Violation> {
    let codings = value.strip_prefix(b" ").unwrap_or(value);
    if codings.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    Err(other_coding(codings))
}

/// Tells codings that we do not know from values that nobody should send.
#[cold]
fn other_coding(codings: &[u8]) -> Violation {
    let mut chunked = false;
    for coding in codings.split(|byte| *byte == b',') {
        // Something behind `chunked`, or `chunked` twice, leaves the end of the body open.
        let coding = coding.trim_ascii();
        if chunked || !is_token(coding) {
            return Violation::Coding;
        }
        chunked = coding.eq_ignore_ascii_case(b"chunked");
    }
    // All that is wrong with `chunked ` alone is the space.
    let alone = codings.trim_ascii().eq_ignore_ascii_case(b"chunked");
    if alone { Violation::Coding } else { Violation::CodingUnknown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_a_plain_number() {
        assert_eq!(length(b" 0"), Ok(0));
        assert_eq!(length(b"5"), Ok(5));
        assert_eq!(length(b" 9223372036854775807"), Ok(u64::MAX / 2));
        let odd = "|| |+3|-0|0x10|1e2|  5|5 |\t5|5,5|5, 5|05|00|5;a|1_0|٥|\
                   9223372036854775808|18446744073709551621";
        for value in odd.split('|') {
            assert_eq!(length(value.as_bytes()), Err(Violation::Length), "{value:?}");
        }
    }

    #[test]
    fn a_body_is_chunked_or_refused() {
        assert_eq!(coding(b" chunked"), Ok(()));
        assert_eq!(coding(b"Chunked"), Ok(()));
        for value in ["gzip", "xchunked", "identity, chunked", "gzip,chunked", "identity"] {
            assert_eq!(coding(value.as_bytes()), Err(Violation::CodingUnknown), "{value}");
        }
        let odd = "|chunked,|,chunked|chunked, chunked|chunked, gzip|chunked |  chunked|\
                   \tchunked|\"chunked\"|chunked;q=1|chun ked";
        for value in odd.split('|') {
            assert_eq!(coding(value.as_bytes()), Err(Violation::Coding), "{value:?}");
        }
    }
}
