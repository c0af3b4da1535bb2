//! The main life of a flow, on each database and with each driver.
#![cfg(all(
    feature = "flow-rusqlite",
    feature = "flow-tokio-postgres",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql"
))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/mod.rs"]
mod common;
#[path = "flow_common/databases.rs"]
#[macro_use]
mod databases;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::Provider;
use databases::{Rig, insert, key};
use oncekey::core::{Key, KeyId, Scope};
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::tokio_postgres::TokioPostgres;
use oncekey::flow::{
    Compensation, Completer, Definition, Did, Failed, Flow, Flows, Options, Outcome, Reply, Safety,
    Source, TxStore, TxTrouble, Value,
};
use tokio::sync::Notify;

on_each_database!(
    a_flow_runs_once_and_says_the_same_ever_after,
    whatever_fails_at_whatever_point_there_is_one_charge_and_one_reply,
    an_owner_that_was_replaced_takes_its_rows_back,
    a_commit_whose_answer_is_lost_is_found_to_stand,
    a_saga_takes_back_what_it_did,
    an_attempt_that_hangs_in_a_phase_is_stopped_and_leaves_nothing,
    a_smuggled_end_parks_the_flow,
    a_transaction_that_is_dropped_leaves_a_clean_connection,
    a_row_that_is_there_already_is_a_duplicate,
    finished_flows_are_removed_after_their_time,
);

on_kept_connections!(
    a_flow_runs_once_and_says_the_same_ever_after,
    whatever_fails_at_whatever_point_there_is_one_charge_and_one_reply,
    an_owner_that_was_replaced_takes_its_rows_back,
    a_commit_whose_answer_is_lost_is_found_to_stand,
    a_saga_takes_back_what_it_did,
    an_attempt_that_hangs_in_a_phase_is_stopped_and_leaves_nothing,
    a_smuggled_end_parks_the_flow,
    a_transaction_that_is_dropped_leaves_a_clean_connection,
    a_row_that_is_there_already_is_a_duplicate,
    finished_flows_are_removed_after_their_time,
);

const DAY: Safety = Safety::Keyed { window: Duration::from_secs(86_400) };

/// No pauses, and a lease that no busy machine exhausts.
fn patient() -> Options {
    let lease = Duration::from_secs(60);
    Options { lease, grace: Duration::ZERO, pause: Duration::ZERO, ..Options::default() }
}

fn id_of(text: &str) -> KeyId {
    KeyId::derive("test", &Scope::shared(), &Key::new(text.as_bytes()).unwrap(), None)
}

fn replied(outcome: Outcome) -> (u16, Source) {
    match outcome {
        Outcome::Replied { reply, source } => (reply.status(), source),
        other => panic!("{other:?}"),
    }
}

/// Insert, charge, insert.
fn order<S: TxStore>(provider: &Provider) -> Definition<S> {
    let provider = provider.clone();
    Definition::new("order", move |flow: Flow<S>, name: String| {
        let provider = provider.clone();
        async move {
            flow.phase("order_created", async |tx| insert(tx, &name).await).await?;
            let charge: String = flow
                .effect("charge_created", DAY)
                .call(async |key| provider.charge(key, 1).await)
                .await?;
            flow.finish(async |tx| {
                insert(tx, &format!("{name} {charge}")).await?;
                Reply::json(201, &charge)
            })
            .await
        }
    })
}

async fn a_flow_runs_once_and_says_the_same_ever_after<S: TxStore>(rig: Rig<S>) {
    let provider = Provider::default();
    let flows = Flows::builder(rig.db.clone(), "test").flow(order(&provider)).build().unwrap();
    for source in [Source::Fresh, Source::Replayed, Source::Replayed] {
        let outcome = flows.run("order", key("a"), &"a").await.unwrap();
        assert_eq!(replied(outcome), (201, source));
    }
    assert_eq!(flows.run("order", key("a"), &"b").await.unwrap(), Outcome::Mismatch);
    assert_eq!((rig.orders_of("a").await, rig.orders_of("a ch_1").await), (1, 1));
    assert_eq!((provider.charges(), provider.calls()), (1, 1));
    // A declined card is a reply, and nobody is asked again.
    provider.decline.store(true, Ordering::SeqCst);
    for source in [Source::Fresh, Source::Replayed] {
        let outcome = flows.run("order", key("declined"), &"declined").await.unwrap();
        assert_eq!(replied(outcome), (402, source));
    }
    assert_eq!(provider.calls(), 2);
}

async fn whatever_fails_at_whatever_point_there_is_one_charge_and_one_reply<S: TxStore>(
    rig: Rig<S>,
) {
    let flows = |plan: &Plan, provider: &Provider| {
        let store = Shaky::new(rig.db.clone(), plan.clone());
        // A lease that a test can wait for: whose end could not be written down, lapses.
        let options = Options { lease: Duration::from_secs(2), ..patient() };
        let flows = Flows::builder(store, "test").options(options).flow(order(provider));
        flows.build().unwrap()
    };
    let mut points = 0;
    loop {
        let name = format!("fails at {}", points + 1);
        let (plan, provider) = (Plan::new(), Provider::default());
        let (shaky, sound) = (flows(&plan, &provider), flows(&Plan::new(), &provider));
        plan.arm(points + 1, Fault::Fail);
        let first = shaky.run("order", key(&name), &name).await;
        let has_failed = plan.count() > points;
        let completer = Completer::new(sound.clone());
        let reply = loop {
            match sound.run("order", key(&name), &name).await.unwrap() {
                Outcome::Replied { reply, .. } => break reply,
                Outcome::InProgress { .. } | Outcome::Later { .. } => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    completer.run_once().await.unwrap();
                }
                other => panic!("{name}: {other:?} after {first:?}"),
            }
        };
        assert_eq!(reply, Reply::json(201, &"ch_1").unwrap(), "{name}");
        assert_eq!(provider.charges(), 1, "{name}");
        let rows = (rig.orders_of(&name).await, rig.orders_of(&format!("{name} ch_1")).await);
        assert_eq!(rows, (1, 1), "{name}");
        if !has_failed {
            break;
        }
        points += 1;
    }
    // Fewer, and the plan has stopped counting.
    assert!(points >= 10, "{points}");
}

/// Two owners: the first one is about to write when its lease is taken from it, and comes back when the
/// second one has ended the flow.
async fn an_owner_that_was_replaced_takes_its_rows_back<S: TxStore>(rig: Rig<S>) {
    let (stands, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let body = |name: &'static str| {
        let (stands, goes_on) = (Arc::clone(&stands), Arc::clone(&goes_on));
        Definition::new("order", move |flow: Flow<S>, (): ()| {
            let (stands, goes_on) = (Arc::clone(&stands), Arc::clone(&goes_on));
            async move {
                if name == "first" {
                    stands.notify_one();
                    goes_on.notified().await;
                }
                flow.phase("order_created", async |tx| insert(tx, name).await).await?;
                flow.finish(async |_| Reply::json(201, &name)).await
            }
        })
    };
    // So long a lease that no renewal gives it back when it is taken away below.
    let flows = |name| {
        let flows = Flows::builder(rig.db.clone(), "test").options(patient());
        flows.flow(body(name)).build().unwrap()
    };
    let (first, second) = (flows("first"), flows("second"));
    let slow = tokio::spawn(async move { first.run("order", key("a"), &()).await });
    stands.notified().await;
    let lapse = rig.db.layout().statement("UPDATE {flows} SET lease = 0, due = 0");
    rig.db.execute_once(&lapse, &[]).await.unwrap();
    let outcome = second.run("order", key("a"), &()).await.unwrap();
    assert_eq!(replied(outcome), (201, Source::Fresh));
    goes_on.notify_one();
    let late = slow.await.unwrap().unwrap();
    assert!(matches!(late, Outcome::InProgress { .. }), "{late:?}");
    assert_eq!((rig.orders_of("first").await, rig.orders_of("second").await), (0, 1));
    let again = second.run("order", key("a"), &()).await.unwrap();
    let Outcome::Replied { reply, .. } = again else { panic!("{again:?}") };
    assert_eq!(reply, Reply::json(201, &"second").unwrap());
}

/// A failed COMMIT is unknown: here each of them is done, and its answer is lost.
async fn a_commit_whose_answer_is_lost_is_found_to_stand<S: TxStore>(rig: Rig<S>) {
    let run = async |plan: &Plan, name: &str| {
        let (runs, counts) = (Arc::new(AtomicBool::new(false)), plan.clone());
        let seen = Arc::clone(&runs);
        let body = move |flow: Flow<Shaky<S>>, name: String| {
            let (seen, counts) = (Arc::clone(&seen), counts.clone());
            async move {
                let before = flow
                    .phase("order_created", async |tx| {
                        assert!(!seen.swap(true, Ordering::SeqCst), "the phase runs twice");
                        insert(tx, &name).await?;
                        // Before the commit comes one point, and after it another.
                        Ok(counts.count())
                    })
                    .await?;
                flow.finish(async |_| Reply::json(201, &before)).await
            }
        };
        let store = Shaky::new(rig.db.clone(), plan.clone());
        let flows =
            Flows::builder(store, "test").options(patient()).flow(Definition::new("o", body));
        let flows = flows.build().unwrap();
        match flows.run("o", key(name), &name).await.unwrap() {
            Outcome::Replied { reply, .. } => serde_json::from_slice::<u64>(reply.body()).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let plan = Plan::new();
    let before = run(&plan, "sound").await;
    plan.arm(before + 2, Fault::Fail);
    assert_eq!(run(&plan, "lost").await, before);
    assert!(plan.count() > before + 2);
    assert_eq!((rig.orders_of("lost").await, rig.orders_of("sound").await), (1, 1));
}

async fn a_saga_takes_back_what_it_did<S: TxStore>(rig: Rig<S>) {
    let (provider, refunds) = (Provider::default(), Provider::default());
    let charges = provider.clone();
    let body = move |flow: Flow<S>, (): ()| {
        let provider = charges.clone();
        async move {
            flow.phase("order_created", async |tx| insert(tx, "order").await).await?;
            flow.effect::<String>("charge", DAY)
                .undo("refund", &7_i64)
                .call(async |key| provider.charge(key, 7).await)
                .await?;
            flow.effect::<()>("ship", DAY)
                .call(async |_| Err(Failed::Final(Reply::empty(409))))
                .await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let back = refunds.clone();
    let refund = Compensation::new(move |amount: i64, did: Did<String>, key: String| {
        let back = back.clone();
        assert_eq!(did, Did::Done("ch_1".to_owned()));
        async move { back.charge(&key, amount).await.map(drop) }
    });
    // The first refund gets no answer.
    refunds.lose_answers.store(1, Ordering::SeqCst);
    let flows = Flows::builder(rig.db.clone(), "test").options(patient());
    let flows = flows.flow(Definition::new("buys", body)).compensation("refund", refund);
    let flows = flows.build().unwrap();
    let first = flows.run("buys", key("a"), &()).await.unwrap();
    assert!(matches!(first, Outcome::Later { .. }), "{first:?}");
    for source in [Source::Fresh, Source::Replayed] {
        let outcome = flows.run("buys", key("a"), &()).await.unwrap();
        assert_eq!(replied(outcome), (409, source));
    }
    assert_eq!((provider.charges(), refunds.charges(), refunds.calls()), (1, 1, 2));
    let history = flows.history(&id_of("a")).await.unwrap().unwrap();
    assert_eq!((history.state.as_str(), rig.orders_of("order").await), ("undone", 1));
}

async fn an_attempt_that_hangs_in_a_phase_is_stopped_and_leaves_nothing<S: TxStore>(rig: Rig<S>) {
    let body = |flow: Flow<S>, (): ()| async move {
        let is_first = flow.attempt() == 1;
        flow.phase("order_created", async |tx| {
            insert(tx, if is_first { "hangs" } else { "goes on" }).await?;
            if is_first {
                std::future::pending::<()>().await;
            }
            Ok(())
        })
        .await?;
        flow.finish(async |_| Ok(Reply::empty(201))).await
    };
    let options = Options { longest_attempt: Duration::from_secs(1), ..patient() };
    // One connection: what the first attempt leaves on it, the second one meets.
    let flows = Flows::builder(rig.narrow.clone(), "test").options(options);
    let flows = flows.flow(Definition::new("hangs", body)).build().unwrap();
    let outcome = flows.run("hangs", key("a"), &()).await.unwrap();
    assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    let outcome = flows.run("hangs", key("a"), &()).await.unwrap();
    assert_eq!(replied(outcome), (201, Source::Fresh));
    assert_eq!((rig.orders_of("hangs").await, rig.orders_of("goes on").await), (0, 1));
}

/// Somebody who says `COMMIT`, or `ROLLBACK` and `BEGIN`, inside of a phase is found out.
async fn a_smuggled_end_parks_the_flow<S: TxStore>(rig: Rig<S>) {
    for (name, ends) in [("commit", &["COMMIT"][..]), ("another", &["ROLLBACK", "BEGIN"])] {
        let body = move |flow: Flow<S>, (): ()| async move {
            flow.phase("order_created", async |tx| {
                insert(tx, name).await?;
                for end in ends {
                    S::execute(&mut **tx, &(*end).into(), &[]).await?;
                }
                Ok(())
            })
            .await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        };
        let flows = Flows::builder(rig.narrow.clone(), "test").flow(Definition::new("o", body));
        let flows = flows.build().unwrap();
        let outcome = flows.run("o", key(name), &()).await.unwrap();
        assert!(matches!(outcome, Outcome::Parked { .. }), "{name}: {outcome:?}");
        // And nobody else meets what is left of it.
        let put = rig.db.layout().statement("INSERT INTO {records}_orders (name, n) VALUES (?, 0)");
        let next = format!("after {name}");
        rig.narrow.execute_once(&put, &[Value::Text(&next)]).await.unwrap();
        assert_eq!(rig.orders_of(&next).await, 1);
    }
}

/// Dropped right after it was written to, and dropped with a statement under way: the next one on the
/// same connection finds it clean, and what it writes is there.
async fn a_transaction_that_is_dropped_leaves_a_clean_connection<S: TxStore>(rig: Rig<S>) {
    let put = rig.db.layout().statement("INSERT INTO {records}_orders (name, n) VALUES (?, 0)");
    for polls in 0..4 {
        let mut tx = rig.narrow.begin().await.unwrap();
        S::execute(S::conn(&mut tx), &put, &[Value::Text("dropped")]).await.unwrap();
        {
            let values = [Value::Text("dropped")];
            let mut statement = Box::pin(S::execute(S::conn(&mut tx), &put, &values));
            for _ in 0..polls {
                let once = std::future::poll_fn(|context| {
                    std::task::Poll::Ready(statement.as_mut().poll(context).is_ready())
                });
                if once.await {
                    break;
                }
            }
        }
        drop(tx);
        let name = format!("kept {polls}");
        rig.narrow.execute_once(&put, &[Value::Text(&name)]).await.unwrap();
        assert_eq!((rig.orders_of(&name).await, rig.orders_of("dropped").await), (1, 0));
    }
}

/// PostgreSQL has given up a transaction in which a statement failed, and answers its COMMIT without an
/// error. Whoever swallowed the first error is told all the same.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn who_commits_what_has_failed_is_told_with_tokio_postgres() {
    let rig = databases::tokio_postgres().await;
    let mut tx = rig.db.begin().await.unwrap();
    let nothing = "SELECT nothing FROM nowhere";
    assert!(TokioPostgres::conn(&mut tx).batch_execute(nothing).await.is_err());
    assert!(TokioPostgres::commit(tx).await.is_err());
}

async fn a_row_that_is_there_already_is_a_duplicate<S: TxStore>(rig: Rig<S>) {
    rig.script("CREATE UNIQUE INDEX one_name ON {records}_orders (name)").await;
    let put = rig.db.layout().statement("INSERT INTO {records}_orders (name, n) VALUES (?, 0)");
    rig.db.execute_once(&put, &[Value::Text("a")]).await.unwrap();
    let again = rig.db.execute_once(&put, &[Value::Text("a")]).await;
    assert_eq!(again.unwrap_err().kind(), TxTrouble::Duplicate);
}

async fn finished_flows_are_removed_after_their_time<S: TxStore>(rig: Rig<S>) {
    let provider = Provider::default();
    let flows = Flows::builder(rig.db.clone(), "test").flow(order(&provider)).build().unwrap();
    flows.run("order", key("old"), &"old").await.unwrap();
    let age = rig.db.layout().statement("UPDATE {flows} SET due = due - 86400000000");
    rig.db.execute_once(&age, &[]).await.unwrap();
    flows.run("order", key("young"), &"young").await.unwrap();
    assert_eq!(flows.purge(Duration::from_secs(3_600), 10).await.unwrap(), 1);
    assert!(flows.history(&id_of("old")).await.unwrap().is_none());
    assert!(flows.history(&id_of("young")).await.unwrap().is_some());
    let steps = rig.count("SELECT count(*) FROM {steps}", &[]).await;
    assert_eq!(steps, 2, "those of the young one");
}
