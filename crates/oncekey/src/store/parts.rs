//! A record in parts, as columns, hash fields or attributes hold it, and back.
//!
//! Every store reads its own kind of row and hands the parts to [`Parts::assemble`]. What is read
//! is checked here, once for all stores: a damaged record is an error, never an absent key.

use std::time::Duration;

use bytes::Bytes;
use oncekey_core::decide::{Phase, Standing};
use oncekey_core::saved::{Headers, NotKept, Outcome};
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::store::Times;
use oncekey_core::{
    Answer, Claim, Class, Completion, ErrorKind, Fence, Fingerprint, KeyId, Lease, Origin, Owner,
    Places, Record, Saved, Sent, State, StateKind, StoreError, Timestamp, Tombstone,
};

/// What an opening that failed midway comes to. Whatever it had made by then stays, and the next one
/// goes on from there: so nobody needs to know how far it came.
#[cfg(any(feature = "dynamodb", feature = "mysql", feature = "redis"))]
pub(crate) fn of_opening(error: StoreError) -> StoreError {
    if error.kind() == ErrorKind::Ambiguous {
        return StoreError::new(ErrorKind::Unavailable, error.to_string()).with_source(error);
    }
    error
}

/// Everything that is stored about a key. Numbers are as wide as the narrowest store has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'p> {
    pub(crate) key_id: &'p [u8],
    pub(crate) format: i64,
    pub(crate) state: i64,
    pub(crate) fence: i64,
    pub(crate) owner: &'p [u8],
    pub(crate) class: i64,
    pub(crate) sent: i64,
    /// Running: when the lease lapses. Otherwise: since when the state stands.
    pub(crate) at: i64,
    pub(crate) created: i64,
    pub(crate) fingerprint_version: i64,
    pub(crate) fingerprint: &'p [u8],
    pub(crate) seal: &'p [u8],
    pub(crate) places: &'p [u8],
    pub(crate) key: &'p [u8],
    pub(crate) scope: &'p [u8],
    pub(crate) route: &'p [u8],
    pub(crate) request: &'p [u8],
    /// What became of it, if it is done.
    pub(crate) answer: Option<AnswerParts<'p>>,
}

/// What is stored about an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerParts<'p> {
    pub(crate) expires: i64,
    pub(crate) forget: i64,
    pub(crate) status: Option<i64>,
    /// Zero for a kept answer, else why there is none.
    pub(crate) not_kept: i64,
    pub(crate) outcome: &'p [u8],
    pub(crate) seal: &'p [u8],
    pub(crate) headers: &'p [u8],
    /// In how many pieces the body is kept elsewhere; zero if it is here.
    pub(crate) pieces: i64,
    pub(crate) body: &'p [u8],
}

/// What a write is judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StandingParts<'p> {
    pub(crate) format: i64,
    pub(crate) state: i64,
    pub(crate) fence: i64,
    pub(crate) owner: &'p [u8],
    pub(crate) sent: i64,
    /// Of a record that is done.
    pub(crate) outcome: Option<&'p [u8]>,
}

/// A record as it was found.
#[derive(Debug)]
pub(crate) struct Assembled {
    /// The record. If `pieces` is not zero, the body of its answer is still missing and the
    /// answer has not been checked.
    pub(crate) record: Record,
    /// In how many pieces its body is.
    pub(crate) pieces: u32,
    /// The seal of its answer.
    answer_seal: Option<Seal>,
}

/// A completion in parts, computed before the store is asked.
#[derive(Clone, Debug)]
pub(crate) struct CompletionParts {
    pub(crate) outcome: Outcome,
    pub(crate) status: Option<u16>,
    pub(crate) not_kept: u8,
    pub(crate) seal: Seal,
    pub(crate) headers: Vec<u8>,
    /// Empty if the body is kept elsewhere, in so many pieces.
    pub(crate) body: Bytes,
    pub(crate) pieces: u32,
    /// What the times are computed from, by the store's clock: see [`Times::of`].
    pub(crate) retention: Duration,
    /// The same.
    pub(crate) linger: Duration,
}

/// Why a stored record cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    /// It is not what was written.
    #[error("a stored record is damaged ({0}): it is neither replayed nor run again")]
    Damaged(&'static str),
    /// It was written by a newer version.
    #[error("a stored record has format {0}, which this version does not know: upgrade oncekey")]
    NewerFormat(i64),
}

const UNSEALED: Damage = Damage::Damaged("its answer does not fit its seal");
const NOT_DONE: Damage = Damage::Damaged("it has an answer, but is not done");

impl Parts<'_> {
    /// Puts the record together and checks it.
    pub(crate) fn assemble(self) -> Result<Assembled, Damage> {
        check_format(self.format)?;
        let record = Record {
            id: KeyId::from_bytes(array(self.key_id)?),
            fence: fence(self.fence)?,
            owner: Owner::from_bytes(array(self.owner)?),
            fingerprint: Fingerprint::from_parts(
                byte(self.fingerprint_version)?,
                array(self.fingerprint)?,
            ),
            class: Class::from_code(byte(self.class)?).ok_or(Damage::Damaged("class"))?,
            created: Timestamp::from_micros(self.created),
            origin: Origin {
                key: self.key.into(),
                scope: self.scope.into(),
                route: self.route.into(),
                request: self.request.into(),
            },
            places: Places::decode(self.places).map_err(|_| Damage::Damaged("places"))?,
            state: self.state()?,
        };
        if Seal::expected_of_claim(&record) != Seal::from_bytes(array(self.seal)?) {
            return Err(Damage::Damaged("its claim does not fit its seal"));
        }
        let (pieces, answer_seal) = match &self.answer {
            Some(answer) => (answer.pieces, Some(Seal::from_bytes(array(answer.seal)?))),
            None => (0, None),
        };
        let pieces = u32::try_from(pieces).map_err(|_| Damage::Damaged("pieces"))?;
        let assembled = Assembled { record, pieces, answer_seal };
        if pieces == 0 {
            assembled.check_answer()?;
        }
        Ok(assembled)
    }

    fn state(&self) -> Result<State, Damage> {
        let at = Timestamp::from_micros(self.at);
        match (kind(self.state)?, &self.answer) {
            (StateKind::Done, Some(answer)) => answer.state(at),
            (StateKind::Done, None) => Err(Damage::Damaged("it is done, but has no answer")),
            (_, Some(_)) => Err(NOT_DONE),
            (StateKind::Running, None) => Ok(State::Running { until: at, sent: sent(self.sent)? }),
            (StateKind::Unknown, None) => Ok(State::Unknown { since: at }),
            (StateKind::Parked, None) => Ok(State::Parked { since: at }),
        }
    }
}

impl AnswerParts<'_> {
    fn state(&self, at: Timestamp) -> Result<State, Damage> {
        let expires = Timestamp::from_micros(self.expires);
        let forget = Timestamp::from_micros(self.forget);
        // The times are not sealed, but this much is known of them. So no wrong `forget` lets
        // work run again whose answer would still be replayed.
        if forget < expires {
            return Err(Damage::Damaged("it is forgotten before it expires"));
        }
        let outcome = Outcome::from_bytes(array(self.outcome)?);
        Ok(State::Done { at, expires, forget, outcome, answer: self.answer()? })
    }

    fn answer(&self) -> Result<Answer, Damage> {
        let status = self.status.map(u16::try_from).transpose();
        let status = status.map_err(|_| Damage::Damaged("status"))?;
        match (byte(self.not_kept)?, status) {
            (0, Some(status)) => Ok(Answer::Kept(Saved {
                status,
                headers: Headers::decode(self.headers).map_err(|_| Damage::Damaged("headers"))?,
                body: Bytes::copy_from_slice(self.body),
            })),
            (0, None) => Err(Damage::Damaged("status")),
            (code, status) => {
                let reason = NotKept::from_code(code).ok_or(Damage::Damaged("reason"))?;
                Ok(Answer::Tombstone(Tombstone { status, reason }))
            }
        }
    }
}

impl StandingParts<'_> {
    /// What [`judge`](oncekey_core::judge) looks at.
    pub(crate) fn standing(self) -> Result<Standing, Damage> {
        check_format(self.format)?;
        let phase = match (kind(self.state)?, self.outcome) {
            (StateKind::Done, Some(outcome)) => Phase::Done(Outcome::from_bytes(array(outcome)?)),
            (StateKind::Done, None) => {
                return Err(Damage::Damaged("it is done, but has no answer"));
            }
            (_, Some(_)) => return Err(NOT_DONE),
            (StateKind::Running, None) => Phase::Running(sent(self.sent)?),
            (StateKind::Unknown, None) => Phase::Unknown,
            (StateKind::Parked, None) => Phase::Parked,
        };
        let owner = Owner::from_bytes(array(self.owner)?);
        Ok(Standing { fence: fence(self.fence)?, owner, phase })
    }
}

impl Assembled {
    /// Puts the body of a large answer in its place and checks the whole.
    pub(crate) fn with_body(mut self, body: impl Into<Bytes>) -> Result<Record, Damage> {
        if let State::Done { answer: Answer::Kept(saved), .. } = &mut self.record.state {
            saved.body = body.into();
        }
        self.check_answer()?;
        Ok(self.record)
    }

    /// Checks what is there of the answer while its body is in pieces: the digest that was given
    /// at completion. Without pieces, everything has been checked.
    pub(crate) fn check_outcome(&self) -> Result<(), Damage> {
        match &self.record.state {
            State::Done { outcome, .. } if self.pieces > 0 => {
                let expected = Seal::of_answer(&self.record.lease(), outcome, outcome);
                if self.answer_seal == Some(expected) { Ok(()) } else { Err(UNSEALED) }
            }
            State::Done { .. }
            | State::Running { .. }
            | State::Unknown { .. }
            | State::Parked { .. } => Ok(()),
        }
    }

    fn check_answer(&self) -> Result<(), Damage> {
        if Seal::expected_of_answer(&self.record) == self.answer_seal {
            Ok(())
        } else {
            Err(UNSEALED)
        }
    }
}

impl CompletionParts {
    /// The parts of a completion whose body was written beforehand in so many pieces, or is here.
    pub(crate) fn new(lease: &Lease, completion: &Completion, pieces: u32) -> Self {
        let outcome = completion.answer.outcome();
        let (headers, body) = match &completion.answer {
            Answer::Kept(saved) if pieces == 0 => (saved.headers.encode(), saved.body.clone()),
            Answer::Kept(saved) => (saved.headers.encode(), Bytes::new()),
            Answer::Tombstone(_) => (Vec::new(), Bytes::new()),
        };
        let (status, not_kept) = answer_codes(&completion.answer);
        let seal = Seal::of_answer(lease, &outcome, &outcome);
        let Completion { retention, linger, .. } = *completion;
        Self { outcome, status, not_kept, seal, headers, body, pieces, retention, linger }
    }

    /// The times of this completion at `now` under `fence`.
    pub(crate) fn times(&self, fence: Fence, now: Timestamp) -> Times {
        Times::of(self.retention, self.linger, fence, now)
    }

    /// How many bytes the completion itself adds to a transaction.
    pub(crate) fn inline_size(&self) -> usize {
        self.headers.len() + self.body.len()
    }
}

/// The seal over what a claim writes.
pub(crate) fn seal_of(claim: &Claim) -> Seal {
    let Claim { id, owner, fingerprint, class, origin, places, .. } = claim;
    Seal::of_claim(id, owner, fingerprint, *class, (origin, places))
}

/// How `status` and `not_kept` are written.
pub(crate) fn answer_codes(answer: &Answer) -> (Option<u16>, u8) {
    match answer {
        Answer::Kept(saved) => (Some(saved.status), 0),
        Answer::Tombstone(tombstone) => (tombstone.status, tombstone.reason.code()),
    }
}

/// Whether a record counts as absent at `now`, although nobody has removed it yet.
pub(crate) fn is_forgotten(record: &Record, now: Timestamp) -> bool {
    matches!(record.state, State::Done { forget, .. } if forget <= now)
}

impl From<Damage> for StoreError {
    fn from(damage: Damage) -> Self {
        Self::new(ErrorKind::Corrupt, damage.to_string())
    }
}

pub(crate) fn check_format(format: i64) -> Result<(), Damage> {
    match format {
        known if known == i64::from(RECORD_FORMAT) => Ok(()),
        newer if newer > i64::from(RECORD_FORMAT) => Err(Damage::NewerFormat(newer)),
        _ => Err(Damage::Damaged("format")),
    }
}

fn kind(code: i64) -> Result<StateKind, Damage> {
    StateKind::from_code(byte(code)?).ok_or(Damage::Damaged("state"))
}

fn sent(code: i64) -> Result<Sent, Damage> {
    Sent::from_code(byte(code)?).ok_or(Damage::Damaged("send mark"))
}

fn fence(number: i64) -> Result<Fence, Damage> {
    Fence::from_number(number).ok_or(Damage::Damaged("fence"))
}

fn byte(number: i64) -> Result<u8, Damage> {
    u8::try_from(number).map_err(|_| Damage::Damaged("a number is out of range"))
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Damage> {
    bytes.try_into().map_err(|_| Damage::Damaged("a column has the wrong length"))
}
