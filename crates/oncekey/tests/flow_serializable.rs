//! Phases whose decision rests on rows that others change.
#![cfg(all(
    feature = "flow-rusqlite",
    feature = "flow-tokio-postgres",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql"
))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/databases.rs"]
#[macro_use]
mod databases;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use databases::{Rig, insert, key};
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::{
    Definition, Dialect, Flow, Flows, Halt, Options, Outcome, PhaseTx, Reply, TxStore, Value,
};
use tokio::sync::Barrier;

on_each_database!(
    of_two_who_are_on_call_one_stays,
    without_it_both_leave,
    a_phase_that_is_never_left_alone_gives_the_flow_up_for_a_while,
    a_body_that_wants_to_wait_is_not_run_again_at_once,
    a_commit_whose_answer_is_lost_is_found_to_stand,
    a_serializable_phase_runs_once,
);

/// How the two decide.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Plain,
    Serializable,
}

/// Two are on call and one must stay. Each asks how many there are, and leaves if it is not alone.
#[derive(Clone)]
struct OnCall {
    both: Arc<Barrier>,
    tries: Arc<AtomicU32>,
}

impl OnCall {
    async fn leave<S: TxStore>(&self, tx: &mut PhaseTx<S>, name: &str) -> Result<bool, Halt> {
        let layout = tx.store().layout().clone();
        let sql = layout.statement("SELECT count(*) FROM {records}_orders WHERE n = 1");
        let there = S::query(&mut **tx, &sql, &[]).await?[0].int(0)?;
        // Both have read before one of them writes. SQLite lets nobody else in meanwhile.
        if self.tries.fetch_add(1, Ordering::SeqCst) < 2 && layout.dialect() != Dialect::Sqlite {
            self.both.wait().await;
        }
        if there == 2 {
            let sql = layout.statement("UPDATE {records}_orders SET n = 0 WHERE name = ?");
            S::execute(&mut **tx, &sql, &[Value::Text(name)]).await?;
        }
        Ok(there == 2)
    }
}

/// Lets both leave at the same time, and says how often somebody tried and how many have stayed.
async fn both_leave<S: TxStore>(rig: &Rig<S>, level: Level) -> (u32, i64) {
    let put = rig.db.layout().statement("INSERT INTO {records}_orders (name, n) VALUES (?, 1)");
    for name in ["ann", "bob"] {
        rig.db.execute_once(&put, &[Value::Text(name)]).await.unwrap();
    }
    let on_call = OnCall { both: Arc::new(Barrier::new(2)), tries: Arc::default() };
    let tries = Arc::clone(&on_call.tries);
    let leave = Definition::new("leave", move |flow: Flow<S>, name: String| {
        let on_call = on_call.clone();
        async move {
            let (on_call, name) = (&on_call, name.as_str());
            let left = match level {
                Level::Plain => {
                    flow.phase("left", async |tx| on_call.leave(tx, name).await).await?
                }
                Level::Serializable => {
                    flow.phase_serializable("left", || {
                        async |tx: &mut PhaseTx<S>| on_call.leave(tx, name).await
                    })
                    .await?
                }
            };
            flow.finish(async |_| Reply::json(200, &left)).await
        }
    });
    let flows = Flows::builder(rig.db.clone(), "test").flow(leave).build().unwrap();
    let run = async |name: &str| {
        let outcome = flows.run("leave", key(name), &name).await.unwrap();
        assert!(matches!(outcome, Outcome::Replied { .. }), "{outcome:?}");
        flows.run("leave", key(name), &name).await.unwrap()
    };
    let _ = tokio::join!(run("ann"), run("bob"));
    let stayed = rig.count("SELECT count(*) FROM {records}_orders WHERE n = 1", &[]).await;
    (tries.load(Ordering::SeqCst), stayed)
}

async fn of_two_who_are_on_call_one_stays<S: TxStore>(rig: Rig<S>) {
    let (tries, stayed) = both_leave(&rig, Level::Serializable).await;
    assert_eq!(stayed, 1);
    match rig.db.layout().dialect() {
        Dialect::Sqlite => assert_eq!(tries, 2),
        Dialect::Postgres | Dialect::Mysql => assert!(tries > 2, "nobody was in the way"),
    }
    // The same attempt of the flow, each time: it was not given up in between.
    let begun = rig.count("SELECT count(*) FROM {flows} WHERE attempts = 1", &[]).await;
    assert_eq!(begun, 2);
}

/// What the test above rests on: a plain phase does not see the other one leave.
async fn without_it_both_leave<S: TxStore>(rig: Rig<S>) {
    let (tries, stayed) = both_leave(&rig, Level::Plain).await;
    match rig.db.layout().dialect() {
        Dialect::Sqlite => assert_eq!((tries, stayed), (2, 1), "there is one writer"),
        Dialect::Postgres | Dialect::Mysql => assert_eq!((tries, stayed), (2, 0)),
    }
}

/// A flow of one phase that always ends like this.
fn always<S: TxStore>(tries: &Arc<AtomicU32>, after: Duration) -> Definition<S> {
    let tries = Arc::clone(tries);
    Definition::new("order", move |flow: Flow<S>, (): ()| {
        let tries = Arc::clone(&tries);
        async move {
            let tries = &tries;
            flow.phase_serializable("order_created", || {
                async |tx: &mut PhaseTx<S>| {
                    tries.fetch_add(1, Ordering::SeqCst);
                    insert(tx, "order").await?;
                    Err::<(), _>(Halt::Retry { after: Some(after), why: "not now".to_owned() })
                }
            })
            .await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    })
}

async fn a_phase_that_is_never_left_alone_gives_the_flow_up_for_a_while<S: TxStore>(rig: Rig<S>) {
    let tries = Arc::new(AtomicU32::new(0));
    let flow = always(&tries, Duration::from_millis(1));
    let flows = Flows::builder(rig.db.clone(), "test").flow(flow).build().unwrap();
    let outcome = flows.run("order", key("a"), &()).await.unwrap();
    assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    // Eight times by each attempt, and the flow tries six.
    assert_eq!((tries.load(Ordering::SeqCst), rig.orders().await), (48, 0));
}

async fn a_body_that_wants_to_wait_is_not_run_again_at_once<S: TxStore>(rig: Rig<S>) {
    let tries = Arc::new(AtomicU32::new(0));
    let flow = always(&tries, Duration::from_secs(60));
    let flows = Flows::builder(rig.db.clone(), "test").flow(flow).build().unwrap();
    let outcome = flows.run("order", key("a"), &()).await.unwrap();
    assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    assert_eq!((tries.load(Ordering::SeqCst), rig.orders().await), (1, 0));
}

/// A failed COMMIT is unknown. This one is done: the body must not run again.
async fn a_commit_whose_answer_is_lost_is_found_to_stand<S: TxStore>(rig: Rig<S>) {
    let (plan, runs) = (Plan::new(), Arc::new(AtomicU32::new(0)));
    let (arms, counts) = (plan.clone(), Arc::clone(&runs));
    let body = move |flow: Flow<Shaky<S>>, (): ()| {
        let (plan, runs) = (arms.clone(), Arc::clone(&counts));
        async move {
            let (plan, runs) = (&plan, &runs);
            flow.phase_serializable("order_created", || {
                async |tx: &mut PhaseTx<Shaky<S>>| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    insert(tx, "order").await?;
                    // The first point is before the commit, and the second one after it.
                    plan.arm(2, Fault::Fail);
                    Ok(())
                }
            })
            .await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    };
    let store = Shaky::new(rig.db.clone(), plan);
    let flows = Flows::builder(store, "test").flow(Definition::new("order", body)).build().unwrap();
    let outcome = flows.run("order", key("a"), &()).await.unwrap();
    assert!(matches!(outcome, Outcome::Replied { .. }), "{outcome:?}");
    assert_eq!((runs.load(Ordering::SeqCst), rig.orders().await), (1, 1));
}

/// It is a phase like any other: what was taken is not taken again.
async fn a_serializable_phase_runs_once<S: TxStore>(rig: Rig<S>) {
    let body = |flow: Flow<S>, (): ()| async move {
        let number: i64 = flow
            .phase_serializable("order_created", || {
                async |tx: &mut PhaseTx<S>| {
                    insert(tx, "order").await?;
                    Ok(7)
                }
            })
            .await?;
        match flow.attempt() {
            1 => Err(Halt::retry("the next attempt")),
            _ => flow.finish(async |_| Reply::json(201, &number)).await,
        }
    };
    let options = Options { pause: Duration::ZERO, ..Options::default() };
    let flows = Flows::builder(rig.db.clone(), "test").options(options);
    let flows = flows.flow(Definition::new("order", body)).build().unwrap();
    let outcome = flows.run("order", key("a"), &()).await.unwrap();
    assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    let outcome = flows.run("order", key("a"), &()).await.unwrap();
    let Outcome::Replied { reply, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!((reply, rig.orders().await), (Reply::json(201, &7).unwrap(), 1));
}
