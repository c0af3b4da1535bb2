//! Blanking what is personal in a record, and nothing else.
//!
//! Somebody asks to be forgotten, and the law is on their side. But the work was done, and it must
//! not be done again because its record went. So an erased record loses whom it was for and what
//! was answered, and keeps everything that refuses a second run: its key id, fingerprint, fence,
//! owner, times and the digest of its answer.
//!
//! What stays are digests. Whoever can guess a key, a scope or a request can still check the guess
//! against them, unless they were made with a [`Pepper`](crate::key::Pepper).

use async_trait::async_trait;

use crate::fingerprint::Places;
use crate::key_id::KeyId;
use crate::record::{Record, State, Text};
use crate::saved::{Answer, NotKept, Tombstone};
use crate::store::{Store, StoreError};

/// A store that can blank what is personal in a record.
///
/// # Contract
///
/// Everything that [`Store`] promises about atomicity, durability and crashes holds here too. An
/// erasure carries no lease, because it changes nothing that a lease protects.
///
/// `Ok` means that the content is gone from everything that the store itself keeps: its tables, its
/// indexes and its journals, as far as its documentation says. What was copied elsewhere, to a
/// backup, a replica or a cache above the store, is the business of whoever copied it.
#[async_trait]
pub trait Erase: Store {
    /// Blanks what is personal in the record of a key, in whatever state it is.
    ///
    /// The change is exactly [`blank`], in one atomic step. The record is never reopened: its state,
    /// fence, owner, class, fingerprint, times, route, request id and the digest of its answer stay,
    /// so it refuses, expires and is forgotten as it would have been. A repeated completion is still
    /// recognised, and brings no answer back.
    ///
    /// A record that is not finished keeps its owner, who does not notice. Its answer, and the
    /// origin of an attempt that takes over, may still come: erase it again when it has ended. A
    /// record that may be forgotten is absent; if it is still there, it is removed.
    ///
    /// # Errors
    ///
    /// After any error, ask again: erasing twice is erasing once. [`Corrupt`] means that the record
    /// is damaged. It is left as it is, because new seals would hide the damage.
    ///
    /// # Cancellation
    ///
    /// As for every method of a store: it happens as a whole or not at all, now or later.
    ///
    /// [`Corrupt`]: crate::store::ErrorKind::Corrupt
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError>;
}

/// What is there after an erasure.
///
/// Says what stands, not what was done: so a repetition, and a caller whose acknowledgement was
/// lost, hear the same as the first.
#[must_use = "an unfinished record must be erased again"]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Erased {
    /// A finished record without anything personal in it, for good.
    Blank,
    /// A record without anything personal in it, but its work has not ended: an answer may still
    /// come.
    Unfinished,
    /// No record.
    Absent,
}

/// Blanks what is personal in `record`: the key and the scope as they were sent, the places of the
/// request, and the answer.
///
/// This is the one place that says what erasing leaves. Stores carry it out and write new seals.
/// An answer that has made way for a tombstone that says [`NotKept::Expired`] is gone already, and
/// the tombstone goes on saying so.
pub fn blank(record: &mut Record) -> Erased {
    let Record { origin, places, state, .. } = record;
    origin.key = Text::default();
    origin.scope = Text::default();
    *places = Places::default();
    match state {
        State::Done { answer: Answer::Tombstone(stands), .. }
            if stands.reason == NotKept::Expired =>
        {
            Erased::Blank
        }
        State::Done { answer, .. } => {
            let status = answer.status();
            *answer = Answer::Tombstone(Tombstone { status, reason: NotKept::Erased });
            Erased::Blank
        }
        State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => Erased::Unfinished,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::clock::Timestamp;
    use crate::fingerprint::{Fingerprint, FingerprintRules, Subject};
    use crate::policy::Class;
    use crate::record::{Fence, Origin, Owner, Sent};
    use crate::saved::{Headers, Saved};

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn record(state: State) -> Record {
        let subject = Subject {
            method: "POST",
            path: b"/",
            query: None,
            content_type: None,
            headers: &[],
            body: b"amount=1",
        };
        let (fingerprint, places) = Fingerprint::v1(&subject, &FingerprintRules::default());
        assert_ne!(places, Places::default());
        Record {
            id: KeyId::from_bytes([7; 32]),
            fence: Fence::next(None, NOW),
            owner: Owner::from_bytes([1; 16]),
            fingerprint,
            class: Class::Once,
            created: NOW,
            origin: Origin {
                key: "key".into(),
                scope: "scope".into(),
                route: "route".into(),
                request: "request".into(),
            },
            places,
            state,
        }
    }

    fn done(answer: Answer) -> State {
        let outcome = answer.outcome();
        State::Done { at: NOW, expires: NOW, forget: NOW, outcome, answer }
    }

    fn tombstone(status: Option<u16>, reason: NotKept) -> Answer {
        Answer::Tombstone(Tombstone { status, reason })
    }

    /// I11, I55: in every state exactly the personal part goes.
    #[test]
    fn blanking_takes_what_is_personal_and_leaves_the_rest() {
        let saved = Saved { status: 201, headers: Headers::new(), body: Bytes::from("ok") };
        let kept = done(Answer::Kept(saved));
        let State::Done { outcome, .. } = kept else { unreachable!("it is done") };
        let answer = tombstone(Some(201), NotKept::Erased);
        let without = State::Done { at: NOW, expires: NOW, forget: NOW, outcome, answer };
        let open = [
            State::Running { until: NOW, sent: Sent::Yes },
            State::Unknown { since: NOW },
            State::Parked { since: NOW },
        ];
        let mut rows = vec![(kept, without, Erased::Blank)];
        rows.extend(open.map(|state| (state.clone(), state, Erased::Unfinished)));
        for (before, after, said) in rows {
            let mut found = record(before);
            assert_eq!(blank(&mut found), said);
            let Record { origin, places, .. } = record(after.clone());
            let origin = Origin { key: Text::default(), scope: Text::default(), ..origin };
            assert_ne!(places, Places::default());
            assert_eq!(found, Record { origin, places: Places::default(), ..record(after) });
            let once = found.clone();
            assert_eq!((blank(&mut found), &found), (said, &once), "twice is once");
        }
    }

    /// Whatever stood for the answer before, it was erased; but what has expired has expired.
    #[test]
    fn every_tombstone_but_an_expired_one_says_that_it_was_erased() {
        for reason in NotKept::ALL {
            let mut found = record(done(tombstone(Some(500), reason)));
            assert_eq!(blank(&mut found), Erased::Blank);
            let expected = match reason {
                NotKept::Expired => NotKept::Expired,
                NotKept::TooLarge
                | NotKept::Streamed
                | NotKept::Upgraded
                | NotKept::StatusOnly
                | NotKept::Erased
                | NotKept::Lost => NotKept::Erased,
            };
            let State::Done { answer, .. } = found.state else { panic!("it was done") };
            assert_eq!(answer, tombstone(Some(500), expected));
        }
    }
}
