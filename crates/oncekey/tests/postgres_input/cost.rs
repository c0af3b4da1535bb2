//! What the store costs its server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncekey::core::{Claimed, Refusal, Renewal, Store, Write};
use oncekey::store::postgres::{PostgresOptions, Prepared};
use tokio_postgres::Client;

use crate::proxy::counting_proxy;
use crate::scene::{admin, claim, completion, drop_schema, fresh_schema, url, url_with, win};

/// How far the write-ahead log has come.
async fn wal(admin: &Client) -> u64 {
    let text = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint::text";
    let row = admin.query_typed_one(text, &[]).await.expect("PostgreSQL");
    row.get::<_, &str>(0).parse().expect("a number")
}

/// Replays must not cost the server a sync. Others write to the same log at the same time, so a look
/// is short, and it is enough if some of many find nothing: whoever wrote would write every time.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn replays_and_refusals_write_nothing() {
    const KEYS: u32 = 100;
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let open = || async { PostgresOptions::new(url()).schema(&schema).open().await.unwrap() };
    let store = open().await;
    for number in 0..KEYS {
        let lease = win(&store, &claim(number, 1)).await;
        if number % 2 == 0 {
            assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
        }
    }
    // Through a process that has met the keys, and through one that meets each for the first time.
    for who in ["who knows the keys", "who does not"] {
        let mut quiet = 0;
        for _ in 0..30 {
            let stranger = open().await;
            let store = if who == "who knows the keys" { &store } else { &stranger };
            for number in (0..KEYS).step_by(2) {
                let before = wal(&admin).await;
                let replay = store.claim(&claim(number, 9)).await.unwrap();
                let refusal = store.claim(&claim(number + 1, 9)).await.unwrap();
                quiet += u32::from(wal(&admin).await == before);
                assert!(matches!(replay, Claimed::Lost { refusal: Refusal::Replay, .. }));
                let in_progress =
                    matches!(refusal, Claimed::Lost { refusal: Refusal::InProgress(_), .. });
                assert!(in_progress, "{refusal:?}");
            }
            if quiet >= 10 {
                break;
            }
        }
        assert!(quiet >= 10, "replays of one {who} write: only {quiet} looks found nothing");
    }
    drop(store);
    drop_schema(&admin, &schema).await;
}

/// A renewal must not touch an index: it happens to every lease every ten seconds.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn renewals_and_send_marks_touch_the_row_alone() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let store = PostgresOptions::new(url()).schema(&schema).open().await.unwrap();
    let mut leases = Vec::new();
    for number in 0..50 {
        leases.push(win(&store, &claim(number, 1)).await);
    }
    for lease in &leases {
        assert_eq!(store.send(lease).await.unwrap(), Write::Applied);
    }
    let renewed = store.renew(&leases, Duration::from_secs(30)).await.unwrap();
    assert!(renewed.iter().all(|renewal| matches!(renewal, Renewal::Until(_))));
    let unused = win(&store, &claim(50, 1)).await;
    assert_eq!(store.release(&unused).await.unwrap(), Write::Applied);
    // The server writes its statistics when a connection ends, at the latest.
    drop(store);
    let text = format!(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
         WHERE schemaname = '{schema}' AND relname = 'oncekey_records'"
    );
    let mut counted = (0, 0);
    for _ in 0..100 {
        let row = admin.query_typed_one(&text, &[]).await.unwrap();
        counted = (row.get::<_, i64>(0), row.get::<_, i64>(1));
        if counted.0 == 100 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // An index on the lease would leave none. Some find no room on their page: while another
    // transaction of the server is old enough to see them, versions that are over stay.
    assert_eq!(counted.0, 100, "all updates");
    assert!(counted.1 >= 60, "only {} of 100 updates touched no index", counted.1);
    // A plan that was made while the table was empty, and is kept while it grows, must not read more
    // than the rows that are meant.
    let text = format!(
        "SELECT (SELECT seq_scan FROM pg_stat_user_tables
                 WHERE schemaname = '{schema}' AND relname = 'oncekey_records'),
            (SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes
                 WHERE schemaname = '{schema}' AND indexrelname IN
                    ('oncekey_records_open', 'oncekey_records_due', 'oncekey_records_born'))"
    );
    let row = admin.query_typed_one(&text, &[]).await.unwrap();
    let scans: (i64, i64) = (row.get(0), row.get(1));
    // Making each index reads the empty table once.
    assert!(scans.0 <= 4 && scans.1 == 0, "(whole table, other indexes) were read {scans:?}");
    drop_schema(&admin, &schema).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_claim_a_completion_and_a_replay_cost_one_round_trip_each() {
    let admin = admin().await;
    let trips = Arc::new(AtomicUsize::new(0));
    let port = counting_proxy(Arc::clone(&trips), Arc::default()).await;
    for prepared in [Prepared::Auto, Prepared::Off] {
        let schema = fresh_schema(&admin).await;
        let url = url_with(|url| {
            url.set_ip_host([127, 0, 0, 1].into()).unwrap();
            url.set_port(Some(port)).unwrap();
        });
        let options = PostgresOptions::new(url).schema(&schema).prepared(prepared);
        let store = options.writers(1).readers(1).open().await.unwrap();
        // The first of each opens connections and prepares statements.
        for number in 0..2 {
            let lease = win(&store, &claim(number, 1)).await;
            assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
            assert!(matches!(store.claim(&claim(number, 2)).await, Ok(Claimed::Lost { .. })));
        }
        let mut counts = Vec::new();
        for number in 2..42 {
            let before = trips.load(Ordering::SeqCst);
            let lease = win(&store, &claim(number, 1)).await;
            let claimed = trips.load(Ordering::SeqCst);
            assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
            let completed = trips.load(Ordering::SeqCst);
            assert!(matches!(store.claim(&claim(number, 2)).await, Ok(Claimed::Lost { .. })));
            let replayed = trips.load(Ordering::SeqCst);
            counts.push([claimed - before, completed - claimed, replayed - completed]);
        }
        // Answers may reach the proxy in two pieces with a question in between, but that is rare.
        let cheap = counts.iter().filter(|counts| **counts == [1, 1, 1]).count();
        assert!(cheap >= 36, "{prepared:?}: {counts:?}");
        drop(store);
        drop_schema(&admin, &schema).await;
    }
}

/// What a claim has made is not looked up again, and what stood in its way costs no second round trip,
/// even if all claims before it went through.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_claim_looks_for_what_it_did_not_make_and_for_nothing_else() {
    const KEYS: u32 = 40;
    let admin = admin().await;
    let trips = Arc::new(AtomicUsize::new(0));
    let port = counting_proxy(Arc::clone(&trips), Arc::default()).await;
    let schema = fresh_schema(&admin).await;
    let url = url_with(|url| {
        url.set_ip_host([127, 0, 0, 1].into()).unwrap();
        url.set_port(Some(port)).unwrap();
    });
    let scans = async || {
        let text = format!(
            "SELECT idx_scan FROM pg_stat_user_indexes
             WHERE schemaname = '{schema}' AND indexrelname = 'oncekey_records_pkey'"
        );
        admin.query_typed_one(&text, &[]).await.unwrap().get::<_, i64>(0)
    };
    let open = || async {
        let options = PostgresOptions::new(url.clone()).schema(&schema);
        options.writers(1).readers(1).open().await.unwrap()
    };
    let store = open().await;
    for number in 0..KEYS {
        win(&store, &claim(number, 1)).await;
    }
    // The server writes its statistics when a connection ends, at the latest.
    drop(store);
    let keys = i64::from(KEYS);
    let mut looked = 0;
    for _ in 0..100 {
        looked = scans().await;
        if looked >= keys {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Each insertion looks whether its key is there.
    assert_eq!(looked, keys, "looks for {KEYS} new keys");
    // Of a process that meets them for the first time, after a claim of its own each time.
    let stranger = open().await;
    let mut costs = Vec::new();
    for number in 0..KEYS {
        win(&stranger, &claim(KEYS + number, 1)).await;
        let before = trips.load(Ordering::SeqCst);
        let refused = stranger.claim(&claim(number, 9)).await.unwrap();
        assert!(matches!(refused, Claimed::Lost { refusal: Refusal::InProgress(_), .. }));
        costs.push(trips.load(Ordering::SeqCst) - before);
    }
    let cheap = costs.iter().filter(|cost| **cost == 1).count();
    assert!(cheap >= 36, "round trips of refusals: {costs:?}");
    drop(stranger);
    drop_schema(&admin, &schema).await;
}
