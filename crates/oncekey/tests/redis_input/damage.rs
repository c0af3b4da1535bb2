//! Records that this version did not write, or that are not what was written.

use std::time::Duration;

use oncekey::core::{
    Claim, Completion, Erase as _, ErrorKind, KeyId, Renewal, Restore as _, Store, StoreError,
    Write,
};

use crate::server::{Server, claim, completion, open, win};

fn name(id: &KeyId) -> Vec<u8> {
    let shard = format!("{{oncekey:{:02x}}}r", id.as_bytes()[0]);
    [shard.as_bytes(), id.as_bytes()].concat()
}

async fn stored(server: &Server, id: &KeyId) -> Vec<u8> {
    let mut get = redis::cmd("HGET");
    get.arg(name(id)).arg("r").query_async(&mut server.raw().await).await.expect("a record")
}

async fn change(server: &Server, id: &KeyId, how: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut record = stored(server, id).await;
    how(&mut record);
    let mut set = redis::cmd("HSET");
    set.arg(name(id)).arg("r").arg(&record);
    let _: i64 = set.query_async(&mut server.raw().await).await.expect("a write");
    record
}

fn is_corrupt<T: std::fmt::Debug>(what: &str, answer: Result<T, StoreError>) {
    let error = answer.expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
    assert!(error.to_string().contains("upgrade"), "{what}: {error}");
}

/// I36: what a newer version wrote is neither read nor written over.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_record_of_a_newer_format_is_left_alone_by_every_verb() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    let mut first = claim(1, 1);
    (first.lease, first.grace) = (Duration::from_micros(1), Duration::ZERO);
    let lease = win(&store, &first).await;
    let record = store.get(&lease.id).await.unwrap().unwrap();
    let other = win(&store, &claim(2, 1)).await;
    let newer = change(&server, &lease.id, |record| record[0] = 2).await;
    let large: &'static str = "x".repeat(1 << 20).leak();
    // It would be taken over at once, were it one of ours.
    is_corrupt("claim", store.claim(&Claim { grace: Duration::ZERO, ..claim(1, 2) }).await);
    is_corrupt("send", store.send(&lease).await);
    is_corrupt("complete", store.complete(&lease, &completion("ok")).await);
    is_corrupt("pieces", store.complete(&lease, &completion(large)).await);
    is_corrupt("unknown", store.unknown(&lease).await);
    is_corrupt("release", store.release(&lease).await);
    is_corrupt("erase", store.erase(&lease.id).await);
    is_corrupt("restore", store.restore(&record).await);
    is_corrupt("get", store.get(&lease.id).await);
    // The leases of others are renewed all the same.
    let renewed = store.renew(&[lease, other], Duration::from_secs(60)).await.unwrap();
    assert!(matches!(renewed[..], [Renewal::Lost, Renewal::Until(_)]), "{renewed:?}");
    assert_eq!(stored(&server, &lease.id).await, newer);
    // Finished ones, too, whether they are due or not.
    let short = Completion { retention: Duration::from_micros(1), ..completion("ok") };
    assert_eq!(store.complete(&other, &short).await.unwrap(), Write::Applied);
    let newer = change(&server, &other.id, |record| record[0] = 2).await;
    is_corrupt("claim", store.claim(&claim(2, 2)).await);
    assert_eq!(store.purge(100).await.unwrap().total(), 0);
    assert_eq!(stored(&server, &other.id).await, newer);
}

/// One record that cannot be read is nobody's business but its own.
#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_damaged_record_does_not_hold_up_a_purge() {
    // A letter where a digit should be, and a digit that puts the end off by centuries.
    for byte in [b'x', b'9'] {
        let server = Server::start(&[]).await;
        let store = open(&server.url()).await;
        for key in 1..=4 {
            let lease = win(&store, &claim(key, 1)).await;
            let (retention, linger) = (Duration::from_micros(1), Duration::ZERO);
            let short = Completion { retention, linger, ..completion("ok") };
            assert_eq!(store.complete(&lease, &short).await.unwrap(), Write::Applied);
        }
        let damaged = claim(1, 1).id;
        let left = change(&server, &damaged, |record| {
            let end = record.len();
            (record[end - 87], record[end - 71]) = (byte, byte);
        })
        .await;
        let purge = tokio::time::timeout(Duration::from_secs(20), store.purge(1_000));
        let purged = purge.await.expect("a purge ends").unwrap();
        assert_eq!(purged.forgotten, 3, "{byte}");
        assert_eq!(stored(&server, &damaged).await, left, "what cannot be read stays");
        assert_eq!(store.purge(1_000).await.unwrap().total(), 0);
        // It is looked at again another day.
        let index = server.tell(&["ZCARD", "{oncekey:01}x"]).await;
        assert_eq!(index, redis::Value::Int(1));
    }
}
