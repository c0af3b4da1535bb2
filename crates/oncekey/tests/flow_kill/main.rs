//! `kill -9` before and after every statement and every foreign call of a flow, on each database.
//!
//! A child process runs a flow and kills itself at one point; another child, as the next process,
//! brings it to its end. The toy provider lives in the parent: it dedupes by key and counts by itself,
//! whatever the flow believes. I44, I45, I48.
#![cfg(all(
    feature = "flow-rusqlite",
    feature = "flow-tokio-postgres",
    feature = "outbox",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql"
))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[allow(dead_code, reason = "each test uses a part of it")]
#[path = "../common/child.rs"]
mod child;
mod orders;
mod provider;

use std::path::PathBuf;

use oncekey::flow::rusqlite::Rusqlite;
use oncekey::flow::sqlx::{SqlxMysql, SqlxPostgres, SqlxSqlite};
use oncekey::flow::tokio_postgres::TokioPostgres;
use oncekey::flow::{TxStore, Value, migrate};

use self::child::Process;
use self::orders::{PROVIDER, Role, Tables};
use self::provider::Provider;

/// Which database a child works on, and with which driver, where it is not sqlx.
#[derive(Clone, Debug)]
enum Place {
    Sqlite(PathBuf),
    Rusqlite(PathBuf),
    Postgres(String),
    TokioPostgres(String),
    Mysql(String),
}

impl Place {
    fn spec(&self) -> PathBuf {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()).into(),
            Self::Rusqlite(path) => format!("rusqlite:{}", path.display()).into(),
            Self::Postgres(name) => format!("postgres:{name}").into(),
            Self::TokioPostgres(name) => format!("tokio-postgres:{name}").into(),
            Self::Mysql(name) => format!("mysql:{name}").into(),
        }
    }

    fn of(spec: &str) -> Self {
        let (kind, rest) = spec.split_once(':').unwrap();
        match kind {
            "sqlite" => Self::Sqlite(rest.into()),
            "rusqlite" => Self::Rusqlite(rest.into()),
            "postgres" => Self::Postgres(rest.to_owned()),
            "tokio-postgres" => Self::TokioPostgres(rest.to_owned()),
            _ => Self::Mysql(rest.to_owned()),
        }
    }

    /// A place of its own for one test.
    fn fresh(kind: &str, folder: &tempfile::TempDir) -> Self {
        let mut bytes = [0; 5];
        getrandom::fill(&mut bytes).unwrap();
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match kind {
            "sqlite" => Self::Sqlite(folder.path().join("app.db")),
            "rusqlite" => Self::Rusqlite(folder.path().join("app.db")),
            "postgres" => Self::Postgres(format!("k{name}")),
            "tokio-postgres" => Self::TokioPostgres(format!("k{name}")),
            _ => Self::Mysql(format!("k{name}_")),
        }
    }
}

/// Does something with the store of a place, whichever it is.
macro_rules! with_store {
    ($place:expr, $store:ident => $body:expr) => {
        match $place {
            Place::Sqlite(path) => {
                let $store = SqlxSqlite::open(path).await.unwrap();
                $body
            }
            Place::Rusqlite(path) => {
                let $store = Rusqlite::open(path).unwrap();
                $body
            }
            Place::TokioPostgres(name) => {
                let $store = dialled().schema(&name).unwrap();
                $body
            }
            Place::Postgres(name) => {
                let url = std::env::var("ONCEKEY_TEST_POSTGRES").unwrap();
                let pool = sqlx::postgres::PgPoolOptions::new().max_connections(3);
                let pool = pool.connect(&url).await.unwrap();
                let $store = SqlxPostgres::with_schema(pool, &name).unwrap().begin_ahead();
                $body
            }
            Place::Mysql(name) => {
                let url = std::env::var("ONCEKEY_TEST_MYSQL").unwrap();
                let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(3);
                let pool = pool.connect(&url).await.unwrap();
                let $store = SqlxMysql::with_prefix(pool, &name).unwrap().keep_connections();
                $body
            }
        }
    };
}

fn dialled() -> TokioPostgres {
    let url = std::env::var("ONCEKEY_TEST_POSTGRES").unwrap();
    TokioPostgres::dial(3, move || {
        let url = url.clone();
        async move {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            Ok::<_, tokio_postgres::Error>(client)
        }
    })
}

/// Not a test, but what a child process does.
#[test]
fn child() {
    let Some(orders) = child::orders() else { return };
    let place = Place::of(orders.file.to_str().unwrap());
    let role = Role::of(&orders.role, orders.number);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async move {
        with_store!(place, store => orders::run(store, role).await);
    });
}

fn start(place: &Place, role: &str, number: u64, provider: &Provider) -> Process {
    let mut command = child::command(role, &place.spec(), number);
    Process::start(command.env(PROVIDER, provider.address()))
}

async fn counts<S: TxStore>(store: &S, flow: &str) -> (i64, i64, i64, i64) {
    let tables = Tables::new(store);
    let of = async |sql| {
        let rows = store.query_once(sql, &[Value::Text(flow)]).await.unwrap();
        rows[0].int(0).unwrap()
    };
    let unfinished =
        store.layout().statement("SELECT count(*) FROM {flows} WHERE state NOT IN (3, 6)");
    let stuck = store.query_once(&unfinished, &[]).await.unwrap()[0].int(0).unwrap();
    let staged = store.layout().statement("SELECT count(*) FROM {staged} WHERE topic = ?");
    let staged = of(&staged).await;
    (of(&tables.count_rides).await, of(&tables.count_receipts).await, staged, stuck)
}

/// How many points are gone through at the same time, each in a database of its own: most of the time
/// somebody waits for the lease of somebody who is dead.
const LANES: u64 = 3;

/// Kills at every point of one flow, and looks at what came of it.
fn enumerate(kind: &str, flow: &str) {
    std::thread::scope(|scope| {
        let lanes = (0..LANES).map(|lane| scope.spawn(move || enumerate_one_in(kind, flow, lane)));
        let points: Vec<u64> =
            lanes.collect::<Vec<_>>().into_iter().map(|it| it.join().unwrap()).collect();
        assert!(points.iter().all(|count| *count == points[0]), "{points:?}");
    });
}

/// The points of one lane. Returns how many there are in all.
fn enumerate_one_in(kind: &str, flow: &str, lane: u64) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::fresh(kind, &folder);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        with_store!(place.clone(), store => {
            migrate(&store).await.unwrap();
            Tables::new(&store).make(&store).await;
        });
    });
    let provider = Provider::start();
    let told = start(&place, flow, 0, &provider).finish();
    let points: u64 = told[0].strip_prefix("points ").unwrap().parse().unwrap();
    provider.check(flow, 0);
    // Fewer, and the plan has stopped counting.
    assert!(points >= if flow == "swift" { 15 } else { 20 }, "{points}");
    for point in (1..=points).filter(|point| point % LANES == lane) {
        let name = format!("{flow}-{point}");
        // It ends by its own hand, and says nothing.
        let mut killed = start(&place, flow, point, &provider);
        assert_eq!(killed.hear(), None, "{kind} {name}");
        drop(killed);
        let told = start(&place, &format!("{flow}-finish"), point, &provider).finish();
        let reply = if flow == "saga" { "409 \"sold out\"" } else { "201 \"ride\"" };
        assert_eq!(told, [format!("reply {reply}")], "{kind} {name}");
        provider.check(flow, point);
        let (rides, receipts, staged, stuck) = runtime
            .block_on(async { with_store!(place.clone(), store => counts(&store, &name).await) });
        let (done, sent) = (i64::from(flow != "saga"), i64::from(flow == "swift"));
        assert_eq!((rides, receipts, staged, stuck), (1, done, sent, 0), "{kind} {name}");
    }
    points
}

#[test]
fn a_flow_killed_at_any_point_charges_once_on_sqlite() {
    enumerate("sqlite", "rides");
}

#[test]
fn a_saga_killed_at_any_point_takes_back_once_on_sqlite() {
    enumerate("sqlite", "saga");
}

#[test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
fn a_flow_killed_at_any_point_charges_once_on_postgres() {
    enumerate("postgres", "rides");
}

#[test]
fn a_flow_that_announces_killed_at_any_point_charges_once_on_sqlite() {
    enumerate("sqlite", "swift");
}

#[test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
fn a_flow_that_announces_killed_at_any_point_charges_once_on_postgres() {
    enumerate("postgres", "swift");
}

#[test]
#[ignore = "needs MySQL: run cargo xtask test"]
fn a_flow_that_announces_killed_at_any_point_charges_once_on_mysql() {
    enumerate("mysql", "swift");
}

#[test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
fn a_saga_killed_at_any_point_takes_back_once_on_postgres() {
    enumerate("postgres", "saga");
}

#[test]
#[ignore = "needs MySQL: run cargo xtask test"]
fn a_flow_killed_at_any_point_charges_once_on_mysql() {
    enumerate("mysql", "rides");
}

#[test]
#[ignore = "needs MySQL: run cargo xtask test"]
fn a_saga_killed_at_any_point_takes_back_once_on_mysql() {
    enumerate("mysql", "saga");
}

/// The way back is the same statements again: the way there is enough for another driver.
#[test]
fn a_flow_killed_at_any_point_charges_once_with_rusqlite() {
    enumerate("rusqlite", "rides");
}

#[test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
fn a_flow_killed_at_any_point_charges_once_with_tokio_postgres() {
    enumerate("tokio-postgres", "rides");
}

/// SIGSTOP inside a phase, past the lease: the next process ends the flow, and when the first one goes
/// on, its transaction rolls back with everything in it.
fn frozen(kind: &str) {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::fresh(kind, &folder);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        with_store!(place.clone(), store => {
            migrate(&store).await.unwrap();
            Tables::new(&store).make(&store).await;
        });
    });
    let provider = Provider::start();
    // It stops itself inside of its last phase, after the rows were written or about to be.
    let mut slow = start(&place, "frozen", 1, &provider);
    slow.expect("about to stop");
    let told = start(&place, "frozen-finish", 1, &provider).finish();
    assert_eq!(told, ["reply 201 \"second\""], "{kind}");
    let pid = rustix::process::Pid::from_raw(i32::try_from(slow.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    slow.go_on();
    let told = slow.finish();
    assert_eq!(told, ["reply 201 \"second\""], "{kind}: the thawed one");
    let (rides, receipts, _, stuck) =
        runtime.block_on(async { with_store!(place, store => counts(&store, "frozen-1").await) });
    assert_eq!((rides, receipts, stuck), (0, 1, 0), "{kind}");
}

#[test]
fn a_frozen_owner_rolls_back_after_a_takeover_on_sqlite() {
    frozen("sqlite");
}

#[test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
fn a_frozen_owner_rolls_back_after_a_takeover_on_postgres() {
    frozen("postgres");
}

#[test]
#[ignore = "needs MySQL: run cargo xtask test"]
fn a_frozen_owner_rolls_back_after_a_takeover_on_mysql() {
    frozen("mysql");
}

#[test]
fn a_frozen_owner_rolls_back_after_a_takeover_with_rusqlite() {
    frozen("rusqlite");
}

#[test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
fn a_frozen_owner_rolls_back_after_a_takeover_with_tokio_postgres() {
    frozen("tokio-postgres");
}
