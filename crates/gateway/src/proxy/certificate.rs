//! The name of a client in its certificate.
//!
//! A URI (as SPIFFE uses them) goes before the subject: whoever puts one into a certificate means
//! it as a name. A certificate that has several, or neither, names nobody.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::route::ClientName;

/// What certificates say about people and machines, and the short names for it (RFC 4514, 3).
const ATTRIBUTES: [(&[u8], &str); 8] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 5], "SERIALNUMBER"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
];

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
/// UTF-8, and the strings that are part of it: numeric, printable, IA5, visible.
const TEXTS: [u8; 5] = [0x0c, 0x12, 0x13, 0x16, 0x1a];

/// The name in the first certificate of a chain that was verified.
pub(super) fn client_name(chain: &[CertificateDer<'_>]) -> Option<ClientName> {
    let certificate = EndEntityCert::try_from(chain.first()?).ok()?;
    let mut uris = certificate.valid_uri_names();
    match (uris.next(), uris.next()) {
        (Some(_), Some(_)) => None,
        (Some(only), None) => Some(ClientName(Arc::from(only))),
        (None, _) => {
            let subject = shown(certificate.subject()).filter(|text| !text.is_empty())?;
            Some(ClientName(Arc::from(subject)))
        }
    }
}

/// A subject as people write it: `CN=acme,O=Acme Inc`, in the order of the certificate. `None` if it
/// is not what a certificate may hold. Takes the members of the outer sequence, without its tag.
fn shown(mut subject: &[u8]) -> Option<String> {
    let mut shown: Vec<String> = Vec::new();
    while !subject.is_empty() {
        let (mut relative, rest) = inside(SET, subject)?;
        subject = rest;
        while !relative.is_empty() {
            let (pair, rest) = inside(SEQUENCE, relative)?;
            relative = rest;
            let (object, value) = inside(OBJECT, pair)?;
            shown.push(format!("{}={}", attribute(object), text(value)?));
        }
    }
    Some(shown.join(","))
}

/// The content of the first element, which has to have this tag, and what comes behind it.
fn inside(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, bytes) = bytes.split_first()?;
    let (length, bytes) = length(bytes)?;
    (*first == tag).then_some(bytes.split_at_checked(length)?)
}

fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    match first {
        0..=0x7f => Some((usize::from(*first), rest)),
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest)),
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            Some((usize::from(u16::from_be_bytes(*length)), rest))
        }
        // No name is longer than 64 kilobytes.
        _ => None,
    }
}

fn attribute(object: &[u8]) -> String {
    let known = ATTRIBUTES.iter().find(|(known, _)| *known == object);
    known.map_or_else(|| format!("oid.{}", hex(object)), |(_, name)| (*name).to_owned())
}

/// A value. What could be taken for the end of it is escaped, so that no two subjects look alike.
fn text(value: &[u8]) -> Option<String> {
    let tag = *value.first()?;
    let (content, []) = inside(tag, value)? else { return None };
    let text = std::str::from_utf8(content).ok().filter(|_| TEXTS.contains(&tag));
    let Some(text) = text else { return Some(format!("#{}", hex(value))) };
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, ',' | '=' | '\\' | '#' | '+') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    Some(escaped)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn named(object: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        let pair = [element(OBJECT, object), element(tag, value)].concat();
        element(SET, &element(SEQUENCE, &pair))
    }

    #[test]
    fn a_subject_is_written_as_people_write_it() {
        let cn = |value: &str| named(&[0x55, 4, 3], 0x0c, value.as_bytes());
        let organisation = named(&[0x55, 4, 10], 0x13, b"Acme, Inc");
        let odd = named(&[0x2a, 3], 0x04, b"\x01");
        for (subject, expected) in [
            (cn("acme"), "CN=acme"),
            ([organisation, cn("a=b")].concat(), "O=Acme\\, Inc,CN=a\\=b"),
            (odd, "oid.2a03=#040101"),
            (Vec::new(), ""),
        ] {
            assert_eq!(shown(&subject).as_deref(), Some(expected));
        }
    }

    /// I20 in spirit: two principals never become one.
    #[test]
    fn two_subjects_never_look_alike() {
        let cn = |value: &str| named(&[0x55, 4, 3], 0x0c, value.as_bytes());
        let one = shown(&cn("a,CN=b"));
        let two = shown(&[cn("a"), cn("b")].concat());
        assert_ne!(one, two);
    }

    #[test]
    fn what_is_no_subject_names_nobody() {
        let good = named(&[0x55, 4, 3], 0x0c, b"acme");
        for end in 1..good.len() {
            assert_eq!(shown(&good[..end]), None, "cut at {end}");
        }
        assert_eq!(shown(&[SET, 0x84, 0, 0, 0, 1]), None);
        assert_eq!(client_name(&[]), None);
        assert_eq!(client_name(&[CertificateDer::from(vec![1, 2, 3])]), None);
    }
}
