//! Records that come from elsewhere: a copy from another store, or what a node still knows after
//! its store has lost it.
//!
//! A restored record is written as it is, with its fence, its owner and its times. It never takes
//! anything back: what the store holds already and is at least as new stays.

use std::fmt;

use async_trait::async_trait;

use crate::decide::{Phase, Standing};
use crate::record::{Fence, Origin, Record, Sent, State, Text};
use crate::saved::Answer;
use crate::store::{ErrorKind, MAX_BODY, MAX_HEADERS, MAX_TEXT, Store, StoreError};

/// A store that takes records that were made elsewhere, and knows which store it is.
#[async_trait]
pub trait Restore: Store {
    /// Writes `record` as it is, unless the store holds one that is at least as new: then nothing
    /// changes. The decision is exactly [`supersedes`], in the same atomic step as the write.
    ///
    /// Afterwards every fence that is granted for this key is higher than the record's. Repeating
    /// it is harmless.
    ///
    /// # Errors
    /// As for every write of a store. A record that [`check`] does not let through, or that breaks
    /// a limit of the store, is [`Rejected`](crate::ErrorKind::Rejected).
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError>;

    /// Which store this is, and which life of it. As long as nobody restored a backup, promoted a
    /// replica or emptied it, the answer stays the same.
    ///
    /// Whoever asks relies on the answer. So from the first question on, a store that can tell
    /// grants nothing in another life before [`adopt`](Self::adopt).
    async fn lineage(&self) -> Result<Lineage, StoreError>;

    /// Accepts the life that the store is in now, or, if the store remembers it, the one that
    /// [`lineage`](Self::lineage) told last: a further one that nobody has looked at is not accepted.
    ///
    /// A store that notices that it has begun another life grants nothing until somebody has seen to
    /// what was lost and calls this. A store that cannot notice by itself has nothing to accept.
    async fn adopt(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// What came of a restoration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Restored {
    /// The record stands as it was given.
    Written,
    /// The store holds one that is at least as new.
    Kept,
}

/// Which store it is, and which life of it. Only equality means anything.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Lineage(String);

/// The highest fence that a restored record may have: the year 2112, as a clock reading. A fence
/// is a clock reading that nobody ever lowers again, and one at the end of the numbers would leave
/// no higher one to grant, for any key of the store. Some stores count with doubles, whose numbers
/// end at 2^53: half of that leaves as much room as anybody needs.
pub const MAX_FENCE: i64 = 1 << 52;

/// Whether `record` is newer than what was found under its key id.
///
/// A higher fence is newer. Under the same fence a send mark is newer than none, an unknown outcome
/// is newer than an attempt under way, and an end is newer than all of them: no record ever goes
/// back. Without the send mark in this order, work that was copied a moment before it was sent
/// would be sent again.
#[must_use]
pub fn supersedes(record: &Record, found: Option<Standing>) -> bool {
    let Some(found) = found else { return true };
    let given = Standing::from(record);
    (given.fence, progress(given.phase)) > (found.fence, progress(found.phase))
}

/// Checks what the type system cannot. Every store calls it before it restores anything.
///
/// # Errors
/// [`ErrorKind::Rejected`] if a text, the body or the header lines are larger than any store takes,
/// if the fence is above [`MAX_FENCE`], or if an answer does not fit its times or its digest.
pub fn check(record: &Record) -> Result<(), StoreError> {
    let Origin { key, scope, route, request } = &record.origin;
    let is_long = |text: &&Text| text.as_bytes().len() > MAX_TEXT;
    if [key, scope, route, request].iter().any(is_long) {
        return Err(rejected(&format!("a text of more than {MAX_TEXT} bytes")));
    }
    if record.fence > Fence::from_number(MAX_FENCE).unwrap_or(record.fence) {
        return Err(rejected("a fence that no clock has come to"));
    }
    let State::Done { expires, forget, outcome, answer, .. } = &record.state else {
        return Ok(());
    };
    if forget < expires {
        return Err(rejected("an end at which it is forgotten before it expires"));
    }
    let Answer::Kept(saved) = answer else { return Ok(()) };
    if saved.body.len() > MAX_BODY {
        return Err(rejected(&format!("a body of more than {MAX_BODY} bytes")));
    }
    if saved.headers.encoded_len() > MAX_HEADERS {
        return Err(rejected(&format!("a header block of more than {MAX_HEADERS} bytes")));
    }
    if answer.outcome() != *outcome {
        return Err(rejected("an answer that is not the one it was completed with"));
    }
    Ok(())
}

fn rejected(what: &str) -> StoreError {
    StoreError::new(ErrorKind::Rejected, format!("a record with {what} is not restored"))
}

const fn progress(phase: Phase) -> u8 {
    match phase {
        Phase::Running(Sent::No) => 0,
        Phase::Running(Sent::Yes) => 1,
        Phase::Parked | Phase::Unknown => 2,
        Phase::Done(_) => 3,
    }
}

impl Lineage {
    /// A lineage by its text. The text holds no secret: it is logged when it changes.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Lineage({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::fingerprint::{Fingerprint, Places};
    use crate::key_id::KeyId;
    use crate::policy::Class;
    use crate::record::Owner;
    use crate::saved::{NotKept, Tombstone};

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn record(fence: i64, state: State) -> Record {
        Record {
            id: KeyId::from_bytes([7; 32]),
            fence: Fence::from_number(fence).expect("a fence"),
            owner: Owner::from_bytes([1; 16]),
            fingerprint: Fingerprint::from_parts(1, [1; 32]),
            class: Class::Once,
            created: NOW,
            origin: Origin::default(),
            places: Places::default(),
            state,
        }
    }

    /// From the least to the furthest; the two in the middle are equally far.
    fn states() -> [(u8, State); 5] {
        let answer = Answer::Tombstone(Tombstone { status: None, reason: NotKept::TooLarge });
        let outcome = answer.outcome();
        [
            (0, State::Running { until: NOW, sent: Sent::No }),
            (1, State::Running { until: NOW, sent: Sent::Yes }),
            (2, State::Unknown { since: NOW }),
            (2, State::Parked { since: NOW }),
            (3, State::Done { at: NOW, expires: NOW, forget: NOW, outcome, answer }),
        ]
    }

    /// I2, I11, I15: no record ever goes back, whatever is restored over it.
    #[test]
    fn only_what_is_further_supersedes() {
        for (far, given) in states() {
            assert!(supersedes(&record(5, given.clone()), None));
            for (reached, found) in states() {
                let found = Some(Standing::from(&record(5, found)));
                assert_eq!(supersedes(&record(5, given.clone()), found), far > reached);
                assert!(supersedes(&record(6, given.clone()), found));
                assert!(!supersedes(&record(4, given.clone()), found));
            }
        }
    }

    #[test]
    fn a_fence_at_the_end_of_the_numbers_is_rejected() {
        let (_, state) = states()[0].clone();
        assert!(check(&record(MAX_FENCE, state.clone())).is_ok());
        for fence in [MAX_FENCE + 1, i64::MAX] {
            let error = check(&record(fence, state.clone())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected);
        }
    }
}
