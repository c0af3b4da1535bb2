//! Claims, answers and a look at the table behind the store's back.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use bytes::Bytes;
use oncekey::core::saved::{Headers, Saved};
use oncekey::core::{
    Answer, Claim, Claimed, Class, Completion, Fingerprint, Grant, KeyId, Lease, Origin, Owner,
    Places, Refusal, Sent, Store,
};

use super::dynamodb::{Table, client};

pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const GRACE: Duration = Duration::from_secs(2);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A claim of key `key` by owner `by`. Every claim of a key is the same request.
pub(crate) fn claim(key: u32, by: u32) -> Claim {
    let spread = |number: u32| -> [u8; 32] {
        let mut bytes = [0; 32];
        // The first byte too: the index is spread by it.
        bytes[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
        bytes[4..8].copy_from_slice(&number.to_be_bytes());
        bytes
    };
    let mut owner = [7; 16];
    owner[..4].copy_from_slice(&by.to_be_bytes());
    Claim {
        id: KeyId::from_bytes(spread(key)),
        owner: Owner::from_bytes(owner),
        fingerprint: Fingerprint::from_parts(1, spread(key)),
        class: Class::Once,
        lease: LEASE,
        grace: GRACE,
        sent: Sent::No,
        origin: Origin {
            key: format!("key-{key}").into(),
            scope: "tenant-1".into(),
            route: "POST /v1/charges".into(),
            request: format!("req-{by}").into(),
        },
        places: Places::default(),
    }
}

/// A completion with a body of this size.
pub(crate) fn completion(number: u8, size: usize) -> Completion {
    let body: Vec<u8> = (0..=u8::MAX).cycle().skip(number.into()).take(size).collect();
    let answer =
        Answer::Kept(Saved { status: 201, headers: Headers::new(), body: Bytes::from(body) });
    Completion { answer, retention: DAY, linger: DAY }
}

pub(crate) async fn win(store: &impl Store, claim: &Claim) -> (Lease, Grant) {
    match store.claim(claim).await.expect("a claim is a decision, not an error") {
        Claimed::Won { lease, grant, .. } => (lease, grant),
        Claimed::Lost { refusal, .. } => panic!("refused as {refusal:?}"),
    }
}

pub(crate) async fn refusal(store: &impl Store, claim: &Claim) -> Refusal {
    match store.claim(claim).await.expect("a claim is a decision, not an error") {
        Claimed::Won { grant, .. } => panic!("granted as {grant:?}"),
        Claimed::Lost { refusal, .. } => refusal,
    }
}

pub(crate) type Item = HashMap<String, AttributeValue>;

/// All items of a key: its record and the pieces of bodies.
pub(crate) async fn items(table: &Table, id: &KeyId) -> Vec<Item> {
    let found = client()
        .query()
        .table_name(table.name())
        .key_condition_expression("k = :k")
        .expression_attribute_values(":k", AttributeValue::B(id.as_bytes().to_vec().into()))
        .send()
        .await
        .expect("the table can be read");
    found.items.unwrap_or_default()
}

/// Removes the record of a key, as a table does that was put back to an earlier state.
pub(crate) async fn lose(table: &Table, id: &KeyId) {
    let removed = client()
        .delete_item()
        .table_name(table.name())
        .key("k", AttributeValue::B(id.as_bytes().to_vec().into()))
        .key("p", AttributeValue::B(vec![0].into()))
        .send();
    removed.await.expect("the record goes");
}

/// The pieces of bodies of a key.
pub(crate) async fn pieces(table: &Table, id: &KeyId) -> usize {
    items(table, id).await.len().saturating_sub(1)
}
