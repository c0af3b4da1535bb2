//! What becomes of flows that do not simply end: crashes, takeovers, sagas, people, machines.
#![cfg(all(feature = "flow", feature = "sqlite"))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/mod.rs"]
mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Provider, Rig, Store, charge_flow, key};
use oncekey::core::KeyId;
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::{
    Compensation, Completer, Definition, Did, Failed, Finding, Flow, Flows, ForeignLedger, Halt,
    Machine, Next, Options, Outcome, Page, Reconciler, Rehearsed, Reply, Resolved, Safety, Stuck,
    Turn, Turned,
};
use serde::{Deserialize, Serialize};

/// As quick, but with a lease that no busy machine exhausts.
fn patient() -> Options {
    Options { lease: Duration::from_secs(20), ..quick() }
}

/// Leases that a test can wait for.
fn quick() -> Options {
    Options {
        lease: Duration::from_millis(60),
        grace: Duration::ZERO,
        pause: Duration::ZERO,
        most_undo_attempts: 3,
        ..Options::default()
    }
}

fn id_of(text: &str) -> KeyId {
    let scope = oncekey::core::Scope::new("shared").unwrap();
    let key = oncekey::core::Key::new(text.as_bytes()).unwrap();
    KeyId::derive("test", &scope, &key, None)
}

fn status(outcome: &Outcome) -> u16 {
    match outcome {
        Outcome::Replied { reply, .. } => reply.status(),
        other => panic!("{other:?}"),
    }
}

/// The order of the seed's listing on a store that can go wrong.
fn shaky_flow(provider: &Provider) -> Definition<Shaky<Store>> {
    let provider = provider.clone();
    Definition::new("rides.create", move |flow: Flow<Shaky<Store>>, amount: i64| {
        let provider = provider.clone();
        async move {
            let ride = flow
                .phase("order_created", async |tx| {
                    let done = sqlx::query("INSERT INTO rides (name) VALUES ('ride')")
                        .execute(&mut **tx)
                        .await?;
                    Ok(done.last_insert_rowid())
                })
                .await?;
            let window = Duration::from_secs(86_400);
            let charge: String = flow
                .effect("charge_created", Safety::Keyed { window })
                .bind(&ride)
                .call(async |key| provider.charge(key, amount).await)
                .await?;
            flow.finish(async |tx| {
                sqlx::query("UPDATE rides SET charge = ? WHERE id = ?")
                    .bind(charge)
                    .bind(ride)
                    .execute(&mut **tx)
                    .await?;
                Reply::json(201, &ride)
            })
            .await
        }
    })
}

/// Everything fails, or stops for ever, at each point of the flow in turn. The completer of another
/// process brings it to the same end each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_at_whatever_point_there_is_one_charge_and_one_reply() {
    let rig = Rig::new().await;
    let points = {
        let (plan, provider) = (Plan::new(), Provider::default());
        let store = Shaky::new(rig.store.clone(), plan.clone());
        let flows = Flows::builder(store, "test").flow(shaky_flow(&provider)).build().unwrap();
        let outcome = flows.run("rides.create", &key("count"), &1_i64).await.unwrap();
        assert_eq!(status(&outcome), 201);
        plan.count()
    };
    assert!(points >= 12, "{points}");
    for fault in [Fault::Fail, Fault::Crash] {
        for point in 1..=points {
            let name = format!("{fault:?} at {point}");
            let (plan, provider) = (Plan::new(), Provider::default());
            let before = rig.count("rides").await;
            let shaky = Shaky::new(rig.store.clone(), plan.clone());
            let built = Flows::builder(shaky, "test").options(quick());
            let flows = built.flow(shaky_flow(&provider)).build().unwrap();
            plan.arm(point, fault.clone());
            let same = key(&name);
            let first = flows.run("rides.create", &same, &1_i64);
            let _ = tokio::time::timeout(Duration::from_millis(200), first).await;
            // Another process, whose store is sound.
            let whole = Flows::builder(Shaky::new(rig.store.clone(), Plan::new()), "test")
                .options(patient())
                .flow(shaky_flow(&provider))
                .build()
                .unwrap();
            let completer = Completer::new(whole.clone());
            let mut outcome = whole.run("rides.create", &key(&name), &1_i64).await.unwrap();
            for _ in 0..1_000 {
                if matches!(outcome, Outcome::Replied { .. }) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                completer.run_once().await.unwrap();
                outcome = whole.run("rides.create", &key(&name), &1_i64).await.unwrap();
            }
            assert_eq!(status(&outcome), 201, "{name}");
            assert_eq!(provider.charges(), 1, "{name}");
            assert_eq!(rig.count("rides").await, before + 1, "{name}");
            let whole_rides = "SELECT count(*) FROM rides WHERE charge IS NULL";
            let left: i64 =
                sqlx::query_scalar(whole_rides).fetch_one(rig.store.pool()).await.unwrap();
            assert_eq!(left, 0, "{name}");
        }
    }
}

/// An owner that is frozen inside a phase past its lease: its rows roll back when it thaws.
#[tokio::test]
async fn a_frozen_owner_that_was_replaced_changes_nothing() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let thaw = Arc::new(tokio::sync::Notify::new());
    let frozen = Arc::new(tokio::sync::Notify::new());
    let definition = |stops: bool| {
        let (provider, thaw, frozen) = (provider.clone(), Arc::clone(&thaw), Arc::clone(&frozen));
        Definition::new("rides.create", move |flow: Flow<Store>, (): ()| {
            let (provider, thaw, frozen) =
                (provider.clone(), Arc::clone(&thaw), Arc::clone(&frozen));
            async move {
                let charge: String = flow
                    .effect("charge", Safety::Natural)
                    .call(async |key| {
                        let charge = provider.charge(key, 1).await;
                        if stops {
                            frozen.notify_one();
                            thaw.notified().await;
                        }
                        charge
                    })
                    .await?;
                flow.phase("ride", async |tx| common::insert_ride(tx, &charge).await).await?;
                flow.finish(async |_| Reply::json(201, &stops)).await
            }
        })
    };
    let built = |stops| {
        // So long that no renewal gives the lease back that is taken away below.
        Flows::builder(rig.store.clone(), "test").options(patient()).flow(definition(stops)).build()
    };
    // A process that stands still does not renew. Here its lease is simply taken from it.
    let (slow, fast) = (built(true).unwrap(), built(false).unwrap());
    let first = tokio::spawn(async move { slow.run("rides.create", &key("a"), &()).await });
    frozen.notified().await;
    sqlx::query("UPDATE oncekey_flows SET lease = 0, due = 0")
        .execute(rig.store.pool())
        .await
        .unwrap();
    let outcome = fast.run("rides.create", &key("a"), &()).await.unwrap();
    assert_eq!(status(&outcome), 201);
    thaw.notify_one();
    let late = first.await.unwrap().unwrap();
    assert!(matches!(late, Outcome::InProgress { .. }), "{late:?}");
    assert_eq!(rig.count("rides").await, 1);
    let body = match fast.run("rides.create", &key("a"), &()).await.unwrap() {
        Outcome::Replied { reply, .. } => reply.body().to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!(body, b"false");
}

/// The intent is committed before the call: a process that dies after it leaves the outcome unknown, and
/// what must not be repeated is not.
#[tokio::test]
async fn a_call_that_must_not_be_repeated_is_not_after_a_crash() {
    let (rig, provider, crash) = (Rig::new().await, Provider::default(), Plan::new());
    let (called, crashes) = (provider.clone(), crash.clone());
    let body = move |flow: Flow<Store>, (): ()| {
        let (provider, crash) = (called.clone(), crashes.clone());
        async move {
            flow.effect::<String>("charge", Safety::Once)
                .call(async |key| {
                    let charge = provider.charge(key, 1).await;
                    crash.point().await.map_err(|_| Failed::Unknown(String::new()))?;
                    charge
                })
                .await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let flows = rig.flows(Definition::new("pay", body)).await;
    crash.arm(1, Fault::Crash);
    let first = flows.run("pay", &key("a"), &()).await.unwrap();
    assert!(matches!(first, Outcome::Later { .. }), "{first:?}");
    // The next process.
    crash.arm(99, Fault::Fail);
    let again = flows.run("pay", &key("a"), &()).await.unwrap();
    assert!(matches!(again, Outcome::Parked { .. }), "{again:?}");
    assert_eq!(provider.calls(), 1);
}

/// What the other side has done is written to this list.
type Log = Arc<Mutex<Vec<String>>>;

fn trip(log: &Log, fails_at: &'static str, pivot: bool) -> Definition<Store> {
    let log = Arc::clone(log);
    Definition::new("trip", move |flow: Flow<Store>, (): ()| {
        let log = Arc::clone(&log);
        async move {
            for step in ["seat", "room", "car"] {
                flow.effect::<String>(step, Safety::Natural)
                    .undo("release", &step)
                    .call(async |_| match step == fails_at {
                        true => Err(Failed::Final(Reply::empty(409))),
                        false => {
                            log.lock().unwrap().push(format!("+{step}"));
                            Ok(format!("{step} held"))
                        }
                    })
                    .await?;
                if pivot && step == "seat" {
                    flow.pivot("ticketed").await?;
                }
            }
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    })
}

fn release(log: &Log, stuck: &'static str) -> Compensation {
    let log = Arc::clone(log);
    Compensation::new(move |step: String, did: Did<String>, key: String| {
        let log = Arc::clone(&log);
        async move {
            assert!(key.starts_with("ok1_"));
            if step == stuck {
                return Err(Failed::Unknown("it does not answer".to_owned()));
            }
            let sign = match did {
                Did::Done(_) => '-',
                Did::Unknown => '?',
            };
            log.lock().unwrap().push(format!("{sign}{step}"));
            Ok(())
        }
    })
}

#[tokio::test]
async fn a_saga_takes_back_in_reverse_order_what_it_did() {
    let (rig, log) = (Rig::new().await, Log::default());
    let flows = Flows::builder(rig.store.clone(), "test")
        .flow(trip(&log, "car", false))
        .compensation("release", release(&log, "nothing"))
        .build()
        .unwrap();
    let outcome = flows.run("trip", &key("a"), &()).await.unwrap();
    assert_eq!(status(&outcome), 409);
    assert_eq!(*log.lock().unwrap(), ["+seat", "+room", "-room", "-seat"]);
    // Starting it again with the same id says the same, and does nothing.
    let again = flows.run("trip", &key("a"), &()).await.unwrap();
    assert_eq!(status(&again), 409);
    assert_eq!(log.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn past_the_pivot_there_is_only_forward() {
    let (rig, log) = (Rig::new().await, Log::default());
    let flows = Flows::builder(rig.store.clone(), "test")
        .flow(trip(&log, "car", true))
        .compensation("release", release(&log, "nothing"))
        .build()
        .unwrap();
    assert_eq!(status(&flows.run("trip", &key("a"), &()).await.unwrap()), 409);
    assert_eq!(*log.lock().unwrap(), ["+seat", "+room"]);
}

/// I48: an effect that may have happened is taken back, too; a compensation that fails is left to a
/// person, and the others run.
#[tokio::test]
async fn what_may_have_happened_is_taken_back_and_one_failure_stops_no_other() {
    let (rig, log) = (Rig::new().await, Log::default());
    let noted = Arc::clone(&log);
    let body = move |flow: Flow<Store>, (): ()| {
        let log = Arc::clone(&noted);
        async move {
            for step in ["seat", "room", "car"] {
                let lost = step == "car";
                let called = flow
                    .effect::<()>(step, Safety::Natural)
                    .undo("release", &step)
                    .call(async |_| match lost {
                        true => Err(Failed::Unknown("no answer".to_owned())),
                        false => {
                            log.lock().unwrap().push(format!("+{step}"));
                            Ok(())
                        }
                    })
                    .await;
                if lost {
                    assert!(called.is_err());
                    return Err(Halt::Stop(Reply::empty(504)));
                }
            }
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let stuck_log = Arc::clone(&log);
    let compensation = {
        let log = Arc::clone(&stuck_log);
        Compensation::new(move |step: String, did: Did<()>, _| {
            let log = Arc::clone(&log);
            async move {
                if step == "room" {
                    return Err(Failed::NotDone("it does not answer".to_owned()));
                }
                let sign = if did == Did::Unknown { '?' } else { '-' };
                log.lock().unwrap().push(format!("{sign}{step}"));
                Ok(())
            }
        })
    };
    let flows = Flows::builder(rig.store.clone(), "test")
        .options(patient())
        .flow(Definition::new("trip", body))
        .compensation("release", compensation)
        .build()
        .unwrap();
    let mut outcome = flows.run("trip", &key("a"), &()).await.unwrap();
    let completer = Completer::new(flows.clone());
    for _ in 0..5 {
        completer.run_once().await.unwrap();
        outcome = flows.run("trip", &key("a"), &()).await.unwrap();
    }
    assert!(
        matches!(&outcome, Outcome::Parked { reason } if reason.contains("room")),
        "{outcome:?}"
    );
    assert_eq!(*log.lock().unwrap(), ["+seat", "+room", "?car", "-seat"]);
    let history = flows.history(&id_of("a")).await.unwrap().unwrap();
    assert_eq!(history.effects[1].state, "undo failed");
}

/// The completer takes what a dead process left, and only when it is due.
#[tokio::test]
async fn the_completer_brings_abandoned_flows_to_their_end() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let plan = Plan::new();
    let shaky = Shaky::new(rig.store.clone(), plan.clone());
    let options = Options { lease: Duration::from_millis(500), ..quick() };
    let flows = Flows::builder(shaky, "test").options(options).flow(shaky_flow(&provider));
    let flows = flows.build().unwrap();
    for nth in 0..20 {
        // The process stops at its fourth point, which is inside the first phase.
        plan.arm(4, Fault::Crash);
        let key = key(&format!("dead {nth}"));
        let run = flows.run("rides.create", &key, &1_i64);
        let ended = tokio::time::timeout(Duration::from_millis(100), run).await;
        assert!(!matches!(ended, Ok(Ok(_))), "{ended:?}");
    }
    let sound = rig.flows(charge_flow(&provider)).await;
    let completer = Completer::new(sound).at_once(8);
    let mut ended = 0;
    for _ in 0..1_000 {
        let done = completer.run_once().await.unwrap();
        assert_eq!(done.failed, 0);
        ended += done.ended;
        if ended == 20 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((ended, rig.count("rides").await, provider.charges()), (20, 20, 20));
    assert_eq!(completer.run_once().await.unwrap().found, 0);
}

#[tokio::test]
async fn flows_of_other_programs_do_not_fill_the_batch() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let never = |_: Flow<Store>, (): ()| async { Err(Halt::retry("never")) };
    let options = Options { pause: Duration::ZERO, ..Options::default() };
    let others = Flows::builder(rig.store.clone(), "test").options(options.clone());
    let others = others.flow(Definition::new("other", never)).build().unwrap();
    for nth in 0..10 {
        others.run("other", &key(&format!("o{nth}")), &()).await.unwrap();
    }
    provider.lose_answers.store(1, Ordering::SeqCst);
    let flows = Flows::builder(rig.store.clone(), "test").options(options);
    let flows = flows.flow(charge_flow(&provider)).build().unwrap();
    flows.run("rides.create", &key("mine"), &1_i64).await.unwrap();
    let done = Completer::new(flows).at_once(2).run_once().await.unwrap();
    assert_eq!((done.found, done.ended), (1, 1));
}

/// I49: what is parked keeps its input, its history and its keys; people retry, skip, force, abandon.
#[tokio::test]
async fn parked_work_keeps_everything_and_people_decide() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let called = provider.clone();
    let body = move |flow: Flow<Store>, amount: i64| {
        let provider = called.clone();
        async move {
            let charge: String = flow
                .effect("charge", Safety::Once)
                .call(async |key| provider.charge(key, amount).await)
                .await?;
            flow.finish(async |_| Reply::json(201, &charge)).await
        }
    };
    let flows = rig.flows(Definition::new("pay", body)).await;
    let names = ["skip", "force", "abandon", "retry"];
    for name in names {
        provider.lose_answers.store(1, Ordering::SeqCst);
        let outcome = flows.run("pay", &key(name), &7_i64).await.unwrap();
        assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
    }
    assert_eq!(flows.stuck(Stuck::Parked).await.unwrap().len(), 4);
    let history = flows.history(&id_of("skip")).await.unwrap().unwrap();
    assert_eq!((history.input.as_str(), history.state.as_str()), ("7", "parked"));
    assert_eq!(history.effects[0].state, "intended");
    assert!(provider.find(&history.effects[0].foreign_key).is_some());
    assert_eq!(history.events.last().unwrap().what, "parked");

    let yes = Resolved::Yes;
    let found = "ch_by_hand".to_owned();
    assert_eq!(flows.skip(&id_of("skip"), "charge", &found, "looked").await.unwrap(), yes);
    let forced = Reply::empty(500);
    assert_eq!(flows.force(&id_of("force"), &forced, "bug 17").await.unwrap(), yes);
    assert_eq!(flows.abandon(&id_of("abandon"), "test data").await.unwrap(), yes);
    assert_eq!(flows.retry(&id_of("retry"), "try").await.unwrap(), yes);
    Completer::new(flows.clone()).run_once().await.unwrap();

    let outcome = |name: &'static str| {
        let flows = flows.clone();
        async move { flows.run("pay", &key(name), &7_i64).await.unwrap() }
    };
    match outcome("skip").await {
        Outcome::Replied { reply, .. } => assert_eq!(&reply.body()[..], b"\"ch_by_hand\""),
        other => panic!("{other:?}"),
    }
    assert_eq!(status(&outcome("force").await), 500);
    assert!(matches!(outcome("abandon").await, Outcome::Dead { .. }));
    // Retrying does not make the call again: it is parked again.
    assert!(matches!(outcome("retry").await, Outcome::Parked { .. }));
    assert_eq!((provider.calls(), provider.charges()), (4, 4));
    // What is over stays over.
    assert_eq!(flows.abandon(&id_of("force"), "late").await.unwrap(), Resolved::No);
    let events = flows.history(&id_of("abandon")).await.unwrap().unwrap().events;
    assert_eq!(events.last().unwrap().what, "abandoned");
}

struct Ledger(Provider);

impl ForeignLedger for Ledger {
    type Item = (String, String);
    type Output = String;

    fn name(&self) -> &str {
        "toy"
    }

    fn step(&self) -> &str {
        "charge"
    }

    async fn list(&self, _: Duration, _: Option<String>) -> Result<Page<Self::Item>, Failed> {
        let keys = self.0.keys().into_iter();
        let items = keys.filter_map(|key| Some((key.clone(), self.0.find(&key)?))).collect();
        Ok(Page { items, next: None })
    }

    fn key_of(&self, item: &Self::Item) -> Option<String> {
        Some(item.0.clone())
    }

    fn output_of(&self, item: &Self::Item) -> String {
        item.1.clone()
    }
}

#[tokio::test]
async fn the_reconciler_adopts_an_unknown_charge_and_the_flow_finishes() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let called = provider.clone();
    let body = move |flow: Flow<Store>, amount: i64| {
        let provider = called.clone();
        async move {
            let charge: String = flow
                .effect("charge", Safety::Once)
                .call(async |key| provider.charge(key, amount).await)
                .await?;
            flow.finish(async |_| Reply::json(201, &charge)).await
        }
    };
    let flows = rig.flows(Definition::new("pay", body)).await;
    provider.lose_answers.store(1, Ordering::SeqCst);
    let parked = flows.run("pay", &key("a"), &7_i64).await.unwrap();
    assert!(matches!(parked, Outcome::Parked { .. }), "{parked:?}");
    provider.charge("somebody else's", 1).await.unwrap();

    let reconciler =
        Reconciler::new(flows.clone(), Ledger(provider.clone())).settle(Duration::ZERO);
    let done = reconciler.run_once().await.unwrap();
    let mut kinds: Vec<_> = done.findings.iter().map(|(finding, _)| finding.label()).collect();
    kinds.sort_unstable();
    assert_eq!((done.seen, kinds), (2, vec!["adopt", "orphan_there"]));
    assert_eq!(rig.count("oncekey_findings").await, 2);
    assert_eq!(Completer::new(flows.clone()).run_once().await.unwrap().ended, 1);
    match flows.run("pay", &key("a"), &7_i64).await.unwrap() {
        Outcome::Replied { reply, .. } => assert_eq!(&reply.body()[..], b"\"ch_1\""),
        other => panic!("{other:?}"),
    }
    assert_eq!(provider.calls(), 2);
    // Our books say that something happened there which did not.
    let emptied = Ledger(Provider::default());
    let done = Reconciler::new(flows, emptied).settle(Duration::ZERO).run_once().await.unwrap();
    assert_eq!(
        done.findings.iter().map(|found| found.0).collect::<Vec<_>>(),
        [Finding::MissingThere]
    );
}

#[tokio::test]
async fn a_history_is_rehearsed_against_new_code() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    provider.lose_answers.store(1, Ordering::SeqCst);
    let flows = rig.flows(charge_flow(&provider)).await;
    flows.run("rides.create", &key("a"), &1_i64).await.unwrap();
    let history = flows.history(&id_of("a")).await.unwrap().unwrap();
    // As it would be exported and read in CI.
    let history = serde_json::from_str(&serde_json::to_string(&history).unwrap()).unwrap();
    let next = "charge_created".to_owned();
    assert_eq!(flows.rehearse(&history).await.unwrap(), Rehearsed::Fits { next });
    let renamed = |flow: Flow<Store>, _: i64| async move {
        flow.phase("order_made", async |tx| common::insert_ride(tx, "ride").await).await?;
        flow.finish(async |_| Ok(Reply::empty(201))).await
    };
    let new = rig.flows(Definition::new("rides.create", renamed)).await;
    let next = "order_made".to_owned();
    assert_eq!(new.rehearse(&history).await.unwrap(), Rehearsed::Fits { next });
    let dropped = |flow: Flow<Store>, _: i64| async move {
        flow.finish(async |_| Ok(Reply::empty(201))).await
    };
    let new = rig.flows(Definition::new("rides.create", dropped)).await;
    assert!(matches!(new.rehearse(&history).await.unwrap(), Rehearsed::Drifts(_)));
    assert_eq!((rig.count("rides").await, provider.calls()), (1, 1));
}

/// The listing of the seed as an enum with data: started, order_created, charge_created, finished.
#[derive(Serialize, Deserialize)]
enum Sale {
    Started { amount: i64 },
    OrderCreated { ride: i64, amount: i64, polls: i64 },
    ChargeCreated { ride: i64, charge: String },
}

struct Orders(Provider);

impl Machine<Store> for Orders {
    type Input = i64;
    type State = Sale;

    fn begin(&self, amount: i64) -> Sale {
        Sale::Started { amount }
    }

    fn point(state: &Sale) -> &'static str {
        match state {
            Sale::Started { .. } => "started",
            Sale::OrderCreated { .. } => "order_created",
            Sale::ChargeCreated { .. } => "charge_created",
        }
    }

    async fn step(&self, at: Sale, turn: Turn<Store>) -> Result<Turned<Sale>, Halt> {
        match at {
            Sale::Started { amount } => {
                turn.commit(async |tx| {
                    let ride = common::insert_ride(tx, "ride").await?;
                    Ok(Next::Goto(Sale::OrderCreated { ride, amount, polls: 0 }))
                })
                .await
            }
            // Sleeps twice, as a flow that waits for something does.
            Sale::OrderCreated { ride, amount, polls } if polls < 2 => {
                let next = Sale::OrderCreated { ride, amount, polls: polls + 1 };
                turn.commit(async |_| Ok(Next::Sleep(Duration::ZERO, next))).await
            }
            Sale::OrderCreated { ride, amount, .. } => {
                let window = Duration::from_secs(86_400);
                let charge: String = turn
                    .effect("charge", Safety::Keyed { window })
                    .call(async |key| self.0.charge(key, amount).await)
                    .await?;
                turn.commit(async |_| Ok(Next::Goto(Sale::ChargeCreated { ride, charge }))).await
            }
            Sale::ChargeCreated { ride, charge } => {
                turn.commit(async |tx| {
                    sqlx::query("UPDATE rides SET charge = ? WHERE id = ?")
                        .bind(charge)
                        .bind(ride)
                        .execute(&mut **tx)
                        .await?;
                    Ok(Next::Reply(Reply::json(201, &ride)?))
                })
                .await
            }
        }
    }
}

#[tokio::test]
async fn a_machine_goes_from_recovery_point_to_recovery_point() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    provider.lose_answers.store(1, Ordering::SeqCst);
    let flows = rig.flows(Definition::machine("orders", Orders(provider.clone()))).await;
    let mut points = Vec::new();
    let outcome = loop {
        match flows.run("orders", &key("a"), &5_i64).await.unwrap() {
            Outcome::Later { .. } => {
                points.push(flows.history(&id_of("a")).await.unwrap().unwrap().point);
            }
            outcome => break outcome,
        }
    };
    assert_eq!(status(&outcome), 201);
    assert_eq!(points, ["order_created", "order_created", "order_created"]);
    assert_eq!(flows.history(&id_of("a")).await.unwrap().unwrap().point, "finished");
    assert_eq!((rig.count("rides").await, provider.charges(), provider.calls()), (1, 1, 2));
}
