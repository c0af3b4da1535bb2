//! Records that this version did not write, or that are not what was written.

use std::time::Duration;

use oncekey::core::{Erase as _, ErrorKind, KeyId, Renewal, Restore as _, Store, StoreError};

use crate::server::{Server, claim, completion, open, win};

fn name(id: &KeyId) -> Vec<u8> {
    let shard = format!("{{oncekey:{:02x}}}r", id.as_bytes()[0]);
    [shard.as_bytes(), id.as_bytes()].concat()
}

async fn stored(server: &Server, id: &KeyId) -> Vec<u8> {
    let mut get = redis::cmd("HGET");
    get.arg(name(id)).arg("r").query_async(&mut server.raw().await).await.unwrap()
}

async fn change(server: &Server, id: &KeyId, how: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut record = stored(server, id).await;
    how(&mut record);
    let mut set = redis::cmd("HSET");
    set.arg(name(id)).arg("r").arg(&record);
    let _: i64 = set.query_async(&mut server.raw().await).await.unwrap();
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
    is_corrupt("claim", store.claim(&claim(1, 2)).await);
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
}
