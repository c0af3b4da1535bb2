//! The numbers that outdate older owners, and a clock that does not keep its word.

use std::time::Duration;

use super::rig::Rig;
use super::scene::{Bits, GRACE, LEASE, LINGER, MOMENT, Probe, RETENTION};
use crate::decide::{Grant, Refusal};
use crate::record::{Fence, Lease};
use crate::store::{Claim, Store, Write};

/// How far a bad clock steps.
const STEP: Duration = Duration::from_secs(24 * 60 * 60);

/// Fences rise across takeover: I2.
pub async fn fences_rise_across_takeover(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let mut fences = Rising::from(store.win(&claim, Grant::Fresh, "a fresh key").await);
    for _ in 0..4 {
        rig.advance(LEASE + GRACE).await;
        let rival = bits.rival(&claim);
        fences.rise(store.win(&rival, Grant::TakenOver, "a lapsed lease is taken over").await);
    }
}

/// Fences rise across release, though the record is gone in between: I2.
pub async fn fences_rise_across_release(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let mut fences = Rising::default();
    for _ in 0..8 {
        let rival = bits.rival(&claim);
        let lease = store.win(&rival, Grant::Fresh, "a released key is fresh").await;
        fences.rise(lease);
        assert_eq!(store.release(&lease).await, Write::Applied, "the owner gives up");
    }
}

/// Fences rise across purge and re-creation: I2.
pub async fn fences_rise_across_purge(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let mut fences = Rising::default();
    for _ in 0..4 {
        fences.rise(use_up(rig, &store, &bits.rival(&claim), &mut bits).await);
    }
}

/// Fences rise although the clock steps back while the record is gone: I2, I30.
///
/// This is where a fence that is nothing but the clock, or nothing but the row, comes back.
pub async fn fences_rise_though_the_clock_steps_back(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let mut fences = Rising::default();
    for _ in 0..3 {
        let rival = bits.rival(&claim);
        let lease = store.win(&rival, Grant::Fresh, "a released key is fresh").await;
        fences.rise(lease);
        assert_eq!(store.release(&lease).await, Write::Applied, "the owner gives up");
        rig.step_back(STEP).await;
    }
    fences.rise(use_up(rig, &store, &bits.rival(&claim), &mut bits).await);
    rig.step_back(STEP * 3).await;
    let rival = bits.rival(&claim);
    fences.rise(store.win(&rival, Grant::Fresh, "a purged key is fresh").await);
}

/// Fences rise across a restart, also if the record is gone and the clock went back: I2, I30.
pub async fn fences_rise_across_reopening(rig: &impl Rig) {
    let (mut store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let mut fences = Rising::default();
    for _ in 0..3 {
        let rival = bits.rival(&claim);
        let lease = store.win(&rival, Grant::Fresh, "a released key is fresh").await;
        fences.rise(lease);
        assert_eq!(store.release(&lease).await, Write::Applied, "the owner gives up");
        rig.step_back(STEP).await;
        store = store.reopened(rig).await;
    }
}

/// A clock that steps back takes no live lease from its owner: I30.
pub async fn a_clock_that_steps_back_takes_no_live_lease(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.step_back(STEP).await;
    store.in_progress(&bits.rival(&claim), "a clock that steps back frees no key").await;
    let again = store.win(&claim, Grant::Again, "the owner is still recognised").await;
    assert_eq!(again.fence, lease.fence, "the owner keeps its fence");
    // The owner's lease counts from the present clock again, so it lapses when it should.
    rig.advance(LEASE + GRACE).await;
    let rival = bits.rival(&claim);
    let new = store.win(&rival, Grant::TakenOver, "a renewed lease lapses in its time").await;
    assert!(new.fence > lease.fence, "a takeover has a higher fence");
    store.fenced_everywhere(&lease, &mut bits, "the owner that was replaced").await;
}

/// A clock that steps back loses no answer and grants no key that was used: I11, I30.
pub async fn a_clock_that_steps_back_loses_no_answer(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    store.finish(&claim, &bits.completion()).await;
    let before = store.record(&claim.id, "the answer is on record").await.state.kind();
    rig.step_back(STEP).await;
    let promise = "an answer that was recorded is still there";
    store.refused(&bits.rival(&claim), Refusal::Replay, promise).await;
    assert_eq!(store.purge(100).await.total(), 0, "nothing is due on a clock that stepped back");
    let after = store.record(&claim.id, promise).await.state.kind();
    assert_eq!(before, after, "{promise}");
}

/// On a clock that stepped back, fresh keys are granted with whole leases, and answers are kept.
pub async fn a_clock_that_stepped_back_still_grants(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    store.finish(&bits.claim(), &bits.completion()).await;
    rig.step_back(STEP).await;
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    let lost = store.in_progress(&bits.rival(&claim), "a live lease is respected").await;
    let left = lease.remaining(lost.now);
    assert!(left <= LEASE && left > LEASE - MOMENT, "a lease counts from now: {left:?}");
    let completion = bits.completion();
    assert_eq!(store.complete(&lease, &completion).await, Write::Applied, "the owner completes");
    rig.advance(RETENTION - MOMENT).await;
    store.refused(&bits.rival(&claim), Refusal::Replay, "an answer is kept for its time").await;
}

/// Uses a key up: claims it, completes it, and lets the record be forgotten and removed.
async fn use_up<S: Store>(
    rig: &impl Rig<Store = S>,
    store: &Probe<S>,
    claim: &Claim,
    bits: &mut Bits,
) -> Lease {
    let lease = store.finish(claim, &bits.completion()).await;
    // A completion under a fence that is ahead of the clock counts from the fence, by no more
    // than a day: wait that long too.
    rig.advance(STEP + RETENTION + LINGER).await;
    store.purge(100).await;
    assert_eq!(store.get(&claim.id).await, None, "the record's time is over");
    lease
}

/// Fences of one key, each higher than the one before.
#[derive(Default)]
struct Rising(Option<Fence>);

impl From<Lease> for Rising {
    fn from(lease: Lease) -> Self {
        Self(Some(lease.fence))
    }
}

impl Rising {
    fn rise(&mut self, lease: Lease) {
        if let Some(last) = self.0.replace(lease.fence) {
            assert!(
                lease.fence > last,
                "fences of a key rise for ever: {} after {last}",
                lease.fence
            );
        }
    }
}
