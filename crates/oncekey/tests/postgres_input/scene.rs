//! What these tests share.

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use oncekey::core::saved::{Headers, Saved};
use oncekey::core::{
    Answer, Claim, Claimed, Class, Completion, Fingerprint, KeyId, Lease, Origin, Owner, Places,
    Sent, Store,
};
use oncekey::store::postgres::PostgresStore;
use tokio_postgres::{Client, NoTls};

pub(crate) fn url() -> String {
    env::var("ONCEKEY_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "ONCEKEY_TEST_POSTGRES is not set: run `cargo xtask test`, or `cargo xtask servers` \
             and its exports"
        )
    })
}

/// The URL with other parts.
pub(crate) fn url_with(change: impl Fn(&mut url::Url)) -> String {
    let mut url = url::Url::parse(&url()).expect("a URL");
    change(&mut url);
    url.to_string()
}

pub(crate) async fn admin() -> Client {
    admin_at(&url()).await
}

pub(crate) async fn admin_at(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("PostgreSQL");
    tokio::spawn(connection);
    client
}

/// A name that no other test uses. What an earlier process left under it is removed.
pub(crate) async fn fresh_schema(admin: &Client) -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let schema = format!("oncekey_input_{}_{number}", std::process::id());
    admin
        .batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE"))
        .await
        .expect("PostgreSQL");
    schema
}

pub(crate) async fn drop_schema(admin: &Client, schema: &str) {
    admin.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await.expect("PostgreSQL");
}

pub(crate) fn claim(number: u32, owner: u32) -> Claim {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let mut bits = [0; 16];
    bits[..4].copy_from_slice(&number.to_be_bytes());
    bits[4..8].copy_from_slice(&owner.to_be_bytes());
    Claim {
        id: KeyId::from_bytes(id),
        owner: Owner::from_bytes(bits),
        fingerprint: Fingerprint::from_parts(1, [1; 32]),
        class: Class::Once,
        lease: Duration::from_secs(30),
        grace: Duration::from_secs(1),
        sent: Sent::No,
        origin: Origin { key: "key".into(), route: "POST /".into(), ..Origin::default() },
        places: Places::default(),
    }
}

pub(crate) fn completion() -> Completion {
    let body = Bytes::from_static(b"{\"id\":1}");
    Completion {
        answer: Answer::Kept(Saved { status: 201, headers: Headers::new(), body }),
        retention: Duration::from_secs(3_600),
        linger: Duration::from_secs(3_600),
    }
}

pub(crate) async fn win(store: &PostgresStore, claim: &Claim) -> Lease {
    match store.claim(claim).await.expect("a claim") {
        Claimed::Won { lease, .. } => lease,
        Claimed::Lost { refusal, .. } => panic!("the key was free: {refusal:?}"),
    }
}
