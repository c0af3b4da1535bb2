//! Messages that are left for the end of a phase are staged with it, or not at all. On each database and with
//! each driver.
#![cfg(all(
    feature = "flow-rusqlite",
    feature = "flow-tokio-postgres",
    feature = "outbox",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql"
))]
#![expect(clippy::unwrap_used, reason = "a test fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/databases.rs"]
#[macro_use]
mod databases;

use std::sync::Arc;
use std::time::Duration;

use databases::{Rig, insert, key};
use oncekey::flow::{
    Definition, Dialect, Flow, Flows, Halt, Options, Outcome, Reply, Safety, TxStore, Value,
};
use oncekey::outbox::{Delivery, Handler, Relay};
use tokio::sync::{Notify, mpsc};

on_each_database!(
    whatever_is_left_for_the_end_is_sent_once_the_phase_has_committed,
    a_phase_that_fails_stages_nothing,
    an_owner_that_was_replaced_stages_nothing,
    a_smuggled_end_stages_nothing_at_the_end_of_a_flow,
    a_local_handler_stages_what_it_left_for_the_end,
);

fn patient() -> Options {
    let lease = Duration::from_secs(60);
    Options { lease, grace: Duration::ZERO, pause: Duration::ZERO, ..Options::default() }
}

fn built<S: TxStore>(store: &S, definition: Definition<S>) -> Flows<S> {
    let flows = Flows::builder(store.clone(), "test").options(patient());
    flows.flow(definition).build().unwrap()
}

async fn staged<S: TxStore>(rig: &Rig<S>, topic: &str) -> i64 {
    rig.count("SELECT count(*) FROM {staged} WHERE topic = ?", &[Value::Text(topic)]).await
}

fn status(outcome: &Outcome) -> u16 {
    match outcome {
        Outcome::Replied { reply, .. } => reply.status(),
        other => panic!("{other:?}"),
    }
}

/// With so many messages in a phase, so many late outcomes, and so many messages at the end.
async fn whatever_is_left_for_the_end_is_sent_once_the_phase_has_committed<S: TxStore>(
    rig: Rig<S>,
) {
    let body = |flow: Flow<S>, (phase, late, end): (usize, usize, usize)| async move {
        flow.phase("written", async |tx| {
            for number in 0..phase {
                tx.stage_at_end("phase", &number)?;
            }
            insert(tx, "written").await
        })
        .await?;
        let calls = (0..late).map(|number| (number, ())).collect();
        flow.each("called", calls, async |step, ()| {
            flow.effect::<()>(step, Safety::Natural).call(async |_| Ok(())).await
        })
        .await?;
        flow.finish(async |tx| {
            for number in 0..end {
                tx.stage_at_end("end", &number)?;
            }
            Ok(Reply::empty(201))
        })
        .await
    };
    let flows = built(&rig.db, Definition::new("order", body));
    let (mut in_phases, mut at_ends) = (0, 0);
    for phase in 0..3_usize {
        for late in 0..3_usize {
            for end in 0..3_usize {
                let name = format!("{phase} {late} {end}");
                let outcome = flows.run("order", key(&name), &(phase, late, end)).await.unwrap();
                assert_eq!(status(&outcome), 201, "{name}");
                (in_phases, at_ends) = (in_phases + phase, at_ends + end);
                let found = (staged(&rig, "phase").await, staged(&rig, "end").await);
                let expected = (in_phases.try_into().unwrap(), at_ends.try_into().unwrap());
                assert_eq!(found, expected, "{name}");
                let steps = "SELECT count(*) FROM {steps}";
                let before = rig.count(steps, &[]).await;
                // Asked again, nothing is staged again.
                flows.run("order", key(&name), &(phase, late, end)).await.unwrap();
                assert_eq!(staged(&rig, "end").await, expected.1, "{name}");
                assert_eq!(rig.count(steps, &[]).await, before);
            }
        }
    }
    let of_flows = "SELECT count(*) FROM {staged} AS s JOIN {flows} AS f ON f.flow_id = s.flow_id";
    assert_eq!(rig.count(of_flows, &[]).await, i64::try_from(in_phases + at_ends).unwrap());
    let (sender, mut sent) = mpsc::unbounded_channel();
    let sink = || {
        let sender = sender.clone();
        Handler::new(move |message| {
            let _ = sender.send(message);
            async { Delivery::Sent }
        })
    };
    let relay = Relay::new(rig.db.clone()).route("phase", sink()).route("end", sink());
    let all = async {
        for _ in 0..in_phases + at_ends {
            let message = sent.recv().await.unwrap();
            let number: usize = serde_json::from_slice(message.body()).unwrap();
            assert!(number < 3);
        }
    };
    relay.run(all).await;
}

async fn a_phase_that_fails_stages_nothing<S: TxStore>(rig: Rig<S>) {
    let body = |flow: Flow<S>, (): ()| async move {
        flow.phase("written", async |tx| {
            tx.stage_at_end("phase", &1)?;
            Err::<(), _>(Halt::Stop(Reply::empty(402)))
        })
        .await?;
        flow.finish(async |_| Ok(Reply::empty(201))).await
    };
    let flows = built(&rig.db, Definition::new("order", body));
    assert_eq!(status(&flows.run("order", key("a"), &()).await.unwrap()), 402);
    assert_eq!(staged(&rig, "phase").await, 0);
}

/// I44: the statement that stages is fenced as the reply is.
async fn an_owner_that_was_replaced_stages_nothing<S: TxStore>(rig: Rig<S>) {
    let (stands, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let body = |name: &'static str| {
        let (stands, goes_on) = (Arc::clone(&stands), Arc::clone(&goes_on));
        Definition::new("order", move |flow: Flow<S>, (): ()| {
            let (stands, goes_on) = (Arc::clone(&stands), Arc::clone(&goes_on));
            async move {
                flow.finish(async |tx| {
                    if name == "first" {
                        stands.notify_one();
                        goes_on.notified().await;
                    }
                    tx.stage_at_end(name, &1)?;
                    tx.stage_at_end(name, &2)?;
                    Ok(Reply::empty(201))
                })
                .await
            }
        })
    };
    let (first, second) = (built(&rig.db, body("first")), built(&rig.db, body("second")));
    let slow = tokio::spawn(async move { first.run("order", key("a"), &()).await });
    stands.notified().await;
    // There the first one has the only pen, and nobody can take the flow from it meanwhile.
    let is_sqlite = rig.db.layout().dialect() == Dialect::Sqlite;
    if !is_sqlite {
        let lapse = rig.db.layout().statement("UPDATE {flows} SET lease = 0, due = 0");
        rig.db.execute_once(&lapse, &[]).await.unwrap();
        assert_eq!(status(&second.run("order", key("a"), &()).await.unwrap()), 201);
    }
    goes_on.notify_one();
    let late = slow.await.unwrap().unwrap();
    assert_eq!(matches!(late, Outcome::Replied { .. }), is_sqlite, "{late:?}");
    let expected = if is_sqlite { (2, 0) } else { (0, 2) };
    assert_eq!((staged(&rig, "first").await, staged(&rig, "second").await), expected);
}

async fn a_smuggled_end_stages_nothing_at_the_end_of_a_flow<S: TxStore>(rig: Rig<S>) {
    for messages in 1..3 {
        let body = move |flow: Flow<S>, (): ()| async move {
            flow.finish(async |tx| {
                S::execute(&mut **tx, &"COMMIT".into(), &[]).await?;
                for number in 0..messages {
                    tx.stage_at_end("end", &number)?;
                }
                Ok(Reply::empty(201))
            })
            .await
        };
        let flows = built(&rig.narrow, Definition::new("order", body));
        let outcome = flows.run("order", key(&messages.to_string()), &()).await.unwrap();
        assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
        assert_eq!(staged(&rig, "end").await, 0, "{messages}");
    }
}

async fn a_local_handler_stages_what_it_left_for_the_end<S: TxStore>(rig: Rig<S>) {
    let local = rig.local();
    for _ in 0..2 {
        let body = || {
            async |tx: &mut oncekey::flow::PhaseTx<S>| {
                tx.stage_at_end("local", &1)?;
                insert(tx, "a").await?;
                Ok(Reply::empty(201))
            }
        };
        let outcome = oncekey::flow::tx(&local, key("a"), &1, body).await.unwrap();
        assert_eq!(status(&outcome), 201);
    }
    assert_eq!((rig.orders().await, staged(&rig, "local").await), (1, 1));
}
