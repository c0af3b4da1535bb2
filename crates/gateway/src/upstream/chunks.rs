//! The chunks of an answer, taken apart.
//!
//! A pure state machine over what was read. It is as strict as the sieve in front of the gateway: a
//! chunk that two readers could end at different places is no chunk.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::memchr;

use super::fault::Fault;

/// Where in a body of chunks a reader is.
#[derive(Debug, Default)]
pub(super) enum Chunks {
    /// At the line before a chunk.
    #[default]
    Size,
    /// In a chunk that has so many bytes to come.
    Data(u64),
    /// Behind a chunk, at its line end.
    DataEnd,
    /// Behind the last chunk.
    Trailers,
}

/// What comes next of the body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// So many bytes at the front of what is held belong to it.
    Data(usize),
    /// The body has ended; these stand behind it.
    End(Option<Box<HeaderMap>>),
    /// Nothing, until more was read.
    More,
}

/// The line before a chunk: a number, and extensions that nearly nobody uses.
const LINE: usize = 4 * 1024;
/// All trailers together: digests and timings, a handful of short lines.
const TRAILERS: usize = 16 * 1024;
/// How many of them there may be.
const TRAILER_FIELDS: usize = 64;
/// As many digits as a number of 64 bits has.
const DIGITS: usize = 16;

impl Chunks {
    /// Takes what frames the body off the front of what is held. The caller takes the data that it is
    /// told of, and says so with [`Chunks::took`].
    pub(super) fn next(&mut self, held: &mut BytesMut) -> Result<Next, Fault> {
        loop {
            match self {
                Self::Size => match line(held)? {
                    None => return Ok(Next::More),
                    Some((0, length)) => {
                        held.advance(length);
                        *self = Self::Trailers;
                    }
                    Some((size, length)) => {
                        held.advance(length);
                        *self = Self::Data(size);
                    }
                },
                Self::Data(_) if held.is_empty() => return Ok(Next::More),
                Self::Data(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(held.len());
                    return Ok(Next::Data(here));
                }
                Self::DataEnd => match held.get(..2) {
                    Some(b"\r\n") => {
                        held.advance(2);
                        *self = Self::Size;
                    }
                    Some(_) => return Err(Fault::Chunk),
                    None if held.first().is_some_and(|byte| *byte != b'\r') => {
                        return Err(Fault::Chunk);
                    }
                    None => return Ok(Next::More),
                },
                Self::Trailers => return trailers(held),
            }
        }
    }

    /// So many bytes of the chunk were taken.
    pub(super) fn took(&mut self, bytes: usize) {
        if let Self::Data(left) = self {
            *left = left.saturating_sub(bytes as u64);
            if *left == 0 {
                *self = Self::DataEnd;
            }
        }
    }
}

/// The size that the line at the front says, and how long the line is.
fn line(held: &[u8]) -> Result<Option<(u64, usize)>, Fault> {
    let Some(end) = memchr(b'\n', &held[..held.len().min(LINE)]) else {
        return if held.len() < LINE { Ok(None) } else { Err(Fault::Chunk) };
    };
    let line = held[..end].strip_suffix(b"\r").ok_or(Fault::Chunk)?;
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (number, rest) = line.split_at(digits);
    // Some old servers fill the number up with spaces.
    let is_plain = matches!(rest.trim_ascii_start(), [] | [b';', ..]);
    if !is_plain || rest.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err(Fault::Chunk);
    }
    if !(1..=DIGITS).contains(&number.len()) {
        return Err(Fault::Chunk);
    }
    let number = str::from_utf8(number).map_err(|_| Fault::Chunk)?;
    let size = u64::from_str_radix(number, 16).map_err(|_| Fault::Chunk)?;
    Ok(Some((size, end + 1)))
}

fn trailers(held: &mut BytesMut) -> Result<Next, Fault> {
    if held.starts_with(b"\r\n") {
        held.advance(2);
        return Ok(Next::End(None));
    }
    let mut slots = [httparse::EMPTY_HEADER; TRAILER_FIELDS];
    let (length, lines) = match httparse::parse_headers(held, &mut slots) {
        Ok(httparse::Status::Complete(parsed)) => parsed,
        Ok(httparse::Status::Partial) if held.len() < TRAILERS => return Ok(Next::More),
        Ok(httparse::Status::Partial) | Err(_) => return Err(Fault::Chunk),
    };
    let mut fields = HeaderMap::with_capacity(lines.len());
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| Fault::Chunk)?;
        let value = Bytes::copy_from_slice(line.value);
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| Fault::Chunk)?;
        fields.append(name, value);
    }
    let block = &held[..length];
    let is_bare = |at: usize| at == 0 || block[at - 1] != b'\r';
    if memchr::memchr_iter(b'\n', block).any(is_bare) {
        return Err(Fault::Chunk);
    }
    held.advance(length);
    Ok(Next::End(Some(Box::new(fields))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body and its trailers, from pieces; `None` if more is needed.
    fn decode<'b>(
        pieces: impl Iterator<Item = &'b [u8]>,
    ) -> Result<Option<(Vec<u8>, usize, BytesMut)>, Fault> {
        let (mut chunks, mut held, mut body) = (Chunks::default(), BytesMut::new(), Vec::new());
        for piece in pieces {
            held.extend_from_slice(piece);
            loop {
                match chunks.next(&mut held)? {
                    Next::Data(count) => {
                        body.extend_from_slice(&held.split_to(count));
                        chunks.took(count);
                    }
                    Next::End(trailers) => {
                        return Ok(Some((body, trailers.map_or(0, |map| map.len()), held)));
                    }
                    Next::More => break,
                }
            }
        }
        Ok(None)
    }

    const BODIES: [(&str, &str, usize); 6] = [
        ("0\r\n\r\n", "", 0),
        ("5\r\nhello\r\n0\r\n\r\n", "hello", 0),
        ("5;a=b\r\nhello\r\n000\r\nX-Sum: 1\r\nx-b: 2\r\n\r\n", "hello", 2),
        ("A  \r\n0123456789\r\n1\t;x\r\n!\r\n0\r\n\r\n", "0123456789!", 0),
        ("2\r\n\r\n\r\n3\r\n0\r\n\r\n0\r\n\r\n", "\r\n0\r\n", 0),
        ("0000000000000001\r\na\r\n0;x=\"y\"\r\n\r\n", "a", 0),
    ];

    #[test]
    fn a_body_is_the_same_wherever_it_is_cut() {
        for (wire, body, trailers) in BODIES {
            let wire = wire.as_bytes();
            for cut in 0..=wire.len() {
                let pieces = [&wire[..cut], &wire[cut..], b"rest"];
                let decoded = decode(pieces.into_iter()).unwrap().unwrap();
                let expected = (body.as_bytes().to_vec(), trailers);
                assert_eq!((decoded.0, decoded.1), expected, "{} at {cut}", wire.escape_ascii());
                // What comes behind the body is not touched.
                assert!(matches!(&decoded.2[..], b"" | b"rest"));
            }
            let single = decode(wire.chunks(1)).unwrap().unwrap();
            assert_eq!((&single.0[..], single.1, single.2.len()), (body.as_bytes(), trailers, 0));
        }
    }

    #[test]
    fn a_body_that_was_cut_off_never_ends() {
        for (wire, ..) in BODIES {
            for end in 0..wire.len() {
                let cut = decode(wire.as_bytes()[..end].chunks(1)).unwrap();
                assert_eq!(cut, None, "{}", wire[..end].escape_debug());
            }
        }
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        for wire in [
            "\r\n",
            "x\r\n",
            " 5\r\nhello\r\n",
            "-5\r\n",
            "+5\r\n",
            "0x5\r\n",
            "5 5\r\n",
            "5,\r\n",
            "5\nhello\r\n",
            "5\r\r\n",
            "5;a\x00\r\n",
            "5;a\rb\r\n",
            "5;a\n",
            "00000000000000005\r\n",
            "FFFFFFFFFFFFFFFFF\r\n",
            "5\r\nhelloXX",
            "5\r\nhello\n",
            "5\r\nhello\rX",
            "5\r\nhello0\r\n\r\n",
            "0\r\nx y: 1\r\n\r\n",
            "0\r\nx: 1\n\r\n",
            "0\r\nx: 1\r\n\n",
            "0\r\n\n",
            "0\r\nx: a\0b\r\n\r\n",
            "0\r\n folded: 1\r\n\r\n",
        ] {
            for pieces in [wire.len(), 1] {
                let refused = decode(wire.as_bytes().chunks(pieces));
                assert!(matches!(refused, Err(Fault::Chunk)), "{wire:?} {refused:?}");
            }
        }
        let long = format!("5;{}", "x".repeat(LINE));
        assert!(matches!(decode([long.as_bytes()].into_iter()), Err(Fault::Chunk)));
        let many = format!("0\r\n{}\r\n", "a: b\r\n".repeat(TRAILER_FIELDS + 1));
        assert!(matches!(decode([many.as_bytes()].into_iter()), Err(Fault::Chunk)));
        let large = format!("0\r\na: {}", "x".repeat(TRAILERS));
        assert!(matches!(decode([large.as_bytes()].into_iter()), Err(Fault::Chunk)));
    }
}
