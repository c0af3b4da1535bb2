//! What survives a restart.

use super::rig::Rig;
use super::scene::{Bits, GRACE, LEASE, MOMENT, Probe, RETENTION, completion};
use crate::decide::{Grant, Refusal};
use crate::policy::Class;
use crate::record::Sent;
use crate::saved::{Answer, NotKept, Tombstone};
use crate::store::{Claim, Renewal, Write};

/// Every record survives reopening as it was, in every state: I32.
pub async fn every_state_survives_reopening(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut ids = Vec::new();
    let stripped = bits.claim();
    store.finish(&stripped, &bits.completion()).await;
    rig.advance(RETENTION + MOMENT).await;
    assert_eq!(store.purge(100).await.stripped, 1, "an expired record is stripped");
    ids.push(stripped.id);
    for class in Class::ALL {
        let claim = bits.claim_as(class);
        store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        ids.push(claim.id);
    }
    let kept = bits.claim();
    store.finish(&kept, &bits.completion()).await;
    ids.push(kept.id);
    for reason in NotKept::ALL {
        let tomb = bits.claim();
        let answer = Answer::Tombstone(Tombstone { status: Some(418), reason });
        store.finish(&tomb, &completion(answer)).await;
        ids.push(tomb.id);
    }
    let unknown = bits.claim();
    let lease = store.win(&unknown, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
    ids.push(unknown.id);
    let mut before = Vec::new();
    for id in &ids {
        before.push(store.record(id, "it is on record").await);
    }
    let store = store.reopened(rig).await;
    for record in before {
        let after = store.record(&record.id, "what was acknowledged survives").await;
        assert_eq!(after, record, "a record survives as it was");
    }
    store.refused(&bits.rival(&kept), Refusal::Replay, "an answer replays after a restart").await;
    store.refused(&bits.rival(&unknown), Refusal::Unknown, "a doubt survives").await;
}

/// A lease that was granted before a restart still proves what it proved: I5, I32.
pub async fn a_lease_outlives_a_restart(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    let store = store.reopened(rig).await;
    store.in_progress(&bits.rival(&claim), "a lease is respected after a restart").await;
    let again = store.win(&claim, Grant::Again, "an owner is recognised after a restart").await;
    assert_eq!(again.fence, lease.fence, "the owner keeps its fence");
    let renewed = store.renew(&[lease], LEASE).await;
    assert!(matches!(renewed[..], [Renewal::Until(_)]), "the lease is still held: {renewed:?}");
    let answered = bits.completion();
    let store = store.reopened(rig).await;
    assert_eq!(store.complete(&lease, &answered).await, Write::Applied, "the owner completes");
    let store = store.reopened(rig).await;
    let promise = "a repeated completion is recognised after a restart";
    assert_eq!(store.complete(&lease, &answered).await, Write::Applied, "{promise}");
    store.refused(&bits.rival(&claim), Refusal::Replay, "done work replays").await;
}

/// A send mark survives a restart: without it the work would be sent twice: I8, I32.
pub async fn a_send_mark_survives_a_restart(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let marked = bits.claim();
    let lease = store.win(&marked, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.send(&lease).await, Write::Applied, "the owner sends");
    let merged = Claim { sent: Sent::Yes, ..bits.claim() };
    store.win(&merged, Grant::Fresh, "a fresh key is granted").await;
    let store = store.reopened(rig).await;
    rig.advance(LEASE + GRACE).await;
    for claim in [&marked, &merged] {
        let promise = "what may have been sent before a restart is not sent again";
        store.refused(&bits.rival(claim), Refusal::Unknown, promise).await;
    }
}

/// A release and a purge are not taken back by a restart: I32.
pub async fn what_is_gone_stays_gone_after_a_restart(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let purged = bits.claim();
    store.finish(&purged, &bits.completion()).await;
    rig.advance(RETENTION * 2).await;
    assert_eq!(store.purge(100).await.forgotten, 1, "a forgotten record is removed");
    let released = bits.claim();
    let lease = store.win(&released, Grant::Fresh, "a fresh key is granted").await;
    assert_eq!(store.release(&lease).await, Write::Applied, "the owner gives up");
    let store = store.reopened(rig).await;
    for claim in [&purged, &released] {
        assert_eq!(store.get(&claim.id).await, None, "what is gone stays gone");
        store.win(&bits.rival(claim), Grant::Fresh, "a key that is gone is fresh").await;
    }
}
