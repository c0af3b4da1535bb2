//! How attempts end: an answer, a tombstone, a release, or nobody knows.

use bytes::Bytes;

use super::rig::Rig;
use super::scene::{Bits, LEASE, MOMENT, Probe, completion};
use crate::decide::{Grant, Refusal};
use crate::policy::Class;
use crate::record::{Record, State};
use crate::saved::{Answer, Headers, NotKept, Saved, Tombstone};
use crate::store::{Claim, Renewal, Store, Write};

/// What was saved is replayed byte for byte, whatever it is: I12.
pub async fn a_replay_equals_what_was_saved(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for (what, saved) in odd_answers() {
        let claim = bits.claim();
        let answer = Answer::Kept(saved);
        let lease = store.finish(&claim, &completion(answer.clone())).await;
        let lost = store.lose(&bits.rival(&claim), "work that is done is not done again").await;
        assert_eq!(lost.refusal, Refusal::Replay, "{what}: work that is done replays");
        assert_eq!(kept(&lost.record), Some(&answer), "{what}: a replay equals what was saved");
        let record = store.record(&claim.id, "the answer is on record").await;
        assert_eq!(record, lost.record, "{what}: whoever reads it sees the same");
        assert!(record.is_held_by(&lease), "{what}: the record is the one that ran");
        let State::Done { outcome, .. } = record.state else { panic!("done work is done") };
        assert_eq!(outcome, answer.outcome(), "{what}: the digest is that of the answer");
    }
}

/// Work without a kept answer never runs again, and says why there is none: I18.
pub async fn every_tombstone_comes_back_as_it_was_written(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for reason in NotKept::ALL {
        for status in [None, Some(0), Some(200), Some(u16::MAX)] {
            let claim = bits.claim();
            let answer = Answer::Tombstone(Tombstone { status, reason });
            store.finish(&claim, &completion(answer.clone())).await;
            let promise = "work without an answer is not done again";
            store.refused(&bits.rival(&claim), Refusal::NotRetained, promise).await;
            let record = store.record(&claim.id, "the tombstone is on record").await;
            let State::Done { outcome, answer: stands, .. } = record.state else {
                panic!("a tombstone is done")
            };
            assert_eq!(stands, answer, "a tombstone comes back as it was written");
            assert_eq!(outcome, answer.outcome(), "its digest is that of what was given");
        }
    }
}

/// A completion whose acknowledgement was lost is repeated and changes nothing: I5, I17.
pub async fn a_repeated_completion_is_applied_and_changes_nothing(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let first = bits.completion();
    let lease = store.finish(&claim, &first).await;
    rig.advance(MOMENT).await;
    let before = store.record(&claim.id, "the answer is on record").await;
    let mut again = first.clone();
    assert_eq!(store.complete(&lease, &again).await, Write::Applied, "the same answer again");
    // The answer is what counts: a repetition with other times moves no expiry.
    again.retention *= 7;
    assert_eq!(store.complete(&lease, &again).await, Write::Applied, "the same answer again");
    let after = store.record(&claim.id, "the answer is on record").await;
    assert_eq!(after, before, "a repeated completion changes nothing, its times included");
}

/// Another answer never replaces the one that stands: I11, I17.
pub async fn another_answer_never_replaces_the_one_that_stands(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let first = bits.completion();
    let lease = store.finish(&claim, &first).await;
    let before = store.record(&claim.id, "the answer is on record").await;
    let mut others = vec![bits.answer()];
    others.push(Answer::Tombstone(Tombstone { status: Some(201), reason: NotKept::TooLarge }));
    if let Answer::Kept(saved) = &first.answer {
        others.push(Answer::Kept(Saved { status: 202, ..saved.clone() }));
        others.push(Answer::Kept(Saved { headers: Headers::new(), ..saved.clone() }));
        others.push(Answer::Kept(Saved { body: Bytes::new(), ..saved.clone() }));
    }
    for other in others {
        let write = store.complete(&lease, &completion(other)).await;
        assert_eq!(write, Write::Fenced, "another answer is refused");
        let after = store.record(&claim.id, "the answer is on record").await;
        assert_eq!(after, before, "the answer that stands does not change");
    }
}

/// A recorded answer never changes, whatever else is tried and however much time goes by: I11.
pub async fn a_recorded_answer_never_changes(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.finish(&claim, &bits.completion()).await;
    for round in 0..4_u32 {
        let before = store.record(&claim.id, "the answer is on record").await;
        assert_eq!(store.send(&lease).await, Write::Fenced, "what is done is not sent");
        assert_eq!(store.unknown(&lease).await, Write::Fenced, "what is done is not unknown");
        assert_eq!(store.release(&lease).await, Write::Fenced, "what is done is not released");
        let renewal = store.renew(&[lease], LEASE).await;
        assert_eq!(renewal, [Renewal::Lost], "what is done is not renewed");
        let mut rival = bits.rival(&claim);
        rival.class = Class::Retry;
        let replayed = store.refused(&rival, Refusal::Replay, "what is done replays").await;
        assert_eq!(replayed, before, "the loser sees what stands");
        let own = store.refused(&claim, Refusal::Replay, "also to its owner").await;
        assert_eq!(own, before, "the owner sees what stands");
        store.refused(&bits.impostor(&claim), Refusal::Mismatch, "another request").await;
        assert_eq!(store.purge(100).await.total(), 0, "nothing is due");
        let after = store.record(&claim.id, "the answer is on record").await;
        assert_eq!(after, before, "a recorded answer never changes");
        rig.advance(LEASE * (round + 1)).await;
    }
}

/// A released key is free: the next claim runs, with a higher fence: I2, I16.
pub async fn a_released_key_is_free(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.send(&lease).await, Write::Applied, "the owner sends");
    // The caller vouches that nothing happened: the store does not look at the send mark.
    assert_eq!(store.release(&lease).await, Write::Applied, "the owner gives its key back");
    assert_eq!(store.get(&claim.id).await, None, "a released record is gone");
    assert_eq!(store.release(&lease).await, Write::Fenced, "what is gone cannot be released");
    // Even another request may use it: nothing ever happened under this key.
    let next = store.win(&bits.impostor(&claim), Grant::Fresh, "a released key is fresh").await;
    assert!(next.fence > lease.fence, "the next fence is higher");
}

/// Unknown work is held until somebody knows, unless both classes say it may be repeated: I15.
pub async fn an_unknown_outcome_is_held_unless_it_may_be_repeated(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let again = |class| matches!(class, Class::Keyed | Class::Retry);
    for then in Class::ALL {
        for now in Class::ALL {
            let claim = bits.claim_as(then);
            let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
            assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
            let before = store.record(&claim.id, "the doubt is on record").await;
            assert!(matches!(before.state, State::Unknown { .. }), "it is on record as unknown");
            let mut rival = bits.rival(&claim);
            rival.class = now;
            let case = format!("unknown under {then:?}, asked by {now:?}");
            if again(then) && again(now) {
                let newer = store.win(&rival, Grant::TakenOver, &case).await;
                assert!(newer.fence > lease.fence, "{case}: a takeover has a higher fence");
            } else {
                let record = store.refused(&rival, Refusal::Unknown, &case).await;
                assert_eq!(record, before, "{case}: a refused claim changes nothing");
            }
        }
    }
}

/// Whoever learns what became of unknown work completes it on the owner's behalf: I15.
pub async fn an_unknown_outcome_is_resolved_by_completion(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    doubtful(&store, &claim).await;
    rig.advance(LEASE * 1_000).await;
    let found = store.record(&claim.id, "unknown work stays on record").await;
    let completion = bits.completion();
    let write = store.complete(&found.lease(), &completion).await;
    assert_eq!(write, Write::Applied, "a reconciler completes what it found out");
    let promise = "resolved work replays";
    let record = store.refused(&bits.rival(&claim), Refusal::Replay, promise).await;
    assert_eq!(kept(&record), Some(&completion.answer), "{promise}");
}

/// Whoever learns that nothing happened releases it, and the key runs again: I15, I16.
pub async fn an_unknown_outcome_is_resolved_by_release(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    doubtful(&store, &claim).await;
    let found = store.record(&claim.id, "unknown work stays on record").await;
    let write = store.release(&found.lease()).await;
    assert_eq!(write, Write::Applied, "a reconciler releases what never happened");
    let next = store.win(&bits.rival(&claim), Grant::Fresh, "a released key is fresh").await;
    assert!(next.fence > found.fence, "the next fence is higher");
}

/// Unknown work is not running: it is neither sent nor renewed, and marking it twice is harmless.
pub async fn an_unknown_outcome_is_not_running(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    doubtful(&store, &claim).await;
    let before = store.record(&claim.id, "the doubt is on record").await;
    rig.advance(MOMENT).await;
    let lease = before.lease();
    let before = store.record(&claim.id, "the doubt is on record").await;
    assert_eq!(store.send(&lease).await, Write::Fenced, "unknown work is not sent");
    assert_eq!(store.renew(&[lease], LEASE).await, [Renewal::Lost], "unknown work is not renewed");
    assert_eq!(store.unknown(&lease).await, Write::Applied, "not knowing twice is harmless");
    let after = store.record(&claim.id, "the doubt is on record").await;
    assert_eq!(after, before, "unknown work stays as it is, its time included");
}

/// Claims a key and does not know what became of it.
async fn doubtful<S: Store>(store: &Probe<S>, claim: &Claim) {
    let lease = store.win(claim, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.send(&lease).await, Write::Applied, "the owner sends");
    assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
}

fn kept(record: &Record) -> Option<&Answer> {
    match &record.state {
        State::Done { answer, .. } => Some(answer),
        State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => None,
    }
}

/// Answers that a careless store would bend.
fn odd_answers() -> Vec<(&'static str, Saved)> {
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let mut lines = Headers::new();
    let odd: [(&[u8], &[u8]); 8] = [
        (b"set-thing", b"a=1, b=2"),
        (b"Set-Thing", b"a=1"),
        (b"set-thing", b"a=1"),
        (b"x-empty", b""),
        (b"x-spaces", b"  two before, two after  "),
        (b"x-obs-text", b"\x80\xff caf\xc3\xa9 \t tab"),
        (b"x-quotes", b"\"'\\ %s $1 ? :name"),
        (b"a", b"the first in the alphabet comes last"),
    ];
    for (name, value) in odd {
        lines.push(name, value).expect("every one of these lines may stand in a message");
    }
    let plain = |status, body: Bytes| Saved { status, headers: Headers::new(), body };
    let large: Vec<u8> = every_byte.iter().copied().cycle().take(1024 * 1024).collect();
    vec![
        ("every byte", plain(200, Bytes::from(every_byte))),
        ("an empty body", plain(204, Bytes::new())),
        ("a mebibyte", plain(200, Bytes::from(large))),
        (
            "odd header lines",
            Saved { status: 200, headers: lines, body: Bytes::from_static(b"{}") },
        ),
        ("the lowest status", plain(100, Bytes::from_static(b"\0"))),
        ("the highest status", plain(999, Bytes::from_static(b"\xff\xfe"))),
        ("a number that is no status", plain(u16::MAX, Bytes::from_static(b" trailing space "))),
        ("status zero", plain(0, Bytes::from_static(b"NULL"))),
    ]
}
