//! What company promises.

use super::*;
use crate::flow::claim::{Before, Claimed, Held, Patience, claim, look};
use crate::flow::intent::{intents, state};
use crate::flow::point::{Kind, Point, steps};
use crate::flow::tests::{LONG, rigs, start, won};

/// Makes a test of each case for each driver.
macro_rules! on_each_driver {
    ($($case:ident),+ $(,)?) => {
        mod sqlx {
            $(#[tokio::test] #[ignore = "needs PostgreSQL: run cargo xtask test"]
            async fn $case() {
                super::$case(super::rigs::postgres().await).await;
            })+
        }
        mod tokio_postgres {
            $(#[tokio::test] #[ignore = "needs PostgreSQL: run cargo xtask test"]
            async fn $case() {
                super::$case(super::rigs::tokio_postgres().await).await;
            })+
        }
    };
}

on_each_driver!(
    of_many_that_start_together_each_flow_has_one_owner,
    a_start_in_company_is_a_start,
    in_company_everybody_hears_what_concerns_them,
    a_value_that_is_refused_is_refused_alone,
    nobody_waits_in_company_for_a_row_that_somebody_holds,
    a_start_leaves_no_setting_behind,
    no_statement_of_many_reads_a_whole_table_while_the_tables_are_new,
);

fn intent(held: &Held, name: &str) -> Said {
    let values = [
        Value::Text(name),
        Value::Text(""),
        Value::Int(4),
        Value::Int(0),
        Value::Bytes(b"bound"),
        Value::Text(name),
        Value::Text(""),
        Value::Bytes(&[0, 255]),
        Value::Bytes(held.id.as_bytes()),
        Value::Int(held.fence),
        Value::Bytes(held.owner.as_bytes()),
    ];
    said(What::Intend, held.id, &values)
}

fn outcome(held: &Held, name: &str) -> Said {
    let (step, output) = (name.into(), &[7, 0, 255]);
    let point = Point { step: &step, kind: Kind::Effect, shape: "i64", bound: b"bound", output };
    said(What::Outcome, held.id, &point.held_row(held))
}

fn said(what: What, id: KeyId, values: &[Value<'_>]) -> Said {
    Said { what, id, values: values.iter().map(Owned::from).collect() }
}

async fn together<S: TxStore>(store: &S, batch: &[Said]) -> Vec<bool> {
    let answers = Server(store.clone()).run(&mut (), batch).await.expect("it is not refused");
    answers.into_iter().map(|met| met.unwrap().unwrap().is_some()).collect()
}

/// I1: whoever else starts in the same moment.
async fn of_many_that_start_together_each_flow_has_one_owner<S: TxStore>(store: S) {
    let gather = Arc::new(Gather::new(store));
    let tries = (0..120_u8).map(|number| {
        let (gather, start) = (Arc::clone(&gather), start(number / 3, number, LONG));
        tokio::spawn(async move { (start.id, claim(&gather, &start, Patience::None).await) })
    });
    let mut winners = std::collections::HashSet::new();
    for tried in tries.collect::<Vec<_>>() {
        match tried.await.unwrap() {
            (id, Ok(Claimed::Won(held))) => {
                assert_eq!((held.before, held.attempts), (Before::Nothing, 1));
                assert!(winners.insert(id), "two owners of {id}");
            }
            (_, Ok(Claimed::Busy(_))) => {}
            (_, other) => panic!("{other:?}"),
        }
    }
    assert_eq!(winners.len(), 40);
}

async fn a_start_in_company_is_a_start<S: TxStore>(store: S) {
    let batch: Vec<Said> = (1..=2)
        .map(|number| {
            let start = start(number, number, LONG);
            let values = [
                Value::Bytes(start.id.as_bytes()),
                Value::Text(&start.name),
                Value::Int(start.version),
                Value::Bytes(start.owner.as_bytes()),
                Value::Int(60_000_000),
                Value::Int(120_000_000),
                Value::Bytes(&start.fingerprint),
                Value::Bytes(&start.input),
                Value::Bytes(&start.key),
                Value::Bytes(&start.scope),
            ];
            said(What::Start, start.id, &values)
        })
        .collect();
    assert_eq!(together(&store, &batch).await, [true, true]);
    assert_eq!(together(&store, &batch).await, [false, false], "they are there already");
    let alone = won(&store, &start(3, 3, LONG)).await;
    let alone = look(&store, &alone.id).await.unwrap().unwrap();
    for said in &batch {
        let stored = look(&store, &said.id).await.unwrap().unwrap();
        let of = |stored: &crate::flow::claim::Stored| {
            let spans = (stored.lease - stored.created, stored.due - stored.created);
            let near = |span: i64, to: i64| (span - to).abs() < 1_000_000;
            assert!(near(spans.0, 60_000_000) && near(spans.1, 120_000_000), "{spans:?}");
            assert!(near(stored.fence, stored.created), "{stored:?}");
            format!(
                "{} {} {} {} {:?} {:?} {} {} {} {:?}",
                stored.state,
                stored.name,
                stored.version,
                stored.attempts,
                stored.fingerprint,
                stored.input,
                stored.point,
                stored.pivot,
                stored.reason,
                stored.data
            )
        };
        assert_eq!(of(&stored), of(&alone));
    }
}

/// I4: who was replaced writes nothing, and hears so, and nobody else does.
async fn in_company_everybody_hears_what_concerns_them<S: TxStore>(store: S) {
    let one = won(&store, &start(1, 1, LONG)).await;
    let two = won(&store, &start(2, 2, LONG)).await;
    let stale = Held { fence: two.fence - 1, ..two.clone() };
    let absent = Held { id: KeyId::from_bytes([9; 32]), ..one.clone() };
    let met = [true, false, false];
    for of in [intent, outcome] {
        let batch = [of(&one, "charge"), of(&stale, "charge"), of(&absent, "charge")];
        assert_eq!(together(&store, &batch).await, met);
    }
    let taken = steps(&store, &one.id).await.unwrap();
    let step = taken.get(&"charge".into()).expect("the step is taken");
    assert_eq!((step.output.as_slice(), step.bound.as_slice()), (&[7, 0, 255][..], &b"bound"[..]));
    assert_eq!((step.kind, step.shape.as_str(), step.fence), (2, "i64", one.fence));
    let intents_of_one = intents(&store, &one.id).await.unwrap();
    let intent = intents_of_one.get(&"charge".into()).expect("the intent is written");
    assert_eq!((intent.state, intent.safety, intent.calls, intent.seq), (state::DONE, 4, 1, 1));
    assert_eq!(
        (intent.undo_data.as_slice(), intent.foreign_key.as_str()),
        (&[0, 255][..], "charge")
    );
    assert_eq!(look(&store, &one.id).await.unwrap().unwrap().point, "charge");
    assert!(intents(&store, &two.id).await.unwrap().is_empty());
    assert!(steps(&store, &two.id).await.unwrap().is_empty());
    assert_eq!(look(&store, &two.id).await.unwrap().unwrap().point, "started");
}

/// PostgreSQL has no zeros in texts. Whoever sends one hears of it, and the others do not.
async fn a_value_that_is_refused_is_refused_alone<S: TxStore>(store: S) {
    let one = won(&store, &start(1, 1, LONG)).await;
    let two = won(&store, &start(2, 2, LONG)).await;
    let batch = [intent(&one, "charge"), intent(&two, "char\0ge")];
    let refused = Server(store.clone()).run(&mut (), &batch).await;
    assert!(matches!(refused, Err(Failure::Refused(_))), "{refused:?}");
    let alone = Server(store.clone()).run(&mut (), &batch[..1]).await.unwrap();
    assert!(matches!(alone[0], Ok(Ok(Some(_)))), "{alone:?}");
    let alone = Server(store.clone()).run(&mut (), &batch[1..]).await.unwrap();
    assert!(matches!(&alone[0], Ok(Err(_))), "{alone:?}");
}

/// One slow row costs the company a moment, and leaves no setting behind on the connection.
async fn nobody_waits_in_company_for_a_row_that_somebody_holds<S: TxStore>(store: S) {
    let one = won(&store, &start(1, 1, LONG)).await;
    let two = won(&store, &start(2, 2, LONG)).await;
    let mut tx = store.begin().await.unwrap();
    let hold = &store.layout().sql().look_and_hold;
    S::query(S::conn(&mut tx), hold, &[Value::Bytes(two.id.as_bytes())]).await.unwrap();
    let batch = [intent(&one, "charge"), intent(&two, "charge")];
    let refused = Server(store.clone()).run(&mut (), &batch).await;
    assert!(matches!(refused, Err(Failure::Refused(_))), "{refused:?}");
    S::rollback(tx).await.unwrap();
    assert_eq!(together(&store, &batch).await, [true, true]);
    let setting: Arc<str> = "SELECT current_setting('lock_timeout')".into();
    for _ in 0..8 {
        let rows = store.query_once(&setting, &[]).await.unwrap();
        assert_eq!(rows[0].text(0).unwrap(), "0", "it ends with its statement");
    }
}

/// A start does not wait for the disk. Whatever else is said on its connection does.
async fn a_start_leaves_no_setting_behind<S: TxStore>(store: S) {
    let setting: Arc<str> = "SELECT current_setting('synchronous_commit')".into();
    let usual = store.query_once(&setting, &[]).await.unwrap()[0].text(0).unwrap().to_owned();
    assert_ne!(usual, "off", "the server waits for its disk");
    for number in 1..=8 {
        won(&store, &start(number, number, LONG)).await;
        let rows = store.query_once(&setting, &[]).await.unwrap();
        assert_eq!(rows[0].text(0).unwrap(), usual);
    }
    let sql = store.layout().sql();
    assert!(sql.start.contains("'synchronous_commit'"), "{}", sql.start);
    for what in [What::Intend, What::Outcome] {
        let many = sql.many(what);
        assert!(!many.contains("synchronous_commit"), "it must be on the disk: {many}");
    }
}

/// A plan is kept for as long as the connection lives, and made when the tables are empty: then reading all
/// of a table looks cheap.
async fn no_statement_of_many_reads_a_whole_table_while_the_tables_are_new<S: TxStore>(store: S) {
    let sql = store.layout().sql();
    let many = [What::Start, What::Intend, What::Outcome].map(|what| (sql.many(what), 1));
    let single = [
        (&sql.renew, 5),
        (&sql.outcome, 9),
        (&sql.intend, 11),
        (&sql.hold_and_put, 9),
        (&sql.hold_and_put_two, 15),
        (&sql.put_late, 9),
        (&sql.finish, 6),
        (&sql.finish_and_put, 12),
    ];
    let mut tx = store.begin().await.unwrap();
    let conn = S::conn(&mut tx);
    let generic = "SET LOCAL plan_cache_mode = force_generic_plan".into();
    S::execute(conn, &generic, &[]).await.unwrap();
    for (statement, values) in many.into_iter().chain(single) {
        S::execute(conn, &format!("PREPARE planned AS {statement}").into(), &[]).await.unwrap();
        let nothing = vec!["NULL"; values].join(", ");
        let explain = format!("EXPLAIN EXECUTE planned({nothing})").into();
        let rows = S::query(conn, &explain, &[]).await.unwrap();
        let plan: Vec<_> = rows.iter().map(|row| row.text(0).unwrap()).collect();
        let plan = plan.join("\n");
        assert!(!plan.contains("Seq Scan"), "{statement}\n{plan}");
        assert!(!plan.contains("flows_due"), "a flow is found by its id: {statement}\n{plan}");
        assert!(plan.contains("Insert") || plan.contains("Update"), "{plan}");
        S::execute(conn, &"DEALLOCATE planned".into(), &[]).await.unwrap();
    }
    S::rollback(tx).await.unwrap();
}
