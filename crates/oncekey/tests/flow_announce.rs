//! Calls that a phase announces: the intent commits with the phase, and the call is as safe as any other. On
//! each database and with each driver.
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
    Definition, Flow, Flows, Halt, Options, Outcome, PhaseTx, Reply, Safety, TxStore, Value,
};

on_each_database!(
    what_a_phase_announces_is_there_when_it_has_committed,
    whatever_fails_at_whatever_point_there_is_one_charge_and_one_reply,
    a_call_that_is_lost_after_its_announcement_is_treated_by_its_class,
    a_call_that_differs_from_its_announcement_is_not_made,
    a_call_that_is_announced_and_not_made_keeps_the_flow_from_its_end,
    a_phase_that_fails_announces_nothing,
    nobody_announces_where_no_call_can_follow,
);

const DAY: Safety = Safety::Keyed { window: Duration::from_secs(86_400) };

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

/// How many intents of a flow others see.
async fn intents<S: TxStore>(store: &S, flow: &KeyId) -> i64 {
    let sql = store.layout().statement("SELECT count(*) FROM {effects} WHERE flow_id = ?");
    let rows = store.query_once(&sql, &[Value::Bytes(flow.as_bytes())]).await.unwrap();
    rows[0].int(0).unwrap()
}

fn status(outcome: &Outcome) -> u16 {
    match outcome {
        Outcome::Replied { reply, .. } => reply.status(),
        other => panic!("{other:?}"),
    }
}

/// So many calls, which one phase announces; after so many outcomes that are late.
async fn what_a_phase_announces_is_there_when_it_has_committed<S: TxStore>(rig: Rig<S>) {
    let (store, provider) = (rig.db.clone(), Provider::default());
    let body = move |flow: Flow<S>, (calls, late): (usize, usize)| {
        let (store, provider) = (store.clone(), provider.clone());
        async move {
            for number in 0..late {
                let call = flow.effect::<()>(format!("late {number}"), Safety::Natural);
                call.call(async |_| Ok(())).await?;
            }
            let before = intents(&store, flow.id()).await;
            flow.phase("order_created", async |tx| {
                for number in 0..calls {
                    tx.intend(format!("charge {number}"), DAY, &number)?;
                }
                insert(tx, "order").await
            })
            .await?;
            let after = intents(&store, flow.id()).await;
            for number in 0..calls {
                let call = flow.effect::<String>(format!("charge {number}"), DAY).bind(&number);
                call.call(async |key| provider.charge(key, 1).await).await?;
            }
            let end = intents(&store, flow.id()).await;
            flow.finish(async |_| Reply::json(201, &(after - before, end - after))).await
        }
    };
    let flows = built(&rig.db, Definition::new("order", body));
    for calls in 0..4_usize {
        for late in 0..3_usize {
            let name = format!("{calls} {late}");
            let outcome = flows.run("order", key(&name), &(calls, late)).await.unwrap();
            let Outcome::Replied { reply, .. } = outcome else { panic!("{name}: {outcome:?}") };
            assert_eq!(reply, Reply::json(201, &(calls, 0)).unwrap(), "{name}");
            let history = flows.history(&id_of(&name)).await.unwrap().unwrap();
            let done = history.effects.iter().filter(|effect| effect.state == "done").count();
            assert_eq!((done, history.effects.len()), (calls + late, calls + late), "{name}");
            assert_eq!(history.steps.len(), calls + late + 1, "{name}");
        }
    }
}

fn announcing<S: TxStore>(provider: &Provider) -> Definition<S> {
    let provider = provider.clone();
    Definition::new("order", move |flow: Flow<S>, name: String| {
        let provider = provider.clone();
        async move {
            flow.phase("order_created", async |tx| {
                insert(tx, &name).await?;
                tx.intend("charge_created", DAY, &name)
            })
            .await?;
            let charge: String = flow
                .effect("charge_created", DAY)
                .bind(&name)
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

async fn whatever_fails_at_whatever_point_there_is_one_charge_and_one_reply<S: TxStore>(
    rig: Rig<S>,
) {
    let mut points = 0;
    for point in 1.. {
        let name = format!("fails at {point}");
        let (plan, provider) = (Plan::new(), Provider::default());
        let options = Options { lease: Duration::from_secs(2), ..patient() };
        let store = Shaky::new(rig.db.clone(), plan.clone());
        let flows = Flows::builder(store, "test").options(options).flow(announcing(&provider));
        let flows = flows.build().unwrap();
        plan.arm(point, Fault::Fail);
        let mut outcome = flows.run("order", key(&name), &name).await;
        let met = plan.count() >= point;
        for _ in 0..200 {
            if matches!(outcome, Ok(Outcome::Replied { .. })) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            outcome = flows.run("order", key(&name), &name).await;
        }
        assert_eq!(status(&outcome.unwrap()), 201, "{name}");
        assert_eq!(provider.charges(), 1, "{name}");
        assert_eq!(rig.orders_of(&name).await, 1, "{name}");
        assert_eq!(rig.orders_of(&format!("{name} ch_1")).await, 1, "{name}");
        if !met {
            break;
        }
        points += 1;
    }
    assert!(points >= 8, "{points}");
}

/// Its answer is lost: whoever goes on finds the intent, and nothing is called twice that must not be.
async fn a_call_that_is_lost_after_its_announcement_is_treated_by_its_class<S: TxStore>(
    rig: Rig<S>,
) {
    let provider = Provider::default();
    let with = provider.clone();
    let body = move |flow: Flow<S>, once: bool| {
        let provider = with.clone();
        async move {
            let safety = if once { Safety::Once } else { DAY };
            flow.phase("order_created", async |tx| tx.intend("charge", safety, &1)).await?;
            let call = flow.effect::<String>("charge", safety).bind(&1);
            call.call(async |key| provider.charge(key, 1).await).await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let flows = built(&rig.db, Definition::new("order", body));
    provider.lose_answers.store(1, std::sync::atomic::Ordering::SeqCst);
    let first = flows.run("order", key("keyed"), &false).await.unwrap();
    assert!(!matches!(first, Outcome::Replied { .. }), "{first:?}");
    assert_eq!(status(&flows.run("order", key("keyed"), &false).await.unwrap()), 201);
    assert_eq!((provider.charges(), provider.calls()), (1, 2), "with the same key");
    provider.lose_answers.store(1, std::sync::atomic::Ordering::SeqCst);
    for _ in 0..2 {
        let outcome = flows.run("order", key("once"), &true).await.unwrap();
        assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
    }
    assert_eq!((provider.charges(), provider.calls()), (2, 3), "and never again");
}

async fn a_call_that_differs_from_its_announcement_is_not_made<S: TxStore>(rig: Rig<S>) {
    let provider = Provider::default();
    let with = provider.clone();
    let body = move |flow: Flow<S>, which: u64| {
        let provider = with.clone();
        async move {
            flow.phase("order_created", async |tx| tx.intend("charge", DAY, &1)).await?;
            let safety = if which == 0 { Safety::Natural } else { DAY };
            let call = flow.effect::<String>("charge", safety);
            let call = if which == 1 { call.bind(&2) } else { call.bind(&1) };
            let call = if which == 2 { call.undo("refund", &1) } else { call };
            call.call(async |key| provider.charge(key, 1).await).await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let flows = built(&rig.db, Definition::new("order", body));
    for which in 0..3_u64 {
        let outcome = flows.run("order", key(&which.to_string()), &which).await.unwrap();
        assert!(matches!(outcome, Outcome::Parked { .. }), "{which}: {outcome:?}");
    }
    assert_eq!(provider.calls(), 0);
}

async fn a_call_that_is_announced_and_not_made_keeps_the_flow_from_its_end<S: TxStore>(
    rig: Rig<S>,
) {
    let body = |flow: Flow<S>, (): ()| async move {
        flow.phase("order_created", async |tx| tx.intend("charge", DAY, &1)).await?;
        flow.finish(async |_| Ok(Reply::empty(201))).await
    };
    let flows = built(&rig.db, Definition::new("order", body));
    let outcome = flows.run("order", key("a"), &()).await.unwrap();
    assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
}

async fn a_phase_that_fails_announces_nothing<S: TxStore>(rig: Rig<S>) {
    let body = |flow: Flow<S>, twice: bool| async move {
        flow.phase("order_created", async |tx| {
            tx.intend("charge", DAY, &1)?;
            if twice {
                return tx.intend("charge", DAY, &1);
            }
            Err::<(), _>(Halt::Stop(Reply::empty(402)))
        })
        .await?;
        flow.finish(async |_| Ok(Reply::empty(201))).await
    };
    let flows = built(&rig.db, Definition::new("order", body));
    assert_eq!(status(&flows.run("order", key("a"), &false).await.unwrap()), 402);
    let outcome = flows.run("order", key("twice"), &true).await.unwrap();
    assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
    for name in ["a", "twice"] {
        assert_eq!(intents(&rig.db, &id_of(name)).await, 0, "{name}");
    }
}

async fn nobody_announces_where_no_call_can_follow<S: TxStore>(rig: Rig<S>) {
    let body = |flow: Flow<S>, (): ()| async move {
        flow.finish(async |tx| {
            tx.intend("charge", DAY, &1)?;
            Ok(Reply::empty(201))
        })
        .await
    };
    let flows = built(&rig.db, Definition::new("order", body));
    let outcome = flows.run("order", key("a"), &()).await.unwrap();
    assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
    let local = rig.local();
    let outcome = oncekey::tx(&local, key("local"), &1, || {
        async |tx: &mut PhaseTx<S>| {
            tx.intend("charge", DAY, &1)?;
            Ok(Reply::empty(201))
        }
    })
    .await;
    assert!(!matches!(outcome, Ok(Outcome::Replied { .. })), "{outcome:?}");
}
