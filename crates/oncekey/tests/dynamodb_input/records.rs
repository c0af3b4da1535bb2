//! What is in the table, and what is made of it: remainders, damage, restoration, lists.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use oncekey::core::browse::{Browse as _, Filter, Page};
use oncekey::core::{
    ErrorKind, Fence, Grant, Refusal, Renewal, Restore as _, Restored, StateKind, Store as _,
    Timestamp, Write,
};

use super::dynamodb::{Table, client};
use super::scene::{claim, completion, items, refusal, win};

/// Of a record that is gone only the fence stays, and DynamoDB is told when that may go.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_released_record_leaves_its_fence_and_nothing_else() {
    let table = Table::new().await;
    let store = table.options().open().await.unwrap();
    let (lease, _) = win(&store, &claim(1, 1)).await;
    assert_eq!(store.release(&lease).await.unwrap(), Write::Applied);
    let [left] = &items(&table, &lease.id).await[..] else { panic!("one item") };
    let mut names: Vec<&str> = left.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["f", "gc", "k", "p", "s"]);
    assert_eq!(left["f"], AttributeValue::N(lease.fence.number().to_string()));
    let after: i64 = left["gc"].as_n().unwrap().parse().unwrap();
    let week = 7 * 24 * 60 * 60;
    assert!((after - lease.fence.number() / 1_000_000 - week).abs() < 60, "a week later: {after}");
    assert_eq!(win(&store, &claim(1, 2)).await.1, Grant::Fresh);
}

/// F55: a changed attribute is damage: never an absent key, a replay or a takeover.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_damaged_item_is_neither_replayed_nor_run() {
    let table = Table::new().await;
    let store = table.options().open().await.unwrap();
    let changes = [
        ("s", AttributeValue::N("14".to_owned())),
        ("g", AttributeValue::B(vec![1; 32].into())),
        ("yb", AttributeValue::B(vec![1; 3].into())),
        ("xr", AttributeValue::S("text".to_owned())),
        ("f", AttributeValue::N("-4".to_owned())),
        ("v", AttributeValue::N("2".to_owned())),
    ];
    for (key, (name, value)) in (0..).zip(changes) {
        let (lease, _) = win(&store, &claim(key, 1)).await;
        assert_eq!(store.complete(&lease, &completion(1, 9)).await.unwrap(), Write::Applied);
        let mut item = items(&table, &lease.id).await.remove(0);
        item.insert(name.to_owned(), value);
        let put = client().put_item().table_name(table.name()).set_item(Some(item));
        put.send().await.unwrap();
        let error = store.claim(&claim(key, 2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        let error = store.get(&lease.id).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
    }
}

/// What a newer version has written means something that this one does not know: nothing is written over
/// it, by nobody, and whoever tries is told to upgrade.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_record_of_a_newer_format_is_not_written_over() {
    let table = Table::new().await;
    let store = table.options().open().await.unwrap();
    let (mut leases, mut before) = (Vec::new(), Vec::new());
    for key in 0..6 {
        let (lease, _) = win(&store, &claim(key, 1)).await;
        let mut item = items(&table, &lease.id).await.remove(0);
        item.insert("v".to_owned(), AttributeValue::N("2".to_owned()));
        let put = client().put_item().table_name(table.name()).set_item(Some(item.clone()));
        put.send().await.unwrap();
        leases.push(lease);
        before.push(item);
    }
    let tried = [
        ("send", store.send(&leases[0]).await),
        ("complete", store.complete(&leases[1], &completion(1, 9)).await),
        ("a large answer", store.complete(&leases[2], &completion(1, 700_000)).await),
        ("release", store.release(&leases[3]).await),
        ("unknown", store.unknown(&leases[4]).await),
    ];
    for (verb, tried) in tried {
        let error = tried.expect_err(verb);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{verb}: {error}");
        assert!(error.to_string().contains("upgrade"), "{verb}: {error}");
    }
    let renewed = store.renew(&leases[5..], Duration::from_secs(60)).await.unwrap();
    assert_eq!(renewed, [Renewal::Lost]);
    for (lease, before) in leases.iter().zip(before) {
        assert_eq!(items(&table, &lease.id).await, [before], "it is as it was");
    }
}

/// A piece that is missing is damage, too.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_missing_piece_is_damage() {
    let table = Table::new().await;
    let store = table.options().open().await.unwrap();
    let (lease, _) = win(&store, &claim(1, 1)).await;
    assert_eq!(store.complete(&lease, &completion(1, 700_000)).await.unwrap(), Write::Applied);
    let mut piece = items(&table, &lease.id).await.remove(2);
    piece.retain(|name, _| name == "k" || name == "p");
    let delete = client().delete_item().table_name(table.name()).set_key(Some(piece));
    delete.send().await.unwrap();
    let error = store.claim(&claim(1, 2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(store.get(&lease.id).await.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A restored record never takes anything back, and the fences after it are higher.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_restored_record_stands_unless_a_newer_one_does() {
    let (from, to) = (Table::new().await, Table::new().await);
    let (from, to) = (from.options().open().await.unwrap(), to.options().open().await.unwrap());
    for (key, size) in [(1, 10), (2, 700_000)] {
        let (lease, _) = win(&from, &claim(key, 1)).await;
        let running = from.get(&lease.id).await.unwrap().expect("it runs");
        assert_eq!(from.complete(&lease, &completion(1, size)).await.unwrap(), Write::Applied);
        let done = from.get(&lease.id).await.unwrap().expect("it is done");
        for (record, said) in [
            (&running, Restored::Written),
            (&running, Restored::Kept),
            (&done, Restored::Written),
            (&done, Restored::Kept),
            (&running, Restored::Kept),
        ] {
            assert_eq!(to.restore(record).await.unwrap(), said, "{:?}", record.state.kind());
        }
        assert_eq!(to.get(&lease.id).await.unwrap().as_ref(), Some(&done));
        assert_eq!(refusal(&to, &claim(key, 2)).await, Refusal::Replay);
    }
    // One that was granted by a clock that is far ahead.
    let (lease, _) = win(&from, &claim(3, 1)).await;
    let mut record = from.get(&lease.id).await.unwrap().expect("it runs");
    let ahead = Timestamp::from_micros(lease.fence.number()).after(Duration::from_secs(9_999_999));
    record.fence = Fence::next(None, ahead);
    assert_eq!(to.restore(&record).await.unwrap(), Restored::Written);
    assert_eq!(to.release(&record.lease()).await.unwrap(), Write::Applied);
    let (after, _) = win(&to, &claim(3, 2)).await;
    assert!(after.fence > record.fence, "fences rise across a restoration");
    // And one that is older than what was released here meanwhile.
    assert_eq!(to.release(&after).await.unwrap(), Write::Applied);
    record.fence = lease.fence;
    assert_eq!(to.restore(&record).await.unwrap(), Restored::Written);
    assert_eq!(to.release(&record.lease()).await.unwrap(), Write::Applied);
    assert!(win(&to, &claim(3, 3)).await.0.fence > after.fence, "not even then");
}

/// A table has one lineage for as long as it lives, and no other table has it.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_table_is_known_again() {
    let (one, other) = (Table::new().await, Table::new().await);
    let store = one.options().open().await.unwrap();
    let lineage = store.lineage().await.unwrap();
    win(&store, &claim(1, 1)).await;
    assert_eq!(one.options().open().await.unwrap().lineage().await.unwrap(), lineage);
    assert_ne!(other.options().open().await.unwrap().lineage().await.unwrap(), lineage);
    client().delete_table().table_name(one.name()).send().await.unwrap();
    assert_ne!(one.options().open().await.unwrap().lineage().await.unwrap(), lineage);
}

/// What is not finished is listed newest first, from all shards of the index, page by page.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn open_records_are_listed_newest_first() {
    let table = Table::new().await;
    let store = table.options().open().await.unwrap();
    let mut expected = Vec::new();
    for key in 0..40 {
        let (lease, _) = win(&store, &claim(key, 1)).await;
        match key % 4 {
            0 => assert_eq!(store.unknown(&lease).await.unwrap(), Write::Applied),
            1 => assert_eq!(store.release(&lease).await.unwrap(), Write::Applied),
            2 => {
                let write = store.complete(&lease, &completion(1, 9)).await.unwrap();
                assert_eq!(write, Write::Applied);
            }
            _ => expected.push(lease.id),
        }
    }
    expected.reverse();
    for limit in [1, 3, 100] {
        let filter = Filter { state: Some(StateKind::Running), ..Filter::default() };
        let (mut listed, mut page) = (Vec::new(), Page { after: None, limit });
        loop {
            let listing = store.list(&filter, &page).await.unwrap();
            assert!(listing.summaries.len() <= limit);
            listed.extend(listing.summaries.iter().map(|summary| summary.id));
            match listing.next {
                Some(next) => page.after = Some(next),
                None => break,
            }
        }
        assert_eq!(listed, expected, "in pages of {limit}");
    }
    let foreign = Page { after: Some(oncekey::core::browse::Cursor(vec![1, 2])), limit: 9 };
    for state in [Some(StateKind::Unknown), None] {
        let filter = Filter { state, ..Filter::default() };
        let error = store.list(&filter, &foreign).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    }
}
