//! Being told that a key is finished.

use std::collections::HashSet;
use std::time::Duration;

use super::rig::Rig;
use super::scene::{Bits, GRACE, LEASE, Probe, race};
use crate::decide::Grant;
use crate::key_id::KeyId;
use crate::record::Lease;
use crate::store::Write;
use crate::wake::{Feed, Wake, Woken};

/// How long a wake-up may take, from anywhere on earth.
const HEARING: Duration = Duration::from_secs(5);

/// A completion wakes those who watched before: L2.
pub async fn a_completion_wakes_a_watcher(rig: &impl Rig<Store: Wake>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let lease = store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await;
    let mut feed = watch(&store).await;
    let write = store.complete(&lease, &bits.completion()).await;
    assert_eq!(write, Write::Applied, "the owner completes");
    hears(&mut *feed, [lease.id], "a completion wakes a watcher").await;
}

/// A release wakes those who watched before: L2.
pub async fn a_release_wakes_a_watcher(rig: &impl Rig<Store: Wake>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let lease = store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await;
    let mut feed = watch(&store).await;
    assert_eq!(store.release(&lease).await, Write::Applied, "the owner gives up");
    hears(&mut *feed, [lease.id], "a release wakes a watcher").await;
}

/// An unknown outcome wakes those who watched before: L2.
pub async fn an_unknown_outcome_wakes_a_watcher(rig: &impl Rig<Store: Wake>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let lease = store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await;
    let mut feed = watch(&store).await;
    assert_eq!(store.unknown(&lease).await, Write::Applied, "the owner does not know");
    hears(&mut *feed, [lease.id], "an unknown outcome wakes a watcher").await;
}

/// A watcher that already waits is woken, and so is every other one.
pub async fn every_waiting_watcher_is_woken(rig: &impl Rig<Store: Wake>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    rig.advance(LEASE + GRACE).await;
    // Also the completion of an attempt that took over.
    let lease = store.win(&bits.rival(&claim), Grant::TakenOver, "a lapsed lease").await;
    let mut watchers = Vec::new();
    for _ in 0..8 {
        let mut feed = watch(&store).await;
        let waiting = async move { hears(&mut *feed, [lease.id], "all are woken").await };
        watchers.push(tokio::spawn(waiting));
    }
    tokio::task::yield_now().await;
    let write = store.complete(&lease, &bits.completion()).await;
    assert_eq!(write, Write::Applied, "the owner completes");
    for watcher in watchers {
        watcher.await.expect("every watcher is woken");
    }
}

/// A watcher hears of every key, in whatever order they finish, or that it missed some.
pub async fn a_watcher_hears_of_every_key(rig: &impl Rig<Store: Wake>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut leases = Vec::new();
    for _ in 0..48 {
        leases.push(store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await);
    }
    let mut feed = watch(&store).await;
    let completion = bits.completion();
    race(leases.clone().into_iter().enumerate().map(|(number, lease): (usize, Lease)| {
        let (store, completion) = (store.clone(), completion.clone());
        async move {
            let write = match number % 3 {
                0 => store.complete(&lease, &completion).await,
                1 => store.release(&lease).await,
                _ => store.unknown(&lease).await,
            };
            assert_eq!(write, Write::Applied, "the owner ends its attempt");
        }
    }))
    .await;
    hears(&mut *feed, leases.iter().map(|lease| lease.id), "every key is heard of").await;
}

/// Giving up on a wake-up loses nothing: the next question still hears it.
pub async fn giving_up_on_a_wake_up_loses_nothing(rig: &impl Rig<Store: Wake>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut leases = Vec::new();
    for _ in 0..16 {
        leases.push(store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await);
    }
    let mut feed = watch(&store).await;
    let mut missing: HashSet<KeyId> = leases.iter().map(|lease| lease.id).collect();
    for lease in &leases {
        let write = store.complete(lease, &bits.completion()).await;
        assert_eq!(write, Write::Applied, "the owner completes");
        // Asked once and dropped, as a `select!` with another branch does.
        tokio::select! {
            biased;
            woken = feed.next() => forget(&mut missing, woken),
            () = tokio::task::yield_now() => {}
        }
    }
    hears(&mut *feed, missing, "a dropped question loses no wake-up").await;
}

async fn watch<S: Wake>(store: &Probe<S>) -> Box<dyn Feed> {
    store.store().watch().await.expect("a feed can be opened")
}

/// Waits until the feed has told of all of these keys, or said that it lost some: then a watcher
/// looks again at everything, and nothing is missed.
async fn hears(feed: &mut dyn Feed, ids: impl IntoIterator<Item = KeyId>, promise: &str) {
    let mut missing: HashSet<KeyId> = ids.into_iter().collect();
    while !missing.is_empty() {
        match tokio::time::timeout(HEARING, feed.next()).await {
            Ok(woken) => forget(&mut missing, woken),
            Err(_) => panic!("{promise}: {} not heard of in {HEARING:?}", missing.len()),
        }
    }
}

fn forget(missing: &mut HashSet<KeyId>, woken: Woken) {
    match woken {
        Woken::Finished(id) => {
            missing.remove(&id);
        }
        Woken::Lagged => missing.clear(),
        Woken::Closed => panic!("a store that is open closes no feed"),
    }
}
