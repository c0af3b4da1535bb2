//! Rivals, lost answers, lost connections, lost records.

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::core::restore::{Restore, Restored};
use oncekey::core::wake::{Feed, Wake, Woken};
use oncekey::core::{Claim, Claimed, ErrorKind, Fence, Grant, Refusal, Sent, State, Store, Write};
use oncekey::store::postgres::PostgresOptions;

use crate::proxy::counting_proxy;
use crate::scene::{
    admin, admin_at, claim, completion, drop_schema, fresh_schema, url, url_with, win,
};

/// A standby refuses writes. It is told apart from a primary that is only slow or away.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_primary_that_turned_read_only_is_unavailable() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let role = format!("{schema}_role");
    let make = format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN SUPERUSER");
    admin.batch_execute(&make).await.unwrap();
    let url = url_with(|url| url.set_username(&role).unwrap());
    let store = PostgresOptions::new(url).schema(&schema).open().await.unwrap();
    win(&store, &claim(1, 1)).await;
    // From now on, for new connections; the old ones are closed by the server.
    let turn = format!(
        "ALTER ROLE {role} SET default_transaction_read_only = on;
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
    );
    admin.batch_execute(&turn).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let error = store.claim(&claim(2, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    admin
        .batch_execute(&format!("ALTER ROLE {role} RESET default_transaction_read_only"))
        .await
        .unwrap();
    // It comes back by itself, within the pauses between attempts to connect.
    tokio::time::sleep(Duration::from_millis(300)).await;
    win(&store, &claim(3, 1)).await;
    drop(store);
    drop_schema(&admin, &schema).await;
    admin.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
}

/// I1: sixty-four rivals with a connection each, four hundred keys that everybody wants.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn of_sixty_four_stores_one_wins_each_of_four_hundred_keys() {
    const KEYS: u32 = 400;
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let options = PostgresOptions::new(url()).schema(&schema).writers(1).readers(1);
    drop(options.clone().open().await.unwrap());
    let mut rivals = Vec::new();
    for rival in 0..64 {
        let store = options.clone().open().await.unwrap();
        rivals.push(tokio::spawn(async move {
            let store = Arc::new(store);
            let claims = (0..KEYS).map(|step| {
                // Everybody begins elsewhere, every second one goes backwards.
                let place = (step + rival * 7) % KEYS;
                let number = if rival % 2 == 0 { place } else { KEYS - 1 - place };
                let store = Arc::clone(&store);
                // A busy machine takes longer than the usual lease, and then others may take over.
                let lease = Duration::from_secs(3_600);
                async move { store.claim(&Claim { lease, ..claim(number, rival) }).await }
            });
            let mut won = 0;
            // Eight at a time: so claims of one store share batches.
            let claims: Vec<_> = claims.collect();
            let mut claims = claims.into_iter();
            loop {
                let some: Vec<_> = claims.by_ref().take(8).map(tokio::spawn).collect();
                if some.is_empty() {
                    return won;
                }
                for one in some {
                    match one.await.unwrap().expect("no claim fails") {
                        Claimed::Won { .. } => won += 1,
                        Claimed::Lost { refusal, .. } => {
                            assert!(matches!(refusal, Refusal::InProgress(_)), "{refusal:?}");
                        }
                    }
                }
            }
        }));
    }
    let mut won = 0;
    for rival in rivals {
        won += rival.await.unwrap();
    }
    assert_eq!(won, KEYS, "every key has one owner");
    let text = format!("SELECT count(DISTINCT key_id)::int FROM {schema}.oncekey_records");
    let keys: i32 = admin.query_typed_one(&text, &[]).await.unwrap().get(0);
    assert_eq!(keys, 400);
    drop_schema(&admin, &schema).await;
}

/// The statement arrives and its answer does not. Nobody waits for ever, nobody is told a lie, and the
/// caller is recognised when it asks again.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn an_answer_that_is_lost_is_ambiguous_and_asking_again_tells() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let is_silent = Arc::new(AtomicBool::new(false));
    let port = counting_proxy(Arc::default(), Arc::clone(&is_silent)).await;
    let url = url_with(|url| {
        url.set_ip_host([127, 0, 0, 1].into()).unwrap();
        url.set_port(Some(port)).unwrap();
    });
    let limit = Duration::from_millis(400);
    let options = PostgresOptions::new(url).schema(&schema).writers(1);
    let store = options.call_timeout(limit).connect_timeout(limit).open().await.unwrap();
    win(&store, &claim(0, 1)).await;
    is_silent.store(true, Ordering::SeqCst);
    let error = store.claim(&claim(1, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    let error = store.get(&claim(1, 1).id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "a read has no effect: {error}");
    // Now it cannot even connect, so nothing can have happened.
    let error = store.claim(&claim(2, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    is_silent.store(false, Ordering::SeqCst);
    tokio::time::sleep(limit).await;
    match store.claim(&claim(1, 1)).await.unwrap() {
        Claimed::Won { grant, .. } => assert_eq!(grant, Grant::Again, "the claim had arrived"),
        Claimed::Lost { refusal, .. } => panic!("an owner is recognised: {refusal:?}"),
    }
    assert_eq!(store.get(&claim(2, 1).id).await.unwrap(), None, "the other had not");
    drop(store);
    drop_schema(&admin, &schema).await;
}

/// A pooler that nobody told us of: the store goes on without prepared statements.
#[tokio::test]
#[ignore = "needs pgbouncer: run cargo xtask test"]
async fn a_pooler_that_was_not_announced_is_noticed() {
    let pooler =
        env::var("ONCEKEY_TEST_PGBOUNCER").expect("ONCEKEY_TEST_PGBOUNCER: cargo xtask test");
    // It has a server of its own behind it.
    let admin = admin_at(&pooler).await;
    let schema = fresh_schema(&admin).await;
    let store = PostgresOptions::new(pooler).schema(&schema).open().await.unwrap();
    for number in 0..40 {
        let lease = win(&store, &claim(number, 1)).await;
        assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
    }
    drop(store);
    drop_schema(&admin, &schema).await;
}

async fn heard(feed: &mut dyn Feed) -> Woken {
    tokio::time::timeout(Duration::from_secs(10), feed.next()).await.expect("a wake-up")
}

/// Wake-ups reach other processes, also after the connection that listens was lost.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_feed_says_that_it_lagged_when_it_has_listened_anew() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let open = || async { PostgresOptions::new(url()).schema(&schema).open().await.unwrap() };
    let (here, there) = (open().await, open().await);
    let mut feed = here.watch().await.unwrap();
    // Until it listens, and a second later, it says that it may have missed something.
    assert_eq!(heard(&mut *feed).await, Woken::Lagged);
    assert_eq!(heard(&mut *feed).await, Woken::Lagged);
    let lease = win(&there, &claim(1, 1)).await;
    assert_eq!(there.complete(&lease, &completion()).await.unwrap(), Write::Applied);
    assert_eq!(heard(&mut *feed).await, Woken::Finished(lease.id), "another process finished it");
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    admin.batch_execute(cut).await.unwrap();
    assert_eq!(heard(&mut *feed).await, Woken::Lagged, "the connection was lost");
    drop((here, there, feed));
    drop_schema(&admin, &schema).await;
}

/// Fences rise although the clock of the server is behind those of records that are gone.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn fences_rise_above_records_that_are_gone_and_ahead_of_the_clock() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let store = PostgresOptions::new(url()).schema(&schema).open().await.unwrap();
    let mut last = win(&store, &claim(1, 1)).await;
    // As if it had been granted before the clock stepped back by a day.
    let ahead = format!("UPDATE {schema}.oncekey_records SET fence = fence + 86400000000");
    admin.batch_execute(&ahead).await.unwrap();
    last.fence = store.get(&last.id).await.unwrap().unwrap().fence;
    for owner in 2..6 {
        assert_eq!(store.release(&last).await.unwrap(), Write::Applied);
        let next = win(&store, &claim(1, owner)).await;
        assert!(next.fence > last.fence, "{} after {}", next.fence, last.fence);
        let stands = store.get(&next.id).await.unwrap().unwrap();
        assert_eq!(stands.fence, next.fence, "the fence that was granted is the one that stands");
        last = next;
    }
    drop(store);
    drop_schema(&admin, &schema).await;
}

/// I2: a claim that read the mark before a removal, and waited for that removal, is granted a fence
/// above the mark that the removal has left.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_claim_that_waited_for_a_removal_gets_a_higher_fence() {
    let mut remover = admin().await;
    let schema = fresh_schema(&remover).await;
    let open = || async { PostgresOptions::new(url()).schema(&schema).open().await.unwrap() };
    let store = open().await;
    let lease = win(&store, &claim(1, 1)).await;
    let mark = lease.fence.number() + 3_600_000_000;
    let removal = remover.transaction().await.unwrap();
    let remove = format!("DELETE FROM {schema}.oncekey_records");
    removal.batch_execute(&remove).await.unwrap();
    // A process that has not met the key: one that has would look before it inserts.
    let stranger = open().await;
    let waiting = tokio::spawn(async move { win(&stranger, &claim(1, 2)).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished(), "the removal is not committed yet");
    let raise = format!("UPDATE {schema}.oncekey_meta SET number = {mark} WHERE name = 'high'");
    removal.batch_execute(&raise).await.unwrap();
    removal.commit().await.unwrap();
    let granted = waiting.await.expect("no panic");
    assert!(granted.fence.number() > mark, "{} is not above {mark}", granted.fence);
    let stands = store.get(&granted.id).await.unwrap().expect("the claim is on record");
    assert_eq!(stands.fence, granted.fence);
    drop(store);
    drop_schema(&remover, &schema).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_record_from_elsewhere_is_restored_once() {
    let admin = admin().await;
    let (here, there) = (fresh_schema(&admin).await, fresh_schema(&admin).await);
    let open = |schema: &str| PostgresOptions::new(url()).schema(schema).open();
    let (old, new) = (open(&here).await.unwrap(), open(&there).await.unwrap());
    assert_ne!(old.lineage().await.unwrap(), new.lineage().await.unwrap());
    assert_eq!(old.lineage().await.unwrap(), old.lineage().await.unwrap());
    let lease = win(&old, &claim(1, 1)).await;
    let running = old.get(&lease.id).await.unwrap().unwrap();
    assert_eq!(old.complete(&lease, &completion()).await.unwrap(), Write::Applied);
    let done = old.get(&lease.id).await.unwrap().unwrap();
    assert_eq!(new.restore(&running).await.unwrap(), Restored::Written);
    assert_eq!(new.get(&lease.id).await.unwrap().as_ref(), Some(&running));
    assert_eq!(new.restore(&done).await.unwrap(), Restored::Written);
    for record in [&done, &running] {
        assert_eq!(new.restore(record).await.unwrap(), Restored::Kept);
    }
    assert_eq!(new.get(&lease.id).await.unwrap().as_ref(), Some(&done));
    match new.claim(&claim(1, 9)).await.unwrap() {
        Claimed::Lost { refusal, record, .. } => {
            assert_eq!((refusal, *record), (Refusal::Replay, done));
        }
        Claimed::Won { .. } => panic!("the work was done"),
    }
    drop((old, new));
    drop_schema(&admin, &here).await;
    drop_schema(&admin, &there).await;
}

/// I2: many owners of few keys, one after the other, through two stores. Each notes its fence while
/// the key is its own, so they are noted in the order in which they were granted. Once with a clock
/// that is right, once with one that stepped back by an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn fences_rise_while_many_claim_and_release() {
    const KEYS: u32 = 3;
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let open = || async { PostgresOptions::new(url()).schema(&schema).open().await.unwrap() };
    let stores = [Arc::new(open().await), Arc::new(open().await)];
    let noted: Arc<Mutex<HashMap<u32, Vec<Fence>>>> = Arc::default();
    for ahead in ["0", "3600000000"] {
        let behind = format!(
            "UPDATE {schema}.oncekey_meta SET number = CASE {ahead} WHEN 0 THEN 0 ELSE
                (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {ahead} END
             WHERE name = 'high'"
        );
        admin.batch_execute(&behind).await.unwrap();
        let mut tasks = Vec::new();
        for task in 0..12 {
            let store = Arc::clone(&stores[task % 2]);
            let noted = Arc::clone(&noted);
            tasks.push(tokio::spawn(async move {
                let task = u32::try_from(task).unwrap();
                for step in 0..60 {
                    let key = (task + step) % KEYS;
                    let claimed = store.claim(&claim(key, task * 1_000 + step)).await.unwrap();
                    let Claimed::Won { lease, .. } = claimed else { continue };
                    noted.lock().unwrap().entry(key).or_default().push(lease.fence);
                    assert_eq!(store.release(&lease).await.unwrap(), Write::Applied);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
    for fences in noted.lock().unwrap().values() {
        assert!(fences.len() > 20, "a key was granted only {} times", fences.len());
        assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
    }
    drop(stores);
    drop_schema(&admin, &schema).await;
}

/// Somebody holds our row in a transaction of their own: nobody waits for them for long.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_row_that_somebody_holds_is_not_waited_for_long() {
    let mut admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let options = PostgresOptions::new(url()).schema(&schema);
    let store = options.lock_timeout(Duration::from_millis(150)).open().await.unwrap();
    let lease = win(&store, &claim(1, 1)).await;
    let transaction = admin.transaction().await.unwrap();
    let hold = format!("SELECT FROM {schema}.oncekey_records FOR UPDATE");
    transaction.batch_execute(&hold).await.unwrap();
    let error = store.complete(&lease, &completion()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("holds a lock"), "{error}");
    transaction.rollback().await.unwrap();
    assert_eq!(store.complete(&lease, &completion()).await.unwrap(), Write::Applied);
    drop(store);
    drop_schema(&admin, &schema).await;
}

/// I2: a record that is put back from elsewhere may be older than one that is gone. Whoever takes it over
/// is granted a fence above that, although the clock of the server is behind.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_takeover_of_a_record_that_was_put_back_gets_a_fence_above_what_is_gone() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let store = PostgresOptions::new(url()).schema(&schema).open().await.unwrap();
    let first = win(&store, &claim(1, 1)).await;
    let mut old = store.get(&first.id).await.unwrap().unwrap();
    assert_eq!(store.release(&first).await.unwrap(), Write::Applied);
    // As if the clock had been ahead by an hour for a while.
    let ahead = format!(
        "UPDATE {schema}.oncekey_meta SET number = number + 3600000000 WHERE name = 'high'"
    );
    admin.batch_execute(&ahead).await.unwrap();
    let second = win(&store, &claim(1, 2)).await;
    assert_eq!(store.release(&second).await.unwrap(), Write::Applied);
    old.state = State::Running { until: old.created, sent: Sent::No };
    assert_eq!(store.restore(&old).await.unwrap(), Restored::Written);
    let third = win(&store, &Claim { grace: Duration::ZERO, ..claim(1, 3) }).await;
    assert!(third.fence > second.fence, "{} after {}", third.fence, second.fence);
    drop(store);
    drop_schema(&admin, &schema).await;
}

/// A store without its mark grants nothing, and says why at once.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_mark_that_is_lost_is_named() {
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let store = PostgresOptions::new(url()).schema(&schema).open().await.unwrap();
    let lose = format!("DELETE FROM {schema}.oncekey_meta WHERE name = 'high'");
    admin.batch_execute(&lose).await.unwrap();
    let error = store.claim(&claim(1, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("oncekey_meta"), "{error}");
    drop(store);
    drop_schema(&admin, &schema).await;
}
