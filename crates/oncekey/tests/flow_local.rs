//! Handlers that are one transaction: the key row is the receipt. I19.
#![cfg(all(
    feature = "flow-rusqlite",
    feature = "flow-tokio-postgres",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql"
))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/databases.rs"]
#[macro_use]
mod databases;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use databases::{Rig, insert, key};
use oncekey::flow::{Halt, Outcome, PhaseTx, Reply, Source, TxStore, Value};

on_each_database!(
    rows_and_answer_commit_together_and_the_answer_is_given_again,
    a_handler_that_fails_leaves_neither_rows_nor_record,
    a_terminal_failure_keeps_its_reply_and_no_rows,
    a_dropped_handler_leaves_nothing_and_frees_the_key,
    a_handler_that_was_replaced_takes_its_rows_back,
    duplicates_at_the_same_time_write_once,
    a_conflict_runs_the_whole_body_again,
    a_smuggled_commit_leaves_the_outcome_unknown,
);

async fn rows_and_answer_commit_together_and_the_answer_is_given_again<S: TxStore>(rig: Rig<S>) {
    let local = rig.local();
    let run = async |input: &str| {
        oncekey::tx(&local, key("a"), input, || {
            async |tx: &mut PhaseTx<S>| {
                insert(tx, "order").await?;
                Reply::json(201, &"made")
            }
        })
        .await
        .unwrap()
    };
    let made = Reply::json(201, &"made").unwrap();
    let fresh = Outcome::Replied { reply: made.clone(), source: Source::Fresh };
    assert_eq!(run("x").await, fresh);
    let again = Outcome::Replied { reply: made, source: Source::Replayed };
    assert_eq!(run("x").await, again);
    assert_eq!(run("y").await, Outcome::Mismatch);
    assert_eq!(rig.orders().await, 1);
}

async fn a_handler_that_fails_leaves_neither_rows_nor_record<S: TxStore>(rig: Rig<S>) {
    let local = rig.local();
    let failed = oncekey::tx(&local, key("a"), "x", || {
        async |tx: &mut PhaseTx<S>| {
            insert(tx, "order").await?;
            Err(Halt::retry("not today"))
        }
    });
    assert!(matches!(failed.await, Err(Halt::Retry { .. })));
    assert_eq!(rig.orders().await, 0);
    let again = oncekey::tx(&local, key("a"), "other input", || {
        async |_: &mut PhaseTx<S>| Ok(Reply::empty(204))
    });
    assert!(matches!(again.await, Ok(Outcome::Replied { source: Source::Fresh, .. })));
}

async fn a_terminal_failure_keeps_its_reply_and_no_rows<S: TxStore>(rig: Rig<S>) {
    let local = rig.local();
    for source in [Source::Fresh, Source::Replayed] {
        let declined = oncekey::tx(&local, key("a"), "x", || {
            async |tx: &mut PhaseTx<S>| {
                insert(tx, "order").await?;
                Err(Halt::Stop(Reply::empty(402)))
            }
        });
        let expected = Outcome::Replied { reply: Reply::empty(402), source };
        assert_eq!(declined.await.unwrap(), expected);
    }
    assert_eq!(rig.orders().await, 0);
}

async fn a_dropped_handler_leaves_nothing_and_frees_the_key<S: TxStore>(rig: Rig<S>) {
    let local = rig.local();
    let hangs = oncekey::tx(&local, key("a"), "x", || {
        async |tx: &mut PhaseTx<S>| {
            insert(tx, "order").await?;
            std::future::pending::<()>().await;
            Ok(Reply::empty(201))
        }
    });
    assert!(tokio::time::timeout(Duration::from_millis(100), hangs).await.is_err());
    let mut outcome = None;
    for _ in 0..100 {
        let again = oncekey::tx(&local, key("a"), "x", || {
            async |tx: &mut PhaseTx<S>| {
                insert(tx, "order").await?;
                Ok(Reply::empty(201))
            }
        });
        match again.await.unwrap() {
            Outcome::InProgress { .. } => tokio::time::sleep(Duration::from_millis(10)).await,
            done => {
                outcome = Some(done);
                break;
            }
        }
    }
    assert!(matches!(outcome, Some(Outcome::Replied { source: Source::Fresh, .. })), "{outcome:?}");
    assert_eq!(rig.orders().await, 1);
}

/// The fence is in the statement that completes: whoever was replaced takes its rows back, also while
/// the one who came after it is still at work.
async fn a_handler_that_was_replaced_takes_its_rows_back<S: TxStore>(rig: Rig<S>) {
    let local = rig.local();
    let db = &rig.db;
    let replace = db.layout().statement("UPDATE {records} SET fence = fence + 1");
    let replace = &replace;
    let replaced = oncekey::tx(&local, key("a"), "x", || {
        async |tx: &mut PhaseTx<S>| {
            if db.layout().dialect() == oncekey::flow::Dialect::Sqlite {
                // One writer: nobody else could do it while this transaction is open.
                S::execute(&mut **tx, replace, &[]).await?;
            } else {
                db.execute_once(replace, &[]).await?;
            }
            insert(tx, "stale").await?;
            Ok(Reply::empty(200))
        }
    });
    let replaced = replaced.await;
    assert!(matches!(replaced, Err(Halt::Fenced)), "{replaced:?}");
    assert_eq!(rig.orders().await, 0);
}

async fn duplicates_at_the_same_time_write_once<S: TxStore>(rig: Rig<S>) {
    let local = Arc::new(rig.local());
    let tries = (0..12).map(|_| {
        let local = Arc::clone(&local);
        tokio::spawn(async move {
            loop {
                let one = oncekey::tx(&local, key("a"), "x", || {
                    async |tx: &mut PhaseTx<S>| {
                        insert(tx, "order").await?;
                        Ok(Reply::empty(201))
                    }
                });
                match one.await.unwrap() {
                    Outcome::InProgress { .. } => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Outcome::Replied { source, .. } => return source,
                    other => panic!("{other:?}"),
                }
            }
        })
    });
    let mut fresh = 0;
    for tried in tries.collect::<Vec<_>>() {
        fresh += u32::from(tried.await.unwrap() == Source::Fresh);
    }
    assert_eq!((fresh, rig.orders().await), (1, 1));
}

/// Two handlers that lock two rows in opposite order. On SQLite there is one writer and no deadlock,
/// so there it is enough that both end.
async fn a_conflict_runs_the_whole_body_again<S: TxStore>(rig: Rig<S>) {
    let put = rig.db.layout().statement("INSERT INTO {records}_orders (name, n) VALUES (?, 0)");
    for name in ["one", "two"] {
        rig.db.execute_once(&put, &[Value::Text(name)]).await.unwrap();
    }
    let bump = rig.db.layout().statement("UPDATE {records}_orders SET n = n + 1 WHERE name = ?");
    let (local, runs) = (Arc::new(rig.local()), Arc::new(AtomicU32::new(0)));
    let tries = [("a", ["one", "two"]), ("b", ["two", "one"])].map(|(text, names)| {
        let (local, runs, bump) = (Arc::clone(&local), Arc::clone(&runs), Arc::clone(&bump));
        tokio::spawn(async move {
            oncekey::tx(&local, key(text), "x", || {
                async |tx: &mut PhaseTx<S>| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    for name in names {
                        S::execute(&mut **tx, &bump, &[Value::Text(name)]).await?;
                        tokio::time::sleep(Duration::from_millis(30)).await;
                    }
                    Ok(Reply::empty(201))
                }
            })
            .await
        })
    });
    for tried in tries {
        let outcome = tried.await.unwrap();
        assert!(
            matches!(outcome, Ok(Outcome::Replied { source: Source::Fresh, .. })),
            "{outcome:?}"
        );
    }
    let sum = rig.db.layout().statement("SELECT count(*) FROM {records}_orders WHERE n = 2");
    assert_eq!(rig.db.query_once(&sum, &[]).await.unwrap()[0].int(0).unwrap(), 2);
    if rig.db.layout().dialect() != oncekey::flow::Dialect::Sqlite {
        assert!(runs.load(Ordering::SeqCst) > 2, "there was no deadlock");
    }
}

async fn a_smuggled_commit_leaves_the_outcome_unknown<S: TxStore>(rig: Rig<S>) {
    let local = rig.local();
    let smuggled = oncekey::tx(&local, key("a"), "x", || {
        async |tx: &mut PhaseTx<S>| {
            insert(tx, "order").await?;
            S::execute(&mut **tx, &"COMMIT".into(), &[]).await?;
            Ok(Reply::empty(201))
        }
    });
    assert!(matches!(smuggled.await, Err(Halt::Park(_))));
    let again =
        oncekey::tx(&local, key("a"), "x", || async |_: &mut PhaseTx<S>| Ok(Reply::empty(201)));
    assert!(matches!(again.await, Ok(Outcome::Parked { .. })));
}
