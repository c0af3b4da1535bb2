//! The worked examples that the project grew from, as tests: the listing of an order that is a state
//! machine, the worker that takes one step of a saga, the saga with compensation.
#![cfg(all(feature = "flow", feature = "outbox", feature = "sqlite"))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Provider, Rig, Store, key};
use oncekey::core::{Key, KeyId, Scope, chained_key};
use oncekey::flow::testing::{Fault, Plan};
use oncekey::flow::{
    Compensation, Definition, Did, Failed, Flow, FlowKey, Flows, Halt, Machine, Next, Options,
    Outcome, Reply, Safety, Source, Turn, Turned,
};
use serde::{Deserialize, Serialize};

const DAY: Safety = Safety::Keyed { window: Duration::from_secs(86_400) };

async fn scalar(rig: &Rig, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(rig.store.pool()).await.unwrap()
}

async fn table(rig: &Rig, sql: &'static str) {
    sqlx::query(sql).execute(rig.store.pool()).await.unwrap();
}

fn replied(outcome: Outcome) -> (u16, Source) {
    match outcome {
        Outcome::Replied { reply, source } => (reply.status(), source),
        other => panic!("{other:?}"),
    }
}

/// started → order_created → charge_created → finished.
#[derive(Serialize, Deserialize)]
enum Listing {
    Started { cents: i64 },
    OrderCreated { order: i64, cents: i64 },
    ChargeCreated { order: i64 },
}

struct Orders {
    provider: Provider,
    /// The process dies the instant the charge succeeds.
    crash: Plan,
    arms: Arc<Mutex<Vec<&'static str>>>,
}

impl Machine<Store> for Orders {
    type Input = i64;
    type State = Listing;

    fn begin(&self, cents: i64) -> Listing {
        Listing::Started { cents }
    }

    fn point(state: &Listing) -> &'static str {
        match state {
            Listing::Started { .. } => "started",
            Listing::OrderCreated { .. } => "order_created",
            Listing::ChargeCreated { .. } => "charge_created",
        }
    }

    async fn step(&self, at: Listing, turn: Turn<Store>) -> Result<Turned<Listing>, Halt> {
        self.arms.lock().unwrap().push(Self::point(&at));
        match at {
            Listing::Started { cents } => {
                turn.commit(async |tx| {
                    let order = common::insert_ride(tx, "order").await?;
                    sqlx::query("INSERT INTO audit (what) VALUES ('order.created')")
                        .execute(&mut **tx)
                        .await?;
                    Ok(Next::Goto(Listing::OrderCreated { order, cents }))
                })
                .await
            }
            Listing::OrderCreated { order, cents } => {
                let charge: String = turn
                    .effect("charge", DAY)
                    .bind(&(order, cents))
                    .call(async |key| {
                        let charge = self.provider.charge(key, cents).await;
                        self.crash.point().await.map_err(|_| Failed::Unknown(String::new()))?;
                        charge
                    })
                    .await?;
                turn.commit(async |tx| {
                    sqlx::query("UPDATE rides SET charge = ? WHERE id = ?")
                        .bind(charge)
                        .bind(order)
                        .execute(&mut **tx)
                        .await?;
                    Ok(Next::Goto(Listing::ChargeCreated { order }))
                })
                .await
            }
            Listing::ChargeCreated { order } => {
                turn.commit(async |tx| {
                    tx.stage("send_receipt", &order).await?;
                    Ok(Next::Reply(Reply::json(201, &order)?))
                })
                .await
            }
        }
    }
}

async fn listing(rig: &Rig, provider: &Provider, crash: &Plan) -> (Flows<Store>, Arms) {
    table(rig, "CREATE TABLE audit (what TEXT NOT NULL)").await;
    let arms = Arms::default();
    let (provider, crash) = (provider.clone(), crash.clone());
    let orders = Orders { provider, crash, arms: Arc::clone(&arms) };
    (rig.flows(Definition::machine("orders.create", orders)).await, arms)
}

type Arms = Arc<Mutex<Vec<&'static str>>>;

fn id_of(text: &str) -> KeyId {
    let key = Key::new(text.as_bytes()).unwrap();
    KeyId::derive("test", &Scope::new("shared").unwrap(), &key, None)
}

/// The nightmare of the listing: charged, and dead before that was written down. The row says
/// `order_created`, the retry jumps there, and the provider knows its key again.
#[tokio::test]
async fn the_listing_resumes_at_its_recovery_point_and_charges_once() {
    let (rig, provider, crash) = (Rig::new().await, Provider::default(), Plan::new());
    let (flows, arms) = listing(&rig, &provider, &crash).await;
    crash.arm(1, Fault::Crash);
    let died = flows.run("orders.create", &key("a"), &2_000_i64).await.unwrap();
    assert!(matches!(died, Outcome::Later { .. }), "{died:?}");
    let history = flows.history(&id_of("a")).await.unwrap().unwrap();
    assert_eq!((history.point.as_str(), provider.charges()), ("order_created", 1));
    // The next process.
    crash.arm(99, Fault::Fail);
    let again = flows.run("orders.create", &key("a"), &2_000_i64).await.unwrap();
    assert_eq!(replied(again), (201, Source::Fresh));
    assert_eq!(
        *arms.lock().unwrap(),
        ["started", "order_created", "order_created", "charge_created"]
    );
    let history = flows.history(&id_of("a")).await.unwrap().unwrap();
    assert_eq!(history.point, "finished");
    assert_eq!((provider.calls(), provider.charges()), (2, 1));
    assert_eq!((rig.count("rides").await, rig.count("audit").await), (1, 1));
    let receipts = "SELECT count(*) FROM oncekey_staged WHERE topic = 'send_receipt'";
    assert_eq!(scalar(&rig, receipts).await, 1);
    let replay = flows.run("orders.create", &key("a"), &2_000_i64).await.unwrap();
    assert_eq!(replied(replay), (201, Source::Replayed));
    let other = flows.run("orders.create", &key("a"), &1_i64).await.unwrap();
    assert_eq!(other, Outcome::Mismatch);
}

/// A declined card is stored as the reply: `Finish(402)` from the arm of `order_created`.
#[tokio::test]
async fn the_listing_stores_a_decline_and_asks_nobody_again() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let (flows, arms) = listing(&rig, &provider, &Plan::new()).await;
    provider.decline.store(true, Ordering::SeqCst);
    for source in [Source::Fresh, Source::Replayed] {
        let outcome = flows.run("orders.create", &key("a"), &2_000_i64).await.unwrap();
        assert_eq!(replied(outcome), (402, source));
    }
    assert_eq!(*arms.lock().unwrap(), ["started", "order_created"]);
    assert_eq!(
        (provider.calls(), scalar(&rig, "SELECT count(*) FROM oncekey_staged").await),
        (1, 0)
    );
}

/// (c) A queue delivers the job `saga:shipments:ship` to several workers at once, to one that dies after
/// the carrier has taken the parcel, and again after it had forgotten the job.
#[tokio::test]
async fn a_worker_takes_its_step_of_a_saga_once_however_often_the_job_comes() {
    let (rig, carrier, crash) = (Rig::new().await, Provider::default(), Plan::new());
    table(
        &rig,
        "CREATE TABLE shipments (idempotency_key TEXT NOT NULL UNIQUE, tracking TEXT NOT NULL)",
    )
    .await;
    let (ships, crashes) = (carrier.clone(), crash.clone());
    let ship = Definition::new("shipments.ship", move |flow: Flow<Store>, job: String| {
        let (carrier, crash) = (ships.clone(), crashes.clone());
        async move {
            let tracking: String = flow
                .effect("carrier", DAY)
                .call(async |key| {
                    let tracking = carrier.charge(key, 1).await;
                    crash.point().await.map_err(|_| Failed::Unknown(String::new()))?;
                    tracking
                })
                .await?;
            flow.finish(async |tx| {
                // The second layer: were the flow's row lost, the domain's row would still refuse.
                sqlx::query("INSERT INTO shipments (idempotency_key, tracking) VALUES (?, ?)")
                    .bind(&job)
                    .bind(&tracking)
                    .execute(&mut **tx)
                    .await?;
                Reply::json(200, &tracking)
            })
            .await
        }
    });
    let flows = rig.flows(ship).await;
    let job = chained_key(&Key::new(b"saga-1").unwrap(), "shipments", "ship");
    let input = String::from_utf8(job.as_bytes().to_vec()).unwrap();
    let job = FlowKey::new(Scope::shared(), job);
    crash.arm(1, Fault::Crash);
    let died = flows.run("shipments.ship", &job, &input).await.unwrap();
    assert!(matches!(died, Outcome::Later { .. }), "{died:?}");
    assert_eq!((carrier.charges(), rig.count("shipments").await), (1, 0));
    crash.arm(99, Fault::Fail);
    let workers = (0..6).map(|_| {
        let (flows, job, input) = (flows.clone(), job.clone(), input.clone());
        tokio::spawn(async move {
            loop {
                match flows.run("shipments.ship", &job, &input).await.unwrap() {
                    Outcome::Replied { reply, .. } => return reply,
                    Outcome::InProgress { .. } => {
                        tokio::time::sleep(Duration::from_millis(2)).await
                    }
                    other => panic!("{other:?}"),
                }
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        assert_eq!(worker.await.unwrap(), Reply::json(200, &"ch_1").unwrap());
    }
    let late = flows.run("shipments.ship", &job, &input).await.unwrap();
    assert_eq!(replied(late), (200, Source::Replayed));
    assert_eq!((carrier.calls(), carrier.charges(), rig.count("shipments").await), (2, 1, 1));
}

/// What the partners of (d) were asked to do, by the key of the request: each key once.
type Books = Arc<Mutex<BTreeMap<String, &'static str>>>;

fn books_of(books: &Books) -> Vec<&'static str> {
    let mut done: Vec<_> = books.lock().unwrap().values().copied().collect();
    done.sort_unstable();
    done
}

/// Books for a key once. `lost` says that the answer does not come back.
fn book(books: &Books, key: &str, what: &'static str, lost: bool) -> Result<(), Failed> {
    let seen = books.lock().unwrap().insert(key.to_owned(), what).is_some();
    match lost && !seen {
        true => Err(Failed::Unknown("the answer was lost".to_owned())),
        false => Ok(()),
    }
}

/// (d) reserve, charge, ship. `refuses` is the stage that says no, `loses` the one whose first answer
/// does not come back.
fn place_order(books: &Books, refuses: &'static str, loses: &'static str) -> Definition<Store> {
    let books = Arc::clone(books);
    Definition::new("orders.place", move |flow: Flow<Store>, amount: i64| {
        let books = Arc::clone(&books);
        async move {
            let no = |status| Err(Failed::Final(Reply::empty(status)));
            // Ours: a phase. What has run out is a reply.
            flow.phase("reserve", async |tx| {
                let row =
                    sqlx::query("UPDATE stock SET available = available - ? WHERE available >= ?")
                        .bind(amount)
                        .bind(amount);
                match row.execute(&mut **tx).await?.rows_affected() {
                    0 => Err(Halt::Stop(Reply::empty(409))),
                    _ => Ok(()),
                }
            })
            .await?;
            let traded = async {
                flow.effect::<()>("charge", DAY)
                    .undo("refund", &())
                    .call(async |key| match refuses == "charge" {
                        true => no(402),
                        false => book(&books, key, "charge", loses == "charge"),
                    })
                    .await?;
                flow.effect::<()>("ship", DAY)
                    .call(async |key| match refuses == "ship" {
                        true => no(503),
                        false => book(&books, key, "ship", loses == "ship"),
                    })
                    .await
            };
            match traded.await {
                Ok(()) => flow.finish(async |_| Ok(Reply::empty(201))).await,
                Err(Halt::Stop(reply)) => {
                    flow.phase("release", async |tx| {
                        sqlx::query("UPDATE stock SET available = available + ?")
                            .bind(amount)
                            .execute(&mut **tx)
                            .await?;
                        Ok(())
                    })
                    .await?;
                    Err(Halt::Stop(reply))
                }
                Err(halt) => Err(halt),
            }
        }
    })
}

/// (d) Each stage refuses, and each answer is lost once: in the end nothing was done, or all of it, and
/// starting it again with the same id says the same.
#[tokio::test]
async fn a_saga_ends_or_leaves_nothing_behind_at_whatever_stage_it_fails() {
    let all: &[&str] = &["charge", "ship"];
    let rows = [
        // amount, refuses, loses, status, left in stock, what the partners did
        (1, "nobody", "nobody", 201, 4, all),
        (1, "nobody", "charge", 201, 4, all),
        (1, "nobody", "ship", 201, 4, all),
        (9, "nobody", "nobody", 409, 5, &[]),
        (1, "charge", "nobody", 402, 5, &[]),
        (1, "ship", "nobody", 503, 5, &["charge", "refund"]),
        (1, "ship", "charge", 503, 5, &["charge", "refund"]),
        (1, "ship", "refund", 503, 5, &["charge", "refund"]),
    ];
    for (amount, refuses, loses, status, left, expected) in rows {
        let (rig, books) = (Rig::new().await, Books::default());
        table(&rig, "CREATE TABLE stock (available INTEGER NOT NULL)").await;
        table(&rig, "INSERT INTO stock VALUES (5)").await;
        let refunds = Arc::clone(&books);
        let refund = Compensation::new(move |(): (), did: Did<()>, key: String| {
            assert_eq!(did, Did::Done(()));
            let refunded = book(&refunds, &key, "refund", loses == "refund");
            async move { refunded }
        });
        let flows = Flows::builder(rig.store.clone(), "test")
            .flow(place_order(&books, refuses, loses))
            .compensation("refund", refund)
            .options(Options { pause: Duration::ZERO, ..Options::default() })
            .build()
            .unwrap();
        let row = format!("{amount} {refuses} {loses}");
        for round in 0..2 {
            let outcome = loop {
                match flows.run("orders.place", &key("saga-1"), &amount).await.unwrap() {
                    Outcome::Later { .. } if round == 0 && loses != "nobody" => {}
                    outcome => break outcome,
                }
            };
            assert_eq!(replied(outcome).0, status, "{row}");
            assert_eq!(scalar(&rig, "SELECT available FROM stock").await, left, "{row}");
            assert_eq!(books_of(&books), expected, "{row}");
        }
    }
}
