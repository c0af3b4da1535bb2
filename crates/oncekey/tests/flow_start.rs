//! Flows that are written down with their first step: a commit less, and as safe as any other. On each database
//! and with each driver.
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

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::Provider;
use databases::{Rig, insert, key};
use oncekey::core::{Key, KeyId, Scope};
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::{
    Completer, Definition, Dialect, Flow, Flows, Halt, Options, Outcome, Reply, Safety, Source,
    TxStore, Value,
};
use tokio::time::sleep;

on_each_database!(
    a_flow_is_there_when_its_first_step_has_committed,
    what_is_asked_for_again_is_answered_and_does_not_run,
    of_many_that_begin_at_once_one_commits,
    steps_that_begin_a_flow_together_all_belong_to_it,
    what_cannot_carry_the_start_comes_after_it,
    a_first_step_that_fails_leaves_a_flow_that_says_why,
    a_commit_that_is_smuggled_into_the_first_step_is_found_out,
    a_first_step_may_take_longer_than_a_lease,
    whatever_fails_at_whatever_point_there_is_one_charge_and_one_reply,
    a_process_that_stops_before_the_first_commit_leaves_nothing,
);

// SQLite has one writer: whoever waits there has said nothing yet.
on_kept_connections!(
    a_start_that_waits_for_longer_than_its_lease_lets_nothing_be_called,
    of_many_that_begin_at_once_one_commits,
);

const DAY: Safety = Safety::Keyed { window: Duration::from_secs(86_400) };

fn patient() -> Options {
    let lease = Duration::from_secs(60);
    Options { lease, grace: Duration::ZERO, pause: Duration::ZERO, ..Options::default() }
}

fn id_of(text: &str) -> KeyId {
    KeyId::derive("test", &Scope::shared(), &Key::new(text.as_bytes()).unwrap(), None)
}

fn built<S: TxStore>(store: &S, options: Options, definition: Definition<S>) -> Flows<S> {
    let flows = Flows::builder(store.clone(), "test").options(options);
    flows.flow(definition.start_with_first_step()).build().unwrap()
}

/// How many rows of a flow others see: its own, and those of its steps.
async fn rows<S: TxStore>(store: &S, flow: &KeyId) -> (i64, i64) {
    let of = async |table: &str| {
        let sql = format!("SELECT count(*) FROM {{{table}}} WHERE flow_id = ?");
        let sql = store.layout().statement(&sql);
        let rows = store.query_once(&sql, &[Value::Bytes(flow.as_bytes())]).await.unwrap();
        rows[0].int(0).unwrap()
    };
    (of("flows").await, of("steps").await)
}

fn status(outcome: &Outcome) -> u16 {
    match outcome {
        Outcome::Replied { reply, .. } => reply.status(),
        other => panic!("{other:?}"),
    }
}

async fn a_flow_is_there_when_its_first_step_has_committed<S: TxStore>(rig: Rig<S>) {
    let store = rig.db.clone();
    let body = move |flow: Flow<S>, pins: bool| {
        let (store, id) = (store.clone(), *flow.id());
        async move {
            assert_eq!(rows(&store, &id).await, (0, 0));
            if pins {
                flow.pin("when", || 7).await?;
            } else {
                flow.phase("order_created", async |tx| {
                    assert_eq!(rows(&store, &id).await, (0, 0));
                    insert(tx, "order").await
                })
                .await?;
            }
            assert_eq!(rows(&store, &id).await, (1, 1));
            flow.phase("order_checked", async |tx| insert(tx, "checked").await).await?;
            assert_eq!(rows(&store, &id).await, (1, 2));
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let flows = built(&rig.db, patient(), Definition::new("order", body));
    for (name, pins) in [("a", false), ("b", true)] {
        assert_eq!(status(&flows.run("order", key(name), &pins).await.unwrap()), 201);
        let history = flows.history(&id_of(name)).await.unwrap().unwrap();
        assert_eq!((history.attempts, history.steps.len()), (1, 2));
    }
    assert_eq!((rig.orders_of("order").await, rig.orders_of("checked").await), (1, 2));
}

async fn what_is_asked_for_again_is_answered_and_does_not_run<S: TxStore>(rig: Rig<S>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let body = move |flow: Flow<S>, _: u64| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            flow.phase("order_created", async |tx| insert(tx, "order").await).await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let flows = built(&rig.db, patient(), Definition::new("order", body));
    assert_eq!(status(&flows.run("order", key("a"), &1_u64).await.unwrap()), 201);
    let again = flows.run("order", key("a"), &1_u64).await.unwrap();
    assert!(matches!(again, Outcome::Replied { source: Source::Replayed, .. }), "{again:?}");
    let other = flows.run("order", key("a"), &2_u64).await.unwrap();
    assert!(matches!(other, Outcome::Mismatch), "{other:?}");
    assert_eq!((runs.load(Ordering::SeqCst), rig.orders().await), (1, 1));
}

/// I1: whoever saw that a flow is not there, its first step decides who has it.
async fn of_many_that_begin_at_once_one_commits<S: TxStore>(rig: Rig<S>) {
    const AT_ONCE: usize = 4;
    let (inside, provider) = (Arc::new(AtomicUsize::new(0)), Provider::default());
    let (begun, with) = (Arc::clone(&inside), provider.clone());
    let body = move |flow: Flow<S>, name: String| {
        let (inside, provider) = (Arc::clone(&begun), with.clone());
        async move {
            flow.phase("order_created", async |tx| {
                insert(tx, &name).await?;
                inside.fetch_add(1, Ordering::SeqCst);
                // SQLite lets one of them in, and the servers all.
                for _ in 0..50 {
                    if inside.load(Ordering::SeqCst) >= AT_ONCE {
                        break;
                    }
                    sleep(Duration::from_millis(4)).await;
                }
                tx.intend("charge", DAY, &name)
            })
            .await?;
            let call = flow.effect::<String>("charge", DAY).bind(&name);
            call.call(async |key| provider.charge(key, 1).await).await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let flows = built(&rig.db, patient(), Definition::new("order", body));
    for round in 0..3 {
        inside.store(0, Ordering::SeqCst);
        let name = format!("round {round}");
        let tries: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (flows, name) = (flows.clone(), name.clone());
                tokio::spawn(async move { flows.run("order", key(&name), &name).await.unwrap() })
            })
            .collect();
        let mut fresh = 0;
        for tried in tries {
            match tried.await.unwrap() {
                Outcome::Replied { source: Source::Fresh, .. } => fresh += 1,
                Outcome::Replied { .. } | Outcome::InProgress { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((fresh, rig.orders_of(&name).await), (1, 1), "{name}");
        assert_eq!((provider.calls(), provider.charges()), (round + 1, round + 1), "{name}");
        let met = inside.load(Ordering::SeqCst);
        let is_server = rig.db.layout().dialect() != Dialect::Sqlite;
        assert!(!is_server || met > 1, "they met: {met}");
        assert_eq!(status(&flows.run("order", key(&name), &name).await.unwrap()), 201);
    }
}

async fn steps_that_begin_a_flow_together_all_belong_to_it<S: TxStore>(rig: Rig<S>) {
    let body = move |flow: Flow<S>, (): ()| async move {
        let (one, other) = tokio::join!(
            flow.phase("one", async |tx| insert(tx, "one").await),
            flow.phase("other", async |tx| insert(tx, "other").await),
        );
        one.and(other)?;
        flow.finish(async |_| Ok(Reply::empty(201))).await
    };
    let flows = built(&rig.db, patient(), Definition::new("order", body));
    for round in 0..5 {
        let name = format!("round {round}");
        assert_eq!(status(&flows.run("order", key(&name), &()).await.unwrap()), 201, "{name}");
        assert_eq!(rows(&rig.db, &id_of(&name)).await, (1, 2), "{name}");
    }
    assert_eq!((rig.orders_of("one").await, rig.orders_of("other").await), (5, 5));
}

async fn what_cannot_carry_the_start_comes_after_it<S: TxStore>(rig: Rig<S>) {
    let (store, provider) = (rig.db.clone(), Provider::default());
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let body = move |flow: Flow<S>, first: String| {
        let (store, provider, id) = (store.clone(), provider.clone(), *flow.id());
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match first.as_str() {
                "effect" => {
                    let call = flow.effect::<String>("charge", DAY).call(async |key| {
                        assert_eq!(rows(&store, &id).await.0, 1, "before the call");
                        provider.charge(key, 1).await
                    });
                    call.await.map(drop)?;
                }
                "pivot" => flow.pivot("no way back").await?,
                "stop" => return Err(Halt::Stop(Reply::empty(201))),
                _ => {}
            }
            flow.finish(async |tx| {
                assert_eq!(rows(&store, &id).await.0, 1);
                insert(tx, "end").await?;
                Ok(Reply::empty(201))
            })
            .await
        }
    };
    let flows = built(&rig.db, patient(), Definition::new("order", body));
    for first in ["effect", "pivot", "stop", "finish"] {
        for _ in 0..2 {
            let outcome = flows.run("order", key(first), &first).await.unwrap();
            assert_eq!(status(&outcome), 201, "{first}");
        }
        assert_eq!(rows(&rig.db, &id_of(first)).await.0, 1, "{first}");
    }
    assert_eq!((rig.orders_of("end").await, runs.load(Ordering::SeqCst)), (3, 4));
}

async fn a_first_step_that_fails_leaves_a_flow_that_says_why<S: TxStore>(rig: Rig<S>) {
    let failed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&failed);
    let body = move |flow: Flow<S>, how: String| {
        let failed = Arc::clone(&counted);
        async move {
            flow.phase("order_created", async |tx| {
                insert(tx, &how).await?;
                match (how.as_str(), failed.fetch_add(1, Ordering::SeqCst)) {
                    ("parks", _) => Err(Halt::park("the moon is full")),
                    ("retries", 0) => Err(Halt::retry("not yet")),
                    ("panics", 0) => panic!("a test panics here"),
                    _ => Ok(()),
                }
            })
            .await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let flows = built(&rig.db, patient(), Definition::new("order", body));
    for how in ["parks", "retries", "panics"] {
        failed.store(0, Ordering::SeqCst);
        let outcome = flows.run("order", key(how), &how).await.unwrap();
        assert_eq!((rows(&rig.db, &id_of(how)).await, rig.orders_of(how).await), ((1, 0), 0));
        if how == "parks" {
            assert!(matches!(&outcome, Outcome::Parked { reason } if reason.contains("moon")));
            continue;
        }
        assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
        // It is written now, so the completer goes on with it.
        let completed = Completer::new(flows.clone()).run_once().await.unwrap();
        assert_eq!(completed.ended, 1, "{how}: {completed:?}");
        let history = flows.history(&id_of(how)).await.unwrap().unwrap();
        assert_eq!((history.attempts, rig.orders_of(how).await), (2, 1), "{how}");
    }
}

async fn a_commit_that_is_smuggled_into_the_first_step_is_found_out<S: TxStore>(rig: Rig<S>) {
    let body = move |flow: Flow<S>, announces: bool| async move {
        flow.phase("order_created", async |tx| {
            insert(tx, if announces { "announcing" } else { "plain" }).await?;
            if announces {
                tx.intend("charge", DAY, &1)?;
            }
            S::execute(&mut **tx, &"COMMIT".into(), &[]).await?;
            Ok(())
        })
        .await?;
        flow.finish(async |_| Ok(Reply::empty(201))).await
    };
    let flows = built(&rig.db, patient(), Definition::new("order", body));
    for (name, announces) in [("plain", false), ("announcing", true)] {
        let outcome = flows.run("order", key(name), &announces).await.unwrap();
        assert!(
            matches!(&outcome, Outcome::Parked { reason } if reason.contains("ended the transaction")),
            "{outcome:?}"
        );
        let found = (rows(&rig.db, &id_of(name)).await, rig.orders_of(name).await);
        assert_eq!(found, ((1, 0), 1), "{name}: it did not run again");
    }
}

/// There is nothing that somebody else could take over, and so nothing that lapses.
async fn a_first_step_may_take_longer_than_a_lease<S: TxStore>(rig: Rig<S>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let body = move |flow: Flow<S>, (): ()| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            flow.phase("order_created", async |tx| {
                sleep(Duration::from_millis(1_500)).await;
                insert(tx, "order").await
            })
            .await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let options = Options { lease: Duration::from_millis(600), ..patient() };
    let flows = built(&rig.db, options, Definition::new("order", body));
    assert_eq!(status(&flows.run("order", key("a"), &()).await.unwrap()), 201);
    let history = flows.history(&id_of("a")).await.unwrap().unwrap();
    let runs = runs.load(Ordering::SeqCst);
    assert_eq!((history.attempts, rig.orders().await, runs), (1, 1, 1));
}

/// I7: the lease in the row counts from when it was said, however long the database took for it. By then
/// somebody else may have the flow.
async fn a_start_that_waits_for_longer_than_its_lease_lets_nothing_be_called<S: TxStore>(
    rig: Rig<S>,
) {
    let (store, provider) = (rig.db.clone(), Provider::default());
    let (with, first) = (provider.clone(), Arc::new(AtomicUsize::new(0)));
    let lapsed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lapsed);
    let body = move |flow: Flow<S>, (): ()| {
        let (store, provider, first) = (store.clone(), with.clone(), Arc::clone(&first));
        let lapsed = Arc::clone(&counted);
        async move {
            let id = *flow.id();
            flow.phase("order_created", async |tx| {
                if first.fetch_add(1, Ordering::SeqCst) == 0 {
                    hold_for(&store, id, Duration::from_millis(2_500)).await;
                }
                tx.intend("charge", DAY, &1)?;
                insert(tx, "order").await
            })
            .await?;
            let call = flow.effect::<String>("charge", DAY).bind(&1);
            call.call(async |key| {
                let sql = "SELECT lease - {now} FROM {flows} WHERE flow_id = ?";
                let sql = store.layout().statement(sql);
                let rows = store.query_once(&sql, &[Value::Bytes(id.as_bytes())]).await.unwrap();
                lapsed.fetch_add(usize::from(rows[0].int(0).unwrap() <= 0), Ordering::SeqCst);
                provider.charge(key, 1).await
            })
            .await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let options = Options { lease: Duration::from_millis(900), ..patient() };
    let flows = built(&rig.db, options, Definition::new("order", body));
    let mut outcome = flows.run("order", key("a"), &()).await.unwrap();
    for _ in 0..200 {
        if matches!(outcome, Outcome::Replied { .. }) {
            break;
        }
        sleep(Duration::from_millis(50)).await;
        outcome = flows.run("order", key("a"), &()).await.unwrap();
    }
    assert_eq!(status(&outcome), 201);
    assert_eq!((rig.orders().await, provider.calls()), (1, 1));
    assert_eq!(lapsed.load(Ordering::SeqCst), 0, "calls without a lease");
}

/// Somebody else begins the flow, and takes it back after this time.
async fn hold_for<S: TxStore>(store: &S, id: KeyId, span: Duration) {
    let sql = store.layout().statement(
        "INSERT INTO {flows} (flow_id, name, version, state, fence, owner, lease, due, attempts, \
         point, pivot, fingerprint, input, client_key, scope, created, reason) \
         VALUES (?, 'other', 1, 1, 1, ?, 0, 0, 1, '', '', ?, ?, ?, ?, 0, '')",
    );
    let mut tx = store.begin().await.unwrap();
    let (id, bytes) = (Value::Bytes(id.as_bytes()), Value::Bytes(&[0; 16]));
    S::execute(S::conn(&mut tx), &sql, &[id, bytes, bytes, bytes, bytes, bytes]).await.unwrap();
    tokio::spawn(async move {
        sleep(span).await;
        S::rollback(tx).await.unwrap();
    });
}

fn order<S: TxStore>(provider: &Provider) -> Definition<S> {
    let provider = provider.clone();
    Definition::new("order", move |flow: Flow<S>, name: String| {
        let provider = provider.clone();
        async move {
            flow.phase("order_created", async |tx| {
                insert(tx, &name).await?;
                tx.intend("charge", DAY, &name)
            })
            .await?;
            let call = flow.effect::<String>("charge", DAY).bind(&name);
            let charge = call.call(async |key| provider.charge(key, 1).await).await?;
            flow.finish(async |tx| {
                insert(tx, &format!("{name} {charge}")).await?;
                Reply::json(201, &charge)
            })
            .await
        }
    })
}

/// I48: an answer that is lost, at each point of a flow in turn, also that of the first commit.
async fn whatever_fails_at_whatever_point_there_is_one_charge_and_one_reply<S: TxStore>(
    rig: Rig<S>,
) {
    let mut points = 0;
    for point in 1.. {
        let name = format!("fails at {point}");
        let (plan, provider) = (Plan::new(), Provider::default());
        let options = Options { lease: Duration::from_secs(2), ..patient() };
        let flows = built(&Shaky::new(rig.db.clone(), plan.clone()), options, order(&provider));
        plan.arm(point, Fault::Fail);
        let mut outcome = flows.run("order", key(&name), &name).await;
        let met = plan.count() >= point;
        for _ in 0..200 {
            if matches!(outcome, Ok(Outcome::Replied { .. })) {
                break;
            }
            sleep(Duration::from_millis(50)).await;
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
    assert!(points >= 6, "{points}");
}

/// Nobody had been told anything: whoever asks again begins anew, and nobody else has anything to do.
async fn a_process_that_stops_before_the_first_commit_leaves_nothing<S: TxStore>(rig: Rig<S>) {
    let (mut without, mut with) = (0, 0);
    for point in 1.. {
        let name = format!("stops at {point}");
        let (plan, provider) = (Plan::new(), Provider::default());
        let shaky = Shaky::new(rig.db.clone(), plan.clone());
        let flows = built(&shaky, patient(), order(&provider));
        plan.arm(point, Fault::Crash);
        let run = flows.run("order", key(&name), &name);
        if let Ok(outcome) = tokio::time::timeout(Duration::from_millis(500), run).await
            && matches!(outcome, Ok(Outcome::Replied { .. }))
        {
            break;
        }
        // What was rolled back when the process stopped may still be under way.
        let is_there = async || rows(&rig.db, &id_of(&name)).await.0 == 1;
        match is_there().await {
            true => with += 1,
            false => {
                without += 1;
                assert_eq!((rig.orders_of(&name).await, provider.calls()), (0, 0), "{name}");
                let next = built(&rig.db, patient(), order(&provider));
                assert_eq!(status(&next.run("order", key(&name), &name).await.unwrap()), 201);
                assert_eq!((rig.orders_of(&name).await, provider.charges()), (1, 1), "{name}");
            }
        }
    }
    assert!(without >= 3 && with >= 3, "{without} {with}");
}
