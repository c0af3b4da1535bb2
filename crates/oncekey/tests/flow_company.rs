//! Many flows at once on PostgreSQL, whose connections are cut all the time: what they say to the
//! database together is as sure as what each says by itself. F15, I4.
#![cfg(all(
    feature = "flow-rusqlite",
    feature = "flow-tokio-postgres",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite"
))]
#![expect(clippy::unwrap_used, reason = "a test fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/mod.rs"]
mod common;
#[path = "flow_common/databases.rs"]
#[allow(unused_macros, reason = "these are about one database")]
mod databases;
#[path = "common/proxy.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod proxy;

use std::time::Duration;

use common::Provider;
use databases::{Rig, insert, key};
use oncekey::flow::sqlx::SqlxPostgres;
use oncekey::flow::{Definition, Flow, FlowError, Flows, Options, Outcome, Reply, Safety, TxStore};
use proxy::{Fault, How, Proxy, Then, Way};

const ROUNDS: usize = 12;
const FLOWS: usize = 24;

/// Longer than a round takes with all its cuts, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn cuts_double_and_lose_nothing_with_sqlx() {
    let rig = databases::postgres().await;
    let proxy = Proxy::start(port()).await;
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(6);
    let pool = pool.connect(&url_through(&proxy)).await.unwrap();
    let schema = schema_of(&rig);
    cuts_double_and_lose_nothing(&rig, SqlxPostgres::with_schema(pool, &schema).unwrap(), &proxy)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn cuts_double_and_lose_nothing_with_tokio_postgres() {
    let rig = databases::tokio_postgres().await;
    let proxy = Proxy::start(port()).await;
    let store = databases::dialled(&url_through(&proxy), 6).schema(&schema_of(&rig)).unwrap();
    cuts_double_and_lose_nothing(&rig, store, &proxy).await;
}

/// The rig looks from behind the proxy, where nothing is cut.
async fn cuts_double_and_lose_nothing<S: TxStore>(rig: &Rig<S>, store: S, proxy: &Proxy) {
    let provider = Provider::default();
    // Whoever is lost in a cut is taken over soon, and asked for again at once.
    let lease = Duration::from_secs(3);
    let options =
        Options { lease, pause: Duration::ZERO, most_attempts: 1_000, ..Options::default() };
    let flows = Flows::builder(store, "test").flow(definition(&provider)).options(options);
    let flows = flows.build().unwrap();
    for round in 0..ROUNDS {
        let tasks: Vec<_> = (0..FLOWS)
            .map(|number| tokio::spawn(to_the_end(flows.clone(), format!("{round}-{number}"))))
            .collect();
        let way = if round % 2 == 0 { Way::Up } else { Way::Down };
        for cut in 1..=3 {
            // Some fall into the starts, some into the intents, some into the ends.
            let after = 700 * cut * (round + 1);
            proxy.set(Fault::Cut { way, after, how: How::Reset, then: Then::Heal });
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        proxy.heal();
        for task in tasks {
            tokio::time::timeout(PATIENCE, task).await.expect("a flow ends").unwrap();
        }
    }
    assert!(proxy.cuts() >= 10, "only {} cuts: this proves nothing", proxy.cuts());
    assert_eq!(provider.charges(), ROUNDS * FLOWS, "one charge for each flow");
    for round in 0..ROUNDS {
        for number in 0..FLOWS {
            let name = format!("{round}-{number}");
            let rows = (rig.orders_of(&name).await, rig.orders_of(&format!("{name} end")).await);
            assert_eq!(rows, (1, 1), "each step of {name} is taken once");
        }
    }
    let sql = "SELECT count(*) FROM {flows} WHERE state <> 3";
    assert_eq!(rig.count(sql, &[]).await, 0, "nothing is left over");
    let sql = "SELECT count(*) FROM {effects} AS e WHERE NOT EXISTS (SELECT 1 FROM {steps} AS s \
         WHERE s.flow_id = e.flow_id AND s.name = e.name AND s.item = e.item)";
    assert_eq!(rig.count(sql, &[]).await, 0, "every intent has its outcome");
}

fn definition<S: TxStore>(provider: &Provider) -> Definition<S> {
    let provider = provider.clone();
    Definition::new("rides", move |flow: Flow<S>, name: String| {
        let provider = provider.clone();
        async move {
            flow.phase("ride_created", async |tx| insert(tx, &name).await).await?;
            let window = Duration::from_secs(86_400);
            let charge: String = flow
                .effect("charge_created", Safety::Keyed { window })
                .call(async |key| provider.charge(key, 1).await)
                .await?;
            flow.finish(async |tx| {
                insert(tx, &format!("{name} end")).await?;
                Reply::json(201, &charge)
            })
            .await
        }
    })
}

/// What a client does: it asks until it is told.
async fn to_the_end<S: TxStore>(flows: Flows<S>, name: String) {
    loop {
        match flows.run("rides", key(&name), &name).await {
            Ok(Outcome::Replied { reply, .. }) => {
                assert_eq!(reply.status(), 201);
                return;
            }
            Ok(Outcome::Later { .. } | Outcome::InProgress { .. }) | Err(FlowError::Store(_)) => {}
            other => panic!("{name}: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn schema_of<S: TxStore>(rig: &Rig<S>) -> String {
    let table = rig.db.layout().statement("{flows}");
    table.split('.').next().unwrap().to_owned()
}

fn port() -> u16 {
    let url = std::env::var("ONCEKEY_TEST_POSTGRES").unwrap();
    let (_, rest) = url.rsplit_once(':').unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}

fn url_through(proxy: &Proxy) -> String {
    let url = std::env::var("ONCEKEY_TEST_POSTGRES").unwrap();
    url.replace(&format!(":{}", port()), &format!(":{}", proxy.port()))
}
