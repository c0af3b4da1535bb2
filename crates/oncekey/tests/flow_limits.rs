//! Nothing of a flow hangs, hammers, comes twice or stays for ever.
#![cfg(all(feature = "flow", feature = "sqlite"))]
#![expect(clippy::unwrap_used, reason = "a test fails as tests do")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test fails on whatever it does not expect")]

#[path = "flow_common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Provider, Rig, Store, charge_flow, key};
use oncekey::core::KeyId;
use oncekey::flow::{
    Compensation, Completer, Definition, Did, Failed, Flow, Flows, Options, Outcome, Reply,
    Resolved, Safety, Step, Stuck,
};

/// Long enough for a statement on a busy machine, short enough for a test.
const MOMENT: Duration = Duration::from_millis(300);

fn id_of(text: &str) -> KeyId {
    let scope = oncekey::core::Scope::new("shared").unwrap();
    let key = oncekey::core::Key::new(text.as_bytes()).unwrap();
    KeyId::derive("test", &scope, &key, None)
}

fn flows(rig: &Rig, options: Options, definition: Definition<Store>) -> Flows<Store> {
    let flows = Flows::builder(rig.store.clone(), "test").flow(definition);
    flows.options(options).build().unwrap()
}

async fn change(rig: &Rig, sql: &'static str) {
    assert!(sqlx::query(sql).execute(rig.store.pool()).await.unwrap().rows_affected() > 0, "{sql}");
}

/// One call that never ends, of this class.
fn hanging(safety: Safety) -> Definition<Store> {
    Definition::new("hangs", move |flow: Flow<Store>, _: i64| async move {
        let call = flow.effect("call", safety).call(async |_| std::future::pending().await);
        let _: String = call.await?;
        flow.finish(async |_| Ok(Reply::empty(200))).await
    })
}

/// A foreign call that never answers is given up, and nobody takes it for not made.
#[tokio::test]
async fn a_call_that_hangs_is_given_up_as_unknown() {
    let rig = Rig::new().await;
    let options = Options { longest_call: MOMENT, ..Options::default() };
    let window = Duration::from_secs(86_400);
    let keyed = flows(&rig, options.clone(), hanging(Safety::Keyed { window }));
    let outcome = keyed.run("hangs", &key("keyed"), &1_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    let history = keyed.history(&id_of("keyed")).await.unwrap().unwrap();
    assert_eq!(history.effects[0].state, "intended", "it may have been received");
    let once = flows(&rig, options, hanging(Safety::Once));
    let outcome = once.run("hangs", &key("once"), &1_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
}

/// A call may be given another time than all others.
#[tokio::test]
async fn a_call_has_a_limit_of_its_own() {
    let rig = Rig::new().await;
    let body = |flow: Flow<Store>, _: i64| async move {
        let call = flow.effect("call", Safety::Natural).within(MOMENT);
        let _: String = call.call(async |_| std::future::pending().await).await?;
        flow.finish(async |_| Ok(Reply::empty(200))).await
    };
    let flows = flows(&rig, Options::default(), Definition::new("hangs", body));
    let outcome = flows.run("hangs", &key("a"), &1_i64).await.unwrap();
    let Outcome::Later { why, .. } = outcome else { panic!("{outcome:?}") };
    assert!(why.contains("no answer within 300ms"), "{why}");
}

/// Code that hangs between its steps is stopped, and the flow is free for the next attempt.
#[tokio::test]
async fn an_attempt_that_hangs_is_stopped() {
    let rig = Rig::new().await;
    let tries = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&tries);
    let body = move |flow: Flow<Store>, _: i64| {
        let seen = Arc::clone(&seen);
        async move {
            if seen.fetch_add(1, Ordering::SeqCst) == 0 {
                std::future::pending::<()>().await;
            }
            flow.finish(async |_| Ok(Reply::empty(200))).await
        }
    };
    let options = Options { longest_attempt: MOMENT, pause: Duration::ZERO, ..Options::default() };
    let flows = flows(&rig, options, Definition::new("hangs", body));
    let outcome = flows.run("hangs", &key("a"), &1_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    let outcome = flows.run("hangs", &key("a"), &1_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Replied { .. }), "{outcome:?}");
    assert_eq!(tries.load(Ordering::SeqCst), 2);
}

/// An owner that cannot renew stops when its lease is over by its own clock, not when somebody tells
/// it: by then somebody else may be calling (I5).
#[tokio::test]
async fn an_owner_that_cannot_renew_stops_at_its_deadline() {
    let rig = Rig::new().await;
    let acted = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&acted);
    let body = move |flow: Flow<Store>, _: i64| {
        let seen = Arc::clone(&seen);
        async move {
            let seen = &seen;
            let call = flow.effect("call", Safety::Natural).call(async |_| {
                // Four leases, a moment each.
                for _ in 0..40 {
                    tokio::time::sleep(MOMENT / 3).await;
                    seen.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            });
            call.await?;
            flow.finish(async |_| Ok(Reply::empty(200))).await
        }
    };
    let options = Options { lease: MOMENT * 3, ..Options::default() };
    let flows = flows(&rig, options, Definition::new("acts", body));
    let running = {
        let flows = flows.clone();
        tokio::spawn(async move { flows.run("acts", &key("a"), &1_i64).await })
    };
    while acted.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Nobody can write, as if the database were gone.
    let mut writer = rig.store.pool().begin_with("BEGIN IMMEDIATE").await.unwrap();
    let outcome = running.await.unwrap();
    let stopped_at = acted.load(Ordering::SeqCst);
    assert!(stopped_at < 40, "it did not stop");
    tokio::time::sleep(MOMENT * 2).await;
    assert_eq!(acted.load(Ordering::SeqCst), stopped_at, "it goes on behind its deadline");
    sqlx::query("SELECT 1").execute(&mut *writer).await.unwrap();
    drop(writer);
    assert!(!matches!(outcome, Ok(Outcome::Replied { .. })), "{outcome:?}");
}

/// A client that hammers does not use up the attempts of a flow: the pause holds for everybody.
#[tokio::test]
async fn a_client_that_hammers_waits_like_everybody() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let options = Options { pause: Duration::from_secs(3_600), ..Options::default() };
    let flows =
        flows(&rig, Options { longest_pause: options.pause, ..options }, charge_flow(&provider));
    provider.busy.store(100, Ordering::SeqCst);
    for _ in 0..30 {
        let outcome = flows.run("rides.create", &key("a"), &5_i64).await.unwrap();
        assert!(
            matches!(outcome, Outcome::Later { .. } | Outcome::InProgress { .. }),
            "{outcome:?}"
        );
    }
    assert_eq!(provider.calls(), 1);
}

/// A charge that a stop takes back with this compensation, if that is called `refund`.
fn charged_and_stopped(
    compensation: Compensation,
    rig: &Rig,
    options: Options,
    name: &str,
) -> Flows<Store> {
    let body = |flow: Flow<Store>, _: i64| async move {
        let _: String = flow
            .effect("charge", Safety::Keyed { window: Duration::from_secs(86_400) })
            .undo("refund", &7_i64)
            .call(async |_| Ok("ch_1".to_owned()))
            .await?;
        let declined: Result<(), _> = Err(Failed::Final(Reply::empty(402)));
        flow.effect::<()>("ship", Safety::Natural).call(async |_| declined).await?;
        flow.finish(async |_| Ok(Reply::empty(200))).await
    };
    Flows::builder(rig.store.clone(), "test")
        .flow(Definition::new("buys", body))
        .compensation(name, compensation)
        .options(options)
        .build()
        .unwrap()
}

/// A compensation that panics every time ends with a person, like one that fails every time.
#[tokio::test]
async fn a_compensation_that_never_returns_is_counted() {
    let rig = Rig::new().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let undo = Compensation::new(move |_: i64, _: Did<String>, _| {
        seen.fetch_add(1, Ordering::SeqCst);
        async { panic!("a compensation panics, as the test wants") }
    });
    let options = Options { pause: Duration::ZERO, most_undo_attempts: 3, ..Options::default() };
    let flows = charged_and_stopped(undo, &rig, options, "refund");
    let mut last = None;
    for _ in 0..6 {
        last = Some(flows.run("buys", &key("a"), &1_i64).await.unwrap());
    }
    assert!(matches!(last, Some(Outcome::Parked { .. })), "{last:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    // A person may have it tried again, on the way back and not forward.
    assert_eq!(flows.retry(&id_of("a"), "again").await.unwrap(), Resolved::Yes);
    let _ = flows.run("buys", &key("a"), &1_i64).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 4);
}

/// A refund whose answer was lost is not made again once the other side may have forgotten its key.
#[tokio::test]
async fn a_compensation_is_not_repeated_past_its_window() {
    for (age, expected) in [("0", 2), ("7200000000", 1)] {
        let rig = Rig::new().await;
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&calls);
        let undo = Compensation::new(move |_: i64, _: Did<String>, _| {
            let call = seen.fetch_add(1, Ordering::SeqCst);
            async move {
                match call {
                    0 => Err(Failed::Unknown("the answer was lost".to_owned())),
                    _ => Ok(()),
                }
            }
        });
        let options = Options { pause: Duration::ZERO, ..Options::default() };
        let hour = Duration::from_secs(3_600);
        let flows = charged_and_stopped(undo.keyed(hour), &rig, options, "refund");
        flows.run("buys", &key("a"), &1_i64).await.unwrap();
        let sql = format!(
            "UPDATE oncekey_effects SET undo_first_at = undo_first_at - {age} WHERE undo_calls > 0"
        );
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(rig.store.pool()).await.unwrap();
        let outcome = flows.run("buys", &key("a"), &1_i64).await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), expected, "{outcome:?}");
        if expected == 2 {
            assert!(matches!(outcome, Outcome::Replied { .. }), "{outcome:?}");
            continue;
        }
        assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
        // Trying again does not make the other side remember. Only a person who has looked helps.
        assert_eq!(flows.retry(&id_of("a"), "again").await.unwrap(), Resolved::Yes);
        let outcome = flows.run("buys", &key("a"), &1_i64).await.unwrap();
        assert!(matches!(outcome, Outcome::Parked { .. }), "{outcome:?}");
        assert_eq!(calls.load(Ordering::SeqCst), 1, "the refund is not made twice");
        let undone = flows.was_undone(&id_of("a"), "charge", "seen in their books").await;
        assert_eq!(undone.unwrap(), Resolved::Yes);
        let outcome = flows.run("buys", &key("a"), &1_i64).await.unwrap();
        assert!(matches!(outcome, Outcome::Replied { .. }), "{outcome:?}");
    }
}

/// What a compensation that nobody knows has waited for is not taken from its time: nothing was sent.
#[tokio::test]
async fn the_time_of_a_compensation_begins_with_its_first_call() {
    let rig = Rig::new().await;
    let options = Options { pause: Duration::ZERO, ..Options::default() };
    let undo = || Compensation::new(|_: i64, _: Did<String>, _| async { Ok(()) });
    let unknown = charged_and_stopped(undo(), &rig, options.clone(), "another");
    let outcome = unknown.run("buys", &key("a"), &1_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    let begun = "SELECT max(undo_first_at) FROM oncekey_effects WHERE undo_calls = 1";
    let begun: i64 = sqlx::query_scalar(begun).fetch_one(rig.store.pool()).await.unwrap();
    assert_eq!(begun, 0, "counted, and not begun");
    let known = charged_and_stopped(undo(), &rig, options, "refund");
    let outcome = known.run("buys", &key("a"), &1_i64).await.unwrap();
    assert!(matches!(outcome, Outcome::Replied { .. }), "{outcome:?}");
}

/// Whoever drops a completer leaves what it drives to itself: it is driven to its end, lease and all.
#[tokio::test(flavor = "multi_thread")]
async fn a_completer_that_is_dropped_abandons_nobody() {
    let rig = Rig::new().await;
    let (begun, go_on) =
        (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (tell, wait) = (Arc::clone(&begun), Arc::clone(&go_on));
    let body = move |flow: Flow<Store>, _: i64| {
        let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
        async move {
            if flow.attempt() == 1 {
                return Err(oncekey::flow::Halt::retry("for the completer"));
            }
            tell.notify_one();
            wait.notified().await;
            flow.finish(async |_| Ok(Reply::empty(200))).await
        }
    };
    let options = Options { pause: Duration::ZERO, lease: MOMENT * 3, ..Options::default() };
    let flows = flows(&rig, options, Definition::new("slow", body));
    flows.run("slow", &key("a"), &1_i64).await.unwrap();
    let completer = Completer::new(flows.clone());
    tokio::select! {
        _ = completer.run_once() => panic!("it waits for the test"),
        () = begun.notified() => {}
    }
    // Longer than the lease: somebody renews it.
    tokio::time::sleep(MOMENT * 5).await;
    go_on.notify_one();
    let ended = async {
        loop {
            match flows.run("slow", &key("a"), &1_i64).await.unwrap() {
                Outcome::Replied { .. } => break,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it is driven to its end");
    let history = flows.history(&id_of("a")).await.unwrap().unwrap();
    assert_eq!(history.attempts, 2, "nobody had to take it over");
}

/// Attempts of the way there do not end the way back.
#[tokio::test]
async fn the_way_back_has_a_count_of_its_own() {
    let rig = Rig::new().await;
    let fails = Arc::new(AtomicUsize::new(5));
    let left = Arc::clone(&fails);
    let undo = Compensation::new(move |_: i64, _: Did<String>, _| {
        let fails = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        async move { fails.map_or(Ok(()), |_| Err(Failed::NotDone("busy".to_owned()))) }
    });
    let options = Options { pause: Duration::ZERO, most_attempts: 2, ..Options::default() };
    let flows = charged_and_stopped(undo, &rig, options, "refund");
    let mut last = None;
    for _ in 0..7 {
        last = Some(flows.run("buys", &key("a"), &1_i64).await.unwrap());
    }
    let Some(Outcome::Replied { reply, .. }) = last else { panic!("{last:?}") };
    assert_eq!(reply.status(), 402);
}

/// The name of a step changes nothing about where a flow is going, and nothing about other keys.
#[tokio::test]
async fn a_step_may_have_any_name() {
    let rig = Rig::new().await;
    let body = |flow: Flow<Store>, _: i64| async move {
        let keys = [
            flow.foreign_key("undo/a"),
            flow.foreign_key("a"),
            flow.foreign_key(Step::item("a", "1")),
            flow.foreign_key("a[1:1]"),
            flow.foreign_key("1:a/"),
        ];
        let unlike: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(unlike.len(), keys.len(), "{keys:?}");
        for name in ["undoing", "undone", "started", "finished"] {
            flow.phase(name, async |_| Ok(())).await?;
        }
        Err(oncekey::flow::Halt::park("a person looks"))
    };
    let flows = rig.flows(Definition::new("names", body)).await;
    flows.run("names", &key("a"), &1_i64).await.unwrap();
    let skipped = flows.skip(&id_of("a"), "rest", &1_i64, "done by hand").await.unwrap();
    assert_eq!(skipped, Resolved::Yes, "it goes forward and may be helped");
}

/// What a person says about a step is taken for what the step returned, of whatever kind it is.
#[tokio::test]
async fn a_pin_can_be_given_by_a_person() {
    let rig = Rig::new().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&asked);
    let body = move |flow: Flow<Store>, _: i64| {
        let seen = Arc::clone(&seen);
        async move {
            if seen.fetch_add(1, Ordering::SeqCst) == 0 {
                return Err(oncekey::flow::Halt::park("which rate?"));
            }
            let rate = flow.pin("rate", || 1_i64).await?;
            flow.finish(async |_| Reply::json(200, &rate)).await
        }
    };
    let flows = rig.flows(Definition::new("pins", body)).await;
    flows.run("pins", &key("a"), &1_i64).await.unwrap();
    let skipped = flows.skip(&id_of("a"), "rate", &42_i64, "by phone").await.unwrap();
    assert_eq!(skipped, Resolved::Yes);
    let outcome = flows.run("pins", &key("a"), &1_i64).await.unwrap();
    let Outcome::Replied { reply, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(&reply.body()[..], b"42");
}

/// Flows that no node goes on with are in a list; those that wait their time are not.
#[tokio::test]
async fn what_nobody_takes_is_listed() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let flows = rig.flows(charge_flow(&provider)).await;
    provider.busy.store(1, Ordering::SeqCst);
    flows.run("rides.create", &key("a"), &5_i64).await.unwrap();
    assert_eq!(flows.stuck(Stuck::Overdue).await.unwrap(), []);
    change(&rig, "UPDATE oncekey_flows SET due = due - 301000000, version = 9").await;
    let done = Completer::new(flows.clone()).run_once().await.unwrap();
    assert_eq!(done.found, 0, "no node goes on with version 9");
    let overdue = flows.stuck(Stuck::Overdue).await.unwrap();
    assert_eq!(overdue.len(), 1);
    assert_eq!((overdue[0].id, overdue[0].version), (id_of("a"), 9));
}

/// One flow whose row is damaged is parked, and the others are driven.
#[tokio::test]
async fn a_damaged_row_stops_nobody_else() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let flows = rig.flows(charge_flow(&provider)).await;
    provider.busy.store(2, Ordering::SeqCst);
    for name in ["a", "b"] {
        flows.run("rides.create", &key(name), &5_i64).await.unwrap();
    }
    change(
        &rig,
        "UPDATE oncekey_flows SET fingerprint = x'00', due = due - 1000000 \
         WHERE created = (SELECT min(created) FROM oncekey_flows)",
    )
    .await;
    let completer = Completer::new(flows.clone());
    let done = completer.run_once().await.unwrap();
    assert_eq!((done.found, done.ended, done.failed), (2, 1, 1), "{done:?}");
    let done = completer.run_once().await.unwrap();
    assert_eq!(done.found, 0, "it does not come up again");
    assert_eq!(flows.stuck(Stuck::Parked).await.unwrap().len(), 1);
}

/// A flow that hangs keeps one place, and nobody else waits for it.
#[tokio::test]
async fn a_slow_flow_holds_up_no_other() {
    let rig = Rig::new().await;
    let ended = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&ended);
    let body = move |flow: Flow<Store>, hangs: bool| {
        let seen = Arc::clone(&seen);
        async move {
            if flow.attempt() == 1 {
                return Err(oncekey::flow::Halt::retry("for the completer"));
            }
            if hangs {
                std::future::pending::<()>().await;
            }
            seen.fetch_add(1, Ordering::SeqCst);
            flow.finish(async |_| Ok(Reply::empty(200))).await
        }
    };
    let flows = rig.flows(Definition::new("jobs", body)).await;
    for number in 0..9 {
        flows.run("jobs", &key(&number.to_string()), &(number == 0)).await.unwrap();
    }
    let completer = Completer::new(flows).at_once(2).every(Duration::from_millis(10));
    let all = async {
        while ended.load(Ordering::SeqCst) < 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, completer.run(all)).await.expect("eight go past the ninth");
}

/// Finished flows go after their time, with all that belongs to them, and nothing else goes.
#[tokio::test]
async fn finished_flows_are_removed_after_their_time() {
    let (rig, provider) = (Rig::new().await, Provider::default());
    let flows = rig.flows(charge_flow(&provider)).await;
    flows.run("rides.create", &key("old"), &5_i64).await.unwrap();
    provider.busy.store(1, Ordering::SeqCst);
    flows.run("rides.create", &key("open"), &5_i64).await.unwrap();
    change(&rig, "UPDATE oncekey_flows SET due = due - 86400000000").await;
    flows.run("rides.create", &key("young"), &5_i64).await.unwrap();
    let hour = Duration::from_secs(3_600);
    assert_eq!(flows.purge(hour, 10).await.unwrap(), 1);
    assert_eq!(rig.count("oncekey_flows").await, 2);
    assert!(flows.history(&id_of("old")).await.unwrap().is_none());
    assert!(flows.history(&id_of("open")).await.unwrap().is_some());
    let orphans = "SELECT count(*) FROM oncekey_steps WHERE flow_id NOT IN (SELECT flow_id FROM oncekey_flows)";
    let orphans: i64 = sqlx::query_scalar(orphans).fetch_one(rig.store.pool()).await.unwrap();
    assert_eq!(orphans, 0);
}
