//! Where the messages of each protocol end, so that connections can be cut there.

use std::collections::BTreeSet;

use crate::common::proxy::Way;
use crate::place::Kind;

/// Between two cuts that are not at the end of a message. A prime, so that the cuts fall on all
/// places of fields that are aligned.
const STEP: usize = 7;

/// The byte counts after which an exchange is cut: the end of every message and one byte before and
/// after it, and every seventh byte.
pub(crate) fn cuts(kind: Kind, way: Way, bytes: &[u8], step: usize) -> BTreeSet<usize> {
    let around = ends(kind, way, bytes)
        .into_iter()
        .chain([0, bytes.len()])
        .flat_map(|end| [end.saturating_sub(1), end, end + 1]);
    let all = around.chain((0..bytes.len()).step_by(step.max(STEP)));
    all.filter(|&cut| cut <= bytes.len()).collect()
}

/// Where messages end. What does not look like the protocol has no ends.
fn ends(kind: Kind, way: Way, bytes: &[u8]) -> Vec<usize> {
    match kind {
        Kind::Postgres => walk(bytes, |rest| postgres(way, rest)),
        Kind::MariaDb => walk(bytes, mysql),
        Kind::Redis => after(bytes, b"\r\n"),
        Kind::DynamoDb => after(bytes, b"\r\n\r\n"),
    }
}

fn walk(bytes: &[u8], length: impl Fn(&[u8]) -> Option<usize>) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut end = 0;
    while let Some(next) = length(&bytes[end..]).filter(|&next| next > 0) {
        end += next;
        if end > bytes.len() {
            break;
        }
        ends.push(end);
    }
    ends
}

/// A type and a length that counts itself; the first message of a client has no type.
fn postgres(way: Way, bytes: &[u8]) -> Option<usize> {
    let start = usize::from(way == Way::Down || bytes.first().is_some_and(|first| *first != 0));
    let length: [u8; 4] = bytes.get(start..start + 4)?.try_into().ok()?;
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    Some(start + length)
}

/// A length of three bytes, a number, and so much.
fn mysql(bytes: &[u8]) -> Option<usize> {
    let [a, b, c] = bytes.get(..3)?.try_into().ok()?;
    let length = usize::try_from(u32::from_le_bytes([a, b, c, 0])).ok()?;
    Some(4 + length)
}

fn after(bytes: &[u8], mark: &[u8]) -> Vec<usize> {
    let places = bytes.windows(mark.len()).enumerate();
    places.filter(|(_, window)| *window == mark).map(|(at, _)| at + mark.len()).collect()
}

#[test]
fn messages_end_where_the_protocols_say() {
    let question = b"Q\0\0\0\x08abc\0S\0\0\0\x04";
    assert_eq!(ends(Kind::Postgres, Way::Up, question), [9, 14]);
    assert_eq!(ends(Kind::Postgres, Way::Up, b"\0\0\0\x06xxS\0\0\0\x04"), [6, 11]);
    assert_eq!(ends(Kind::MariaDb, Way::Up, b"\x02\0\0\0ab\x01\0\0\x01c"), [6, 11]);
    assert_eq!(ends(Kind::Redis, Way::Down, b"+OK\r\n$1\r\na\r\n"), [5, 9, 12]);
    assert_eq!(ends(Kind::DynamoDb, Way::Down, b"HTTP/1.1 200 OK\r\n\r\n{}"), [19]);
    let cuts: Vec<_> = cuts(Kind::Redis, Way::Down, b"+OK\r\n", STEP).into_iter().collect();
    assert_eq!(cuts, [0, 1, 4, 5]);
}
