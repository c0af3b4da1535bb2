//! A client that hangs up, at whatever moment, changes nothing. F43, I44.
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

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use common::Provider;
use databases::{Rig, insert, key};
use oncekey::core::{Key, KeyId, Scope};
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::{
    Definition, Flow, Flows, Halt, Outcome, PhaseTx, Reply, Safety, Source, Times, TxStore, Value,
};
use tokio::sync::Notify;

on_each_database!(
    a_client_that_hangs_up_at_any_poll_changes_nothing,
    a_client_that_hangs_up_at_any_statement_changes_nothing,
    a_local_handler_that_is_dropped_at_any_poll_is_all_or_nothing,
    a_begin_that_is_dropped_at_any_poll_leaves_a_clean_connection,
);

on_kept_connections!(
    a_client_that_hangs_up_at_any_poll_changes_nothing,
    a_client_that_hangs_up_at_any_statement_changes_nothing,
    a_local_handler_that_is_dropped_at_any_poll_is_all_or_nothing,
    a_begin_that_is_dropped_at_any_poll_leaves_a_clean_connection,
);

/// Counts the polls of a body, and tells the client to hang up at one of them.
#[derive(Clone, Default)]
struct Watch {
    polls: Arc<AtomicU64>,
    at: u64,
    hang_up: Arc<Notify>,
}

impl Watch {
    async fn over<T>(&self, body: impl Future<Output = T>) -> T {
        let mut body = pin!(body);
        poll_fn(|context| {
            if self.polls.fetch_add(1, Ordering::SeqCst) + 1 == self.at {
                self.hang_up.notify_one();
            }
            body.as_mut().poll(context)
        })
        .await
    }
}

/// Insert, charge, insert.
fn order<S: TxStore>(provider: &Provider, watch: &Watch) -> Definition<Shaky<S>> {
    let (provider, watch) = (provider.clone(), watch.clone());
    Definition::new("order", move |flow: Flow<Shaky<S>>, name: String| {
        let (provider, watch) = (provider.clone(), watch.clone());
        async move {
            let body = async {
                flow.phase("order_created", async |tx| insert(tx, &name).await).await?;
                let window = Duration::from_secs(86_400);
                let charge: String = flow
                    .effect("charge_created", Safety::Keyed { window })
                    .call(async |key| provider.charge(key, 1).await)
                    .await?;
                flow.finish(async |tx| {
                    insert(tx, &charge).await?;
                    Reply::json(201, &charge)
                })
                .await
            };
            watch.over(body).await
        }
    })
}

/// Whether the client got to hang up.
#[derive(Debug, PartialEq, Eq)]
enum Hung {
    Up,
    Never,
}

/// One request that is dropped when the watch or the plan says so, and what its retry is told.
async fn hang_up<S: TxStore>(rig: &Rig<S>, name: &str, watch: &Watch, plan: &Plan) -> Hung {
    let provider = Provider::default();
    let store = Shaky::new(rig.db.clone(), plan.clone());
    let flows = Flows::builder(store, "test").flow(order(&provider, watch)).build().unwrap();
    let input = name.to_owned();
    let dropped = tokio::select! {
        biased;
        () = watch.hang_up.notified() => Hung::Up,
        outcome = flows.run("order", key(name), &input) => {
            let outcome = outcome.unwrap();
            assert!(matches!(outcome, Outcome::Replied { source: Source::Fresh, .. }), "{outcome:?}");
            Hung::Never
        }
    };
    let reply = loop {
        match flows.run("order", key(name), &input).await.unwrap() {
            Outcome::InProgress { .. } => tokio::time::sleep(Duration::from_millis(2)).await,
            Outcome::Replied { reply, .. } => break reply,
            other => panic!("{name}: {other:?}"),
        }
    };
    assert_eq!(reply, Reply::json(201, &"ch_1").unwrap(), "{name}");
    let id = KeyId::derive("test", &Scope::shared(), &Key::new(name.as_bytes()).unwrap(), None);
    let attempts = flows.history(&id).await.unwrap().unwrap().attempts;
    // Not taken over, and not begun again: the first attempt went on by itself.
    assert_eq!((attempts, provider.calls(), provider.charges()), (1, 1, 1), "{name}");
    assert_eq!(rig.orders_of(name).await, 1, "{name}");
    dropped
}

async fn a_client_that_hangs_up_at_any_poll_changes_nothing<S: TxStore>(rig: Rig<S>) {
    /// A database that answers at once makes a run with fewer polls than there can be: so many in a row have
    /// come to their end before that is believed to be the last one.
    const NEVER: usize = 5;
    let (mut polls, mut runs, mut never) = (0, 0, 0);
    while never < NEVER {
        runs += 1;
        let watch = Watch { at: polls + 1, ..Watch::default() };
        match hang_up(&rig, &format!("run {runs}"), &watch, &Plan::new()).await {
            Hung::Up => (polls, never) = (polls + 1, 0),
            Hung::Never => never += 1,
        }
    }
    // Fewer, and the body was not watched.
    assert!(polls >= 8, "{polls}");
    assert_eq!(rig.orders_of("ch_1").await, runs);
}

async fn a_client_that_hangs_up_at_any_statement_changes_nothing<S: TxStore>(rig: Rig<S>) {
    let mut points = 0;
    loop {
        let (watch, plan) = (Watch::default(), Plan::new());
        let told = Arc::clone(&watch.hang_up);
        plan.arm(points + 1, Fault::Do(Arc::new(move || told.notify_one())));
        let name = format!("point {}", points + 1);
        // The retry passes points, too: that many more than the request has.
        if hang_up(&rig, &name, &watch, &plan).await == Hung::Never {
            break;
        }
        points += 1;
    }
    assert!(points >= 12, "{points}");
    let receipts = i64::try_from(points + 1).unwrap();
    assert_eq!(rig.orders_of("ch_1").await, receipts);
}

/// How often it is tried to drop something in its middle. On a busy machine a server often answers
/// before it is asked a second time.
const TRIES: usize = 200;

/// Polls so often, each time that there is something to do, and then drops it.
async fn dropped_after<T>(polls: u64, work: impl Future<Output = T>) -> Option<T> {
    let mut left = polls;
    let mut work = pin!(work);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        work.as_mut().poll(context).map(Some)
    })
    .await
}

/// `oncekey::tx` is not driven by a task: dropping it rolls back or, during the commit, does not.
/// Either way the next request ends with one row and one reply.
async fn a_local_handler_that_is_dropped_at_any_poll_is_all_or_nothing<S: TxStore>(rig: Rig<S>) {
    // A claim that is dropped half-way is owned by nobody until its lease lapses.
    let times = Times { lease: Duration::from_millis(500), ..Times::default() };
    let local = rig.local().times(times);
    let run = async |name: &str| {
        oncekey::tx(&local, key(name), name, || {
            async |tx: &mut PhaseTx<S>| {
                insert(tx, name).await?;
                Reply::json(201, &name)
            }
        })
        .await
    };
    // A database that answers at once leaves fewer moments to be dropped in: then it is tried again.
    let (mut polls, mut round, mut most) = (0, 0, 0);
    while most < 4 {
        let name = format!("tx {round}, {polls}");
        let first = dropped_after(polls, run(&name)).await;
        let reply = loop {
            match run(&name).await {
                Ok(Outcome::Replied { reply, .. }) => break reply,
                Ok(Outcome::InProgress { .. }) | Err(Halt::Retry { .. } | Halt::Fenced) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                other => panic!("{name}: {other:?}"),
            }
        };
        assert_eq!((reply.status(), rig.orders_of(&name).await), (201, 1), "{name}");
        match first {
            None => polls += 1,
            Some(Ok(Outcome::Replied { .. })) => {
                (polls, round, most) = (0, round + 1, most.max(polls));
                assert!(most >= 4 || round < TRIES, "it ends after {most} polls at most");
            }
            // Under its old name it would find the row of the first time.
            Some(Err(Halt::Fenced)) => round += 1,
            Some(other) => panic!("{name}: {other:?}"),
        }
    }
}

/// The trap of sqlx 0.9: a `begin` that is dropped while the server answers leaves an open transaction
/// in the pool, and what the next caller writes there succeeds and is lost.
async fn a_begin_that_is_dropped_at_any_poll_leaves_a_clean_connection<S: TxStore>(rig: Rig<S>) {
    let put = rig.db.layout().statement("INSERT INTO {records}_orders (name, n) VALUES (?, 0)");
    // A server may answer before it is asked a second time, and then there is no middle to drop it in.
    for round in 0..TRIES {
        let mut was_in_the_middle = false;
        for polls in 0_u64.. {
            let begun = dropped_after(polls, rig.narrow.begin()).await;
            let was_dropped = begun.is_none();
            drop(begun);
            let name = format!("begin {round}, {polls}");
            rig.narrow.execute_once(&put, &[Value::Text(&name)]).await.unwrap();
            // By another connection.
            assert_eq!(rig.orders_of(&name).await, 1, "{name}");
            if !was_dropped {
                break;
            }
            was_in_the_middle |= polls > 0;
        }
        if was_in_the_middle {
            return;
        }
    }
    panic!("no begin was dropped in its middle");
}

/// Whether what is written after a dropped `begin` of sqlx itself is lost, for some moment of the drop. That
/// is the trap, and why ours runs in a task. Where this fails one day, the trap is gone. On MySQL it
/// was seen in some runs and not in others, so nothing is asserted there.
macro_rules! is_lost {
    ($rig:expr) => {{
        let rig = $rig;
        let put = rig.db.layout().statement("INSERT INTO {records}_orders (name, n) VALUES (?, 0)");
        let mut is_lost = false;
        for round in 0..TRIES {
            for polls in 0_u64..40 {
                let begun = dropped_after(polls, rig.narrow.pool().begin()).await;
                let was_dropped = begun.is_none();
                drop(begun);
                let name = format!("begin {round}, {polls}");
                rig.narrow.execute_once(&put, &[Value::Text(&name)]).await.unwrap();
                is_lost |= rig.orders_of(&name).await == 0;
                if is_lost || !was_dropped {
                    break;
                }
            }
            if is_lost {
                break;
            }
        }
        is_lost
    }};
}

#[tokio::test]
async fn a_dropped_begin_of_the_driver_itself_loses_nothing_on_sqlite() {
    assert!(!is_lost!(databases::sqlite().await));
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_dropped_begin_of_the_driver_itself_loses_writes_on_postgres() {
    assert!(is_lost!(databases::postgres().await));
}
