//! Blanking what is personal: what goes, what stays, and who must not notice.

use bytes::Bytes;

use super::rig::Rig;
use super::scene::{Bits, GRACE, LEASE, LINGER, MOMENT, Probe, RETENTION, completion, race};
use crate::browse::{Browse, Filter, Page};
use crate::decide::{Grant, Refusal};
use crate::erase::{Erase, Erased};
use crate::fingerprint::Places;
use crate::policy::Class;
use crate::record::{Origin, Record, Sent, State, Text};
use crate::saved::{Answer, Headers, NotKept, Saved, Tombstone};
use crate::store::{Claim, Completion, Purged, Renewal, Store, Write};

/// An erased answer is never replayed, and its work never runs again: I11, I55.
pub async fn an_erased_answer_is_never_replayed_nor_run_again(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for class in Class::ALL {
        for answered in [bits.completion(), completion(large(&mut bits))] {
            let claim = bits.claim_as(class);
            let lease = store.finish(&claim, &answered).await;
            assert_eq!(erase(&store, &claim).await, Erased::Blank, "finished work is blanked");
            for again in [claim.clone(), bits.rival(&claim)] {
                let promise = "erased work is neither replayed nor run again";
                let record = store.refused(&again, Refusal::NotRetained, promise).await;
                let status = answered.answer.status();
                let erased = Answer::Tombstone(Tombstone { status, reason: NotKept::Erased });
                assert_eq!(answer_of(&record), Some(&erased), "its tombstone says why");
            }
            store.fenced_everywhere(&lease, &mut bits, "the owner of erased work").await;
        }
    }
}

/// Whatever state a record is in, exactly what is personal goes: I11, I55.
pub async fn erasing_takes_what_is_personal_and_leaves_the_rest(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for claim in one_of_each(&store, rig, &mut bits).await {
        let before = store.record(&claim.id, "it is on record").await;
        let said = erase(&store, &claim).await;
        let after = store.record(&claim.id, "an erased record stays").await;
        let is_done = answer_of(&before).is_some();
        assert_eq!(said == Erased::Blank, is_done, "what is finished is blank: {before:?}");
        assert_eq!(after, as_erased(before), "what is personal goes, and nothing else");
    }
}

/// The owner of a running record does not notice that it was erased: I4, I5.
pub async fn erasing_a_running_record_does_not_disturb_its_owner(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for answered in [bits.completion(), completion(large(&mut bits))] {
        let claim = bits.claim();
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        assert_eq!(erase(&store, &claim).await, Erased::Unfinished, "an answer may still come");
        store.in_progress(&bits.rival(&claim), "its lease is respected").await;
        let renewed = store.renew(&[lease], LEASE).await;
        assert!(matches!(renewed[..], [Renewal::Until(_)]), "its lease is renewed: {renewed:?}");
        assert_eq!(store.send(&lease).await, Write::Applied, "it sends");
        assert_eq!(erase(&store, &claim).await, Erased::Unfinished, "an answer may still come");
        let again = store.win(&claim, Grant::Again, "an owner that asks again is known").await;
        assert_eq!(again.fence, lease.fence, "it keeps its fence");
        assert_eq!(store.complete(&lease, &answered).await, Write::Applied, "it completes");
        let promise = "its answer replays";
        let record = store.refused(&bits.rival(&claim), Refusal::Replay, promise).await;
        assert!(answer_of(&record) == Some(&answered.answer), "{promise}");
        assert_eq!(record.origin.key, Text::default(), "what was erased does not come back");
        assert_eq!(erase(&store, &claim).await, Erased::Blank, "and then it can be erased");
    }
}

/// A doubt stays a doubt, and can still be resolved in every way: I15.
pub async fn erasing_resolves_no_doubt(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut held = Vec::new();
    for _ in 0..2 {
        let claim = bits.claim();
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
        assert_eq!(erase(&store, &claim).await, Erased::Unfinished, "an answer may still come");
        store.refused(&bits.rival(&claim), Refusal::Unknown, "a doubt stays").await;
        held.push((claim, lease));
    }
    let [(freed, nothing_happened), (ended, it_happened)] = &held[..] else { unreachable!("two") };
    assert_eq!(store.release(nothing_happened).await, Write::Applied, "resolved by a release");
    store.win(&bits.rival(freed), Grant::Fresh, "a released key is free").await;
    let answered = bits.completion();
    assert_eq!(store.complete(it_happened, &answered).await, Write::Applied, "by a completion");
    store.refused(&bits.rival(ended), Refusal::Replay, "a resolved doubt replays").await;
}

/// An erased record expires, lingers and is forgotten when it would have been: I27.
pub async fn erasing_keeps_the_times(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    store.finish(&claim, &bits.completion()).await;
    rig.advance(RETENTION / 2).await;
    let before = store.record(&claim.id, "the answer is on record").await;
    assert_eq!(erase(&store, &claim).await, Erased::Blank, "finished work is blanked");
    assert_eq!(store.record(&claim.id, "it stays").await, as_erased(before), "its times stay");
    assert_eq!(store.purge(100).await, Purged::default(), "nothing is due");
    rig.advance(RETENTION / 2 - MOMENT).await;
    let promise = "it refuses for the whole retention";
    store.refused(&bits.rival(&claim), Refusal::NotRetained, promise).await;
    rig.advance(MOMENT * 2).await;
    store.refused(&bits.rival(&claim), Refusal::Expired, "then it is too late").await;
    assert_eq!(store.purge(100).await, Purged { forgotten: 0, stripped: 1 }, "it is stripped");
    store.refused(&bits.rival(&claim), Refusal::Expired, "it is still too late").await;
    rig.advance(LINGER).await;
    assert_eq!(store.purge(100).await, Purged { forgotten: 1, stripped: 0 }, "it is forgotten");
    store.win(&bits.rival(&claim), Grant::Fresh, "and its key is free").await;
}

/// What has expired has expired: erasing it says nothing else.
pub async fn an_expired_record_stays_expired_when_it_is_erased(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    store.finish(&claim, &bits.completion()).await;
    rig.advance(RETENTION + MOMENT).await;
    assert_eq!(store.purge(100).await.stripped, 1, "an expired record is stripped");
    assert_eq!(erase(&store, &claim).await, Erased::Blank, "what lingers is blanked");
    let record = store.refused(&bits.rival(&claim), Refusal::Expired, "it is too late").await;
    let expired = Tombstone { status: Some(201), reason: NotKept::Expired };
    assert_eq!(answer_of(&record), Some(&Answer::Tombstone(expired)), "and it says why");
    assert_eq!(store.purge(100).await, Purged::default(), "nothing is stripped twice");
    rig.advance(LINGER).await;
    assert_eq!(store.purge(100).await, Purged { forgotten: 1, stripped: 0 }, "then it goes");
}

/// A repeated completion is recognised after the answer was erased, and brings nothing back: I5.
pub async fn an_erased_record_still_recognises_its_completion(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for answered in [bits.completion(), completion(large(&mut bits))] {
        let claim = bits.claim();
        let lease = store.finish(&claim, &answered).await;
        assert_eq!(erase(&store, &claim).await, Erased::Blank, "finished work is blanked");
        let before = store.record(&claim.id, "an erased record stays").await;
        let write = store.complete(&lease, &answered).await;
        assert_eq!(write, Write::Applied, "the same answer again");
        let other = bits.completion();
        assert_eq!(store.complete(&lease, &other).await, Write::Fenced, "another answer");
        let tombstone = completion(answer_of(&before).expect("done").clone());
        let write = store.complete(&lease, &tombstone).await;
        assert_eq!(write, Write::Fenced, "the tombstone is not what was given at completion");
        let after = store.record(&claim.id, "an erased record stays").await;
        assert_eq!(after, before, "a repeated completion brings no answer back");
    }
}

/// Erasing twice is erasing once, and says the same: I5.
pub async fn erasing_twice_is_erasing_once(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for claim in one_of_each(&store, rig, &mut bits).await {
        let said = erase(&store, &claim).await;
        let once = store.record(&claim.id, "an erased record stays").await;
        assert_eq!(erase(&store, &claim).await, said, "a repetition hears the same");
        let twice = store.record(&claim.id, "an erased record stays").await;
        assert_eq!(twice, once, "a repetition changes nothing");
    }
}

/// Where there is no record, or none any more, there is nothing to erase; and none is made.
pub async fn erasing_an_absent_key_says_so(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let released = bits.claim();
    let lease = store.win(&released, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.release(&lease).await, Write::Applied, "the owner gives up");
    let purged = bits.claim();
    store.finish(&purged, &bits.completion()).await;
    rig.advance(RETENTION + LINGER + MOMENT).await;
    assert_eq!(store.purge(100).await.forgotten, 1, "a forgotten record is removed");
    let forgotten = bits.claim();
    store.finish(&forgotten, &bits.completion()).await;
    rig.advance(RETENTION + LINGER + MOMENT).await;
    for claim in [bits.claim(), released, purged, forgotten] {
        assert_eq!(erase(&store, &claim).await, Erased::Absent, "there is no record");
        assert_eq!(store.get(&claim.id).await, None, "and none is made");
        store.win(&bits.rival(&claim), Grant::Fresh, "the key is free").await;
    }
    assert_eq!(store.purge(100).await, Purged::default(), "a forgotten record was removed");
}

/// Another request is a mismatch after erasing as before, in every state: I23.
pub async fn another_request_is_a_mismatch_after_erasing(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for claim in one_of_each(&store, rig, &mut bits).await {
        let _ = erase(&store, &claim).await;
        let before = store.record(&claim.id, "an erased record stays").await;
        let stranger = bits.impostor(&claim);
        for other in [Claim { owner: claim.owner, ..stranger.clone() }, stranger] {
            let promise = format!("another request never runs, waits or replays: {before:?}");
            let record = store.refused(&other, Refusal::Mismatch, &promise).await;
            assert_eq!(record.places, Places::default(), "where it differs is not known any more");
        }
        let lost = store.lose(&bits.rival(&claim), "the same request is refused").await;
        assert_ne!(lost.refusal, Refusal::Mismatch, "but it is the same: {before:?}");
        let after = store.record(&claim.id, "an erased record stays").await;
        assert_eq!(after, before, "a refusal changes nothing");
    }
}

/// A new attempt, and a new generation, are written as if nothing had been erased: I2.
pub async fn a_new_attempt_owes_nothing_to_an_erasure(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let first = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(erase(&store, &claim).await, Erased::Unfinished, "an answer may still come");
    rig.advance(LEASE + GRACE).await;
    let rival = bits.rival(&claim);
    let lease = store.win(&rival, Grant::TakenOver, "a lapsed lease is taken over").await;
    assert!(lease.fence > first.fence, "fences rise across an erasure");
    let record = store.record(&claim.id, "it runs").await;
    let told = (record.origin, record.places);
    assert_eq!(told, (rival.origin, rival.places), "a takeover writes its own request");
    assert_eq!(store.complete(&lease, &bits.completion()).await, Write::Applied, "it completes");
    assert_eq!(erase(&store, &claim).await, Erased::Blank, "finished work is blanked");
    rig.advance(RETENTION + LINGER + MOMENT).await;
    let next = Claim { id: claim.id, ..bits.claim() };
    let anew = store.win_anew(&next, "a forgotten key is free").await;
    assert!(anew.fence > lease.fence, "fences rise across an erasure");
    let answered = bits.completion();
    assert_eq!(store.complete(&anew, &answered).await, Write::Applied, "the new owner completes");
    let record = store.refused(&bits.rival(&next), Refusal::Replay, "done work replays").await;
    assert_eq!(answer_of(&record), Some(&answered.answer), "with its own answer");
    assert_eq!(record.origin, next.origin, "and its own origin");
}

/// An erasure that races a completion comes before it or after it, and says which: I11.
pub async fn an_erasure_and_a_completion_come_one_after_the_other(rig: &impl Rig<Store: Erase>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut keys = Vec::new();
    for number in 0..24 {
        let claim = bits.claim();
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        // Some in several steps, for stores that write a large answer that way.
        let answer = if number % 3 == 0 { large(&mut bits) } else { bits.answer() };
        keys.push((claim, lease, completion(answer)));
    }
    let entrants = keys.iter().cloned().flat_map(|key| [(key.clone(), false), (key, true)]);
    let said = race(entrants.map(|((claim, lease, answered), erases)| {
        let store = store.clone();
        async move {
            if erases {
                return Some(erase(&store, &claim).await);
            }
            let write = store.complete(&lease, &answered).await;
            assert_eq!(write, Write::Applied, "an owner completes, whoever erases");
            None
        }
    }))
    .await;
    for ((claim, _, answered), said) in keys.iter().zip(said.into_iter().flatten()) {
        let record = store.record(&claim.id, "it is on record").await;
        assert_eq!(record.origin.key, Text::default(), "it was erased");
        match said {
            Erased::Blank => {
                let promise = "what was erased after its completion has no answer";
                store.refused(claim, Refusal::NotRetained, promise).await;
            }
            Erased::Unfinished => {
                let promise = "what was completed after its erasure has its answer";
                let record = store.refused(claim, Refusal::Replay, promise).await;
                assert!(answer_of(&record) == Some(&answered.answer), "{promise}");
            }
            Erased::Absent => panic!("the record was there all the time"),
        }
    }
}

/// What was erased stays erased after a restart, and still refuses: I32, I55.
pub async fn what_was_erased_stays_erased_after_a_restart(rig: &impl Rig<Store: Erase>) {
    let (mut store, mut bits) = (Probe::of(rig), Bits::here());
    let claims = one_of_each(&store, rig, &mut bits).await;
    let mut before = Vec::new();
    for claim in &claims {
        let record = store.record(&claim.id, "it is on record").await;
        let _ = erase(&store, claim).await;
        before.push(as_erased(record));
    }
    store = store.reopened(rig).await;
    for (claim, expected) in claims.iter().zip(before) {
        let record = store.record(&claim.id, "an erased record survives a restart").await;
        assert_eq!(record, expected, "what was erased stays erased");
        let _ = store.lose(&bits.impostor(claim), "and it still refuses").await;
    }
}

/// An erased record is found by neither its key nor its scope, and still shown among the others.
pub async fn an_erased_record_is_not_found_by_what_was_personal(
    rig: &impl Rig<Store: Browse + Erase>,
) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for claim in one_of_each(&store, rig, &mut bits).await {
        let Origin { key, scope, route, .. } = claim.origin.clone();
        let by_scope = Filter { scope: Some(scope), ..Filter::default() };
        let by_route = Filter { route: Some(route), ..Filter::default() };
        let shows = async |filter: &Filter| {
            let page = Page { after: None, limit: 100 };
            let shown = store.store().list(filter, &page).await.expect("records can be listed");
            shown.summaries.iter().any(|summary| summary.id == claim.id)
        };
        assert!(shows(&by_scope).await && shows(&by_route).await, "it is shown");
        let _ = erase(&store, &claim).await;
        assert!(!shows(&by_scope).await, "its scope does not lead to it any more");
        let found = store.store().find(&key, 100).await.expect("records can be found");
        assert_eq!(found, [], "nor does its key");
        assert!(shows(&by_route).await, "its route does");
    }
}

async fn erase<S: Erase>(store: &Probe<S>, claim: &Claim) -> Erased {
    store.store().erase(&claim.id).await.expect("an erasure is never an error")
}

/// A record in every state that a store can be brought into, with a key of its own each.
async fn one_of_each<S: Store>(
    store: &Probe<S>,
    rig: &impl Rig<Store = S>,
    bits: &mut Bits,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    // One that is stripped, and one whose answer is still there though it has expired.
    for is_stripped in [true, false] {
        let claim = bits.claim();
        let patient = Completion { linger: RETENTION * 9, ..bits.completion() };
        store.finish(&claim, &patient).await;
        rig.advance(RETENTION + MOMENT).await;
        if is_stripped {
            assert_eq!(store.purge(100).await.stripped, 1, "an expired record is stripped");
        }
        claims.push(claim);
    }
    let mut answers = vec![bits.answer(), large(bits)];
    answers.extend(NotKept::ALL.map(|reason| {
        let status = Some(418);
        Answer::Tombstone(Tombstone { status, reason })
    }));
    for answer in answers {
        let claim = bits.claim();
        store.finish(&claim, &completion(answer)).await;
        claims.push(claim);
    }
    for sent in [Sent::No, Sent::Yes] {
        let claim = Claim { sent, ..bits.claim() };
        store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        claims.push(claim);
    }
    let unknown = bits.claim();
    let lease = store.win(&unknown, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
    claims.push(unknown);
    claims
}

/// What must be left of a record, said apart from the code that stores use.
fn as_erased(record: Record) -> Record {
    let Record { origin, state, .. } = record;
    let origin = Origin { key: Text::default(), scope: Text::default(), ..origin };
    let state = match state {
        State::Done { at, expires, forget, outcome, answer } => {
            let answer = match answer {
                Answer::Tombstone(Tombstone { reason: NotKept::Expired, .. }) => answer,
                Answer::Kept(_) | Answer::Tombstone(_) => {
                    let status = answer.status();
                    Answer::Tombstone(Tombstone { status, reason: NotKept::Erased })
                }
            };
            State::Done { at, expires, forget, outcome, answer }
        }
        open @ (State::Running { .. } | State::Unknown { .. } | State::Parked { .. }) => open,
    };
    Record { origin, places: Places::default(), state, ..record }
}

/// An answer that no store keeps in one small row.
fn large(bits: &mut Bits) -> Answer {
    let mut headers = Headers::new();
    headers.push(b"x-number", bits.next().to_string().as_bytes()).expect("digits are a value");
    let body: Vec<u8> = (0..40_000).flat_map(|_| bits.next().to_le_bytes()).collect();
    Answer::Kept(Saved { status: 200, headers, body: Bytes::from(body) })
}

fn answer_of(record: &Record) -> Option<&Answer> {
    match &record.state {
        State::Done { answer, .. } => Some(answer),
        State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => None,
    }
}
