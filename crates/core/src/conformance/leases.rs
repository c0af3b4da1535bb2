//! Owning a key until a time, and losing it.

use super::rig::Rig;
use super::scene::{Bits, GRACE, LEASE, MOMENT, Probe};
use crate::decide::{Grant, Refusal};
use crate::policy::Class;
use crate::record::{Sent, State};
use crate::store::{Claim, Claimed, Renewal, Write};

/// Nobody takes a key over while its lease lives: I6.
pub async fn a_live_lease_is_not_taken_over(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for class in Class::ALL {
        let claim = bits.claim_as(class);
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        rig.advance(LEASE - MOMENT).await;
        store.in_progress(&bits.rival(&claim), "a live lease is respected").await;
        let record = store.record(&claim.id, "the owner is on record").await;
        assert!(record.is_held_by(&lease), "a refused claim changes no owner");
    }
}

/// Nor during the grace that the claimant grants, and the grace is the claimant's: I6.
pub async fn a_lapsed_lease_is_respected_for_the_claimants_grace(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.advance(LEASE + GRACE - MOMENT).await;
    store.in_progress(&bits.rival(&claim), "grace protects a lapsed lease").await;
    let patient = Claim { grace: GRACE * 3, ..bits.rival(&claim) };
    rig.advance(MOMENT).await;
    store.in_progress(&patient, "the grace is that of the claim that asks").await;
    store.win(&bits.rival(&claim), Grant::TakenOver, "after grace the key is free").await;
}

/// Whether a lost owner is replaced follows from what may have happened: I8, I15.
///
/// Every pair of classes, with and without a send mark. What was sent goes out again only if both
/// the class that it was sent under and the class that asks now allow it.
pub async fn takeover_follows_the_effect_class(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let again = |class| matches!(class, Class::Keyed | Class::Retry);
    for sent in [Sent::No, Sent::Yes] {
        let mut asked = Vec::new();
        for then in Class::ALL {
            for now in Class::ALL {
                let claim = bits.claim_as(then);
                let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
                if sent == Sent::Yes {
                    assert_eq!(store.send(&lease).await, Write::Applied, "the owner sends");
                }
                asked.push((Claim { class: now, ..bits.rival(&claim) }, then, lease));
            }
        }
        rig.advance(LEASE + GRACE).await;
        for (rival, then, lease) in asked {
            let case = format!("{then:?} with sent {sent:?}, asked by {:?}", rival.class);
            if sent == Sent::No || (again(then) && again(rival.class)) {
                let newer = store.win(&rival, Grant::TakenOver, &case).await;
                assert!(newer.fence > lease.fence, "{case}: a takeover has a higher fence");
            } else {
                let record = store.refused(&rival, Refusal::Unknown, &case).await;
                assert!(record.is_held_by(&lease), "{case}: a refused claim changes nothing");
            }
        }
    }
}

/// A takeover writes the record anew from the claim. Only the time at which the key was first used
/// stays.
pub async fn a_takeover_writes_the_new_claim(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for after in [Sent::No, Sent::Yes] {
        let claim = bits.claim_as(Class::Keyed);
        store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        rig.advance(LEASE + GRACE).await;
        let newer = bits.claim_as(Class::Retry);
        let rival = Claim {
            id: claim.id,
            fingerprint: claim.fingerprint,
            sent: after,
            lease: LEASE * 2,
            ..newer
        };
        let lease = store.win(&rival, Grant::TakenOver, "a lapsed lease is taken over").await;
        let record = store.record(&claim.id, "the new owner is on record").await;
        assert!(record.is_held_by(&lease), "the record is the new owner's");
        let until = lease.until;
        assert_eq!(record.state, State::Running { until, sent: after }, "the new send mark");
        assert_eq!(record.class, Class::Retry, "the record has the new class");
        assert_eq!(record.origin, rival.origin, "the record has the new origin");
        assert_eq!(record.places, rival.places, "the record has the new places");
        let created = lease.until.since(record.created).abs_diff(LEASE + GRACE + LEASE * 2);
        assert!(created < MOMENT, "the key was first used by the old attempt");
    }
}

/// What an attempt may have done is not forgotten because the next one did nothing: I8.
///
/// Otherwise a claim that may not send again would find a generation in which nothing happened.
pub async fn a_takeover_does_not_forget_that_something_may_have_happened(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for how in ["sent", "unknown"] {
        let claim = bits.claim_as(Class::Keyed);
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        let write =
            if how == "sent" { store.send(&lease).await } else { store.unknown(&lease).await };
        assert_eq!(write, Write::Applied, "the owner says what it did");
        rig.advance(LEASE + GRACE).await;
        let second = Claim { class: Class::Keyed, ..bits.rival(&claim) };
        match store.claim(&second).await {
            Claimed::Won { grant: Grant::TakenOver, earlier: Sent::Yes, lease } => {
                let State::Running { sent, .. } = store.record(&lease.id, "it runs").await.state
                else {
                    panic!("a taken over record runs")
                };
                assert_eq!(sent, Sent::Yes, "{how}: the record still says so");
            }
            other @ (Claimed::Won { .. } | Claimed::Lost { .. }) => {
                panic!("{how}: the new owner is told that it may have happened: {other:?}")
            }
        }
        // The second attempt dies without having done anything.
        rig.advance(LEASE + GRACE).await;
        let careful = Claim { class: Class::Once, ..bits.rival(&claim) };
        store.refused(&careful, Refusal::Unknown, "the first attempt may have happened").await;
    }
}

/// A claim that announced its send makes every later crash an unknown outcome: I8.
pub async fn a_claim_that_announced_its_send_is_held_when_its_owner_is_lost(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = Claim { sent: Sent::Yes, ..bits.claim() };
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.advance(LEASE * 9).await;
    let promise = "what may have been sent is not sent again";
    let record = store.refused(&bits.rival(&claim), Refusal::Unknown, promise).await;
    assert!(record.is_held_by(&lease), "a refused claim changes nothing");
}

/// The send mark is written once, stays, and leaves the rest alone: I8.
pub async fn a_send_mark_stays(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    let until = lease.until;
    for _ in 0..3 {
        assert_eq!(store.send(&lease).await, Write::Applied, "repeating a send mark is harmless");
        let record = store.record(&claim.id, "the claim is on record").await;
        assert_eq!(record.state, State::Running { until, sent: Sent::Yes }, "the mark is there");
        assert!(record.is_held_by(&lease), "a send mark changes no owner");
    }
    let renewed = store.renew(&[lease], LEASE * 2).await;
    let record = store.record(&claim.id, "the claim is on record").await;
    let State::Running { until, sent } = record.state else { panic!("a send mark ends nothing") };
    assert_eq!(renewed, [Renewal::Until(until)], "a renewal tells the time that is stored");
    assert_eq!(sent, Sent::Yes, "a renewal keeps the send mark");
}

/// A renewal counts from now, forwards and backwards, not from the old end.
pub async fn a_renewal_counts_from_now(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.advance(LEASE / 2).await;
    for span in [LEASE * 4, LEASE] {
        let renewed = store.renew(&[lease], span).await;
        let lost = store.in_progress(&bits.rival(&claim), "a renewed lease lives").await;
        let State::Running { until, .. } = lost.record.state else { panic!("it still runs") };
        assert_eq!(renewed, [Renewal::Until(until)], "a renewal tells the time that is stored");
        let left = until.since(lost.now);
        assert!(left <= span && left > span - MOMENT, "a renewal counts from now: {left:?}");
    }
    rig.advance(LEASE - MOMENT).await;
    store.in_progress(&bits.rival(&claim), "a renewed lease is respected").await;
    rig.advance(GRACE + MOMENT).await;
    store.win(&bits.rival(&claim), Grant::TakenOver, "a renewed lease lapses too").await;
}

/// Renewals answer in the order of the question, each for itself: I10.
pub async fn renewals_answer_each_for_itself_and_in_order(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    assert_eq!(store.renew(&[], LEASE).await, [], "no question, no answer");
    let mut leases = Vec::new();
    for number in 0..24 {
        let lease = store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await;
        match number % 4 {
            1 => assert_eq!(store.release(&lease).await, Write::Applied, "one gives up"),
            3 => {
                let write = store.complete(&lease, &bits.completion()).await;
                assert_eq!(write, Write::Applied, "one is done");
            }
            _ => {}
        }
        leases.push(lease);
    }
    // The same question twice has the same answer twice.
    leases.push(leases[0]);
    leases.push(leases[1]);
    rig.advance(LEASE / 2).await;
    let renewals = store.renew(&leases, LEASE).await;
    assert_eq!(renewals.len(), leases.len(), "one answer for each lease");
    for (number, (lease, renewal)) in leases.iter().zip(renewals).enumerate() {
        let running = number % 4 % 2 == 0;
        let held = matches!(renewal, Renewal::Until(_));
        assert_eq!(held, running, "answer {number} is for lease {number}: {renewal:?}");
        if let Renewal::Until(until) = renewal {
            let state = store.record(&lease.id, "it still runs").await.state;
            assert_eq!(state, State::Running { until, sent: Sent::No }, "the time it told");
        }
    }
}

/// A renewal never revives an attempt that was taken over or has ended: I10.
pub async fn a_renewal_never_revives(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut ended = Vec::new();
    let done = store.finish(&bits.claim(), &bits.completion()).await;
    ended.push(done);
    let released = store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.release(&released).await, Write::Applied, "the owner gives up");
    ended.push(released);
    let unknown = store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.unknown(&unknown).await, Write::Applied, "the owner does not know");
    ended.push(unknown);
    let claim = bits.claim();
    ended.push(store.win(&claim, Grant::Fresh, "a fresh key is granted").await);
    rig.advance(LEASE + GRACE).await;
    store.win(&bits.rival(&claim), Grant::TakenOver, "a lapsed lease is taken over").await;
    for lease in &ended {
        let before = store.get(&lease.id).await;
        let renewals = store.renew(&[*lease], LEASE * 100).await;
        assert_eq!(renewals, [Renewal::Lost], "an attempt that has ended is not renewed");
        assert_eq!(store.get(&lease.id).await, before, "a lost renewal changes nothing");
    }
    assert_eq!(store.renew(&ended, LEASE).await, [Renewal::Lost; 4], "nor in company");
}

/// A lease is a hint and the fence is the proof: an owner that is late but was not replaced may
/// still write.
pub async fn a_late_owner_that_was_not_replaced_may_still_write(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut leases = Vec::new();
    for _ in 0..5 {
        leases.push(store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await);
    }
    rig.advance(LEASE * 100).await;
    let late = "a late owner that was not replaced still knows best";
    let renewed = store.renew(&leases[..1], LEASE).await;
    assert!(matches!(renewed[..], [Renewal::Until(_)]), "{late}: renew {renewed:?}");
    assert_eq!(store.send(&leases[1]).await, Write::Applied, "{late}: send");
    let completion = bits.completion();
    assert_eq!(store.complete(&leases[2], &completion).await, Write::Applied, "{late}: complete");
    assert_eq!(store.release(&leases[3]).await, Write::Applied, "{late}: release");
    assert_eq!(store.unknown(&leases[4]).await, Write::Applied, "{late}: unknown");
}

/// An owner that was replaced can change nothing, however it tries: I4.
pub async fn a_replaced_owner_can_change_nothing(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let old = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.advance(LEASE + GRACE).await;
    let rival = bits.rival(&claim);
    let new = store.win(&rival, Grant::TakenOver, "a lapsed lease is taken over").await;
    store.fenced_everywhere(&old, &mut bits, "an owner that was taken over").await;
    let completion = bits.completion();
    assert_eq!(store.complete(&new, &completion).await, Write::Applied, "the new owner goes on");
    store.fenced_everywhere(&old, &mut bits, "an owner that was taken over, after the end").await;
    // Not even with the very answer that stands there: it is not this owner's.
    assert_eq!(store.complete(&old, &completion).await, Write::Fenced, "the same answer, late");
}

/// An owner that gave its key back can change nothing in the next attempt, not even its own: I4.
pub async fn an_owner_that_gave_its_key_back_can_change_nothing(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let first = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.release(&first).await, Write::Applied, "the owner gives its key back");
    store.fenced_everywhere(&first, &mut bits, "an owner that gave its key back").await;
    let second = store.win(&claim, Grant::Fresh, "a released key is fresh").await;
    assert!(second.fence > first.fence, "the next attempt has a higher fence");
    // The owner token is the same, so only the fence can tell the attempts apart.
    store.fenced_everywhere(&first, &mut bits, "an older attempt of the same owner").await;
    let lease = store.record(&claim.id, "the second attempt is on record").await.lease();
    assert_eq!(lease.fence, second.fence, "the second attempt is untouched");
}
