//! The sieve against the vectors of `tests/framing`, another parser, and chance.

mod corpus;
mod fuzz;
mod pairs;
mod reader;
mod speed;
#[path = "../../../tests/framing/vectors.rs"]
pub(in crate::proxy) mod vectors;

use super::{Limits, Passed, Place, Sieve, Violation};

/// What became of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct Run {
    /// How many went on.
    pub(in crate::proxy) passed: usize,
    pub(in crate::proxy) refused: Option<Violation>,
    pub(in crate::proxy) place: Place,
}

/// Shows a sieve these bytes in pieces of these lengths; the last piece is all the rest.
pub(in crate::proxy) fn run(bytes: &[u8], pieces: impl IntoIterator<Item = usize>) -> Run {
    let mut sieve = Sieve::new(Limits::default());
    let (mut passed, mut shown) = (0, 0);
    for piece in pieces.into_iter().chain([bytes.len()]) {
        shown = bytes.len().min(shown + piece);
        let Passed { bytes: more, refused } = sieve.pass(&bytes[passed..shown]);
        passed += more;
        if refused.is_some() {
            return Run { passed, refused, place: sieve.place() };
        }
    }
    Run { passed, refused: None, place: sieve.place() }
}

/// Where messages ended, found by showing a sieve one byte after another.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let mut sieve = Sieve::new(Limits::default());
    let (mut passed, mut ends) = (0, Vec::new());
    for shown in 1..=bytes.len() {
        let now = sieve.pass(&bytes[passed..shown]);
        passed += now.bytes;
        let ended = matches!(sieve.place(), Place::Between | Place::Waiting | Place::Last);
        if now.bytes > 0 && ended {
            ends.push(passed);
        }
        if now.refused.is_some() || matches!(sieve.place(), Place::Waiting | Place::Last) {
            break;
        }
    }
    ends
}

fn get(fields: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes()
}

#[test]
fn a_head_is_held_back_until_its_last_byte() {
    let request = get("X: y\r\n");
    let mut sieve = Sieve::new(Limits::default());
    for shown in 1..request.len() {
        assert_eq!(sieve.pass(&request[..shown]), Passed { bytes: 0, refused: None });
        assert_eq!(sieve.place(), Place::Head);
    }
    assert_eq!(sieve.pass(&request), Passed { bytes: request.len(), refused: None });
    assert_eq!(sieve.place(), Place::Between);
}

#[test]
fn an_empty_line_does_not_begin_a_head() {
    let mut sieve = Sieve::new(Limits::default());
    assert_eq!(sieve.pass(b"\r\n"), Passed { bytes: 0, refused: None });
    assert_eq!(sieve.place(), Place::Between);
    assert_eq!(sieve.pass(b"\r\nG"), Passed { bytes: 0, refused: None });
    assert_eq!(sieve.place(), Place::Head);
}

#[test]
fn what_is_right_before_a_mistake_goes_on() {
    let request = get("");
    let bytes = [&request[..], &request, b"GET / HTTP/1.1\n"].concat();
    let refused = Some(Violation::BareLf);
    let expected = Run { passed: 2 * request.len(), refused, place: Place::Head };
    assert_eq!(run(&bytes, []), expected);
}

#[test]
fn nothing_goes_on_after_a_mistake() {
    let mut sieve = Sieve::new(Limits::default());
    assert_eq!(sieve.pass(b"\0").refused, Some(Violation::Method));
    assert_eq!(sieve.pass(&get("")), Passed { bytes: 0, refused: Some(Violation::Method) });
    sieve.upgraded();
    sieve.declined();
    assert_eq!(sieve.pass(b"x"), Passed { bytes: 0, refused: Some(Violation::Method) });
}

#[test]
fn a_mistake_in_a_body_is_known_as_one() {
    let head = get("Transfer-Encoding: chunked\r\n");
    let refused = Some(Violation::ChunkSize);
    let expected = Run { passed: head.len(), refused, place: Place::Body };
    assert_eq!(run(&[&head[..], b"x\r\n"].concat(), []), expected);
}

/// A length that is too large is refused before a byte of the body was read.
#[test]
fn a_body_that_is_announced_too_large_never_begins() {
    let limits = Limits { body: 4, ..Limits::default() };
    for (length, refused) in [(4, None), (5, Some(Violation::BodyTooLarge))] {
        let head = get(&format!("Content-Length: {length}\r\n"));
        let mut sieve = Sieve::new(limits);
        assert_eq!(sieve.pass(&head).refused, refused);
        assert_eq!(sieve.place(), if refused.is_some() { Place::Head } else { Place::Body });
    }
}

/// CVE-2026-2833: what stands behind a request for another protocol is neither a request nor
/// passed on before the server has agreed.
#[test]
fn what_stands_behind_an_upgrade_waits_for_the_server() {
    let upgrade = get("Upgrade: websocket\r\n");
    let bytes = [&upgrade[..], b"\x81\x00", &get("")].concat();
    let behind = &bytes[upgrade.len()..];

    let mut sieve = Sieve::new(Limits::default());
    assert_eq!(sieve.pass(&bytes), Passed { bytes: upgrade.len(), refused: None });
    assert_eq!(sieve.place(), Place::Waiting);
    assert_eq!(sieve.pass(behind), Passed { bytes: 0, refused: None });
    sieve.upgraded();
    assert_eq!(sieve.pass(behind), Passed { bytes: behind.len(), refused: None });
    assert_eq!(sieve.place(), Place::Open);

    let mut sieve = Sieve::new(Limits::default());
    assert_eq!(sieve.pass(&bytes).bytes, upgrade.len());
    sieve.declined();
    assert_eq!(sieve.pass(behind), Passed { bytes: 0, refused: Some(Violation::Method) });
}

#[test]
fn a_declined_upgrade_is_followed_by_the_next_request() {
    let mut sieve = Sieve::new(Limits::default());
    let upgrade = get("Upgrade: h2c\r\n");
    assert_eq!(sieve.pass(&upgrade).bytes, upgrade.len());
    sieve.declined();
    let next = get("");
    assert_eq!(sieve.pass(&next), Passed { bytes: next.len(), refused: None });
}

#[test]
fn nobody_can_open_the_sieve_by_mistake() {
    let mut sieve = Sieve::new(Limits::default());
    sieve.upgraded();
    assert_eq!(sieve.pass(b"\0").refused, Some(Violation::Method));
}
