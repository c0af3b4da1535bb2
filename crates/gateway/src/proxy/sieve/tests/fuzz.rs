//! Good and bad requests with random changes, cut at random places.

use proptest::prelude::*;

use super::super::Place;
use super::vectors::{Vector, all};
use super::{Run, ends, reader, run};

/// What is changed somewhere in the bytes.
#[derive(Clone, Debug)]
enum Change {
    Replace(u8),
    Insert(&'static [u8]),
    Remove(usize),
    /// Says so many bytes twice.
    Repeat(usize),
}

/// What attacks are made of.
const PIECES: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\0",
    b":",
    b",",
    b";",
    b"\"",
    b"0\r\n\r\n",
    b"\r\n\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Upgrade: x\r\n",
    b"Host: a\r\n",
    b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"chunked",
    b"5",
    b"f",
];

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        any::<u8>().prop_map(Change::Replace),
        prop::sample::select(PIECES).prop_map(Change::Insert),
        (1_usize..8).prop_map(Change::Remove),
        (1_usize..40).prop_map(Change::Repeat),
    ]
}

fn apply(bytes: &mut Vec<u8>, at: prop::sample::Index, change: &Change) {
    let at = at.index(bytes.len() + 1);
    let end = |length: usize| bytes.len().min(at + length);
    match *change {
        Change::Replace(byte) => bytes.iter_mut().skip(at).take(1).for_each(|old| *old = byte),
        Change::Insert(piece) => drop(bytes.splice(at..at, piece.iter().copied())),
        Change::Remove(length) => drop(bytes.drain(at..end(length))),
        Change::Repeat(length) => {
            let again = bytes[at..end(length)].to_vec();
            drop(bytes.splice(at..at, again));
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let small = |vector: &Vector| vector.bytes.len() < 2_000;
    all().into_iter().filter(small).map(|vector| vector.bytes).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    /// Nothing panics, cuts do not matter, and what goes on is read alike by another parser.
    #[test]
    fn changed_requests_are_refused_or_read_alike(
        mut bytes in prop::sample::select(seeds()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 0..6),
        pieces in prop::collection::vec(1_usize..90, 0..40),
    ) {
        for (at, change) in changes {
            apply(&mut bytes, at, &change);
        }
        let whole = run(&bytes, []);
        prop_assert_eq!(&run(&bytes, pieces), &whole);
        prop_assert_eq!(&run(&bytes, std::iter::repeat_n(1, bytes.len())), &whole);
        let Run { passed, refused, place } = whole;
        let messages = reader::read(&bytes[..passed]);
        let read: Vec<_> = messages.iter().filter_map(|message| message.end).collect();
        prop_assert_eq!(ends(&bytes), read);
        // A message that has begun and not ended is one whose body is still coming.
        let open = messages.last().is_some_and(|message| message.end.is_none());
        prop_assert_eq!(open, place == Place::Body, "{:?}", refused);
    }

    #[test]
    fn any_bytes_at_all_are_no_reason_to_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        pieces in prop::collection::vec(1_usize..50, 0..20),
    ) {
        prop_assert_eq!(run(&bytes, pieces), run(&bytes, []));
    }
}
