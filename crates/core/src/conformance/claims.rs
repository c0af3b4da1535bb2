//! Asking to own a key.

use super::rig::Rig;
use super::scene::{Bits, LEASE, MOMENT, Probe};
use crate::decide::{Grant, Refusal};
use crate::fingerprint::Fingerprint;
use crate::key_id::KeyId;
use crate::policy::Class;
use crate::record::{Fence, Lease, Owner, Record, Sent, State};
use crate::store::{Claim, Write};

/// A key that nobody claimed has no record, and nobody can write to it: I3, I4.
pub async fn an_absent_key_has_no_record(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    assert_eq!(store.get(&claim.id).await, None, "nobody claimed it, so there is no record");
    let other = store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await;
    let invented = Lease { id: claim.id, ..other };
    store.fenced_everywhere(&invented, &mut bits, "an invented lease writes nothing").await;
    assert_eq!(store.get(&claim.id).await, None, "a fenced write makes no record");
}

/// A fresh key is granted, with a positive fence and a lease that counts from now: I1, I3.
pub async fn a_fresh_key_is_granted_with_a_lease_from_now(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for class in Class::ALL {
        let claim = bits.claim_as(class);
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted in every class").await;
        assert!(lease.fence.number() > 0, "a fence is positive");
        let promise = "the second claimant waits for the first";
        let lost = store.in_progress(&bits.rival(&claim), promise).await;
        assert_eq!(lost.refusal, Refusal::InProgress(lease.until), "everybody sees one lease");
        let left = lease.remaining(lost.now);
        assert!(left <= LEASE, "a lease lasts no longer than was asked for: {left:?}");
        assert!(left > LEASE - MOMENT, "a lease counts from the moment of the claim: {left:?}");
    }
}

/// On a grant, a record with everything that the claim said is there: I3.
pub async fn a_claim_writes_what_it_was_given(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for class in Class::ALL {
        for sent in [Sent::No, Sent::Yes] {
            let claim = Claim { sent, ..bits.claim_as(class) };
            let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
            let record = store.record(&claim.id, "a granted claim is on record").await;
            assert_eq!(record.id, claim.id, "the record is of the key");
            assert_eq!(record.fence, lease.fence, "the record has the fence of the lease");
            assert_eq!(record.owner, claim.owner, "the record has the owner");
            assert_eq!(record.fingerprint, claim.fingerprint, "the record has the fingerprint");
            assert_eq!(record.class, class, "the record has the class");
            assert_eq!(record.origin, claim.origin, "the record has the origin, every field");
            assert_eq!(record.places, claim.places, "the record has the places");
            assert!(!record.places.is_empty(), "the case has places to lose");
            let created = lease.until.since(record.created).abs_diff(LEASE);
            assert!(created < MOMENT, "it was created at the moment of the claim");
            assert_eq!(record.state, State::Running { until: lease.until, sent }, "it runs");
            assert_eq!(record.lease(), lease, "the record proves what the lease proves");
        }
    }
}

/// Key ids are bytes: those that a text column would confuse are different keys: I21, I26.
pub async fn key_ids_are_told_apart_by_every_byte(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let base: [u8; 32] = [&[b'a'; 16][..], &bits.bytes::<16>()].concat().try_into().expect("32");
    let mut ids = vec![base, [0; 32], [0xff; 32], [b' '; 32]];
    for (place, byte) in [(0, b'A'), (0, 0xe4), (31, b' '), (31, 0), (31, 0xff), (15, b'\'')] {
        let mut id = base;
        id[place] = byte;
        ids.push(id);
    }
    let mut fences = Vec::new();
    for id in &ids {
        let claim = Claim { id: KeyId::from_bytes(*id), ..bits.claim() };
        let lease = store.win(&claim, Grant::Fresh, "an id that differs is another key").await;
        fences.push((claim, lease));
    }
    for (claim, lease) in fences {
        let record = store.record(&claim.id, "each key has a record of its own").await;
        assert!(record.is_held_by(&lease), "each record belongs to its own claimant");
        assert_eq!(record.fingerprint, claim.fingerprint, "each record is about its own request");
    }
}

/// The owner token is compared as a whole: a neighbour in one bit is somebody else: I1, I5.
pub async fn owners_are_told_apart_by_every_bit(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    for bit in 0..128_usize {
        let mut bytes = *claim.owner.as_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let stranger = Claim { owner: Owner::from_bytes(bytes), ..claim.clone() };
        store.in_progress(&stranger, "a similar owner is another owner").await;
    }
    let record = store.record(&claim.id, "the owner keeps its key").await;
    assert!(record.is_held_by(&lease), "no stranger was given the key");
}

/// A claimant whose acknowledgement was lost asks again and keeps its fence: I5.
pub async fn an_owner_that_asks_again_keeps_its_fence(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for sent in [Sent::No, Sent::Yes] {
        let claim = Claim { sent, ..bits.claim() };
        let first = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        rig.advance(LEASE / 2).await;
        let again = store.win(&claim, Grant::Again, "an owner that asks again is recognised").await;
        assert_eq!(again.fence, first.fence, "asking again keeps the fence");
        let lost = store.in_progress(&bits.rival(&claim), "the key is still taken").await;
        let left = again.remaining(lost.now);
        assert!(left > LEASE - MOMENT, "asking again extends the lease from now: {left:?}");
        // Nobody took over, so the fence is still good, however late it is.
        rig.advance(LEASE * 50).await;
        let late = store.win(&claim, Grant::Again, "an owner is recognised after its lease").await;
        assert_eq!(late.fence, first.fence, "asking again late keeps the fence");
        store.in_progress(&bits.rival(&claim), "a late owner has a whole lease again").await;
    }
}

/// Asking again extends the lease and changes nothing else, whatever the second claim says: I5.
pub async fn asking_again_changes_nothing_but_the_lease(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.send(&lease).await, Write::Applied, "the owner announces its send");
    let before = store.record(&claim.id, "the claim is on record").await;
    let other = bits.claim_as(Class::Retry);
    let second =
        Claim { class: other.class, origin: other.origin, places: other.places, ..claim.clone() };
    let again = store.win(&second, Grant::Again, "an owner that asks again is recognised").await;
    let after = store.record(&claim.id, "the claim is on record").await;
    let sent = Sent::Yes;
    assert_eq!(after.state, State::Running { until: again.until, sent }, "the send mark stays");
    assert_eq!(Record { state: before.state.clone(), ..after }, before, "the rest");
}

/// An owner that asks again after the end is told what became of it; it never runs twice: I5, I17.
pub async fn asking_again_does_not_reopen_what_has_ended(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let done = bits.claim();
    store.finish(&done, &bits.completion()).await;
    store.refused(&done, Refusal::Replay, "the owner of finished work gets its answer").await;

    let unknown = bits.claim();
    let lease = store.win(&unknown, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
    store.refused(&unknown, Refusal::Unknown, "not even its owner repeats unknown work").await;

    let replaced = bits.claim();
    store.win(&replaced, Grant::Fresh, "a fresh key is granted").await;
    rig.advance(LEASE * 2).await;
    store.win(&bits.rival(&replaced), Grant::TakenOver, "a lapsed lease is taken over").await;
    store.in_progress(&replaced, "an owner that was replaced waits like everybody").await;
}

/// A loser sees the record that stands in its way and the clock that judged it.
pub async fn a_loser_sees_the_record_and_the_clock_of_the_store(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    let running = store.in_progress(&bits.rival(&claim), "the key is taken").await;
    let record = store.record(&claim.id, "the claim is on record").await;
    assert_eq!(running.record, record, "the loser sees the record as it is");
    assert!(running.now >= record.created, "the store's clock does not run before the claim");
    rig.advance(MOMENT).await;
    let later = store.in_progress(&bits.rival(&claim), "the key is taken").await;
    let gone = later.now.since(later.record.created);
    assert!(gone >= MOMENT, "the clock that is shown is the one that judges: {gone:?}");
    let completion = bits.completion();
    assert_eq!(store.complete(&lease, &completion).await, Write::Applied, "the owner completes");
    let replayed = store.refused(&bits.rival(&claim), Refusal::Replay, "done work replays").await;
    let record = store.record(&claim.id, "the answer is on record").await;
    assert_eq!(replayed, record, "the loser sees the record with its answer");
}

/// The same digest under another fingerprint version is another request: I25.
pub async fn another_fingerprint_version_is_another_request(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    let fingerprint = Fingerprint::from_parts(200, *claim.fingerprint.digest());
    let newer = Claim { fingerprint, ..bits.rival(&claim) };
    store.refused(&newer, Refusal::Mismatch, "versions are not compared across").await;
    let lone = Claim { fingerprint, ..bits.claim() };
    store.win(&lone, Grant::Fresh, "the store does not judge versions").await;
    let record = store.record(&lone.id, "the claim is on record").await;
    assert_eq!(record.fingerprint, fingerprint, "the version is kept beside the digest");
}

/// The fence and the owner are compared both, and the id too: I4.
pub async fn half_a_proof_is_no_proof(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    let stranger = Lease { owner: bits.owner(), ..lease };
    store.fenced_everywhere(&stranger, &mut bits, "the fence without the owner").await;
    for number in [lease.fence.number() - 1, lease.fence.number() + 1] {
        let fence = Fence::from_number(number).expect("a clock reading has neighbours");
        let other = Lease { fence, ..lease };
        store.fenced_everywhere(&other, &mut bits, "the owner without the fence").await;
    }
    // The time in a lease is a hint and proves nothing, so it cannot spoil a proof either.
    let shifted = Lease { until: lease.until.after(LEASE), ..lease };
    assert_eq!(store.send(&shifted).await, Write::Applied, "only id, fence and owner count");
}
