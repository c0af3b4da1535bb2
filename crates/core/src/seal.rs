//! Seals: how a store notices that a row is not what was written.
//!
//! A flipped bit, a half-restored backup or a stray `UPDATE` must end in an error that a person
//! sees: never in a replay of a wrong answer and never in a fresh run. Every row therefore
//! carries two seals, one over what the claim wrote and one over the answer.
//!
//! Not sealed, because the store's own clock writes them in SQL: the fence while running, the
//! lease and the retention times. A wrong lease ends in a takeover that the fence makes safe, a
//! wrong retention in a record that lives too short or too long. The state and the send mark
//! have codes that one flipped bit cannot turn into one another. And a store that cannot find a
//! row any more because its *index* is damaged cannot be helped by a seal inside the row; that
//! is what `PRAGMA integrity_check` and its relatives are for.
//!
//! A seal is no protection against somebody who writes to the database on purpose. That is what
//! encryption at rest with associated data is for.

use std::fmt;

use crate::fingerprint::{Fingerprint, Places};
use crate::key_id::KeyId;
use crate::policy::Class;
use crate::preimage::Domain;
use crate::record::{Lease, Origin, Owner, Record, State};
use crate::saved::Outcome;

/// The format of records that this version writes. A store keeps it beside every record and
/// refuses records of a format that it does not know, instead of guessing.
pub const RECORD_FORMAT: u8 = 1;

static CLAIM_SEAL: Domain = Domain::new("oncekey/claim-seal", RECORD_FORMAT);
static ANSWER_SEAL: Domain = Domain::new("oncekey/answer-seal", RECORD_FORMAT);

/// A digest over the parts of a stored record that must not change by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seal([u8; 16]);

impl Seal {
    /// A seal that was stored.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The digest.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Seals what a claim writes.
    #[must_use]
    pub fn of_claim(
        id: &KeyId,
        owner: &Owner,
        fingerprint: &Fingerprint,
        class: Class,
        about: (&Origin, &Places),
    ) -> Self {
        let (origin, places) = about;
        let mut preimage = CLAIM_SEAL.start(None);
        preimage.tag(fingerprint.version());
        preimage.tag(class.code());
        preimage.field(id.as_bytes());
        preimage.field(owner.as_bytes());
        preimage.field(fingerprint.digest());
        for text in [&origin.key, &origin.scope, &origin.route, &origin.request] {
            preimage.field(text.as_bytes());
        }
        preimage.field(places.as_encoded());
        Self(preimage.first_half())
    }

    /// Seals what a completion writes. Binds the answer to its key and attempt, so that an answer
    /// that ended up in another row is noticed. `given` is the digest of the answer as it was
    /// given at completion, `stands` that of what is stored now: they part when an answer is
    /// stripped or erased. Digests instead of the answer itself, so that a body is hashed once.
    #[must_use]
    pub fn of_answer(lease: &Lease, given: &Outcome, stands: &Outcome) -> Self {
        let mut preimage = ANSWER_SEAL.start(None);
        preimage.field(lease.id.as_bytes());
        preimage.field(lease.owner.as_bytes());
        preimage.field(&lease.fence.number().to_be_bytes());
        preimage.field(given.as_bytes());
        preimage.field(stands.as_bytes());
        Self(preimage.first_half())
    }

    /// The claim seal that `record` must have.
    #[must_use]
    pub fn expected_of_claim(record: &Record) -> Self {
        let about = (&record.origin, &record.places);
        Self::of_claim(&record.id, &record.owner, &record.fingerprint, record.class, about)
    }

    /// The answer seal that `record` must have; `None` while there is no answer.
    #[must_use]
    pub fn expected_of_answer(record: &Record) -> Option<Self> {
        match &record.state {
            State::Done { outcome, answer, .. } => {
                Some(Self::of_answer(&record.lease(), outcome, &answer.outcome()))
            }
            State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => None,
        }
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(out, "Seal({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}
