//! What a store keeps for a key.
//!
//! One [`Record`] per key id. Its [`State`] is closed on purpose: a new state must break every
//! `match`, ours and the users'. The arrows between the states are drawn in
//! `docs/state-machine.md` and decided in [`decide`](crate::decide()).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::fingerprint::{Fingerprint, Places};
use crate::key_id::KeyId;
use crate::policy::Class;
use crate::saved::{Answer, Outcome};

/// Everything that is known about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which key.
    pub id: KeyId,
    /// The number of the newest attempt.
    pub fence: Fence,
    /// Who made the newest attempt.
    pub owner: Owner,
    /// What must not change between attempts.
    pub fingerprint: Fingerprint,
    /// The effect class under which the newest attempt was claimed. What was sent under one class
    /// is judged by that class, even if the route's configuration has changed since.
    pub class: Class,
    /// When this generation of the key was first claimed, by the store's clock. A takeover does
    /// not change it.
    pub created: Timestamp,
    /// Where the request came from, for people.
    pub origin: Origin,
    /// Digests of the request's places, so that a mismatch can say where it differs.
    pub places: Places,
    /// What has become of it.
    pub state: State,
}

/// What has become of a key. A released record is gone, so it has no state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Somebody owns the key until a time.
    Running {
        /// When the lease lapses, by the store's clock.
        until: Timestamp,
        /// Whether the point of no return was passed.
        sent: Sent,
    },
    /// The work ended and this is what became of it. Never changes again, except that its answer may
    /// be stripped or erased.
    Done {
        /// When it was completed.
        at: Timestamp,
        /// Until when it answers.
        expires: Timestamp,
        /// When it may be forgotten, so that the key is free again. Between `expires` and this
        /// moment a late retry is told that it is too late instead of being executed.
        forget: Timestamp,
        /// Digest of the answer as it was given at completion. It stays when the answer itself is
        /// stripped or erased, so that a repeated completion is still recognised.
        outcome: Outcome,
        /// The answer, or why there is none.
        answer: Answer,
    },
    /// The work may have happened and nobody knows.
    Unknown {
        /// Since when nobody knows.
        since: Timestamp,
    },
    /// A flow that waits for a person.
    Parked {
        /// Since when it waits.
        since: Timestamp,
    },
}

/// Whether a byte of the foreign request may have left: the point of no return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    /// Provably nothing was sent: the work may be given to somebody else.
    No,
    /// A send was announced: the work may have happened.
    Yes,
}

/// The right to act for a key, and the proof that every later write carries.
///
/// `until` is a hint for the owner; the proof is `(id, fence, owner)`. A store compares exactly
/// these three and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Which key.
    pub id: KeyId,
    /// Outdates every older owner.
    pub fence: Fence,
    /// Who holds it.
    pub owner: Owner,
    /// When it lapses, by the store's clock.
    pub until: Timestamp,
}

/// The number that outdates older owners of a key: `max(previous + 1, store clock in µs)`.
///
/// Following the clock lets it rise across release, purge and re-creation without a counter that
/// outlives the row. A per-row counter restarts with the row: in our measurement it gave the same
/// number to two owners 29 times in 12 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(i64);

/// 128 random bits that a claimant makes *before* its first try.
///
/// They let a store recognise a claimant whose acknowledgement was lost. Core has no randomness:
/// the caller brings the bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner([u8; 16]);

/// Where a request came from, for operators. Stores treat every field as opaque bytes, because
/// the engine may have encrypted it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Origin {
    /// The key as the client sent it.
    pub key: Text,
    /// Whom the key belongs to.
    pub scope: Text,
    /// The route that the request matched, such as `POST /v1/charges`.
    pub route: Text,
    /// The id of the request that made this record.
    pub request: Text,
}

/// A short, possibly secret, byte string, cheap to clone. Its `Debug` shows only the length: records end up in
/// logs and test output, keys and scopes must not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Text(Arc<[u8]>);

/// The four states by name: what operators filter by and metrics are labelled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKind {
    /// [`State::Running`].
    Running,
    /// [`State::Done`].
    Done,
    /// [`State::Unknown`].
    Unknown,
    /// [`State::Parked`].
    Parked,
}

impl Record {
    /// The proof that a write for the newest attempt must carry.
    ///
    /// Its owner has one already. This is for whoever resolves a record on its behalf: a probe, a
    /// reconciler or a person who knows what became of an unknown outcome.
    #[must_use]
    pub fn lease(&self) -> Lease {
        let until = match self.state {
            State::Running { until, .. } => until,
            State::Done { .. } | State::Unknown { .. } | State::Parked { .. } => self.created,
        };
        Lease { id: self.id, fence: self.fence, owner: self.owner, until }
    }

    /// Returns true if and only if `lease` names this record's newest attempt.
    #[must_use]
    pub fn is_held_by(&self, lease: &Lease) -> bool {
        self.id == lease.id && self.fence == lease.fence && self.owner == lease.owner
    }
}

impl State {
    /// Which of the four states this is.
    #[must_use]
    pub const fn kind(&self) -> StateKind {
        match self {
            Self::Running { .. } => StateKind::Running,
            Self::Done { .. } => StateKind::Done,
            Self::Unknown { .. } => StateKind::Unknown,
            Self::Parked { .. } => StateKind::Parked,
        }
    }
}

impl StateKind {
    /// All of them, in the order in which a record meets them.
    pub const ALL: [Self; 4] = [Self::Running, Self::Done, Self::Unknown, Self::Parked];

    /// The word for it in logs, metrics, JSON and SQL.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Unknown => "unknown",
            Self::Parked => "parked",
        }
    }

    /// How a state is written down. Any two codes differ in at least four bits, so that one
    /// flipped bit gives a code that nobody wrote instead of another state.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Running => 0x0f,
            Self::Done => 0x33,
            Self::Unknown => 0x55,
            Self::Parked => 0x69,
        }
    }

    /// Reads a [`code`](Self::code) back; `None` means that the stored byte cannot be trusted.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

impl Sent {
    /// `Yes` if either is.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, Self::No) => Self::No,
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
        }
    }

    /// How the mark is written down; the two codes differ in seven bits, and both fit a signed byte.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::No => 0x0f,
            Self::Yes => 0x70,
        }
    }

    /// Reads a [`code`](Self::code) back; `None` means that the stored byte cannot be trusted.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0x0f => Some(Self::No),
            0x70 => Some(Self::Yes),
            _ => None,
        }
    }
}

impl Lease {
    /// How long the lease still lasts at `now`; zero once it has lapsed.
    #[must_use]
    pub fn remaining(&self, now: Timestamp) -> Duration {
        self.until.since(now)
    }
}

impl Fence {
    /// The fence of the next attempt after `previous`, given the store's clock.
    #[must_use]
    pub fn next(previous: Option<Self>, now: Timestamp) -> Self {
        let floor = previous.map_or(1, |fence| fence.0.saturating_add(1));
        Self(now.micros().max(floor))
    }

    /// Reads a stored fence. `None` for numbers that no store ever grants.
    #[must_use]
    pub const fn from_number(number: i64) -> Option<Self> {
        if number > 0 { Some(Self(number)) } else { None }
    }

    /// The number itself, always positive.
    #[must_use]
    pub const fn number(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl Owner {
    /// An owner from 128 bits that the caller drew at random.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bits.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Prints the first four bytes: enough to tell owners apart in a log, not enough to be one.
impl fmt::Debug for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(out, "Owner({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

impl Text {
    /// Takes bytes that others share, without a copy.
    #[must_use]
    pub fn shared(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<T: AsRef<[u8]>> From<T> for Text {
    fn from(bytes: T) -> Self {
        Self(bytes.as_ref().into())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Text({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I2: the fence rises even if the clock steps back or stands still.
    #[test]
    fn a_fence_rises_whatever_the_clock_does() {
        let first = Fence::next(None, Timestamp::from_micros(1_000));
        let stood_still = Fence::next(Some(first), Timestamp::from_micros(1_000));
        let stepped_back = Fence::next(Some(stood_still), Timestamp::from_micros(-5));
        let moved_on = Fence::next(Some(stepped_back), Timestamp::from_micros(9_000));
        assert!(first < stood_still && stood_still < stepped_back && stepped_back < moved_on);
        assert_eq!(moved_on.number(), 9_000);
        assert_eq!(Fence::next(None, Timestamp::from_micros(i64::MIN)).number(), 1);
    }

    /// F55: a flipped bit never turns one state, or one send mark, into another.
    #[test]
    fn one_flipped_bit_is_always_noticed() {
        for kind in StateKind::ALL {
            assert_eq!(StateKind::from_code(kind.code()), Some(kind));
            for bit in 0..8 {
                assert_eq!(StateKind::from_code(kind.code() ^ (1 << bit)), None);
            }
        }
        for sent in [Sent::No, Sent::Yes] {
            assert_eq!(Sent::from_code(sent.code()), Some(sent));
            for bit in 0..8 {
                assert_eq!(Sent::from_code(sent.code() ^ (1 << bit)), None);
            }
        }
    }

    /// I52: what people log of a record shows no key and no scope.
    #[test]
    fn debug_output_hides_keys_scopes_and_owners() {
        let origin = Origin { key: "secret-key".into(), ..Origin::default() };
        let shown = format!("{origin:?} {:?}", Owner::from_bytes(*b"0123456789abcdef"));
        assert!(!shown.contains("secret-key"), "{shown}");
        assert!(!shown.contains("30313233343536"), "{shown}");
    }
}
