//! Records from elsewhere: what is taken over, what stays, and what they promise afterwards.

use std::time::Duration;

use bytes::Bytes;

use super::foreign::{answer_of, done, large, now_of, one_of_each, record};
use super::rig::Rig;
use super::scene::{Bits, GRACE, LEASE, LINGER, MOMENT, Probe, RETENTION, completion, race};
use crate::browse::{Browse, Count, Filter, Page};
use crate::decide::{Grant, Refusal};
use crate::policy::Class;
use crate::record::{Fence, Record, Sent, State, StateKind};
use crate::restore::{MAX_FENCE, Restore, Restored};
use crate::saved::{Answer, Headers, NotKept, Saved, Tombstone};
use crate::store::{Claim, ErrorKind, MAX_BODY, MAX_HEADERS, MAX_TEXT, Purged, Write};

/// A restored answer is replayed as if it had been given here: I10, I23.
pub async fn a_restored_answer_is_replayed(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for class in Class::ALL {
        let now = now_of(&store, &mut bits).await;
        let (claim, answer) = (bits.claim_as(class), bits.answer());
        let record = record(&claim, now, done(now, answer.clone()));
        written(&store, &record).await;
        let again = store.refused(&bits.rival(&claim), Refusal::Replay, "its answer replays").await;
        assert_eq!(answer_of(&again), Some(&answer), "the answer that was restored");
        store.refused(&bits.impostor(&claim), Refusal::Mismatch, "another request differs").await;
        let write = store.complete(&record.lease(), &completion(answer)).await;
        assert_eq!(write, Write::Applied, "its completion is recognised");
        store.fenced_everywhere(&record.lease(), &mut bits, "the owner of finished work").await;
    }
}

/// Whatever state it is in, a record is restored as it is: fence, owner, times and all.
pub async fn every_state_is_restored_as_it_was(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    for (_, record) in one_of_each(&mut bits, now) {
        written(&store, &record).await;
        assert_eq!(store.get(&record.id).await, Some(record), "a record is restored as it is");
    }
}

/// What the store holds and is newer stays as it is: I2, I11.
pub async fn an_older_record_never_overwrites(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let finished = bits.claim();
    store.finish(&finished, &bits.completion()).await;
    let running = bits.claim();
    store.win(&running, Grant::Fresh, "a fresh key is granted").await;
    let unknown = bits.claim();
    let lease = store.win(&unknown, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
    for claim in [finished, running, unknown] {
        let before = store.record(&claim.id, "it is on record").await;
        let fence = Fence::from_number(before.fence.number() - 1).expect("there was one before");
        for (_, other) in one_of_each(&mut bits, before.created) {
            let older = Record { id: claim.id, fence, ..other };
            assert_eq!(restore(&store, &older).await, Restored::Kept, "the newer one is kept");
            let after = store.record(&claim.id, "it is on record").await;
            assert_eq!(after, before, "an older record never overwrites");
        }
    }
}

/// Of two records of one attempt the one that is further stands: I8, I11, I15.
pub async fn under_one_fence_progress_wins(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    let until = now.after(LEASE);
    let ladder = [
        (0, State::Running { until, sent: Sent::No }),
        (1, State::Running { until, sent: Sent::Yes }),
        (2, State::Unknown { since: now }),
        (2, State::Parked { since: now }),
        (3, done(now, bits.answer())),
    ];
    for (reached, found) in &ladder {
        for (far, given) in &ladder {
            let claim = bits.claim();
            let found = record(&claim, now, found.clone());
            let given = record(&claim, now, given.clone());
            written(&store, &found).await;
            let said = restore(&store, &given).await;
            let (expected, stands) = match far > reached {
                true => (Restored::Written, given),
                false => (Restored::Kept, found),
            };
            assert_eq!(said, expected, "only what is further is written over {reached}: {far}");
            assert_eq!(store.get(&claim.id).await, Some(stands), "the further one stands");
        }
    }
}

/// A newer record takes the place of the older one, with nothing left of it: I2.
pub async fn a_newer_record_replaces_the_older_one(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for words in [1, 50_000] {
        let older = bits.claim();
        store.finish(&older, &completion(large(&mut bits, 40_000))).await;
        let before = store.record(&older.id, "it is on record").await;
        let claim = Claim { id: older.id, ..bits.claim() };
        let fence = Fence::next(Some(before.fence), before.created);
        let until = before.created.after(LEASE);
        let state = State::Running { until, sent: Sent::No };
        let newer = Record { fence, ..record(&claim, before.created, state) };
        written(&store, &newer).await;
        assert_eq!(store.get(&older.id).await, Some(newer.clone()), "the newer one stands");
        let answered = completion(large(&mut bits, words));
        let write = store.complete(&newer.lease(), &answered).await;
        assert_eq!(write, Write::Applied, "its owner completes");
        let promise = "and its answer replays";
        let replayed = store.refused(&bits.rival(&claim), Refusal::Replay, promise).await;
        assert!(answer_of(&replayed) == Some(&answered.answer), "{promise}");
    }
}

/// A restored lease proves what it proved where it was granted: I4, I5.
pub async fn a_restored_lease_proves_what_it_proved(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    let claim = bits.claim();
    let state = State::Running { until: now.after(LEASE), sent: Sent::No };
    let record = record(&claim, now, state);
    written(&store, &record).await;
    store.in_progress(&bits.rival(&claim), "its lease is respected").await;
    let lease = store.win(&claim, Grant::Again, "its owner is recognised").await;
    assert_eq!(lease.fence, record.fence, "the owner keeps its fence");
    assert_eq!(store.send(&record.lease()).await, Write::Applied, "the owner sends");
    let answered = bits.completion();
    assert_eq!(store.complete(&record.lease(), &answered).await, Write::Applied, "it completes");
    let replayed = store.refused(&bits.rival(&claim), Refusal::Replay, "done work replays").await;
    assert_eq!(answer_of(&replayed), Some(&answered.answer), "with its answer");
}

/// A restored lease lapses when it would have, and its send mark counts: I6, I8.
pub async fn a_restored_lease_lapses_in_time(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    let rows = [
        (Class::Once, Sent::No, true),
        (Class::Once, Sent::Yes, false),
        (Class::Retry, Sent::Yes, true),
    ];
    let mut restored = Vec::new();
    for (class, sent, may_run) in rows {
        let claim = bits.claim_as(class);
        let record = record(&claim, now, State::Running { until: now.after(LEASE), sent });
        written(&store, &record).await;
        restored.push((claim, record, may_run));
    }
    rig.advance(LEASE + GRACE - MOMENT).await;
    for (claim, ..) in &restored {
        store.in_progress(&bits.rival(claim), "a lease and its grace are respected").await;
    }
    rig.advance(MOMENT * 2).await;
    for (claim, record, may_run) in &restored {
        let rival = bits.rival(claim);
        if *may_run {
            let lease = store.win(&rival, Grant::TakenOver, "a lapsed lease is taken over").await;
            assert!(lease.fence > record.fence, "with a higher fence");
            store.fenced_everywhere(&record.lease(), &mut bits, "the owner that was lost").await;
        } else {
            let promise = "what may have been sent is not sent again";
            store.refused(&rival, Refusal::Unknown, promise).await;
        }
    }
}

/// Every fence that is granted after a restoration is higher, though the clock is behind: I2.
pub async fn fences_rise_above_a_restored_record(rig: &impl Rig<Store: Restore>) {
    let (mut store, mut bits) = (Probe::of(rig), Bits::here());
    for hours in 1..=3_u32 {
        let now = now_of(&store, &mut bits).await;
        let claim = bits.claim();
        let ahead = Fence::next(None, now.after(Duration::from_secs(3_600) * hours));
        let state = State::Running { until: now.after(LEASE), sent: Sent::No };
        let record = Record { fence: ahead, ..record(&claim, now, state) };
        written(&store, &record).await;
        let higher = match hours {
            1 => {
                assert_eq!(store.release(&record.lease()).await, Write::Applied, "it is released");
                store.win(&bits.rival(&claim), Grant::Fresh, "a released key is free").await
            }
            2 => {
                assert_eq!(store.release(&record.lease()).await, Write::Applied, "it is released");
                store = store.reopened(rig).await;
                store.win(&bits.rival(&claim), Grant::Fresh, "a released key is free").await
            }
            _ => {
                rig.advance(LEASE + GRACE + MOMENT).await;
                store.win(&bits.rival(&claim), Grant::TakenOver, "a lapsed lease").await
            }
        };
        assert!(higher.fence > ahead, "fences rise above a restored one: {higher:?} {ahead}");
    }
}

/// A restored doubt stays a doubt, and can be resolved: I15.
pub async fn a_restored_doubt_stays_a_doubt(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    let doubts = [
        (State::Unknown { since: now }, Refusal::Unknown),
        (State::Parked { since: now }, Refusal::Parked),
    ];
    let mut held = Vec::new();
    for (state, refusal) in doubts {
        let claim = bits.claim();
        let record = record(&claim, now, state);
        written(&store, &record).await;
        held.push((claim, record, refusal));
    }
    rig.advance(RETENTION * 30).await;
    assert_eq!(store.purge(100).await, Purged::default(), "a doubt never expires");
    for (claim, record, refusal) in held {
        store.refused(&bits.rival(&claim), refusal, "nobody may run").await;
        let write = store.complete(&record.lease(), &bits.completion()).await;
        assert_eq!(write, Write::Applied, "whoever knows completes it");
        store.refused(&bits.rival(&claim), Refusal::Replay, "and its answer replays").await;
    }
}

/// A restored tombstone refuses as it did: the work ran, and does not run again: I11.
pub async fn a_restored_tombstone_refuses(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    for reason in NotKept::ALL {
        let claim = bits.claim();
        let answer = Answer::Tombstone(Tombstone { status: Some(418), reason });
        written(&store, &record(&claim, now, done(now, answer.clone()))).await;
        let promise = "finished work does not run again";
        let found = store.refused(&bits.rival(&claim), Refusal::NotRetained, promise).await;
        assert_eq!(answer_of(&found), Some(&answer), "and it says why");
        store.refused(&bits.impostor(&claim), Refusal::Mismatch, "another request differs").await;
    }
}

/// The largest answer is restored to the byte.
pub async fn the_largest_answer_is_restored(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    for words in [1, 8_192, 8_193, 100_000, MAX_BODY / 8] {
        let (claim, answer) = (bits.claim(), large(&mut bits, words));
        let record = record(&claim, now, done(now, answer.clone()));
        written(&store, &record).await;
        let promise = "a large answer is replayed whole";
        let again = store.refused(&bits.rival(&claim), Refusal::Replay, promise).await;
        assert!(answer_of(&again) == Some(&answer), "{promise}");
        assert!(store.get(&claim.id).await == Some(record), "a large record is read whole");
    }
}

/// A restored record expires, lingers and is forgotten when it would have been: I27.
pub async fn a_restored_record_keeps_its_times(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    let claim = bits.claim();
    written(&store, &record(&claim, now, done(now, bits.answer()))).await;
    rig.advance(RETENTION - MOMENT).await;
    assert_eq!(store.purge(100).await, Purged::default(), "nothing is due");
    store.refused(&bits.rival(&claim), Refusal::Replay, "it answers for its retention").await;
    rig.advance(MOMENT * 2).await;
    store.refused(&bits.rival(&claim), Refusal::Expired, "then it is too late").await;
    assert_eq!(store.purge(100).await, Purged { forgotten: 0, stripped: 1 }, "it is stripped");
    rig.advance(LINGER).await;
    assert_eq!(store.purge(100).await, Purged { forgotten: 1, stripped: 0 }, "it is forgotten");
    store.win(&bits.rival(&claim), Grant::Fresh, "and its key is free").await;
}

/// Restoring twice is restoring once, and the second is told so.
pub async fn restoring_twice_is_restoring_once(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    for (_, record) in one_of_each(&mut bits, now) {
        written(&store, &record).await;
        assert_eq!(restore(&store, &record).await, Restored::Kept, "it stands already");
        assert_eq!(store.get(&record.id).await, Some(record), "a repetition changes nothing");
    }
}

/// A record that no store takes is rejected, and leaves nothing behind.
pub async fn a_record_that_breaks_a_limit_is_not_restored(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    let sound = record(&bits.claim(), now, done(now, bits.answer()));
    let mut wrong = vec![
        Record { fence: Fence::from_number(MAX_FENCE + 1).expect("a fence"), ..sound.clone() },
        Record { fence: Fence::from_number(i64::MAX).expect("a fence"), ..sound.clone() },
    ];
    let mut long = sound.clone();
    long.origin.scope = vec![b'x'; MAX_TEXT + 1].into();
    let mut early = sound.clone();
    if let State::Done { forget, .. } = &mut early.state {
        *forget = now;
    }
    let mut other = sound.clone();
    if let State::Done { outcome, .. } = &mut other.state {
        *outcome = bits.answer().outcome();
    }
    let mut headers = Headers::new();
    headers.push(b"x-long", &vec![b'x'; MAX_HEADERS]).expect("a long header");
    let body = Bytes::from(vec![0; MAX_BODY + 1]);
    for saved in [
        Saved { status: 200, headers, body: Bytes::new() },
        Saved { status: 200, headers: Headers::new(), body },
    ] {
        wrong.push(Record { state: done(now, Answer::Kept(saved)), ..sound.clone() });
    }
    wrong.extend([long, early, other]);
    for record in wrong {
        let error = store.store().restore(&record).await.expect_err("it breaks a limit");
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        assert_eq!(store.get(&record.id).await, None, "nothing is left behind");
    }
    store.win(&bits.claim(), Grant::Fresh, "other keys are granted as before").await;
    written(&store, &sound).await;
}

/// Restorations and claims of one key come one after the other: I1, I2.
pub async fn restorations_and_claims_come_one_after_the_other(rig: &impl Rig<Store: Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    // A clock that stands still would grant the fence that the records have.
    rig.advance(MOMENT).await;
    let mut keys = Vec::new();
    for number in 0..60 {
        let claim = bits.claim();
        let ends =
            done(now, if number % 3 == 0 { large(&mut bits, 20_000) } else { bits.answer() });
        let until = now.after(LEASE);
        let states =
            [State::Running { until, sent: Sent::No }, State::Unknown { since: now }, ends];
        let records = states.map(|state| record(&claim, now, state));
        // Every other key is claimed meanwhile by somebody else.
        let rival = (number % 2 == 0).then(|| bits.rival(&claim));
        keys.push((records, rival));
    }
    let entrants = keys.iter().cloned().flat_map(|(records, rival)| {
        let restored = records.map(|record| (Some(record), None));
        restored.into_iter().chain(rival.map(|rival| (None, Some(rival)))).collect::<Vec<_>>()
    });
    let won = race(entrants.map(|(record, rival)| {
        let store = store.clone();
        async move {
            if let Some(record) = record {
                restore(&store, &record).await;
            }
            let rival = rival?;
            let claimed = store.claim(&rival).await;
            matches!(claimed, crate::store::Claimed::Won { .. }).then_some(rival.owner)
        }
    }))
    .await;
    for ([.., ends], rival) in &keys {
        let stands = store.record(&ends.id, "it is on record").await;
        let owner = rival.as_ref().map(|rival| rival.owner).filter(|o| won.contains(&Some(*o)));
        match owner {
            Some(owner) => assert_eq!(stands.owner, owner, "who won the key owns it"),
            None => assert!(stands == *ends, "what is furthest stands"),
        }
    }
}

/// What was restored survives a restart: I32.
pub async fn what_was_restored_survives_a_restart(rig: &impl Rig<Store: Restore>) {
    let (mut store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    let restored = one_of_each(&mut bits, now);
    for (_, record) in &restored {
        written(&store, record).await;
    }
    store = store.reopened(rig).await;
    for (_, record) in restored {
        assert_eq!(store.get(&record.id).await, Some(record), "it survives as it was");
    }
}

/// A store is known again after a restart, and whatever was done to it.
pub async fn the_lineage_survives_a_restart(rig: &impl Rig<Store: Restore>) {
    let (mut store, mut bits) = (Probe::of(rig), Bits::here());
    let before = store.store().lineage().await.expect("a store knows which it is");
    let now = now_of(&store, &mut bits).await;
    written(&store, &record(&bits.claim(), now, done(now, bits.answer()))).await;
    for _ in 0..2 {
        store = store.reopened(rig).await;
        let after = store.store().lineage().await.expect("a store knows which it is");
        assert_eq!(after, before, "it is the same store");
    }
}

/// Restored records are listed, counted and found like all others, in the state that they are in.
pub async fn restored_records_are_shown(rig: &impl Rig<Store: Browse + Restore>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let now = now_of(&store, &mut bits).await;
    let restored: Vec<Record> = one_of_each(&mut bits, now).into_iter().map(|(_, r)| r).collect();
    for record in &restored {
        if record.state.kind() == StateKind::Done {
            // Was running here before.
            let state = State::Running { until: now.after(LEASE), sent: Sent::No };
            written(&store, &Record { state, ..record.clone() }).await;
        }
        written(&store, record).await;
    }
    for kind in StateKind::ALL {
        let filter = Filter { state: Some(kind), ..Filter::default() };
        let page = Page { after: None, limit: 100 };
        let shown = store.store().list(&filter, &page).await.expect("records can be listed");
        let mut shown: Vec<_> = shown.summaries.iter().map(|summary| summary.id).collect();
        let expected = restored.iter().filter(|record| record.state.kind() == kind);
        let mut expected: Vec<_> = expected.map(|record| record.id).collect();
        shown.sort_by_key(|id| *id.as_bytes());
        expected.sort_by_key(|id| *id.as_bytes());
        assert_eq!(shown, expected, "{} records are listed", kind.label());
        let count = store.store().count(&filter, 100).await.expect("records can be counted");
        assert_eq!(count, Count::Exactly(expected.len()), "and counted");
    }
    let known = restored.iter().find(|record| !record.origin.key.as_bytes().is_empty());
    let known = known.expect("most have a key");
    let found = store.store().find(&known.origin.key, 100).await.expect("records can be found");
    assert_eq!(found.iter().map(|summary| summary.id).collect::<Vec<_>>(), [known.id], "found");
}

async fn restore<S: Restore>(store: &Probe<S>, record: &Record) -> Restored {
    store.store().restore(record).await.expect("a restoration is written or kept")
}

async fn written<S: Restore>(store: &Probe<S>, record: &Record) {
    assert_eq!(restore(store, record).await, Restored::Written, "a newer record is written");
}
