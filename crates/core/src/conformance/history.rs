//! Random histories of a store, as data.

use std::time::Duration;

use bytes::Bytes;

use super::scene::Bits;
use crate::fingerprint::Fingerprint;
use crate::key_id::KeyId;
use crate::policy::Class;
use crate::record::{Owner, Sent};
use crate::saved::{Answer, Headers, NotKept, Saved, Tombstone};
use crate::store::{Claim, Completion};

/// All spans are multiples of this: on a server whose clock goes on by itself, a whole history
/// takes less, so no decision depends on how long it took.
pub(super) const UNIT: Duration = Duration::from_secs(600);

/// One step of a history. Small numbers stand for keys, owners, requests and leases, so that
/// histories meet often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// An owner claims a key for a request.
    Claim {
        /// Which of three keys.
        key: u8,
        /// Which of three owners.
        owner: u8,
        /// Which of three requests.
        request: u8,
        /// Under which class.
        class: Class,
        /// Whether the claim announces the send.
        sent: Sent,
    },
    /// Somebody renews leases that were granted at some time.
    Renew(Vec<Held>),
    /// The holder of a lease announces its send.
    Send(Held),
    /// The holder of a lease completes.
    Complete(Held, Ended),
    /// The holder of a lease gives its key back.
    Release(Held),
    /// The holder of a lease does not know.
    Unknown(Held),
    /// The purge runs.
    Purge(u8),
    /// Time goes by.
    Advance(u8),
    /// The clock steps back.
    StepBack(u8),
    /// The store is closed and opened again.
    Reopen,
}

/// A lease of a key: the newest for zero, an older one for each step more; past the oldest, a forged
/// one with the newest fence and another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which of three keys.
    pub key: u8,
    /// How many grants ago.
    pub back: u8,
}

/// How an attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which of four answers.
    pub answer: u8,
    /// How many units it is kept.
    pub retention: u8,
    /// How many units it lingers.
    pub linger: u8,
}

impl Op {
    /// An operation from random bits: whoever brings the bits (a property test, a fuzzer, a seed)
    /// gets histories that shrink to simple ones when the bits shrink to zero.
    #[must_use]
    pub fn from_bits(bits: [u8; 6]) -> Self {
        let [kind, a, b, c, d, e] = bits;
        let held = Held { key: a % 3, back: if b < 160 { 0 } else { b % 5 } };
        match kind % 16 {
            0..=4 => Self::Claim {
                key: a % 3,
                owner: b % 3,
                request: c / 224 + c / 240,
                class: Class::ALL[usize::from(d % 4)],
                sent: if e % 2 == 0 { Sent::No } else { Sent::Yes },
            },
            5 => Self::Advance(1 + a % 4),
            6 => Self::Complete(held, Ended { answer: c % 4, retention: d % 5, linger: e % 3 }),
            7 => Self::Send(held),
            8 => Self::Release(held),
            9 => Self::Unknown(held),
            10 => Self::Renew(vec![held, Held { key: c % 3, back: d % 3 }]),
            11 => Self::Purge(a % 4),
            12 => Self::StepBack(1 + a % 4),
            13 => Self::Reopen,
            14 => Self::Complete(held, Ended { answer: 0, retention: 1, linger: 1 }),
            _ => Self::Advance(2),
        }
    }

    /// A history from a seed.
    #[must_use]
    pub fn history(seed: u64, length: usize) -> Vec<Self> {
        let mut bits = Bits::seeded(seed);
        (0..length).map(|_| Self::from_bits(bits.bytes())).collect()
    }
}

pub(super) fn id(key: u8) -> KeyId {
    KeyId::from_bytes([0xa0 + key; 32])
}

pub(super) fn owner(number: u8) -> Owner {
    Owner::from_bytes([0xb0 + number; 16])
}

/// The claim that the operation stands for.
pub(super) fn claim(op: &Op) -> Claim {
    let Op::Claim { key, owner: who, request, class, sent } = op else {
        unreachable!("only claims are claims")
    };
    let template = Bits::seeded(u64::from(*request)).claim_as(*class);
    Claim {
        id: id(*key),
        owner: owner(*who),
        // The third is the first under another version of fingerprints.
        fingerprint: Fingerprint::from_parts(1 + request / 2, [*request % 2; 32]),
        lease: UNIT * 2,
        grace: UNIT,
        sent: *sent,
        ..template
    }
}

pub(super) fn completion(ended: Ended) -> Completion {
    let mut headers = Headers::new();
    for value in [b"1", b"2", b"1"] {
        headers.push(b"x-repeated", value).expect("a digit may stand in a header");
    }
    let body = Bytes::from(vec![ended.answer; 3]);
    let kept = Answer::Kept(Saved { status: 200, headers, body });
    let tombstone = Tombstone { status: Some(207), reason: NotKept::TooLarge };
    let answer = if ended.answer == 3 { Answer::Tombstone(tombstone) } else { kept };
    let units = |number: u8| UNIT * u32::from(number);
    Completion { answer, retention: units(ended.retention), linger: units(ended.linger) }
}
