//! How long finished records answer, and what is removed when.

use std::time::Duration;

use super::rig::Rig;
use super::scene::{Bits, GRACE, LEASE, LINGER, MOMENT, Probe, RETENTION, completion};
use crate::decide::{Grant, Refusal};
use crate::record::{Record, State};
use crate::saved::{Answer, NotKept, Tombstone};
use crate::store::{Claim, Completion, Purged, Store, Write};

/// Retention counts from completion, however long the work took: I27.
pub async fn retention_counts_from_completion(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    // The work takes longer than its answer will be kept.
    for _ in 0..3 {
        rig.advance(RETENTION).await;
        let renewed = store.renew(&[lease], LEASE).await;
        assert_eq!(renewed.len(), 1, "one answer for each lease");
    }
    let done = Completion { linger: Duration::ZERO, ..bits.completion() };
    assert_eq!(store.complete(&lease, &done).await, Write::Applied, "the owner completes");
    rig.advance(RETENTION - MOMENT).await;
    let promise = "an answer is kept for its whole retention, from completion on";
    store.refused(&bits.rival(&claim), Refusal::Replay, promise).await;
    rig.advance(MOMENT * 2).await;
    store.win_anew(&bits.rival(&claim), "after that the key is free").await;
}

/// A record tells when it was completed, until when it answers and when it may be forgotten.
pub async fn a_finished_record_tells_its_times(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.advance(LEASE / 2).await;
    assert_eq!(store.complete(&lease, &bits.completion()).await, Write::Applied, "it completes");
    let lost = store.lose(&bits.rival(&claim), "done work replays").await;
    let State::Done { at, expires, forget, .. } = lost.record.state else {
        panic!("done work is done")
    };
    assert_eq!(expires, at.after(RETENTION), "it answers for its retention");
    assert_eq!(forget, expires.after(LINGER), "it lingers for as long as was asked");
    assert!(at.since(lost.now) < MOMENT && lost.now.since(at) < MOMENT, "it was completed now");
    let took = at.since(lost.record.created).abs_diff(LEASE / 2);
    assert!(took < MOMENT, "it was created when it was claimed");
}

/// Between expiry and oblivion a late retry is told that it is too late; then the key is free: I27.
pub async fn a_lingering_record_says_that_it_is_too_late(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let kept = bits.claim();
    store.finish(&kept, &bits.completion()).await;
    let tomb = bits.claim();
    let reason = NotKept::Streamed;
    let tombstone = Answer::Tombstone(Tombstone { status: Some(200), reason });
    store.finish(&tomb, &completion(tombstone)).await;
    for purged in [false, true] {
        rig.advance(if purged { LINGER - MOMENT * 2 } else { RETENTION + MOMENT }).await;
        if purged {
            store.purge(100).await;
        }
        for claim in [&kept, &tomb] {
            let promise = "an expired record says that it is too late, purged or not";
            store.refused(&bits.rival(claim), Refusal::Expired, promise).await;
            store.refused(claim, Refusal::Expired, "also to its owner").await;
            store.refused(&bits.impostor(claim), Refusal::Mismatch, "another request").await;
        }
    }
    rig.advance(MOMENT * 2).await;
    for claim in [&kept, &tomb] {
        store.win_anew(&bits.rival(claim), "a forgotten record stands in nobody's way").await;
    }
}

/// A forgotten record is absent for everybody, even if it was not removed yet: I27.
pub async fn a_forgotten_record_is_absent_before_it_is_removed(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let answered = bits.completion();
    let lease = store.finish(&claim, &answered).await;
    rig.advance(RETENTION + LINGER + MOMENT).await;
    assert_eq!(store.get(&claim.id).await, None, "a forgotten record is not there to be read");
    // Another request may have the key now: the generation before is forgotten.
    let next = store.win_anew(&bits.impostor(&claim), "a forgotten key is free").await;
    assert!(next.fence > lease.fence, "a new generation has a higher fence");
    let write = store.complete(&lease, &answered).await;
    assert_eq!(write, Write::Fenced, "the old generation's owner is outdated");
    let record = store.record(&claim.id, "the new generation is on record").await;
    assert!(record.is_held_by(&next), "the new generation is untouched");
}

/// Running and unknown records never expire, however long they take: I28.
pub async fn running_and_unknown_records_never_expire(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let (running, sent, unknown) = (bits.claim(), bits.claim(), bits.claim());
    let mut leases = Vec::new();
    for claim in [&running, &sent, &unknown] {
        leases.push(store.win(claim, Grant::Fresh, "a fresh key is granted").await);
    }
    assert_eq!(store.send(&leases[1]).await, Write::Applied, "the owner sends");
    assert_eq!(store.unknown(&leases[2]).await, Write::Applied, "the owner does not know");
    rig.advance(RETENTION * 365 * 5).await;
    assert_eq!(store.purge(100).await, Purged::default(), "nothing unfinished is ever due");
    for lease in &leases {
        let record = store.record(&lease.id, "unfinished records stay for ever").await;
        assert!(record.is_held_by(lease), "unfinished records keep their owner");
    }
    store.refused(&bits.rival(&sent), Refusal::Unknown, "what was sent stays in doubt").await;
    store.refused(&bits.rival(&unknown), Refusal::Unknown, "doubts do not expire").await;
    store.win(&bits.rival(&running), Grant::TakenOver, "what was not sent is taken over").await;
    assert_eq!(store.release(&leases[2]).await, Write::Applied, "a doubt can still be resolved");
}

/// A purge removes what is due and nothing else: I27, I29.
pub async fn a_purge_removes_only_what_is_due(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let short = |answer| Completion { answer, retention: RETENTION, linger: Duration::ZERO };
    let mut due = Vec::new();
    for _ in 0..5 {
        let claim = bits.claim();
        let answer = bits.answer();
        store.finish(&claim, &short(answer)).await;
        due.push(claim);
    }
    rig.advance(RETENTION + MOMENT).await;
    let running = bits.claim();
    store.win(&running, Grant::Fresh, "a fresh key is granted").await;
    let unknown = bits.claim();
    let lease = store.win(&unknown, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
    let young = bits.claim();
    let answer = bits.answer();
    store.finish(&young, &short(answer)).await;
    let mut before = Vec::new();
    for claim in [&running, &unknown, &young] {
        before.push(store.record(&claim.id, "it is not due").await);
    }
    let purged = store.purge(1_000).await;
    assert_eq!(purged, Purged { forgotten: 5, stripped: 0 }, "what is due is removed");
    for claim in &due {
        assert_eq!(store.get(&claim.id).await, None, "what is removed is gone");
    }
    for record in before {
        let after = store.record(&record.id, "what is not due stays").await;
        assert_eq!(after, record, "what is not due does not change");
    }
    assert_eq!(store.purge(1_000).await, Purged::default(), "nothing is removed twice");
    for claim in &due {
        store.win(&bits.rival(claim), Grant::Fresh, "a removed key is fresh").await;
    }
}

/// A purge touches no more records than it was allowed to.
pub async fn a_purge_keeps_to_its_limit(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut claims = Vec::new();
    for number in 0..10 {
        let claim = bits.claim();
        let linger = if number % 2 == 0 { Duration::ZERO } else { LINGER };
        store.finish(&claim, &Completion { linger, ..bits.completion() }).await;
        claims.push(claim);
    }
    rig.advance(RETENTION + MOMENT).await;
    assert_eq!(store.purge(0).await, Purged::default(), "a limit of nothing removes nothing");
    let mut total = Purged::default();
    for expected in [4, 4, 2, 0] {
        let purged = store.purge(4).await;
        assert_eq!(purged.total(), expected, "a purge does as much as it may, and no more");
        total.forgotten += purged.forgotten;
        total.stripped += purged.stripped;
    }
    assert_eq!(total, Purged { forgotten: 5, stripped: 5 }, "everything that was due is done");
}

/// A purge strips lingering records of their answer and keeps the fact that the work ran: I11, I18.
pub async fn a_purge_strips_lingering_records(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let answered = bits.completion();
    store.finish(&claim, &answered).await;
    rig.advance(RETENTION + MOMENT).await;
    let before = store.record(&claim.id, "an expired record is returned as it stands").await;
    assert_eq!(answer_of(&before), Some(&answered.answer), "it has its answer until the purge");
    assert_eq!(store.purge(100).await, Purged { forgotten: 0, stripped: 1 }, "it is stripped");
    let after = store.record(&claim.id, "a stripped record lingers").await;
    let expired = Tombstone { status: Some(201), reason: NotKept::Expired };
    assert_eq!(answer_of(&after), Some(&Answer::Tombstone(expired)), "a tombstone stays");
    let State::Done { at, expires, forget, outcome, .. } = before.state.clone() else {
        panic!("expired work is done")
    };
    let answer = Answer::Tombstone(expired);
    let stripped = State::Done { at, expires, forget, outcome, answer };
    assert_eq!(after, Record { state: stripped, ..before }, "nothing but the answer is gone");
    assert_eq!(store.purge(100).await, Purged::default(), "nothing is stripped twice");
    rig.advance(LINGER).await;
    assert_eq!(store.purge(100).await, Purged { forgotten: 1, stripped: 0 }, "then it goes");
    assert_eq!(store.get(&claim.id).await, None, "and nothing is left");
}

/// A repeated completion is recognised even when the answer itself was stripped: I5.
pub async fn a_stripped_record_still_recognises_its_completion(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let answered = bits.completion();
    let lease = store.finish(&claim, &answered).await;
    rig.advance(RETENTION + MOMENT).await;
    assert_eq!(store.purge(100).await.stripped, 1, "an expired record is stripped");
    let before = store.record(&claim.id, "a stripped record lingers").await;
    assert_eq!(store.complete(&lease, &answered).await, Write::Applied, "the same answer again");
    let other = bits.completion();
    assert_eq!(store.complete(&lease, &other).await, Write::Fenced, "another answer");
    let tombstone = completion(answer_of(&before).expect("done").clone());
    let write = store.complete(&lease, &tombstone).await;
    assert_eq!(write, Write::Fenced, "the tombstone is not what was given at completion");
    let after = store.record(&claim.id, "a stripped record lingers").await;
    assert_eq!(after, before, "a repeated completion brings no answer back");
}

/// A purge between two generations leaves no trace of the first in the second.
pub async fn a_new_generation_owes_nothing_to_the_old(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let old = store.finish(&claim, &bits.completion()).await;
    rig.advance(RETENTION + LINGER + MOMENT).await;
    let next = Claim { id: claim.id, ..bits.claim() };
    let lease = store.win_anew(&next, "a forgotten key is free").await;
    assert_eq!(store.purge(100).await, Purged::default(), "what was due is in use again");
    let record = store.record(&claim.id, "the new generation runs").await;
    assert_eq!(record.fingerprint, next.fingerprint, "the record is about the new request");
    assert_eq!(record.origin, next.origin, "the record has the new origin");
    let answered = bits.completion();
    assert_eq!(store.complete(&lease, &answered).await, Write::Applied, "the new owner completes");
    rig.advance(RETENTION - MOMENT).await;
    let promise = "the new answer has its own retention";
    let record = store.refused(&bits.rival(&next), Refusal::Replay, promise).await;
    assert_eq!(answer_of(&record), Some(&answered.answer), "{promise}");
    store.fenced_everywhere(&old, &mut bits, "the owner of the old generation").await;
}

/// An endless lease or retention is endless, not an overflow into the past.
pub async fn endless_spans_do_not_overflow(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = Claim { lease: Duration::MAX, ..bits.claim() };
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.advance(LEASE + GRACE).await;
    store.in_progress(&bits.rival(&claim), "an endless lease lives").await;
    let patient = Claim { grace: Duration::MAX, ..bits.rival(&claim) };
    store.in_progress(&patient, "an endless grace is endless").await;
    let endless = Duration::MAX;
    let for_ever = Completion { retention: endless, linger: endless, ..bits.completion() };
    assert_eq!(store.complete(&lease, &for_ever).await, Write::Applied, "the owner completes");
    rig.advance(RETENTION * 365).await;
    assert_eq!(store.purge(100).await, Purged::default(), "what is kept for ever is never due");
    store.refused(&bits.rival(&claim), Refusal::Replay, "what is kept for ever replays").await;
}

/// Another request under a key is a mismatch in every state, until the record is forgotten: I23.
pub async fn another_request_is_a_mismatch_in_every_state(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claims: Vec<Claim> = (0..6).map(|_| bits.claim()).collect();
    let [lapsed, lingering, live, done, tomb, unknown] = &claims[..] else { unreachable!("six") };
    store.win(lapsed, Grant::Fresh, "a fresh key is granted").await;
    store.finish(lingering, &bits.completion()).await;
    rig.advance(RETENTION + MOMENT).await;
    store.win(live, Grant::Fresh, "a fresh key is granted").await;
    store.finish(done, &bits.completion()).await;
    let tombstone = Tombstone { status: None, reason: NotKept::TooLarge };
    store.finish(tomb, &completion(Answer::Tombstone(tombstone))).await;
    let lease = store.win(unknown, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
    mismatches(&store, &claims, &mut bits).await;
    store.purge(100).await;
    mismatches(&store, &claims, &mut bits).await;
}

/// Asks for each key with another request, as its owner and as a stranger.
async fn mismatches<S: Store>(store: &Probe<S>, claims: &[Claim], bits: &mut Bits) {
    for claim in claims {
        let before = store.record(&claim.id, "the first request is on record").await;
        let stranger = bits.impostor(claim);
        for other in [Claim { owner: claim.owner, ..stranger.clone() }, stranger] {
            let promise = format!("another request never runs, waits or replays: {before:?}");
            let record = store.refused(&other, Refusal::Mismatch, &promise).await;
            assert_eq!(record.places, before.places, "the loser can be told where it differs");
            let after = store.record(&claim.id, "the first request is on record").await;
            assert_eq!(after, before, "a mismatch changes nothing");
        }
    }
}

fn answer_of(record: &Record) -> Option<&Answer> {
    match &record.state {
        State::Done { answer, .. } => Some(answer),
        State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => None,
    }
}
