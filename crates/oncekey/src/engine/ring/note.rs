//! What a node notes of a key: one slot of the ring.
//!
//! ```text
//! number 8 · id 32 · fence 8 · owner 16 · fingerprint 1 + 32 · class 1 · created 8
//! kind 1 · times 3 × 8 · outcome 16 · reason 1 · status 1 + 2 · lengths 2 · texts 95 · check 8
//! ```
//!
//! No key, no scope and no answer: nothing in here is personal, so an erasure has nothing to do.

use oncekey_core::record::{Origin, Text};
use oncekey_core::saved::{NotKept, Tombstone};
use oncekey_core::{
    Answer, Class, Fence, Fingerprint, KeyId, Lease, Outcome, Owner, Places, Record, Sent, State,
    Timestamp,
};
use sha2::{Digest as _, Sha256};

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Note {
    pub(in crate::engine) lease: Lease,
    pub(in crate::engine) fingerprint: Fingerprint,
    pub(in crate::engine) class: Class,
    pub(in crate::engine) created: Timestamp,
    /// Empty if it is too long for a slot.
    pub(in crate::engine) request: Text,
    /// Empty if it is too long for a slot. Half a name would name another route.
    pub(in crate::engine) route: Text,
    pub(in crate::engine) what: What,
}

/// How far a key had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum What {
    /// It was granted. Whether anything was sent is not noted: a mark that came too late for the
    /// ring would turn what was sent into what was not.
    Running,
    /// Nobody knows.
    Unknown { since: Timestamp },
    /// It was completed.
    Done { at: Timestamp, expires: Timestamp, forget: Timestamp, end: Ended },
    /// It was given back, or belongs to somebody else by now: there is nothing to restore.
    Gone,
}

/// How work was completed: everything about its answer but the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Ended {
    pub(in crate::engine) outcome: Outcome,
    pub(in crate::engine) status: Option<u16>,
    /// `None` if the answer was kept.
    pub(in crate::engine) not_kept: Option<NotKept>,
}

/// A power of two, so that no slot lies across two pages of a disk and a torn write costs one.
pub(super) const SLOT: usize = 256;
const CHECK: usize = 8;
/// What is left for the two texts: a request id of ours has 30 bytes, most routes fewer than 60.
const TEXTS: usize = 95;

impl Ended {
    pub(in crate::engine) fn of(answer: &Answer) -> Self {
        let (status, not_kept) = match answer {
            Answer::Kept(saved) => (Some(saved.status), None),
            Answer::Tombstone(Tombstone { status, reason }) => (*status, Some(*reason)),
        };
        Self { outcome: answer.outcome(), status, not_kept }
    }
}

impl Note {
    /// The record as it can be restored, without its answer; `None` if there is nothing to restore.
    pub(in crate::engine) fn record(&self) -> Option<Record> {
        let state = match self.what {
            What::Gone => return None,
            What::Running => {
                let sent = may_have_acted(self.class);
                State::Running { until: self.lease.until, sent }
            }
            What::Unknown { since } => State::Unknown { since },
            What::Done { at, expires, forget, end: Ended { outcome, status, not_kept } } => {
                let reason = not_kept.unwrap_or(NotKept::Lost);
                let answer = Answer::Tombstone(Tombstone { status, reason });
                State::Done { at, expires, forget, outcome, answer }
            }
        };
        Some(Record {
            id: self.lease.id,
            fence: self.lease.fence,
            owner: self.lease.owner,
            fingerprint: self.fingerprint,
            class: self.class,
            created: self.created,
            origin: Origin {
                route: self.route.clone(),
                request: self.request.clone(),
                ..Origin::default()
            },
            places: Places::default(),
            state,
        })
    }

    /// A record that stands, as it would be noted.
    pub(in crate::engine) fn of(record: &Record) -> Self {
        let what = match &record.state {
            State::Running { .. } => What::Running,
            State::Unknown { since } => What::Unknown { since: *since },
            // A flow that waits for a person is no less than one of which nobody knows.
            State::Parked { since } => What::Unknown { since: *since },
            State::Done { at, expires, forget, outcome, answer } => What::Done {
                at: *at,
                expires: *expires,
                forget: *forget,
                end: Ended { outcome: *outcome, ..Ended::of(answer) },
            },
        };
        Self {
            lease: record.lease(),
            fingerprint: record.fingerprint,
            class: record.class,
            created: record.created,
            request: record.origin.request.clone(),
            route: record.origin.route.clone(),
            what,
        }
    }

    /// Whether this says more than `other`, of the same key.
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        (self.lease.fence, self.what.rank()) > (other.lease.fence, other.what.rank())
    }

    /// Writes the slot of this number.
    pub(super) fn encode(&self, number: u64) -> [u8; SLOT] {
        let mut out = Vec::with_capacity(SLOT);
        let Lease { id, fence, owner, until } = &self.lease;
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(id.as_bytes());
        out.extend_from_slice(&fence.number().to_be_bytes());
        out.extend_from_slice(owner.as_bytes());
        out.push(self.fingerprint.version());
        out.extend_from_slice(self.fingerprint.digest());
        out.push(self.class.code());
        out.extend_from_slice(&self.created.micros().to_be_bytes());
        let (times, end) = match self.what {
            What::Running | What::Gone => ([*until; 3], None),
            What::Unknown { since } => ([since; 3], None),
            What::Done { at, expires, forget, end } => ([at, expires, forget], Some(end)),
        };
        out.push(self.what.code());
        for time in times {
            out.extend_from_slice(&time.micros().to_be_bytes());
        }
        out.extend_from_slice(end.as_ref().map_or(&[0; 16], |end| end.outcome.as_bytes()));
        out.push(end.and_then(|end| end.not_kept).map_or(0, NotKept::code));
        let status = end.and_then(|end| end.status);
        out.push(u8::from(status.is_some()));
        out.extend_from_slice(&status.unwrap_or(0).to_be_bytes());
        let (request, route) = self.texts();
        for text in [request, route] {
            out.push(u8::try_from(text.len()).unwrap_or(0));
        }
        out.extend_from_slice(request);
        out.extend_from_slice(route);
        out.resize(SLOT - CHECK, 0);
        let check = check(&out);
        out.extend_from_slice(&check);
        let mut slot = [0; SLOT];
        slot.copy_from_slice(&out);
        slot
    }

    /// Reads a slot; `None` if it was not written as a whole, or never.
    pub(super) fn decode(slot: &[u8; SLOT]) -> Option<(u64, Self)> {
        let (content, sealed) = slot.split_last_chunk::<CHECK>()?;
        if *sealed != check(content) {
            return None;
        }
        let mut rest = content;
        let number = u64::from_be_bytes(take(&mut rest)?);
        let id = KeyId::from_bytes(take(&mut rest)?);
        let fence = Fence::from_number(i64::from_be_bytes(take(&mut rest)?))?;
        let owner = Owner::from_bytes(take(&mut rest)?);
        let [version] = take(&mut rest)?;
        let fingerprint = Fingerprint::from_parts(version, take(&mut rest)?);
        let [class] = take(&mut rest)?;
        let created = time(&mut rest)?;
        let [kind] = take(&mut rest)?;
        let times = [time(&mut rest)?, time(&mut rest)?, time(&mut rest)?];
        let outcome = Outcome::from_bytes(take(&mut rest)?);
        let [reason, known] = take(&mut rest)?;
        let status = u16::from_be_bytes(take(&mut rest)?);
        let not_kept = match reason {
            0 => None,
            reason => Some(NotKept::from_code(reason)?),
        };
        let end = Ended { outcome, status: (known == 1).then_some(status), not_kept };
        let [request, route] = take(&mut rest)?;
        let (request, after) = rest.split_at_checked(usize::from(request))?;
        let (route, _) = after.split_at_checked(usize::from(route))?;
        let what = What::from_code(kind, times, end)?;
        let until = match what {
            What::Running | What::Gone => times[0],
            What::Unknown { .. } | What::Done { .. } => created,
        };
        let note = Self {
            lease: Lease { id, fence, owner, until },
            fingerprint,
            class: Class::from_code(class)?,
            created,
            request: request.into(),
            route: route.into(),
            what,
        };
        Some((number, note))
    }

    /// The texts as far as they fit, the request id first: clients ask about it.
    fn texts(&self) -> (&[u8], &[u8]) {
        let fitting = |text: &Text, room: usize| text.as_bytes().len() <= room;
        let request = if fitting(&self.request, TEXTS) { self.request.as_bytes() } else { &[] };
        let room = TEXTS - request.len();
        let route = if fitting(&self.route, room) { self.route.as_bytes() } else { &[] };
        (request, route)
    }
}

impl What {
    /// Under one fence an end comes after a beginning, and nothing comes after a release.
    const fn rank(self) -> u8 {
        match self {
            Self::Running => 0,
            Self::Unknown { .. } => 1,
            Self::Done { .. } => 2,
            Self::Gone => 3,
        }
    }

    /// Any two codes differ in four bits.
    const fn code(self) -> u8 {
        match self {
            Self::Running => 0x0f,
            Self::Done { .. } => 0x33,
            Self::Unknown { .. } => 0x55,
            Self::Gone => 0x69,
        }
    }

    fn from_code(code: u8, [at, expires, forget]: [Timestamp; 3], end: Ended) -> Option<Self> {
        match code {
            0x0f => Some(Self::Running),
            0x33 => Some(Self::Done { at, expires, forget, end }),
            0x55 => Some(Self::Unknown { since: at }),
            0x69 => Some(Self::Gone),
            _ => None,
        }
    }
}

/// Whether work of a class may have happened once it was granted. The effects of `tx` commit with its
/// end or not at all.
pub(in crate::engine) const fn may_have_acted(class: Class) -> Sent {
    match class {
        Class::Tx => Sent::No,
        Class::Once | Class::Keyed | Class::Retry => Sent::Yes,
    }
}

/// Eight bytes of a digest: nobody forges a slot, but disks tear them.
fn check(content: &[u8]) -> [u8; CHECK] {
    let digest = Sha256::digest(content);
    *digest.first_chunk::<CHECK>().expect("a digest has 32 bytes")
}

fn time(bytes: &mut &[u8]) -> Option<Timestamp> {
    Some(Timestamp::from_micros(i64::from_be_bytes(take(bytes)?)))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*array)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::engine::ring) fn note(key: u8, fence: i64, what: What) -> Note {
        let lease = Lease {
            id: KeyId::from_bytes([key; 32]),
            fence: Fence::from_number(fence).unwrap(),
            owner: Owner::from_bytes([key; 16]),
            until: Timestamp::from_micros(7_000),
        };
        let until = match what {
            What::Running | What::Gone => lease.until,
            What::Unknown { .. } | What::Done { .. } => Timestamp::from_micros(5_000),
        };
        Note {
            lease: Lease { until, ..lease },
            fingerprint: Fingerprint::from_parts(1, [key; 32]),
            class: Class::Once,
            created: Timestamp::from_micros(5_000),
            request: "req_01k3c9w2m4xj0v5t8r7qz6hbny".into(),
            route: "POST /v1/charges".into(),
            what,
        }
    }

    pub(in crate::engine::ring) fn done() -> What {
        let answer = Answer::Tombstone(Tombstone { status: Some(201), reason: NotKept::TooLarge });
        let [at, expires, forget] = [10, 20, 30].map(Timestamp::from_micros);
        What::Done { at, expires, forget, end: Ended::of(&answer) }
    }

    fn what() -> impl Strategy<Value = What> {
        prop_oneof![
            Just(What::Running),
            Just(What::Gone),
            Just(done()),
            any::<i64>().prop_map(|at| What::Unknown { since: Timestamp::from_micros(at) }),
        ]
    }

    proptest! {
        #[test]
        fn every_note_comes_back(what in what(), key: u8, number: u64, fence in 1..i64::MAX) {
            let note = note(key, fence, what);
            prop_assert_eq!(Note::decode(&note.encode(number)), Some((number, note)));
        }

        /// F55: a slot that was torn or damaged is nothing, whatever became of it.
        #[test]
        fn a_changed_byte_is_always_noticed(what in what(), at in 0..SLOT, bit in 0..8_u32) {
            let mut slot = note(1, 5, what).encode(9);
            slot[at] ^= 1 << bit;
            prop_assert_eq!(Note::decode(&slot), None);
        }
    }

    #[test]
    fn a_text_that_does_not_fit_is_left_out_as_a_whole() {
        let long = Note { route: vec![b'r'; 80].into(), ..note(1, 5, What::Running) };
        let (_, read) = Note::decode(&long.encode(1)).unwrap();
        assert_eq!(read, Note { route: Text::default(), ..long });
        assert_eq!(Note::decode(&[0; SLOT]), None);
    }

    /// What was granted may have been sent: only who granted it could say that it was not.
    #[test]
    fn what_ran_is_restored_as_sent_and_what_was_given_back_not_at_all() {
        let running = note(1, 5, What::Running).record().unwrap();
        assert!(matches!(running.state, State::Running { sent: Sent::Yes, .. }));
        assert_eq!(note(1, 5, What::Gone).record(), None);
        assert_eq!(Note::of(&running), note(1, 5, What::Running));
    }
}
