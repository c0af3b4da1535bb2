//! What is in doubt stays in doubt until somebody knows.
#![cfg(all(feature = "flow", feature = "sqlite"))]
#![expect(clippy::unwrap_used, reason = "a test fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/mod.rs"]
mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Provider, Rig, Store, charge_flow, key};
use oncekey::core::KeyId;
use oncekey::flow::{
    Definition, Flow, Halt, Machine, Next, Outcome, Reply, Resolved, Safety, Turn, Turned,
};

fn id_of(text: &str) -> KeyId {
    let scope = oncekey::core::Scope::new("shared").unwrap();
    let key = oncekey::core::Key::new(text.as_bytes()).unwrap();
    KeyId::derive("test", &scope, &key, None)
}

/// A charge whose answer was lost may have happened. That a later call did not get through says
/// nothing about it: forgetting it would charge again past the window, or never take it back.
#[tokio::test]
async fn a_call_that_did_not_get_through_settles_no_earlier_doubt() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let flows = rig.flows(charge_flow(&provider)).await;
    provider.lose_answers.store(1, Ordering::SeqCst);
    let outcome = flows.run("rides.create", &key("a"), &5_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    provider.busy.store(1, Ordering::SeqCst);
    let outcome = flows.run("rides.create", &key("a"), &5_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    let history = flows.history(&id_of("a")).await.unwrap().unwrap();
    assert_eq!(history.effects[0].state, "intended");
    assert_eq!(provider.charges(), 1);
}

/// The same call without a doubt before it leaves none.
#[tokio::test]
async fn a_first_call_that_did_not_get_through_is_no_doubt() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let flows = rig.flows(charge_flow(&provider)).await;
    provider.busy.store(1, Ordering::SeqCst);
    flows.run("rides.create", &key("a"), &5_i64).await.unwrap();
    let history = flows.history(&id_of("a")).await.unwrap().unwrap();
    assert_eq!(history.effects[0].state, "refused");
}

/// A charge that was turned away under one class and is made again under another is judged by the other:
/// what the code said at the time of the first call says nothing about the second.
#[tokio::test]
async fn a_call_that_is_made_anew_is_judged_by_its_own_class() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let version = |safety: Safety| {
        let provider = provider.clone();
        Definition::new("rides.create", move |flow: Flow<Store>, amount: i64| {
            let provider = provider.clone();
            async move {
                let charge: String = flow
                    .effect("charge_created", safety)
                    .call(async |key| provider.charge(key, amount).await)
                    .await?;
                flow.finish(async |_| Reply::json(201, &charge)).await
            }
        })
    };
    provider.busy.store(1, Ordering::SeqCst);
    let flows = rig.flows(version(Safety::Natural)).await;
    flows.run("rides.create", &key("a"), &5_i64).await.unwrap();
    provider.lose_answers.store(1, Ordering::SeqCst);
    let flows = rig.flows(version(Safety::Once)).await;
    for _ in 0..2 {
        let outcome = flows.run("rides.create", &key("a"), &5_i64).await.unwrap();
        assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
        assert_eq!(flows.retry(&id_of("a"), "look again").await.unwrap(), Resolved::Yes);
    }
    assert_eq!(provider.calls(), 2, "one that was turned away, and one whose answer was lost");
}

/// A deploy that renames a step must not end a flow whose charge may have happened under the old name.
#[tokio::test]
async fn a_call_that_may_have_happened_is_not_left_out_by_new_code() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let flows = rig.flows(charge_flow(&provider)).await;
    provider.lose_answers.store(1, Ordering::SeqCst);
    flows.run("rides.create", &key("a"), &5_i64).await.unwrap();
    let body = |flow: Flow<Store>, _: i64| async move {
        flow.phase("order_created", async |tx| common::insert_ride(tx, "ride").await).await?;
        flow.finish(async |_| Ok(Reply::empty(201))).await
    };
    let new = rig.flows(Definition::new("rides.create", body)).await;
    let outcome = new.run("rides.create", &key("a"), &5_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
}

/// What a person has given up is not woken by what somebody finds later.
#[tokio::test]
async fn what_was_given_up_stays_so() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let flows = rig.flows(charge_flow(&provider)).await;
    provider.lose_answers.store(1, Ordering::SeqCst);
    flows.run("rides.create", &key("a"), &5_i64).await.unwrap();
    let id = id_of("a");
    assert_eq!(flows.abandon(&id, "the customer left").await.unwrap(), Resolved::Yes);
    let skipped = flows.skip(&id, "charge_created", &"ch_1".to_owned(), "found").await.unwrap();
    assert_eq!(skipped, Resolved::No);
    let outcome = flows.run("rides.create", &key("a"), &5_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Dead { .. }), "{outcome:?}");
}

struct Sleeper;

impl Machine<Store> for Sleeper {
    type Input = i64;
    type State = i64;

    fn begin(&self, _: i64) -> i64 {
        0
    }

    fn point(_: &i64) -> &'static str {
        "waits"
    }

    async fn step(&self, turns: i64, turn: Turn<Store>) -> Result<Turned<i64>, Halt> {
        let hour = Duration::from_secs(3_600);
        turn.commit(async |_| Ok(Next::Sleep(hour, turns + 1))).await
    }
}

/// A client that asks again, as clients do, must not have done today what is due tomorrow.
#[tokio::test]
async fn a_client_that_asks_again_wakes_nobody() {
    let rig = Rig::new().await;
    let flows = rig.flows(Definition::machine("orders", Sleeper)).await;
    let outcome = flows.run("orders", &key("a"), &5_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    for _ in 0..3 {
        let outcome = flows.run("orders", &key("a"), &5_i64).await.unwrap();
        let Outcome::InProgress { retry_after } = outcome else { panic!("{outcome:?}") };
        assert!(retry_after > Duration::from_secs(3_000), "{retry_after:?}");
    }
}
