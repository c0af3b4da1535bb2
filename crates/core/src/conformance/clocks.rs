//! For rigs whose clock really moves and can be read: times to the microsecond.
//!
//! A rig that moves the stored times instead of the clock cannot show these: on it, no fence is
//! ever ahead of the clock.

use std::sync::Arc;
use std::time::Duration;

use super::rig::Rig;
use super::scene::{Bits, GRACE, LEASE, LINGER, MOMENT, Probe, RETENTION};
use crate::clock::Clock;
use crate::decide::{Grant, Refusal};
use crate::record::State;
use crate::store::{Completion, Renewal, Write};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Every time that the store tells comes from its clock.
pub async fn every_time_is_read_from_the_stores_clock(rig: &impl Rig) {
    let (store, mut bits, clock) = (Probe::of(rig), Bits::here(), clock_of(rig));
    let claim = bits.claim();
    let start = clock.now();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(lease.until, start.after(LEASE), "a lease counts from the claim");
    rig.advance(HOUR).await;
    let lost = store.lose(&bits.impostor(&claim), "another request").await;
    assert_eq!(lost.now, clock.now(), "the loser is told the store's clock");
    assert_eq!(lost.record.created, start, "the record was created at the claim");
    let renewed = store.renew(&[lease], LEASE * 2).await;
    let until = clock.now().after(LEASE * 2);
    assert_eq!(renewed, [Renewal::Until(until)], "a renewal counts from now");
    rig.advance(HOUR).await;
    assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
    let record = store.record(&claim.id, "the doubt is on record").await;
    assert_eq!(record.state, State::Unknown { since: clock.now() }, "a doubt begins now");
    rig.advance(HOUR).await;
    let completion = bits.completion();
    assert_eq!(store.complete(&lease, &completion).await, Write::Applied, "it is resolved");
    let record = store.record(&claim.id, "the answer is on record").await;
    let State::Done { at, .. } = record.state else { panic!("done work is done") };
    assert_eq!(at, clock.now(), "work is done when it is completed");
}

/// A lease and its grace end at their moment, not one microsecond before.
pub async fn a_lease_ends_at_its_moment(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.advance(LEASE + GRACE - Duration::from_micros(1)).await;
    store.in_progress(&bits.rival(&claim), "grace protects to its last microsecond").await;
    rig.advance(Duration::from_micros(1)).await;
    store.win(&bits.rival(&claim), Grant::TakenOver, "after grace the key is free").await;
}

/// Retention and linger end at their moments, for claims, readers and purges alike: I27.
pub async fn retention_ends_at_its_moment(rig: &impl Rig) {
    let (store, mut bits, clock) = (Probe::of(rig), Bits::here(), clock_of(rig));
    let claim = bits.claim();
    // A fence may be a little ahead of a clock that stands still; then the times count from it.
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.advance(HOUR).await;
    let write = store.complete(&lease, &bits.completion()).await;
    assert_eq!(write, Write::Applied, "the owner completes");
    let at = clock.now();
    rig.advance(RETENTION - Duration::from_micros(1)).await;
    store.refused(&bits.rival(&claim), Refusal::Replay, "to the last microsecond").await;
    assert_eq!(store.purge(100).await.total(), 0, "nothing is due before its moment");
    rig.advance(Duration::from_micros(1)).await;
    assert_eq!(clock.now(), at.after(RETENTION), "this is the moment");
    store.refused(&bits.rival(&claim), Refusal::Expired, "retention ends at its moment").await;
    assert_eq!(store.purge(100).await.stripped, 1, "the answer is due at its moment");
    rig.advance(LINGER - Duration::from_micros(1)).await;
    store.refused(&bits.rival(&claim), Refusal::Expired, "to the last microsecond").await;
    assert_eq!(store.purge(100).await.total(), 0, "nothing is due before its moment");
    rig.advance(Duration::from_micros(1)).await;
    assert_eq!(store.get(&claim.id).await, None, "a record is forgotten at its moment");
    assert_eq!(store.purge(100).await.forgotten, 1, "the record is due at its moment");
}

/// A completion on a clock that stepped back keeps its whole retention when the clock is put
/// right, because the fence remembers the later time: I27, I30.
pub async fn a_step_back_costs_no_retention(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.step_back(HOUR * 3).await;
    let short = Completion { retention: HOUR, linger: Duration::ZERO, ..bits.completion() };
    assert_eq!(store.complete(&lease, &short).await, Write::Applied, "the owner completes");
    rig.advance(HOUR * 3).await;
    store.purge(100).await;
    let promise = "an answer is kept although the clock was behind when it was recorded";
    store.refused(&bits.rival(&claim), Refusal::Replay, promise).await;
    rig.advance(HOUR + MOMENT).await;
    store.win_anew(&bits.rival(&claim), "and no longer than that").await;
}

/// A clock that was once decades ahead makes no record immortal: the fence counts for a day at
/// most: I27, I30.
pub async fn a_clock_that_was_far_ahead_makes_no_record_immortal(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let years = HOUR * 24 * 365 * 30;
    rig.advance(years).await;
    let early = store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.release(&early).await, Write::Applied, "the owner gives up");
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.step_back(years).await;
    let short = Completion { retention: HOUR, linger: Duration::ZERO, ..bits.completion() };
    assert_eq!(store.complete(&lease, &short).await, Write::Applied, "the owner completes");
    rig.advance(HOUR * 24).await;
    store.refused(&bits.rival(&claim), Refusal::Replay, "it is kept for its time").await;
    rig.advance(HOUR).await;
    store.win_anew(&bits.rival(&claim), "and it is forgotten in its time").await;
}

fn clock_of(rig: &impl Rig) -> Arc<dyn Clock> {
    rig.clock().expect("clock_conformance! is for rigs with a clock that can be read")
}
