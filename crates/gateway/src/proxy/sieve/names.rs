//! Field names that others decide by.

/// Fields that say where a message ends, where it goes, who sent it or which work it is.
///
/// None of them may come as a trailer: whoever merges trailers into the head would decide anew after
/// the decision was made (RFC 9110, section 6.5.1). And none may come with an underscore for a dash:
/// whoever hands fields to a program as variables makes both the same (T9).
const PROTECTED: &[&[u8]] = &[
    b"authorization",
    b"cache-control",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"cookie",
    b"expect",
    b"forwarded",
    b"host",
    b"http2-settings",
    b"idempotency-attempt",
    b"idempotency-key",
    b"keep-alive",
    b"max-forwards",
    b"proxy-authorization",
    b"proxy-connection",
    b"range",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"x-api-key",
    b"x-idempotency-key",
    b"x-original-url",
    b"x-real-ip",
    b"x-rewrite-url",
];

/// The names that begin so are protected too.
const PROTECTED_PREFIX: &[u8] = b"x-forwarded-";

/// Whether the field is protected, or could be taken for one that is: it has an underscore where that
/// one has a dash. Other names with underscores are nobody's twins: applications have their own.
pub(in crate::proxy) fn is_protected(name: &[u8]) -> bool {
    PROTECTED.iter().any(|protected| is_alike(name, protected))
        || name.get(..PROTECTED_PREFIX.len()).is_some_and(|front| is_alike(front, PROTECTED_PREFIX))
}

fn is_alike(name: &[u8], protected: &[u8]) -> bool {
    name.len() == protected.len()
        && name.iter().zip(protected).all(|(ours, theirs)| {
            ours.eq_ignore_ascii_case(theirs) || (*ours == b'_' && *theirs == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protected_field_is_known_in_every_spelling() {
        for name in [&b"HOST"[..], b"idempotency_KEY", b"X-Forwarded-For", b"x_forwarded-Any"] {
            assert!(is_protected(name));
        }
        for name in [&b"digest"[..], b"x-forwarded", b"hos", b"api_key", b"content__length"] {
            assert!(!is_protected(name));
        }
    }
}
