//! Every vector, as a whole and in pieces.

use std::collections::HashSet;

use super::super::{Limits, Place, Violation};
use super::reader;
use super::vectors::{Expected, Vector, all, status};
use super::{Run, ends, run};

#[test]
fn there_are_enough_vectors_and_each_has_its_name() {
    let vectors = all();
    assert!(vectors.len() >= 500, "{} vectors", vectors.len());
    let mut names = HashSet::new();
    for Vector { name, .. } in &vectors {
        assert!(names.insert(name), "two are called {name}");
    }
}

#[test]
fn every_vector_meets_its_fate() {
    let wrong: Vec<_> = all().iter().filter_map(|vector| check(vector).err()).collect();
    assert!(wrong.is_empty(), "{} vectors:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn it_does_not_matter_how_the_bytes_are_cut() {
    for Vector { name, bytes, .. } in all() {
        let whole = run(&bytes, []);
        for piece in [1, 2, 3, 7, 64, 1_000] {
            let pieces = std::iter::repeat_n(piece, bytes.len() / piece);
            assert_eq!(run(&bytes, pieces), whole, "{name}, {piece} bytes at a time");
        }
        // Long ones are the same thing many times, and would take minutes.
        for cut in (0..bytes.len()).take_while(|_| bytes.len() < 500) {
            assert_eq!(run(&bytes, [cut]), whole, "{name}, cut at {cut}");
        }
    }
}

/// Another parser finds the same requests in what goes on, with the same bodies and ends.
#[test]
fn what_goes_on_is_read_alike_by_another_parser() {
    let mut requests = 0;
    for Vector { name, bytes, expected } in all() {
        let Run { passed, .. } = run(&bytes, []);
        let messages = reader::read(&bytes[..passed]);
        let read: Vec<_> = messages.iter().filter_map(|message| message.end).collect();
        assert_eq!(ends(&bytes), read, "{name}");
        let whole = messages.into_iter().filter(|message| message.end.is_some());
        let bodies: Vec<_> = whole.map(|message| message.body).collect();
        requests += bodies.len();
        let (Expected::Accepted { bodies: expected }
        | Expected::Held { bodies: expected }
        | Expected::Refused { bodies: expected, .. }) = expected;
        assert_eq!(bodies, expected, "{name}");
    }
    assert!(requests > 1_000, "{requests} requests");
}

#[test]
fn every_reason_has_a_vector_and_the_status_that_clients_expect() {
    let vectors = all();
    for violation in Violation::ALL {
        assert_eq!(violation.status(), status(violation.label()), "{violation:?}");
        let met = vectors.iter().filter(|vector| {
            matches!(vector.expected, Expected::Refused { by, .. } if by == violation.label())
        });
        assert!(met.count() > 0, "no vector for {violation:?}");
    }
}

/// The vectors say their numbers themselves.
#[test]
fn the_limits_are_those_that_the_vectors_were_written_for() {
    let Limits { line, head, fields, chunk_line, extensions, trailers, trailer_fields, body } =
        Limits::default();
    assert_eq!((line, head, fields), (16 * 1024, 64 * 1024, 100));
    assert_eq!((chunk_line, extensions), (512, 8 * 1024));
    assert_eq!((trailers, trailer_fields), (8 * 1024, 32));
    assert_eq!(body, u64::MAX / 2);
}

fn check(vector: &Vector) -> Result<(), String> {
    let Vector { name, bytes, expected } = vector;
    let Run { passed, refused, place } = run(bytes, []);
    let fits = match expected {
        Expected::Accepted { .. } => {
            refused.is_none()
                && passed == bytes.len()
                && matches!(place, Place::Between | Place::Waiting)
        }
        // Unfinished bodies pass as they come.
        Expected::Held { .. } => {
            refused.is_none() && (passed < bytes.len() || place == Place::Body)
        }
        Expected::Refused { by, .. } => refused.is_some_and(|reason| reason.label() == *by),
    };
    if fits {
        return Ok(());
    }
    let kind = match expected {
        Expected::Accepted { .. } => "accepted",
        Expected::Held { .. } => "held",
        Expected::Refused { by, .. } => by,
    };
    Err(format!("{name}: expected {kind}, got {refused:?}, {passed}/{}, {place:?}", bytes.len()))
}
