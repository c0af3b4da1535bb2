//! Records as another store made them.

use bytes::Bytes;

use super::scene::{Bits, LEASE, LINGER, Probe, RETENTION};
use crate::clock::Timestamp;
use crate::decide::Grant;
use crate::erase::blank;
use crate::record::{Fence, Record, Sent, State};
use crate::saved::{Answer, Headers, NotKept, Saved, Tombstone};
use crate::store::{Claim, Store, Write};

/// The store's clock, as a claim tells it. The key is given back.
pub(super) async fn now_of<S: Store>(store: &Probe<S>, bits: &mut Bits) -> Timestamp {
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    let now = store.record(&claim.id, "it is on record").await.created;
    assert_eq!(store.release(&lease).await, Write::Applied, "the owner gives up");
    now
}

/// The record of an attempt that was granted elsewhere at `now`.
pub(super) fn record(claim: &Claim, now: Timestamp, state: State) -> Record {
    Record {
        id: claim.id,
        fence: Fence::next(None, now),
        owner: claim.owner,
        fingerprint: claim.fingerprint,
        class: claim.class,
        created: now,
        origin: claim.origin.clone(),
        places: claim.places.clone(),
        state,
    }
}

pub(super) fn done(at: Timestamp, answer: Answer) -> State {
    let expires = at.after(RETENTION);
    let outcome = answer.outcome();
    State::Done { at, expires, forget: expires.after(LINGER), outcome, answer }
}

/// A record in every state, with a key of its own each.
pub(super) fn one_of_each(bits: &mut Bits, now: Timestamp) -> Vec<(Claim, Record)> {
    let until = now.after(LEASE);
    let mut states = vec![
        State::Running { until, sent: Sent::No },
        State::Running { until, sent: Sent::Yes },
        State::Unknown { since: now },
        State::Parked { since: now },
        done(now, bits.answer()),
        done(now, large(bits, 40_000)),
    ];
    for (status, reason) in [Some(418), None].into_iter().flat_map(|s| NotKept::ALL.map(|r| (s, r)))
    {
        states.push(done(now, Answer::Tombstone(Tombstone { status, reason })));
        // Its answer was kept once, and has made way.
        let State::Done { at, expires, forget, outcome, .. } = done(now, bits.answer()) else {
            unreachable!("it is done")
        };
        let answer = Answer::Tombstone(Tombstone { status, reason });
        states.push(State::Done { at, expires, forget, outcome, answer });
    }
    let whole = states.into_iter().map(|state| {
        let claim = bits.claim();
        (claim.clone(), record(&claim, now, state))
    });
    let mut records: Vec<_> = whole.collect();
    let claim = bits.claim();
    let mut erased = record(&claim, now, done(now, bits.answer()));
    let _ = blank(&mut erased);
    records.push((claim, erased));
    records
}

/// An answer with a body of so many times eight bytes.
pub(super) fn large(bits: &mut Bits, words: usize) -> Answer {
    let mut headers = Headers::new();
    headers.push(b"x-number", bits.next().to_string().as_bytes()).expect("digits are a value");
    let body: Vec<u8> = (0..words).flat_map(|_| bits.next().to_le_bytes()).collect();
    Answer::Kept(Saved { status: 200, headers, body: Bytes::from(body) })
}

pub(super) fn answer_of(record: &Record) -> Option<&Answer> {
    match &record.state {
        State::Done { answer, .. } => Some(answer),
        State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => None,
    }
}
