//! What recovery points promise, on each database.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

use std::time::Duration;

use oncekey_core::{Headers, KeyId, Owner, Saved};

use super::claim::{
    Before, Begin, Claimed, Held, Kept, Patience, Start, claim, look, renew, state,
};
use super::gather::Gather;
use super::point::{Advanced, Kind, Point, Step, advance, finish, steps};
use super::store::{TxError, TxStore, Value};
use super::tables::migrate;
use super::unwritten::{self, Whose};

/// Makes a test of each case for each database, and for each driver.
macro_rules! on_each_database {
    ($($case:ident),+ $(,)?) => {
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $(#[tokio::test] async fn $case() {
                let (_folder, store) = super::rigs::sqlite().await;
                super::$case(store).await;
            })+
        }
        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test] #[ignore = "needs PostgreSQL: run cargo xtask test"] async fn $case() {
                super::$case(super::rigs::postgres().await).await;
            })+
        }
        #[cfg(feature = "flow-rusqlite")]
        mod rusqlite {
            $(#[tokio::test] async fn $case() {
                let (_folder, store) = super::rigs::rusqlite().await;
                super::$case(store).await;
            })+
        }
        #[cfg(feature = "flow-tokio-postgres")]
        mod tokio_postgres {
            $(#[tokio::test] #[ignore = "needs PostgreSQL: run cargo xtask test"] async fn $case() {
                super::$case(super::rigs::tokio_postgres().await).await;
            })+
        }
        #[cfg(feature = "mysql")]
        mod mysql {
            $(#[tokio::test] #[ignore = "needs MySQL: run cargo xtask test"] async fn $case() {
                super::$case(super::rigs::mysql().await).await;
            })+
        }
    };
}

on_each_database!(
    a_flow_has_one_owner_at_a_time,
    a_stale_owner_takes_its_rows_back_with_it,
    a_finished_flow_answers_and_never_runs_again,
    the_same_id_with_another_input_is_refused,
    a_smuggled_commit_is_noticed,
    a_dropped_begin_leaves_no_transaction_open,
    fences_rise_and_attempts_are_counted_at_the_claim,
    tables_can_be_made_by_many_at_once,
    a_renewal_that_comes_late_revives_nothing,
    who_begins_too_late_begins_nothing,
);

/// Databases of their own for tests.
pub(crate) mod rigs {
    use super::*;
    use crate::flow::sqlx as adapters;

    pub(crate) fn fresh() -> [u8; 16] {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).unwrap();
        bytes
    }

    #[cfg(any(feature = "postgres", feature = "mysql", feature = "flow-tokio-postgres"))]
    fn name() -> String {
        fresh().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }

    #[cfg(any(feature = "postgres", feature = "mysql", feature = "flow-tokio-postgres"))]
    fn url_of(variable: &str) -> String {
        std::env::var(variable).expect("run `cargo xtask servers` and its exports")
    }

    #[cfg(feature = "sqlite")]
    pub(crate) async fn sqlite() -> (tempfile::TempDir, adapters::SqlxSqlite) {
        let folder = tempfile::tempdir().unwrap();
        let store = adapters::SqlxSqlite::open(folder.path().join("app.db")).await.unwrap();
        migrate(&store).await.unwrap();
        (folder, store)
    }

    #[cfg(feature = "postgres")]
    pub(crate) async fn postgres() -> adapters::SqlxPostgres {
        let url = url_of("ONCEKEY_TEST_POSTGRES");
        let pool = ::sqlx::postgres::PgPoolOptions::new().max_connections(4).connect(&url).await;
        let store = adapters::SqlxPostgres::with_schema(pool.unwrap(), &format!("f{}", name()));
        let store = store.unwrap();
        migrate(&store).await.unwrap();
        store
    }

    #[cfg(feature = "flow-rusqlite")]
    pub(crate) async fn rusqlite() -> (tempfile::TempDir, crate::flow::rusqlite::Rusqlite) {
        let folder = tempfile::tempdir().unwrap();
        let store = crate::flow::rusqlite::Rusqlite::open(folder.path().join("app.db")).unwrap();
        migrate(&store).await.unwrap();
        (folder, store)
    }

    #[cfg(feature = "flow-tokio-postgres")]
    pub(crate) async fn tokio_postgres() -> crate::flow::tokio_postgres::TokioPostgres {
        let url = url_of("ONCEKEY_TEST_POSTGRES");
        let store = crate::flow::tokio_postgres::TokioPostgres::dial(4, move || {
            let url = url.clone();
            async move {
                let tls = ::tokio_postgres::NoTls;
                let (client, connection) = ::tokio_postgres::connect(&url, tls).await?;
                tokio::spawn(connection);
                Ok::<_, ::tokio_postgres::Error>(client)
            }
        });
        let store = store.schema(&format!("f{}", name())).unwrap();
        migrate(&store).await.unwrap();
        store
    }

    #[cfg(feature = "mysql")]
    pub(crate) async fn mysql() -> adapters::SqlxMysql {
        let url = url_of("ONCEKEY_TEST_MYSQL");
        let pool = ::sqlx::mysql::MySqlPoolOptions::new().max_connections(4).connect(&url).await;
        let store = adapters::SqlxMysql::with_prefix(pool.unwrap(), &format!("f{}_", name()));
        let store = store.unwrap();
        migrate(&store).await.unwrap();
        store
    }
}

pub(crate) fn start(id: u8, owner: u8, lease: Duration) -> Start {
    Start {
        id: KeyId::from_bytes([id; 32]),
        name: "rides.create".to_owned(),
        version: 1,
        accepts: (1, 1),
        owner: Owner::from_bytes([owner; 16]),
        lease,
        grace: Duration::from_secs(60),
        fingerprint: [7; 32],
        input: b"{}".to_vec(),
        key: b"key".to_vec(),
        scope: b"scope".to_vec(),
        begin: Begin::AtOnce,
    }
}

pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Longer than what the coarsest clock of the databases can tell.
const SHORT: Duration = Duration::from_millis(5);

async fn ask<S: TxStore>(store: &S, start: &Start) -> Result<Claimed, TxError> {
    claim(&Gather::new(store.clone()), start, Patience::None).await
}

pub(crate) async fn won<S: TxStore>(store: &S, start: &Start) -> Held {
    match ask(store, start).await.unwrap() {
        Claimed::Won(held) => *held,
        other => panic!("{other:?}"),
    }
}

/// The application's row, as a finding of nobody.
async fn write_row<S: TxStore>(store: &S, conn: &mut S::Conn, name: &str) {
    let sql = store.layout().statement(
        "INSERT INTO {findings} (ledger, kind, foreign_key, step, detail, at) \
         VALUES ('app', 'row', ?, '', ?, 0)",
    );
    S::execute(conn, &sql, &[Value::Text(name), Value::Bytes(b"")]).await.unwrap();
}

async fn rows<S: TxStore>(store: &S) -> i64 {
    let sql = store.layout().statement("SELECT count(*) FROM {findings}");
    store.query_once(&sql, &[]).await.unwrap()[0].int(0).unwrap()
}

fn point(step: &Step) -> Point<'_> {
    Point { step, kind: Kind::Phase, shape: "unit", bound: b"", output: b"null" }
}

async fn a_flow_has_one_owner_at_a_time<S: TxStore>(store: S) {
    let tries = (0..8).map(|owner| {
        let (store, start) = (store.clone(), start(1, owner, LONG));
        tokio::spawn(async move { ask(&store, &start).await.unwrap() })
    });
    let mut winners = 0;
    for tried in tries.collect::<Vec<_>>() {
        match tried.await.unwrap() {
            Claimed::Won(held) => {
                assert_eq!((held.before, held.attempts), (Before::Nothing, 1));
                winners += 1;
            }
            Claimed::Busy(left) => assert!(left <= LONG && left > LONG / 2, "{left:?}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(winners, 1);
    // Whoever lost the answer to its claim asks again and is recognised.
    let stored = look(&store, &KeyId::from_bytes([1; 32])).await.unwrap().unwrap();
    let again = won(&store, &start(1, stored.owner[0], LONG)).await;
    assert_eq!((again.fence, again.attempts), (stored.fence, 1));
}

/// I44: the fence is in the same statement as the recovery point, in the same transaction as the rows.
async fn a_stale_owner_takes_its_rows_back_with_it<S: TxStore>(store: S) {
    let stale = won(&store, &start(1, 1, SHORT)).await;
    // SQLite has one writer: there the rows come after the takeover, as after a pause before them.
    tokio::time::sleep(SHORT * 4).await;
    let fresh = won(&store, &start(1, 2, LONG)).await;
    assert!(fresh.fence > stale.fence);

    let step = Step::from("ride");
    let mut tx = store.begin().await.unwrap();
    write_row(&store, S::conn(&mut tx), "stale").await;
    assert_eq!(
        advance(&store, &mut tx, &stale, point(&step), None, (&[], &[])).await.unwrap(),
        Advanced::Fenced
    );
    S::rollback(tx).await.unwrap();
    assert_eq!(rows(&store).await, 0);
    assert_eq!(renew(&store, &stale).await.unwrap(), Kept::Fenced);

    let mut tx = store.begin().await.unwrap();
    write_row(&store, S::conn(&mut tx), "fresh").await;
    assert_eq!(
        advance(&store, &mut tx, &fresh, point(&step), None, (&[], &[])).await.unwrap(),
        Advanced::Yes
    );
    S::commit(tx).await.unwrap();
    assert_eq!(rows(&store).await, 1);
    assert_eq!(renew(&store, &fresh).await.unwrap(), Kept::Yes);
    let taken = steps(&store, &fresh.id).await.unwrap();
    assert_eq!(taken[&step].output, b"null");
    assert_eq!(look(&store, &fresh.id).await.unwrap().unwrap().point, "ride");
}

async fn a_finished_flow_answers_and_never_runs_again<S: TxStore>(store: S) {
    let held = won(&store, &start(1, 1, LONG)).await;
    let mut headers = Headers::new();
    headers.push(b"content-type", b"application/json").unwrap();
    let reply = Saved { status: 402, headers, body: "{}".into() };
    let mut tx = store.begin().await.unwrap();
    assert_eq!(finish(&store, &mut tx, &held, (&reply, &[]), &[]).await.unwrap(), Advanced::Yes);
    S::commit(tx).await.unwrap();
    match ask(&store, &start(1, 2, LONG)).await.unwrap() {
        Claimed::Replay(saved) => assert_eq!(saved, reply),
        other => panic!("{other:?}"),
    }
    // Nor does its owner write anything more.
    let (mut tx, step) = (store.begin().await.unwrap(), Step::from("late"));
    assert_eq!(
        advance(&store, &mut tx, &held, point(&step), None, (&[], &[])).await.unwrap(),
        Advanced::Fenced
    );
    let other = Saved { status: 200, ..reply };
    assert_eq!(
        finish(&store, &mut tx, &held, (&other, &[]), &[]).await.unwrap_or(Advanced::Smuggled),
        {
            // The savepoint that tells a smuggled end is used up by the first question.
            if store.layout().dialect() == crate::flow::Dialect::Postgres {
                Advanced::Fenced
            } else {
                Advanced::Smuggled
            }
        }
    );
}

async fn the_same_id_with_another_input_is_refused<S: TxStore>(store: S) {
    let held = won(&store, &start(1, 1, SHORT)).await;
    let other = Start { fingerprint: [8; 32], ..start(1, 2, LONG) };
    tokio::time::sleep(SHORT * 4).await;
    let claimed = ask(&store, &other).await.unwrap();
    assert!(matches!(claimed, Claimed::Mismatch), "{claimed:?}");
    let other = Start { name: "rides.cancel".to_owned(), ..start(1, 2, LONG) };
    let claimed = ask(&store, &other).await.unwrap();
    assert!(matches!(claimed, Claimed::Mismatch), "{claimed:?}");
    let other = Start { accepts: (2, 3), version: 3, ..start(1, 2, LONG) };
    let claimed = ask(&store, &other).await.unwrap();
    assert!(matches!(claimed, Claimed::Skew(1)), "{claimed:?}");
    assert_eq!(renew(&store, &held).await.unwrap(), Kept::Yes);
}

async fn a_smuggled_commit_is_noticed<S: TxStore>(store: S) {
    let held = won(&store, &start(1, 1, LONG)).await;
    let step = Step::from("ride");
    for smuggled in ["COMMIT", "ROLLBACK"].repeat(4) {
        let mut tx = store.begin().await.unwrap();
        S::execute(S::conn(&mut tx), &smuggled.into(), &[]).await.unwrap();
        let advanced =
            advance(&store, &mut tx, &held, point(&step), None, (&[], &[])).await.unwrap();
        assert_eq!(advanced, Advanced::Smuggled, "{smuggled}");
        drop(tx);
        // A body that fails after it has done so is not asked any more.
        let mut tx = store.begin().await.unwrap();
        S::execute(S::conn(&mut tx), &smuggled.into(), &[]).await.unwrap();
        drop(tx);
        assert!(steps(&store, &held.id).await.unwrap().is_empty());
    }
}

/// The trap of the driver: a `begin` that is dropped while the server answers.
async fn a_dropped_begin_leaves_no_transaction_open<S: TxStore>(store: S) {
    for wakes in (0..12).cycle().take(60) {
        // Polled when it was woken, so many times, and dropped when it is woken once more: for one
        // of the numbers, that is when the server has answered to BEGIN and nobody has read it.
        let (mut begin, mut left) = (Box::pin(store.begin()), wakes);
        std::future::poll_fn(|context| {
            if left == 0 {
                return std::task::Poll::Ready(());
            }
            left -= 1;
            begin.as_mut().poll(context).map(drop)
        })
        .await;
        drop(begin);
    }
    // Whatever is written now is there for everybody.
    let insert = store.layout().statement(
        "INSERT INTO {findings} (ledger, kind, foreign_key, step, detail, at) \
         VALUES ('app', 'row', ?, '', ?, 0)",
    );
    for number in 0..8 {
        let name = format!("row {number}");
        store.execute_once(&insert, &[Value::Text(&name), Value::Bytes(b"")]).await.unwrap();
    }
    for _ in 0..8 {
        assert_eq!(rows(&store).await, 8);
    }
}

async fn fences_rise_and_attempts_are_counted_at_the_claim<S: TxStore>(store: S) {
    let mut last = 0;
    for owner in 1..=4 {
        let held = won(&store, &start(1, owner, Duration::ZERO)).await;
        assert!(held.fence > last);
        assert_eq!(held.attempts, i64::from(owner));
        last = held.fence;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    assert_eq!(
        look(&store, &KeyId::from_bytes([1; 32])).await.unwrap().unwrap().state,
        state::RUNNING
    );
}

async fn tables_can_be_made_by_many_at_once<S: TxStore>(store: S) {
    let made = (0..4).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.script(&store.layout().migration_sql()).await })
    });
    for made in made.collect::<Vec<_>>() {
        made.await.unwrap().unwrap();
    }
    migrate(&store).await.unwrap();
}

/// The renewal was under way when the attempt ended: its statement arrives after the end.
async fn a_renewal_that_comes_late_revives_nothing<S: TxStore>(store: S) {
    for undoing in [false, true] {
        let id = if undoing { 1 } else { 2 };
        let held = won(&store, &start(id, 1, LONG)).await;
        if undoing {
            let back = store.layout().statement("UPDATE {flows} SET state = 5 WHERE flow_id = ?");
            let met = store.execute_once(&back, &[Value::Bytes(held.id.as_bytes())]).await.unwrap();
            assert_eq!(met, 1);
        }
        let waits = super::drive::wait(&store, &held, Duration::ZERO, "").await.unwrap();
        assert_eq!(waits, Kept::Yes);
        assert_eq!(renew(&store, &held).await.unwrap(), Kept::Fenced, "undoing: {undoing}");
        assert_eq!(won(&store, &start(id, 2, LONG)).await.attempts, 2);
    }
}

/// I9: what was seen not to be there may have been done and forgotten since. Whoever slept for so long looks
/// again.
async fn who_begins_too_late_begins_nothing<S: TxStore>(store: S) {
    let step = Step::from("ride");
    for (id, within, advanced) in [(1, SHORT, Advanced::Fenced), (2, LONG, Advanced::Yes)] {
        let start = Start { begin: Begin::WithFirstStep(within), ..start(id, 1, LONG) };
        let held = won(&store, &start).await;
        assert_eq!((held.before, held.attempts), (Before::NoRow, 1));
        tokio::time::sleep(SHORT * 4).await;
        let mut tx = store.begin().await.unwrap();
        let end = advance(&store, &mut tx, &held, point(&step), Some(&start), (&[], &[])).await;
        assert_eq!(end.unwrap(), advanced);
        S::rollback(tx).await.unwrap();
        let written = unwritten::write(&store, &start, &held).await.unwrap();
        let whose = if advanced == Advanced::Yes { Whose::Ours } else { Whose::Another };
        assert_eq!(written, whose);
        assert_eq!(look(&store, &held.id).await.unwrap().is_some(), whose == Whose::Ours);
    }
}
