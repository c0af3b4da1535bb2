//! Flows from a user's side: what a handler that writes, charges and writes again may rely on.
#![cfg(all(feature = "flow", feature = "sqlite"))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Provider, Rig, charge_flow, key};
use oncekey::flow::{
    BuildError, Definition, Failed, Flow, Flows, Halt, Outcome, Probe, Reply, Safety, Source, Step,
};

fn replied(outcome: Outcome) -> (u16, Source) {
    match outcome {
        Outcome::Replied { reply, source } => (reply.status(), source),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_flow_runs_once_and_says_the_same_ever_after() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let flows = rig.flows(charge_flow(&provider)).await;
    for nth in 0..3 {
        let outcome = flows.run("rides.create", &key("a"), &1_200_i64).await.unwrap();
        let source = if nth == 0 { Source::Fresh } else { Source::Replayed };
        assert_eq!(replied(outcome), (201, source));
    }
    assert_eq!(rig.count("rides").await, 1);
    assert_eq!(provider.charges(), 1);
    let other = flows.run("rides.create", &key("a"), &9_900_i64).await.unwrap();
    assert_eq!(other, Outcome::Mismatch);
}

/// A declined card is a reply, and the provider is not asked again.
#[tokio::test]
async fn a_terminal_failure_is_a_reply_that_is_kept() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    provider.decline.store(true, Ordering::SeqCst);
    let flows = rig.flows(charge_flow(&provider)).await;
    let first = flows.run("rides.create", &key("a"), &1_200_i64).await.unwrap();
    assert_eq!(replied(first), (402, Source::Fresh));
    provider.decline.store(false, Ordering::SeqCst);
    let again = flows.run("rides.create", &key("a"), &1_200_i64).await.unwrap();
    assert_eq!(replied(again), (402, Source::Replayed));
    assert_eq!((provider.charges(), provider.calls()), (0, 1));
}

/// The provider charged, and its answer was lost: the next attempt sends the same key.
#[tokio::test]
async fn a_lost_answer_is_asked_for_with_the_same_key() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    provider.lose_answers.store(1, Ordering::SeqCst);
    let flows = rig.flows(charge_flow(&provider)).await;
    let first = flows.run("rides.create", &key("a"), &1_200_i64).await.unwrap();
    assert!(matches!(first, Outcome::Later { .. }), "{first:?}");
    let again = flows.run("rides.create", &key("a"), &1_200_i64).await.unwrap();
    assert_eq!(replied(again), (201, Source::Fresh));
    assert_eq!((provider.charges(), provider.calls()), (1, 2));
    assert_eq!(rig.count("rides").await, 1);
}

#[tokio::test]
async fn dropping_the_request_at_every_poll_changes_nothing() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let flows = rig.flows(charge_flow(&provider)).await;
    for polls in 0..30 {
        let key = key(&format!("drop {polls}"));
        let input = 100_i64;
        let mut request = Box::pin(flows.run("rides.create", &key, &input));
        for _ in 0..polls {
            let ready = std::future::poll_fn(|context| {
                std::task::Poll::Ready(request.as_mut().poll(context).is_ready())
            });
            if ready.await {
                break;
            }
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
        drop(request);
        let outcome = loop {
            match flows.run("rides.create", &key, &100_i64).await.unwrap() {
                Outcome::InProgress { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
                outcome => break outcome,
            }
        };
        assert_eq!(replied(outcome).0, 201);
    }
    assert_eq!((rig.count("rides").await, provider.charges()), (30, 30));
    assert_eq!(provider.calls(), 30);
}

#[tokio::test]
async fn a_call_that_must_not_be_repeated_parks_when_its_answer_is_lost() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    provider.lose_answers.store(1, Ordering::SeqCst);
    let called = provider.clone();
    let flows = rig
        .flows(Definition::new("rides.create", move |flow: Flow<common::Store>, amount: i64| {
            let provider = called.clone();
            async move {
                flow.effect::<String>("charge", Safety::Once)
                    .call(async |key| provider.charge(key, amount).await)
                    .await?;
                flow.finish(async |_| Ok(Reply::empty(201))).await
            }
        }))
        .await;
    for _ in 0..3 {
        let outcome = flows.run("rides.create", &key("a"), &1_i64).await.unwrap();
        assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
    }
    assert_eq!(provider.calls(), 1);
}

#[tokio::test]
async fn a_probe_adopts_what_was_done_and_calls_what_was_not() {
    for lost in [true, false] {
        let (rig, provider) = (Rig::new().await, Provider::default());
        match lost {
            true => provider.lose_answers.store(1, Ordering::SeqCst),
            false => provider.unreachable.store(1, Ordering::SeqCst),
        }
        let called = provider.clone();
        let body = move |flow: Flow<common::Store>, amount: i64| {
            let provider = called.clone();
            async move {
                let id: String = flow
                    .effect("charge", Safety::Probed)
                    .probe(async |key: &str| {
                        Ok::<_, Failed>(match provider.find(key) {
                            Some(id) => Probe::Found(id),
                            None => Probe::Absent,
                        })
                    })
                    .call(async |key| provider.charge(key, amount).await)
                    .await?;
                flow.finish(async |_| Reply::json(201, &id)).await
            }
        };
        let flows = rig.flows(Definition::new("rides.create", body)).await;
        let first = flows.run("rides.create", &key("a"), &1_i64).await.unwrap();
        assert!(matches!(first, Outcome::Later { .. }), "{first:?}");
        let again = flows.run("rides.create", &key("a"), &1_i64).await.unwrap();
        assert_eq!(replied(again), (201, Source::Fresh));
        assert_eq!(provider.charges(), 1);
        assert_eq!(provider.calls(), if lost { 1 } else { 2 });
    }
}

#[tokio::test]
async fn a_pin_is_the_same_for_every_attempt() {
    let rig = Rig::new().await;
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let counter = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let body = move |flow: Flow<common::Store>, (): ()| {
        let (seen, counter) = (Arc::clone(&noted), Arc::clone(&counter));
        async move {
            let pinned = flow.pin("number", || counter.fetch_add(1, Ordering::SeqCst)).await?;
            seen.lock().unwrap().push(pinned);
            match flow.attempt() {
                1 | 2 => Err(Halt::retry("not yet")),
                _ => flow.finish(async |_| Ok(Reply::empty(200))).await,
            }
        }
    };
    let flows = rig.flows(Definition::new("pins", body)).await;
    for _ in 0..3 {
        flows.run("pins", &key("a"), &()).await.unwrap();
    }
    assert_eq!(*seen.lock().unwrap(), [0, 0, 0]);
}

#[tokio::test]
async fn each_item_is_a_step_of_its_own_whatever_their_order() {
    let rig = Rig::new().await;
    let body = |flow: Flow<common::Store>, (): ()| async move {
        let mut lines = vec![("a", 1_i64), ("b", 2), ("c", 3)];
        if flow.attempt() > 1 {
            lines.reverse();
        }
        let limit = if flow.attempt() == 1 { 2 } else { 3 };
        let each = |step: Step, n: i64| {
            let flow = &flow;
            async move {
                if n > limit {
                    return Err(Halt::retry("the third line comes later"));
                }
                flow.phase(step, async |tx| common::insert_ride(tx, &n.to_string()).await).await
            }
        };
        let sums = flow.each("line", lines, each).await?;
        flow.finish(async |_| Reply::json(200, &sums.len())).await
    };
    let flows = rig.flows(Definition::new("lines", body)).await;
    let first = flows.run("lines", &key("a"), &()).await.unwrap();
    assert!(matches!(first, Outcome::Later { .. }), "{first:?}");
    let again = flows.run("lines", &key("a"), &()).await.unwrap();
    assert_eq!(replied(again).0, 200);
    assert_eq!(rig.count("rides").await, 3);
}

/// Bad input: a named error or a parked flow with a reason, never a wrong jump.
#[tokio::test]
async fn what_cannot_be_right_is_parked_with_its_reason() {
    let rig = Rig::new().await;
    let cases: Vec<(&str, Definition<common::Store>, &str)> = vec![
        (
            "reused",
            Definition::new("reused", |flow: Flow<common::Store>, (): ()| async move {
                flow.pin("one", || 1).await?;
                flow.pin("one", || 2).await?;
                flow.finish(async |_| Ok(Reply::empty(200))).await
            }),
            "step one is taken twice",
        ),
        (
            "large",
            Definition::new("large", |flow: Flow<common::Store>, (): ()| async move {
                flow.finish(async |_| Reply::json(200, &"x".repeat(2_000))).await
            })
            .largest_reply(1_000),
            "the reply has",
        ),
        (
            "smuggled",
            Definition::new("smuggled", |flow: Flow<common::Store>, (): ()| async move {
                flow.phase("one", async |tx| {
                    sqlx::query("COMMIT").execute(&mut **tx).await?;
                    Ok(())
                })
                .await?;
                flow.finish(async |_| Ok(Reply::empty(200))).await
            }),
            "somebody ended the transaction",
        ),
        (
            "name",
            Definition::new("name", |flow: Flow<common::Store>, (): ()| async move {
                flow.pin(Step::from("x".repeat(256)), || 1).await?;
                flow.finish(async |_| Ok(Reply::empty(200))).await
            }),
            "the name of a step",
        ),
    ];
    for (name, definition, reason) in cases {
        let flows = rig.flows(definition).await;
        match flows.run(name, &key(name), &()).await.unwrap() {
            Outcome::Parked { reason: found } => assert!(found.contains(reason), "{name}: {found}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    let twice = Flows::builder(rig.store.clone(), "test")
        .flow(charge_flow(&Provider::default()))
        .flow(charge_flow(&Provider::default()));
    assert_eq!(twice.build().map(drop), Err(BuildError::Twice("rides.create".to_owned())));
}

/// A deploy between two attempts: other shape, other arguments, a step that is gone, another version.
#[tokio::test]
async fn code_that_does_not_fit_the_history_parks_instead_of_guessing() {
    type Body = fn(Flow<common::Store>, ()) -> common::Boxed;
    let new_code: [(&str, Body, &str); 4] = [
        (
            "shape",
            |flow, ()| {
                Box::pin(async move {
                    flow.pin("one", || "text".to_owned()).await?;
                    flow.finish(async |_| Ok(Reply::empty(200))).await
                })
            },
            "recorded as i32 and is wanted as String",
        ),
        (
            "kind",
            |flow, ()| {
                Box::pin(async move {
                    flow.phase("one", async |_| Ok(1_i32)).await?;
                    flow.finish(async |_| Ok(Reply::empty(200))).await
                })
            },
            "another kind of step",
        ),
        (
            "gone",
            |flow, ()| Box::pin(async move { flow.finish(async |_| Ok(Reply::empty(200))).await }),
            "not taken again: one",
        ),
        (
            "arguments",
            |flow, ()| {
                Box::pin(async move {
                    flow.pin("one", || 1_i32).await?;
                    flow.effect::<i32>("two", Safety::Natural)
                        .bind(&2)
                        .call(async |_| Ok(2))
                        .await?;
                    flow.finish(async |_| Ok(Reply::empty(200))).await
                })
            },
            "other arguments",
        ),
    ];
    let old: Body = |flow, ()| {
        Box::pin(async move {
            flow.pin("one", || 1_i32).await?;
            flow.effect::<i32>("two", Safety::Natural)
                .bind(&1)
                .call(async |_| Err(Failed::Unknown("no answer".to_owned())))
                .await?;
            flow.finish(async |_| Ok(Reply::empty(200))).await
        })
    };
    let rig = Rig::new().await;
    for (name, new, reason) in new_code {
        let before = rig.flows(Definition::new("deploy", old)).await;
        let first = before.run("deploy", &key(name), &()).await.unwrap();
        assert!(matches!(first, Outcome::Later { .. }), "{first:?}");
        // A version that nobody accepts is left alone.
        let skewed = rig.flows(Definition::new("deploy", old).version(2)).await;
        let skew = skewed.run("deploy", &key(name), &()).await.unwrap();
        assert_eq!(skew, Outcome::Skew { version: 1 });
        let after = rig.flows(Definition::new("deploy", new).version(2).accepts(1..=2)).await;
        match after.run("deploy", &key(name), &()).await.unwrap() {
            Outcome::Parked { reason: found } => assert!(found.contains(reason), "{name}: {found}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// I45: the same across attempts, different across steps, keys, tenants, flows and namespaces.
#[tokio::test]
async fn derived_keys_tell_steps_apart_and_attempts_not() {
    let rig = Rig::new().await;
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let definition = |name: &str| {
        let noted = Arc::clone(&seen);
        Definition::new(name, move |flow: Flow<common::Store>, (): ()| {
            let seen = Arc::clone(&noted);
            async move {
                let keys = [
                    flow.foreign_key("a"),
                    flow.foreign_key("b"),
                    flow.foreign_key(Step::item("a", "1")),
                    flow.foreign_key("a[1:1]x"),
                ];
                seen.lock().unwrap().push(keys);
                match flow.attempt() {
                    1 => Err(Halt::retry("again")),
                    _ => flow.finish(async |_| Ok(Reply::empty(200))).await,
                }
            }
        })
    };
    let flows = rig.flows_in("one", definition("f")).await;
    for _ in 0..2 {
        flows.run("f", &key("k"), &()).await.unwrap();
    }
    flows.run("f", &key("k2"), &()).await.unwrap();
    flows.run("f", &common::key_of("tenant", "k"), &()).await.unwrap();
    rig.flows_in("two", definition("f")).await.run("f", &key("k"), &()).await.unwrap();
    rig.flows_in("one", definition("g")).await.run("g", &key("k3"), &()).await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], seen[1]);
    let mut all: Vec<_> = seen[1..].iter().flatten().collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 4 * (seen.len() - 1));
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_and_poison_is_parked() {
    let rig = Rig::new().await;
    let body = |_: Flow<common::Store>, (): ()| async move { panic!("poison") };
    let flows = rig.flows(Definition::new("poison", body)).await;
    for _ in 1..12 {
        let outcome = flows.run("poison", &key("a"), &()).await.unwrap();
        assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    }
    let outcome = flows.run("poison", &key("a"), &()).await.unwrap();
    assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
}
