//! Bodies that are too large for one item.

use std::sync::Arc;

use oncekey::core::{
    Answer, Clock, Erase as _, Erased, Grant, KeyId, ManualClock, Refusal, State, Store as _,
    Timestamp, Write,
};
use oncekey::store::dynamodb::DynamoStore;

use super::dynamodb::Table;
use super::scene::{DAY, claim, completion, items, pieces, refusal, win};

/// In three pieces.
const LARGE: usize = 700_000;

async fn with_clock(table: &Table) -> (DynamoStore, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_000_000)));
    let shared = Arc::clone(&clock) as Arc<dyn Clock>;
    (table.options().clock(shared).open().await.expect("the table opens"), clock)
}

async fn body_of(store: &DynamoStore, id: &KeyId) -> usize {
    let record = store.get(id).await.expect("it can be read").expect("it is on record");
    let State::Done { answer: Answer::Kept(saved), .. } = record.state else {
        panic!("it has no answer: {:?}", record.state.kind())
    };
    saved.body.len()
}

#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_large_body_is_kept_in_pieces_and_they_go_with_it() {
    let table = Table::new().await;
    let (store, clock) = with_clock(&table).await;
    for (key, size, expected) in [(1, 1_000, 0), (2, 300_000, 0), (3, 300_001, 2), (4, LARGE, 3)] {
        let (lease, _) = win(&store, &claim(key, 1)).await;
        assert_eq!(store.complete(&lease, &completion(1, size)).await.unwrap(), Write::Applied);
        assert_eq!(body_of(&store, &lease.id).await, size);
        assert_eq!(pieces(&table, &lease.id).await, expected, "pieces of {size} bytes");
    }
    let (erased, stripped) = (claim(3, 1).id, claim(4, 1).id);
    assert_eq!(store.erase(&erased).await.unwrap(), Erased::Blank);
    assert_eq!(pieces(&table, &erased).await, 0, "an erasure takes the pieces");
    clock.advance(DAY + DAY / 2);
    assert_eq!(store.purge(100).await.unwrap().stripped, 4);
    assert_eq!(pieces(&table, &stripped).await, 0, "a purge takes the pieces");
}

/// A new generation takes the pieces of the one before.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_new_generation_leaves_no_pieces_behind() {
    let table = Table::new().await;
    let (store, clock) = with_clock(&table).await;
    let (lease, _) = win(&store, &claim(1, 1)).await;
    assert_eq!(store.complete(&lease, &completion(1, LARGE)).await.unwrap(), Write::Applied);
    clock.advance(DAY * 3);
    assert_eq!(win(&store, &claim(1, 2)).await.1, Grant::Reused);
    assert_eq!(pieces(&table, &lease.id).await, 0);
}

/// An owner that was replaced writes nothing, not even pieces; and those of an attempt that died
/// half-way are nobody's answer.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn an_owner_that_was_replaced_writes_no_pieces() {
    let table = Table::new().await;
    let (store, _) = with_clock(&table).await;
    let (old, _) = win(&store, &claim(1, 1)).await;
    assert_eq!(store.release(&old).await.unwrap(), Write::Applied);
    let (new, _) = win(&store, &claim(1, 2)).await;
    assert_eq!(store.complete(&old, &completion(1, LARGE)).await.unwrap(), Write::Fenced);
    assert_eq!(pieces(&table, &old.id).await, 0, "nothing was written");
    // As if the new owner had died after its first piece.
    let mut orphan = items(&table, &new.id).await.remove(0);
    let mut part = vec![1];
    part.extend_from_slice(&new.fence.number().to_be_bytes());
    part.extend_from_slice(&[0; 28]);
    orphan.retain(|name, _| name == "k");
    let binary = |bytes: Vec<u8>| aws_sdk_dynamodb::types::AttributeValue::B(bytes.into());
    orphan.insert("p".to_owned(), binary(part));
    orphan.insert("yb".to_owned(), binary(vec![9; 10]));
    let put = super::dynamodb::client().put_item().table_name(table.name());
    put.set_item(Some(orphan)).send().await.unwrap();
    assert_eq!(store.complete(&new, &completion(2, LARGE)).await.unwrap(), Write::Applied);
    assert_eq!(refusal(&store, &claim(1, 3)).await, Refusal::Replay);
    assert_eq!(body_of(&store, &new.id).await, LARGE);
    assert_eq!(pieces(&table, &new.id).await, 4);
    // What is personal in an orphan is personal, too.
    assert_eq!(store.erase(&new.id).await.unwrap(), Erased::Blank);
    assert_eq!(pieces(&table, &new.id).await, 0);
}
