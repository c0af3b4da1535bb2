//! Many callers on a few keys.

use std::collections::HashMap;
use std::sync::Arc;

use oncekey::core::{Claimed, Refusal, Store as _};
use tokio::sync::Barrier;

use super::dynamodb::Table;
use super::scene::claim;

const CALLERS: u32 = 64;
const KEYS: u32 = 400;

/// I1: however many want a key, one gets it, and nobody gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn of_64_callers_one_wins_each_of_400_keys() {
    let table = Table::new().await;
    let handles = [table.options().open().await.unwrap(), table.options().open().await.unwrap()];
    let barrier = Arc::new(Barrier::new(64));
    let mut callers = Vec::new();
    for (by, store) in (0..CALLERS).zip(handles.iter().cycle()) {
        let (store, barrier) = (store.clone(), Arc::clone(&barrier));
        callers.push(tokio::spawn(async move {
            let mut won = Vec::new();
            barrier.wait().await;
            for key in 0..KEYS {
                match store.claim(&claim(key, by)).await.expect("a decision, not an error") {
                    Claimed::Won { lease, .. } => won.push((key, lease.fence)),
                    Claimed::Lost { refusal, .. } => {
                        assert!(matches!(refusal, Refusal::InProgress(_)), "{refusal:?}");
                    }
                }
            }
            won
        }));
    }
    let mut winners = HashMap::new();
    for caller in callers {
        for (key, fence) in caller.await.unwrap() {
            assert_eq!(winners.insert(key, fence), None, "key {key} has two owners");
        }
    }
    assert_eq!(winners.len(), 400, "every key has an owner");
}
