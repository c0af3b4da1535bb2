//! The recipes of the how-to about local writes, on each database: the row that carries its key, writes
//! deeper down in the transaction of a key, and both together.
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

use std::time::Duration;

use databases::{Rig, insert, key};
use oncekey::flow::{
    Dialect, Halt, Outcome, PhaseTx, Reply, Source, TxError, TxStore, TxTrouble, Value,
};

on_each_database!(
    a_row_that_carries_its_key_is_made_once,
    writes_deeper_down_commit_with_the_record_or_not_at_all,
    rows_with_keys_of_their_own_are_made_once_by_two_requests,
);

const PAGE: &str = include_str!("../../../docs/how-to/make-local-writes-idempotent.md");
const ON_CONFLICT: &str = "ON CONFLICT (account, idempotency_key) DO NOTHING";

/// Tables as the page says.
async fn payments<S: TxStore>(rig: &Rig<S>) {
    let text = match rig.db.layout().dialect() {
        Dialect::Mysql => "VARBINARY(255)",
        Dialect::Postgres | Dialect::Sqlite => "TEXT",
    };
    assert!(PAGE.contains(&format!("`{text}`")), "the page says another type");
    let sql = format!(
        "CREATE TABLE {{records}}_payments (account {text} NOT NULL, idempotency_key {text} NOT NULL, \
         cents BIGINT NOT NULL, PRIMARY KEY (account, idempotency_key))"
    );
    // In SQLite numbers of a strict reader are called this.
    rig.script(&sql.replace("BIGINT", integer(rig.db.layout().dialect()))).await;
}

const fn integer(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => "INTEGER",
        Dialect::Mysql | Dialect::Postgres => "BIGINT",
    }
}

/// Whether the row was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Now,
    Before,
}

/// The insert that decides who is first.
async fn put<S: TxStore>(
    store: &S,
    conn: &mut S::Conn,
    account: &str,
    key: &str,
    cents: i64,
) -> Result<Made, TxError> {
    let insert =
        "INSERT INTO {records}_payments (account, idempotency_key, cents) VALUES (?, ?, ?)";
    let sql = match store.layout().dialect() {
        Dialect::Mysql => insert.to_owned(),
        Dialect::Postgres | Dialect::Sqlite => format!("{insert} {ON_CONFLICT}"),
    };
    let sql = store.layout().statement(&sql);
    let values = [Value::Text(account), Value::Text(key), Value::Int(cents)];
    match S::execute(conn, &sql, &values).await {
        Ok(0) => Ok(Made::Before),
        Ok(_) => Ok(Made::Now),
        Err(error) if error.kind() == TxTrouble::Duplicate => Ok(Made::Before),
        Err(error) => Err(error),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paid {
    Now,
    Before,
    Mismatch,
}

async fn pay<S: TxStore>(store: &S, account: &str, key: &str, cents: i64) -> Result<Paid, TxError> {
    let mut tx = store.begin().await?;
    if put(store, S::conn(&mut tx), account, key, cents).await? == Made::Now {
        let entry = "INSERT INTO {records}_orders (name, n) VALUES (?, 0)";
        let entry = store.layout().statement(entry);
        S::execute(S::conn(&mut tx), &entry, &[Value::Text(account)]).await?;
        S::commit(tx).await?;
        return Ok(Paid::Now);
    }
    S::rollback(tx).await?;
    let sql = "SELECT cents FROM {records}_payments WHERE account = ? AND idempotency_key = ?";
    let values = [Value::Text(account), Value::Text(key)];
    let rows = store.query_once(&store.layout().statement(sql), &values).await?;
    Ok(if rows[0].int(0)? == cents { Paid::Before } else { Paid::Mismatch })
}

async fn a_row_that_carries_its_key_is_made_once<S: TxStore>(rig: Rig<S>) {
    assert!(PAGE.contains(ON_CONFLICT), "the page says another insert");
    payments(&rig).await;
    let tries = (0..12).map(|_| {
        let db = rig.db.clone();
        tokio::spawn(async move {
            loop {
                match pay(&db, "ann", "k", 500).await {
                    Err(error) if error.kind() == TxTrouble::Conflict => {}
                    paid => return paid.unwrap(),
                }
            }
        })
    });
    let mut now = 0;
    for tried in tries.collect::<Vec<_>>() {
        match tried.await.unwrap() {
            Paid::Now => now += 1,
            Paid::Before => {}
            Paid::Mismatch => panic!("the amount was the same"),
        }
    }
    assert_eq!((now, rig.orders_of("ann").await), (1, 1));
    assert_eq!(pay(&rig.db, "ann", "k", 900).await.unwrap(), Paid::Mismatch);
    // Keys are compared as bytes, and belong to somebody.
    assert_eq!(pay(&rig.db, "ann", "K", 500).await.unwrap(), Paid::Now);
    assert_eq!(pay(&rig.db, "ann", "k ", 500).await.unwrap(), Paid::Now);
    assert_eq!(pay(&rig.db, "bob", "k", 500).await.unwrap(), Paid::Now);
    assert_eq!((rig.orders_of("ann").await, rig.orders_of("bob").await), (3, 1));
}

/// Deeper down: it knows the connection, and nothing of keys.
async fn add_lines<S: TxStore>(tx: &mut PhaseTx<S>, lines: &[&str]) -> Result<(), Halt> {
    for line in lines {
        match *line {
            "broken" => return Err(Halt::retry("no such article")),
            "forbidden" => return Err(Halt::Stop(Reply::empty(403))),
            line => insert(tx, line).await?,
        }
    }
    Ok(())
}

async fn writes_deeper_down_commit_with_the_record_or_not_at_all<S: TxStore>(rig: Rig<S>) {
    let local = rig.local();
    let order = async |name: &str, lines: &'static [&'static str]| {
        oncekey::tx(&local, key(name), "the same input", || {
            async |tx: &mut PhaseTx<S>| {
                insert(tx, "order").await?;
                add_lines(tx, lines).await?;
                Reply::json(201, &lines.len())
            }
        })
        .await
    };
    // It fails deep down: nothing is there, and the key is free.
    let failed = order("a", &["book", "broken"]).await;
    assert!(matches!(failed, Err(Halt::Retry { .. })), "{failed:?}");
    assert_eq!(rig.orders().await, 0);
    // It is refused deep down: nothing is there, and the refusal is kept.
    for lines in [&["book", "forbidden"][..], &["book"][..]] {
        let refused = order("b", lines).await.unwrap();
        assert!(matches!(refused, Outcome::Replied { reply, .. } if reply.status() == 403));
    }
    assert_eq!(rig.orders().await, 0);
    for source in [Source::Fresh, Source::Replayed] {
        let reply = Reply::json(201, &2).unwrap();
        let made = order("a", &["book", "lamp"]).await.unwrap();
        assert_eq!(made, Outcome::Replied { reply, source });
    }
    assert_eq!((rig.orders().await, rig.orders_of("lamp").await), (3, 1));
}

async fn rows_with_keys_of_their_own_are_made_once_by_two_requests<S: TxStore>(rig: Rig<S>) {
    payments(&rig).await;
    let local = rig.local();
    let import = async |name: &str, items: &'static [&'static str]| {
        let outcome = loop {
            let one = oncekey::tx(&local, key(name), items, || {
                async |tx: &mut PhaseTx<S>| {
                    let store = tx.store().clone();
                    let mut made = 0;
                    for item in items {
                        if put(&store, &mut **tx, "ann", item, 1).await? == Made::Now {
                            insert(tx, item).await?;
                            made += 1;
                        }
                    }
                    Reply::json(200, &made)
                }
            });
            match one.await.unwrap() {
                Outcome::InProgress { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
                outcome => break outcome,
            }
        };
        match outcome {
            Outcome::Replied { reply, .. } => reply,
            other => panic!("{other:?}"),
        }
    };
    // Two requests at once, that have an item in common: each item once, and each request is told the
    // same again.
    let both = tokio::join!(import("one", &["a", "b"]), import("two", &["b", "c"]));
    let again = (import("one", &["a", "b"]).await, import("two", &["b", "c"]).await);
    assert_eq!(both, again);
    for item in ["a", "b", "c"] {
        assert_eq!(rig.orders_of(item).await, 1, "{item}");
    }
    assert_eq!(rig.orders().await, 3);
}
