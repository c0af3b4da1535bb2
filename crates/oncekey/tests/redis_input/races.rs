//! Many connections at once, and numbers that must stay exact.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::store::Claimed;
use oncekey::core::{Clock as _, KeyId, Owner, Store, Write};

use crate::server::{Server, claim, completion, open, options, win};

/// 64 connections race for 400 hot keys: one winner each, and no errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn sixty_four_connections_give_each_hot_key_one_owner() {
    const KEYS: usize = 400;
    let server = Server::start(&[]).await;
    let start = Arc::new(tokio::sync::Barrier::new(64));
    let mut tasks = Vec::new();
    for connection in 0..64_u8 {
        let store = options(&server.url()).connections(1).open().await.unwrap();
        let start = Arc::clone(&start);
        tasks.push(tokio::spawn(async move {
            let mut won = Vec::new();
            start.wait().await;
            for step in 0..KEYS {
                let key = (step + usize::from(connection) * 7) % KEYS;
                let mut claim = claim(0, connection);
                // Longer than the slowest machine needs: nobody may take over here.
                claim.lease = Duration::from_secs(3_600);
                let number = u64::try_from(key).unwrap();
                let mut id = [0; 32];
                id[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
                claim.id = KeyId::from_bytes(id);
                claim.owner = Owner::from_bytes([connection; 16]);
                match store.claim(&claim).await.expect("no errors") {
                    Claimed::Won { lease, .. } => won.push(lease),
                    Claimed::Lost { .. } => {}
                }
            }
            won
        }));
    }
    let mut owners = HashMap::new();
    for task in tasks {
        for lease in task.await.unwrap() {
            assert_eq!(owners.insert(lease.id, lease.owner), None, "a key has one owner");
        }
    }
    assert_eq!(owners.len(), KEYS, "every key has an owner");
}

/// Sixteen digits survive Lua, where plain printing would round them.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn numbers_stay_exact_to_the_microsecond() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    let before = oncekey::clock::SystemClock.now();
    let mut ends = std::collections::HashSet::new();
    for key in 0..50 {
        let lease = win(&store, &claim(key, 1)).await;
        let fence = lease.fence.number();
        assert!((before.micros()..before.micros() + 60_000_000).contains(&fence), "{fence}");
        assert_eq!(lease.until.micros(), fence + 30_000_000, "the lease counts from the grant");
        let record = store.get(&lease.id).await.unwrap().unwrap();
        assert_eq!((record.fence, record.created.micros()), (lease.fence, fence));
        assert_eq!(record.lease().until, lease.until);
        assert_eq!(store.complete(&lease, &completion("ok")).await.unwrap(), Write::Applied);
        ends.insert(fence % 1_000);
    }
    assert!(ends.len() > 20, "the last digits are not rounded away: {ends:?}");
}

/// A large body on its way does not hold up the claims of others for long, and nothing is mixed up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn large_answers_of_two_attempts_do_not_mix() {
    let server = Server::start(&[]).await;
    let store = Arc::new(open(&server.url()).await);
    let lease = win(&store, &claim(1, 1)).await;
    let bodies = ["a", "b"].map(|letter| -> &'static str { letter.repeat(3 << 20).leak() });
    let ends = bodies.map(|body| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.complete(&lease, &completion(body)).await.unwrap() })
    });
    let mut applied = 0;
    for end in ends {
        applied += usize::from(end.await.unwrap() == Write::Applied);
    }
    assert_eq!(applied, 1, "one outcome");
    store.get(&lease.id).await.unwrap().expect("its seal fits");
}
