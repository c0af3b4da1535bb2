//! Outcomes of calls that may be repeated commit with the step that follows, and are never the price of it:
//! whatever rests on one is not there without it. On each database and with each driver.
#![cfg(all(
    feature = "flow-rusqlite",
    feature = "flow-tokio-postgres",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql"
))]
#![expect(clippy::unwrap_used, reason = "a test fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/mod.rs"]
mod common;
#[path = "flow_common/databases.rs"]
#[macro_use]
mod databases;

use std::time::Duration;

use common::Provider;
use databases::{Rig, insert, key};
use oncekey::core::{Key, KeyId, Scope};
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::{
    Definition, Flow, Flows, Halt, Options, Outcome, Reply, Safety, TxStore, Value,
};

on_each_database!(
    an_outcome_that_may_be_repeated_commits_with_the_next_step,
    an_outcome_that_must_not_be_repeated_is_there_before_anything_else,
    what_the_next_call_rests_on_is_there_before_its_intent,
    an_outcome_that_is_lost_is_asked_for_again_with_the_same_key,
    what_a_failed_attempt_knew_is_not_asked_again,
    several_outcomes_commit_with_one_step,
    an_owner_that_was_replaced_writes_no_late_outcome,
);

const DAY: Safety = Safety::Keyed { window: Duration::from_secs(86_400) };
/// Shorter than an attempt may take.
const MOMENT: Safety = Safety::Keyed { window: Duration::from_secs(60) };

fn patient() -> Options {
    let lease = Duration::from_secs(60);
    Options { lease, grace: Duration::ZERO, pause: Duration::ZERO, ..Options::default() }
}

fn id_of(text: &str) -> KeyId {
    KeyId::derive("test", &Scope::shared(), &Key::new(text.as_bytes()).unwrap(), None)
}

fn built<S: TxStore>(store: &S, definition: Definition<S>) -> Flows<S> {
    let flows = Flows::builder(store.clone(), "test").options(patient());
    flows.flow(definition).build().unwrap()
}

/// Which steps of a flow others see.
async fn seen<S: TxStore>(store: &S, flow: &Flow<S>, step: &str) -> i64 {
    let sql = "SELECT count(*) FROM {steps} WHERE flow_id = ? AND name = ?";
    let values = [Value::Bytes(flow.id().as_bytes()), Value::Text(step)];
    store.query_once(&store.layout().statement(sql), &values).await.unwrap()[0].int(0).unwrap()
}

fn status(outcome: &Outcome) -> u16 {
    match outcome {
        Outcome::Replied { reply, .. } => reply.status(),
        other => panic!("{other:?}"),
    }
}

async fn an_outcome_that_may_be_repeated_commits_with_the_next_step<S: TxStore>(rig: Rig<S>) {
    let (store, provider) = (rig.db.clone(), Provider::default());
    let body = move |flow: Flow<S>, safety: u64| {
        let (store, provider) = (store.clone(), provider.clone());
        async move {
            let safety = if safety == 0 { Safety::Natural } else { DAY };
            let call = flow.effect::<String>("charge", safety);
            call.call(async |key| provider.charge(key, 1).await).await?;
            let before = seen(&store, &flow, "charge").await;
            flow.phase("booked", async |tx| insert(tx, "booked").await).await?;
            let after = seen(&store, &flow, "charge").await;
            let call = flow.effect::<String>("receipt", safety);
            call.call(async |key| provider.charge(key, 1).await).await?;
            flow.finish(async |_| Reply::json(201, &(before, after))).await
        }
    };
    let flows = built(&rig.db, Definition::new("order", body));
    for (name, safety) in [("natural", 0_u64), ("keyed", 1)] {
        let outcome = flows.run("order", key(name), &safety).await.unwrap();
        let Outcome::Replied { reply, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(reply, Reply::json(201, &(0, 1)).unwrap(), "{name}");
        let history = flows.history(&id_of(name)).await.unwrap().unwrap();
        let steps: Vec<_> = history.steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(steps.len(), 3, "{name}: {steps:?}");
        let done = history.effects.iter().filter(|effect| effect.state == "done").count();
        assert_eq!(done, 2, "{name}: what has an outcome is done");
    }
}

/// And so is one of a key that may be forgotten before somebody goes on.
async fn an_outcome_that_must_not_be_repeated_is_there_before_anything_else<S: TxStore>(
    rig: Rig<S>,
) {
    let (store, provider) = (rig.db.clone(), Provider::default());
    let body = move |flow: Flow<S>, safety: u64| {
        let (store, provider) = (store.clone(), provider.clone());
        async move {
            let safety = [Safety::Once, Safety::Probed, MOMENT][usize::try_from(safety).unwrap()];
            let call = flow.effect::<String>("charge", safety);
            call.call(async |key| provider.charge(key, 1).await).await?;
            let before = seen(&store, &flow, "charge").await;
            flow.finish(async |_| Reply::json(201, &before)).await
        }
    };
    let flows = built(&rig.db, Definition::new("order", body));
    for safety in 0..3_u64 {
        let outcome = flows.run("order", key(&safety.to_string()), &safety).await.unwrap();
        let Outcome::Replied { reply, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(reply, Reply::json(201, &1).unwrap(), "{safety}");
    }
}

async fn what_the_next_call_rests_on_is_there_before_its_intent<S: TxStore>(rig: Rig<S>) {
    let (store, provider) = (rig.db.clone(), Provider::default());
    let body = move |flow: Flow<S>, (): ()| {
        let (store, provider) = (store.clone(), provider.clone());
        async move {
            let call = flow.effect::<String>("charge", Safety::Natural);
            call.call(async |key| provider.charge(key, 1).await).await?;
            let ship = flow.effect::<i64>("ship", DAY);
            let there = ship.call(async |_| Ok(seen(&store, &flow, "charge").await)).await?;
            flow.finish(async |_| Reply::json(201, &there)).await
        }
    };
    let flows = built(&rig.db, Definition::new("order", body));
    let outcome = flows.run("order", key("a"), &()).await.unwrap();
    let Outcome::Replied { reply, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(reply, Reply::json(201, &1).unwrap());
}

/// The process stops in the step that would have carried it.
async fn an_outcome_that_is_lost_is_asked_for_again_with_the_same_key<S: TxStore>(rig: Rig<S>) {
    let (plan, provider) = (Plan::new(), Provider::default());
    let definition = |crash: Plan| {
        let provider = provider.clone();
        Definition::new("order", move |flow: Flow<Shaky<S>>, (): ()| {
            let (provider, crash) = (provider.clone(), crash.clone());
            async move {
                let call = flow.effect::<String>("charge", DAY);
                let charge = call.call(async |key| provider.charge(key, 1).await).await?;
                flow.finish(async |tx| {
                    insert(tx, &charge).await?;
                    // Everything after this point is gone, and nobody cleans up.
                    crash.arm(1, Fault::Crash);
                    crash.point().await?;
                    Ok(Reply::empty(201))
                })
                .await
            }
        })
    };
    let options = Options { lease: Duration::from_secs(1), ..patient() };
    let flows = |plan: Plan, crash| {
        let store = Shaky::new(rig.db.clone(), plan);
        let flows = Flows::builder(store, "test").options(options.clone());
        flows.flow(definition(crash)).build().unwrap()
    };
    let dies = flows(plan.clone(), plan);
    let died = tokio::time::timeout(Duration::from_secs(2), dies.run("order", key("a"), &()));
    assert!(died.await.is_err(), "a process that stopped says nothing");
    assert_eq!((provider.calls(), rig.orders_of("ch_1").await), (1, 0));
    let sound = built(&rig.db, {
        let provider = provider.clone();
        Definition::new("order", move |flow: Flow<S>, (): ()| {
            let provider = provider.clone();
            async move {
                let call = flow.effect::<String>("charge", DAY);
                let charge = call.call(async |key| provider.charge(key, 1).await).await?;
                flow.finish(async |tx| {
                    insert(tx, &charge).await?;
                    Ok(Reply::empty(201))
                })
                .await
            }
        })
    });
    let outcome = loop {
        match sound.run("order", key("a"), &()).await.unwrap() {
            Outcome::InProgress { .. } => tokio::time::sleep(Duration::from_millis(50)).await,
            other => break other,
        }
    };
    assert_eq!(status(&outcome), 201);
    assert_eq!((provider.calls(), provider.charges()), (2, 1), "again, with the same key");
    assert_eq!(rig.orders_of("ch_1").await, 1);
}

/// A phase that fails, and code that panics.
async fn what_a_failed_attempt_knew_is_not_asked_again<S: TxStore>(rig: Rig<S>) {
    let provider = Provider::default();
    let calls = provider.clone();
    let body = move |flow: Flow<S>, how: String| {
        let provider = calls.clone();
        async move {
            let call = flow.effect::<String>("charge", DAY);
            let charge = call.call(async |key| provider.charge(key, 1).await).await?;
            let is_first = flow.attempt() == 1;
            assert!(!is_first || how != "panics", "a test panics here");
            flow.phase("booked", async |tx| match is_first {
                true => Err(Halt::retry("not yet")),
                false => insert(tx, &charge).await,
            })
            .await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let flows = built(&rig.db, Definition::new("order", body));
    for (number, how) in ["fails", "panics"].into_iter().enumerate() {
        let first = flows.run("order", key(how), &how).await.unwrap();
        assert!(matches!(first, Outcome::Later { .. }), "{how}: {first:?}");
        assert_eq!(status(&flows.run("order", key(how), &how).await.unwrap()), 201, "{how}");
        assert_eq!(provider.calls(), number + 1, "{how}");
    }
}

async fn several_outcomes_commit_with_one_step<S: TxStore>(rig: Rig<S>) {
    let provider = Provider::default();
    let calls = provider.clone();
    let body = move |flow: Flow<S>, by_phase: bool| {
        let provider = calls.clone();
        async move {
            let call = async |step: &'static str| {
                let call = flow.effect::<String>(step, DAY);
                call.call(async |key| provider.charge(key, 1).await).await
            };
            let (one, two, three) = tokio::join!(call("one"), call("two"), call("three"));
            let all = [one?, two?, three?].concat();
            if by_phase {
                flow.phase("booked", async |tx| insert(tx, &all).await).await?;
            }
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let flows = built(&rig.db, Definition::new("order", body));
    for (name, by_phase) in [("phase", true), ("finish", false)] {
        assert_eq!(status(&flows.run("order", key(name), &by_phase).await.unwrap()), 201);
        let history = flows.history(&id_of(name)).await.unwrap().unwrap();
        assert_eq!(history.steps.len(), 3 + usize::from(by_phase), "{name}");
        assert!(history.effects.iter().all(|effect| effect.state == "done"), "{name}");
    }
    assert_eq!(provider.calls(), 6);
}

async fn an_owner_that_was_replaced_writes_no_late_outcome<S: TxStore>(rig: Rig<S>) {
    let (store, provider) = (rig.db.clone(), Provider::default());
    let body = move |flow: Flow<S>, by_phase: bool| {
        let (store, provider) = (store.clone(), provider.clone());
        async move {
            let call = flow.effect::<String>("charge", DAY);
            call.call(async |key| provider.charge(key, 1).await).await?;
            let take = store.layout().statement(
                "UPDATE {flows} SET fence = fence + 1, lease = 0, due = 0 WHERE flow_id = ?",
            );
            let id = [Value::Bytes(flow.id().as_bytes())];
            store.execute_once(&take, &id).await.unwrap();
            if by_phase {
                flow.phase("booked", async |tx| insert(tx, "stale").await).await?;
            }
            flow.finish(async |tx| {
                insert(tx, "stale").await?;
                Ok(Reply::empty(201))
            })
            .await
        }
    };
    let flows = built(&rig.db, Definition::new("order", body));
    for (name, by_phase) in [("phase", true), ("finish", false)] {
        let outcome = flows.run("order", key(name), &by_phase).await.unwrap();
        assert!(matches!(outcome, Outcome::InProgress { .. }), "{name}: {outcome:?}");
        let history = flows.history(&id_of(name)).await.unwrap().unwrap();
        assert_eq!((history.steps.len(), history.effects[0].state.as_str()), (0, "intended"));
    }
    assert_eq!(rig.orders_of("stale").await, 0);
}
