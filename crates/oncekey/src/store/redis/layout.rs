//! How a record is written down.
//!
//! One hash per key id. Field `r` is the record, a string with fixed places so that a script reads
//! and replaces parts of it without decoding; `a` is the answer; `p…` are pieces of a large body.
//!
//! | bytes | of `r` |
//! |---|---|
//! | 1 + 1 + 1 | format, class, fingerprint version |
//! | 32 + 16 + 16 | fingerprint, claim seal, owner |
//! | 16 + 16 | fence, created: sixteen decimal digits |
//! | 1 + 1 + 16 | send mark, state, `at` |
//! | the tail | places, key, scope, route, request, each with its length |
//! | 16 + 16 | expires, forget: only if it is done, like all that follows |
//! | 4 + 16 + 16 + 16 + 4 | status and reason, outcome, answer seal, seal of the expired answer, pieces |
//!
//! A hash field for each of these was tried on paper and rejected: Redis keeps hashes with long
//! fields in a table of pointers, and every script would read and write a dozen of them.

use oncekey_core::saved::NotKept;
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::{
    Answer, Claim, KeyId, Lease, Outcome, Record, Sent, State, StateKind, Timestamp, Tombstone,
};

use crate::store::parts::{self, AnswerParts, Assembled, CompletionParts, Damage, Parts};

/// The last moment that a double holds exactly, in the year 2255. What lasts longer lasts until
/// then.
pub(super) const LAST: i64 = 9_007_199_254_740_991;

const HEAD: usize = 67;
const TAIL: usize = 117;
const END: usize = 88;
const ENDING: usize = 56;

/// The parts of a stored record that an erasure compares and replaces.
pub(super) struct Halves<'r> {
    pub(super) head_and_fence: &'r [u8],
    pub(super) state: &'r [u8],
    pub(super) ending: &'r [u8],
}

/// What a claim writes before the numbers.
pub(super) fn head(claim: &Claim) -> [u8; HEAD] {
    let seal = parts::seal_of(claim);
    head_of(claim.class.code(), &claim.fingerprint, &seal, claim.owner.as_bytes())
}

/// What a claim writes after the numbers.
pub(super) fn tail(claim: &Claim) -> Vec<u8> {
    tail_of(&claim.origin, &claim.places)
}

/// The owner and the fence, as a record has them side by side.
pub(super) fn proof(lease: &Lease) -> [u8; 32] {
    let mut proof = [0; 32];
    proof[..16].copy_from_slice(lease.owner.as_bytes());
    proof[16..].copy_from_slice(digits(lease.fence.number()).as_bytes());
    proof
}

/// What a completion writes at the end of a record.
pub(super) fn ending(lease: &Lease, completion: &CompletionParts) -> Vec<u8> {
    let CompletionParts { outcome, status, not_kept, seal, pieces, .. } = completion;
    ending_of(lease, *status, *not_kept, outcome, seal, *pieces)
}

/// What a completion writes beside the record.
pub(super) fn answer(headers: &[u8], body: &[u8]) -> Vec<u8> {
    let mut answer = Vec::with_capacity(4 + headers.len() + body.len());
    put(&mut answer, headers);
    answer.extend_from_slice(body);
    answer
}

/// A whole record as it is stored, its answer included.
pub(super) fn whole(record: &Record) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = new_head(record).to_vec();
    let (at, sent) = match &record.state {
        State::Running { until, sent } => (*until, *sent),
        State::Done { at, .. } => (*at, Sent::Yes),
        State::Unknown { since } | State::Parked { since } => (*since, Sent::Yes),
    };
    bytes.extend_from_slice(digits(record.fence.number()).as_bytes());
    bytes.extend_from_slice(digits(record.created.micros()).as_bytes());
    bytes.extend_from_slice(&[sent.code(), record.state.kind().code()]);
    bytes.extend_from_slice(digits(at.micros()).as_bytes());
    bytes.extend(tail_of(&record.origin, &record.places));
    let State::Done { expires, forget, answer: stands, .. } = &record.state else {
        return (bytes, Vec::new());
    };
    bytes.extend_from_slice(digits(expires.micros()).as_bytes());
    bytes.extend_from_slice(digits(forget.micros()).as_bytes());
    bytes.extend(new_ending(record));
    let stored = match stands {
        Answer::Kept(saved) => answer(&saved.headers.encode(), &saved.body),
        Answer::Tombstone(_) => answer(&[], &[]),
    };
    (bytes, stored)
}

/// The head that `record` must have.
pub(super) fn new_head(record: &Record) -> [u8; HEAD] {
    let seal = Seal::expected_of_claim(record);
    head_of(record.class.code(), &record.fingerprint, &seal, record.owner.as_bytes())
}

/// The tail that `record` must have.
pub(super) fn new_tail(record: &Record) -> Vec<u8> {
    tail_of(&record.origin, &record.places)
}

/// The ending that `record` must have if its answer is not in pieces; empty unless it is done.
pub(super) fn new_ending(record: &Record) -> Vec<u8> {
    match (&record.state, Seal::expected_of_answer(record)) {
        (State::Done { outcome, answer, .. }, Some(seal)) => {
            let (status, not_kept) = parts::answer_codes(answer);
            ending_of(&record.lease(), status, not_kept, outcome, &seal, 0)
        }
        (_, _) => Vec::new(),
    }
}

/// Reads a record with the answer that is stored beside it.
pub(super) fn read(id: &KeyId, bytes: &[u8], answer: &[u8]) -> Result<Assembled, Damage> {
    read_as(id, bytes, Some(answer))
}

/// Reads a record without its answer, which is checked as far as it is here.
pub(super) fn read_without_answer(id: &KeyId, bytes: &[u8]) -> Result<Assembled, Damage> {
    let found = read_as(id, bytes, None)?;
    found.check_outcome()?;
    Ok(found)
}

fn read_as(id: &KeyId, bytes: &[u8], answer: Option<&[u8]>) -> Result<Assembled, Damage> {
    let fixed = bytes.get(..TAIL).ok_or(SHORT)?;
    let state = fixed[100];
    let is_done = StateKind::from_code(state) == Some(StateKind::Done);
    let (mut tail, end) = if is_done {
        let length = bytes.len().checked_sub(END).filter(|length| *length >= TAIL).ok_or(SHORT)?;
        (&bytes[TAIL..length], Some(&bytes[length..]))
    } else {
        (&bytes[TAIL..], None)
    };
    let parts = Parts {
        key_id: id.as_bytes(),
        format: i64::from(fixed[0]),
        class: i64::from(fixed[1]),
        fingerprint_version: i64::from(fixed[2]),
        fingerprint: &fixed[3..35],
        seal: &fixed[35..51],
        owner: &fixed[51..67],
        fence: number(&fixed[67..83])?,
        created: number(&fixed[83..99])?,
        sent: i64::from(fixed[99]),
        state: i64::from(state),
        at: number(&fixed[101..117])?,
        places: take(&mut tail)?,
        key: take(&mut tail)?,
        scope: take(&mut tail)?,
        route: take(&mut tail)?,
        request: take(&mut tail)?,
        answer: end.map(|end| read_answer(end, answer)).transpose()?,
    };
    if tail.is_empty() { parts.assemble() } else { Err(Damage::Damaged("it is too long")) }
}

/// The parts of a record that was read before.
pub(super) fn halves(bytes: &[u8]) -> Result<Halves<'_>, Damage> {
    Ok(Halves {
        head_and_fence: bytes.get(..83).ok_or(SHORT)?,
        state: bytes.get(100..101).ok_or(SHORT)?,
        ending: bytes.get(bytes.len().saturating_sub(ENDING)..).ok_or(SHORT)?,
    })
}

/// A number that a script can read exactly.
pub(super) fn digits(number: i64) -> String {
    format!("{:016}", number.clamp(0, LAST))
}

/// A span in microseconds that a script can read exactly.
pub(super) fn span(span: std::time::Duration) -> i64 {
    Timestamp::default().after(span).micros().min(LAST)
}

const SHORT: Damage = Damage::Damaged("it is too short");

fn head_of(
    class: u8,
    fingerprint: &oncekey_core::Fingerprint,
    seal: &Seal,
    owner: &[u8; 16],
) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..3].copy_from_slice(&[RECORD_FORMAT, class, fingerprint.version()]);
    head[3..35].copy_from_slice(fingerprint.digest());
    head[35..51].copy_from_slice(seal.as_bytes());
    head[51..].copy_from_slice(owner);
    head
}

fn tail_of(origin: &oncekey_core::Origin, places: &oncekey_core::Places) -> Vec<u8> {
    let texts = [&origin.key, &origin.scope, &origin.route, &origin.request];
    let mut tail = Vec::with_capacity(256);
    put(&mut tail, places.as_encoded());
    for text in texts {
        put(&mut tail, text.as_bytes());
    }
    tail
}

fn ending_of(
    lease: &Lease,
    status: Option<u16>,
    not_kept: u8,
    outcome: &Outcome,
    seal: &Seal,
    pieces: u32,
) -> Vec<u8> {
    // A purge is a script and cannot hash: the seal of what it will leave is made now.
    let stripped = Answer::Tombstone(Tombstone { status, reason: NotKept::Expired });
    let expired = Seal::of_answer(lease, outcome, &stripped.outcome());
    let mut ending = Vec::with_capacity(ENDING);
    ending.push(u8::from(status.is_some()));
    ending.extend_from_slice(&status.unwrap_or_default().to_be_bytes());
    ending.push(not_kept);
    ending.extend_from_slice(outcome.as_bytes());
    ending.extend_from_slice(seal.as_bytes());
    ending.extend_from_slice(expired.as_bytes());
    ending.extend_from_slice(&pieces.to_be_bytes());
    ending
}

fn read_answer<'p>(end: &'p [u8], answer: Option<&'p [u8]>) -> Result<AnswerParts<'p>, Damage> {
    let status = match end[32] {
        0 => None,
        1 => Some(i64::from(u16::from_be_bytes([end[33], end[34]]))),
        _ => return Err(Damage::Damaged("status")),
    };
    let pieces = i64::from(u32::from_be_bytes([end[84], end[85], end[86], end[87]]));
    // An answer that was not read is like one that is elsewhere: nothing of it can be checked.
    let pieces = if answer.is_none() && end[35] == 0 { pieces.max(1) } else { pieces };
    // A stripped or erased record has no answer beside it.
    let mut answer = answer.unwrap_or_default();
    let headers = if answer.is_empty() { answer } else { take(&mut answer)? };
    Ok(AnswerParts {
        expires: number(&end[..16])?,
        forget: number(&end[16..32])?,
        status,
        not_kept: i64::from(end[35]),
        outcome: &end[36..52],
        seal: &end[52..68],
        headers,
        pieces,
        body: answer,
    })
}

/// Puts bytes behind their length. Nothing that is stored is longer than four bytes can say.
fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes);
}

fn take<'p>(bytes: &mut &'p [u8]) -> Result<&'p [u8], Damage> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or(SHORT)?;
    let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| SHORT)?;
    let (taken, rest) = rest.split_at_checked(length).ok_or(SHORT)?;
    *bytes = rest;
    Ok(taken)
}

fn number(bytes: &[u8]) -> Result<i64, Damage> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.starts_with('+'));
    text.and_then(|text| text.parse().ok()).ok_or(Damage::Damaged("a number"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use oncekey_core::{Class, Fence, Fingerprint, Headers, Origin, Owner, Places, Saved};

    use super::*;

    fn record(state: State) -> Record {
        Record {
            id: KeyId::from_bytes([7; 32]),
            fence: Fence::from_number(1_763_234_567_890_123).unwrap(),
            owner: Owner::from_bytes([1; 16]),
            fingerprint: Fingerprint::from_parts(1, [3; 32]),
            class: Class::Keyed,
            created: Timestamp::from_micros(1_763_234_567_890_001),
            origin: Origin { key: "k".into(), request: "r".into(), ..Origin::default() },
            places: Places::default(),
            state,
        }
    }

    fn states() -> Vec<State> {
        let (at, later) = (Timestamp::from_micros(5), Timestamp::from_micros(LAST));
        let done = |answer: Answer| {
            let outcome = answer.outcome();
            State::Done { at, expires: at, forget: later, outcome, answer }
        };
        let saved = Saved { status: 201, headers: Headers::new(), body: Bytes::from("\0body") };
        vec![
            State::Running { until: at, sent: Sent::No },
            State::Running { until: at, sent: Sent::Yes },
            State::Unknown { since: at },
            State::Parked { since: at },
            done(Answer::Kept(saved)),
            done(Answer::Tombstone(Tombstone { status: None, reason: NotKept::Streamed })),
        ]
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        for state in states() {
            let written = record(state);
            let (bytes, answer) = whole(&written);
            let found = read(&written.id, &bytes, &answer).unwrap();
            assert_eq!(found.record, written);
        }
    }

    /// F55: whatever is cut off, added or flipped is damage, or a time that is not sealed.
    #[test]
    fn a_damaged_record_is_never_another_record() {
        for state in states() {
            let written = record(state);
            let (bytes, answer) = whole(&written);
            for length in 0..bytes.len() {
                assert!(read(&written.id, &bytes[..length], &answer).is_err(), "cut at {length}");
            }
            for place in 0..bytes.len() {
                for bit in 0..8 {
                    let mut bytes = bytes.clone();
                    bytes[place] ^= 1 << bit;
                    let Ok(found) = read(&written.id, &bytes, &answer) else { continue };
                    let (mut found, mut same) = (found.record, written.clone());
                    for record in [&mut found, &mut same] {
                        record.created = Timestamp::default();
                        without_times(&mut record.state);
                        record.fence = Fence::from_number(1).unwrap();
                    }
                    assert_eq!(found, same, "byte {place}, bit {bit}");
                }
            }
        }
    }

    fn without_times(state: &mut State) {
        let zero = Timestamp::default();
        match state {
            State::Running { until, .. } => *until = zero,
            State::Unknown { since } | State::Parked { since } => *since = zero,
            State::Done { at, expires, forget, .. } => {
                (*at, *expires, *forget) = (zero, zero, zero)
            }
        }
    }

    #[test]
    fn numbers_have_sixteen_digits_and_stay_exact() {
        assert_eq!(digits(0), "0000000000000000");
        assert_eq!(digits(1_763_234_567_890_123), "1763234567890123");
        assert_eq!(digits(i64::MAX), "9007199254740991");
        assert_eq!(digits(-1), "0000000000000000");
        assert_eq!(span(std::time::Duration::MAX), LAST);
    }

    /// The scripts know the codes and the places by heart.
    #[test]
    fn the_scripts_know_the_codes() {
        let prelude = include_str!("lua/prelude.lua");
        let [running, done, unknown] =
            [StateKind::Running, StateKind::Done, StateKind::Unknown].map(StateKind::code);
        let states = format!("= '\\{running}', '\\{done}', '\\{unknown}'");
        assert!(prelude.contains(&states), "{states}");
        let marks = format!("NO, YES = '\\{}', '\\{}'", Sent::No.code(), Sent::Yes.code());
        assert!(prelude.contains(&marks), "{marks}");
        assert!(prelude.contains(&format!("EXPIRED = '\\{}'", NotKept::Expired.code())));
        assert!(prelude.contains(&format!("LAST = {LAST}")));
        assert!(prelude.contains(&format!("FORMAT = '\\{RECORD_FORMAT}'")));
    }
}
