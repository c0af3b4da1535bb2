//! What a hostile reader of the engine tried.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncekey::core::policy::{Mark, Retain};
use oncekey::core::{
    Answer, Class, Clock, ErrorKind, MemoryStore, Policy, State, Store, Timestamp,
};
use oncekey::engine::{
    Attempt, Doubt, Drained, Finish, Happened, Looked, NoSend, Probe, Ran, Recorded, Refused,
    Reply, Resolution,
};

use crate::faults::{Fault, FaultyStore};
use crate::scene::{Scene, SceneClock, saved};

const NONE: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);

/// A scene whose only node talks to a store that fails on command.
fn faulty(policy: Policy) -> (Scene, Arc<FaultyStore>) {
    let mut scene = Scene::new(policy);
    let store = Arc::new(FaultyStore::new(Arc::clone(&scene.store)));
    scene.engine = scene.node(Arc::clone(&store) as Arc<dyn Store>).cache(0).build().unwrap();
    (scene, store)
}

/// Another node on the store of a scene.
pub(crate) fn another_node(scene: &Scene) -> Scene {
    let engine = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>).build().unwrap();
    Scene { engine, ..scene.clone() }
}

/// A short lease is renewed in time although a long one is held all the while, and although a
/// short one came and went before it.
#[tokio::test(start_paused = true)]
async fn a_second_short_lease_beside_a_long_one_is_renewed_in_time() {
    let long = Scene::of_class(Class::Keyed);
    let mut short = long.clone();
    short.policy = Policy { lease: SECOND, grace: NONE, ..long.policy.clone() };
    let running = tokio::spawn({
        let long = long.clone();
        async move { long.ask("long", 1, 201, 30 * SECOND).await }
    });
    tokio::time::sleep(SECOND).await;
    assert!(matches!(short.ask("first", 1, 201, SECOND / 10).await, Reply::Ran(_)));
    tokio::time::sleep(SECOND).await;
    let working = tokio::spawn({
        let short = short.clone();
        async move { short.ask("second", 1, 201, 4 * SECOND).await }
    });
    tokio::time::sleep(3 * SECOND).await;
    let call = short.call("second", 1);
    let id = short.engine.key_id(&call.scope, &call.key);
    let record = short.store.get(&id).await.unwrap().unwrap();
    let age = record.lease().until.since(record.created);
    assert!(age > 3 * SECOND, "the lease of living work has lapsed: it ended after {age:?}");
    assert!(matches!(working.await.unwrap(), Reply::Ran(_)));
    assert!(matches!(running.await.unwrap(), Reply::Ran(_)));
}

/// I7: what the work left running elsewhere gets no leave to send once the end is decided.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_outlives_its_work_may_not_send() {
    for class in Class::ALL {
        let scene = Scene::of_class(class);
        let (leak, leaked) = tokio::sync::oneshot::channel();
        let work = async move |attempt: Attempt| {
            assert!(leak.send(attempt).is_ok());
            Finish::never_sent(())
        };
        let reply = scene.engine.answer(scene.call("k", 1), work).await;
        assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Released, .. })), "{reply:?}");
        // The key is free and somebody else has done the work.
        assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Ran(_)));
        assert_eq!(leaked.await.unwrap().send().await, Err(NoSend::Lost), "{class:?}");
    }
}

/// L4, F19: a call to the store that never ends keeps neither its caller nor the key.
#[tokio::test(start_paused = true)]
async fn a_store_that_falls_silent_keeps_nobody_for_ever() {
    const LONG: Duration = Duration::from_secs(120);
    for (operation, recorded) in [
        ("claim", Recorded::Kept),
        ("send", Recorded::Kept),
        // The owner is told in time that it is not recorded yet.
        ("complete", Recorded::Unrecorded),
    ] {
        let (scene, store) = faulty(Policy::default());
        store.fail_next(operation, Fault::Hangs);
        let reply = tokio::time::timeout(LONG, scene.ask("k", 1, 201, NONE)).await;
        let reply = reply.unwrap_or_else(|_| panic!("{operation} never ends"));
        assert!(matches!(&reply, Reply::Ran(ran) if ran.recorded == recorded), "{reply:?}");
        assert_eq!(scene.engine.shutdown(LONG).await, Drained::default());
        assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Replayed(_)));
        assert_eq!(scene.runs(), 1);
    }
}

/// L3: one renewal that never ends does not cost the leases of the whole node.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_never_ends_costs_no_lease() {
    for lease in [SECOND * 6, SECOND * 30] {
        let (scene, store) = faulty(Policy { lease, ..Policy::default() });
        store.fail_next("renew", Fault::Hangs);
        let work = async move |attempt: Attempt| {
            attempt.send().await.unwrap();
            tokio::time::sleep(lease * 3).await;
            Finish::answered(saved(201), ())
        };
        let asked = tokio::spawn({
            let scene = scene.clone();
            async move { scene.engine.answer(scene.call("k", 1), work).await }
        });
        let call = scene.call("k", 1);
        let id = scene.engine.key_id(&call.scope, &call.key);
        for _ in 0..20 {
            tokio::time::sleep(lease / 8).await;
            let record = scene.store.get(&id).await.unwrap().unwrap();
            let (until, now) = (record.lease().until, scene.clock.now());
            assert!(now < until, "a lease of {lease:?} has lapsed");
        }
        assert!(matches!(asked.await.unwrap(), Reply::Ran(_)));
    }
}

/// A store that could not reach one lease has not lost it: the work goes on, and the lease is renewed a
/// moment later.
#[tokio::test(start_paused = true)]
async fn a_lease_that_could_not_be_reached_is_not_lost() {
    let lease = SECOND * 30;
    let (scene, store) = faulty(Policy { lease, ..Policy::default() });
    for _ in 0..3 {
        store.fail_next("renew", Fault::Unreached);
    }
    let work = async move |attempt: Attempt| {
        tokio::time::sleep(lease * 3).await;
        attempt.send().await.unwrap();
        Finish::answered(saved(201), ())
    };
    assert!(matches!(scene.engine.answer(scene.call("k", 1), work).await, Reply::Ran(_)));
    assert!(store.count("renew") > 3, "tried again and again");
}

/// Leaves a record behind as a crash before the send would.
async fn crash(scene: &Scene, key: &str) {
    let dying = another_node(scene);
    let call = scene.call(key, 1);
    let running = tokio::spawn(async move {
        let work = async |_: Attempt| -> Finish<()> { std::future::pending().await };
        dying.engine.answer(call, work).await
    });
    tokio::time::sleep(SECOND / 100).await;
    running.abort();
}

/// F55, L1: a record that cannot be trusted keeps the sweeper from no other one.
#[tokio::test(start_paused = true)]
async fn a_damaged_record_does_not_keep_others_stuck() {
    let (scene, store) = faulty(Policy::default());
    for key in ["a", "b", "c"] {
        crash(&scene, key).await;
    }
    scene.clock.advance(scene.policy.lease + scene.policy.grace);
    store.fail_next("get", Fault::Refused(ErrorKind::Corrupt));
    let sweeper = scene.engine.sweeper(Arc::clone(&scene.store) as _);
    assert_eq!(sweeper.run_once().await.unwrap().freed, 2);
    store.fail_next("get", Fault::Refused(ErrorKind::Unavailable));
    assert!(sweeper.run_once().await.is_err(), "a store that does not answer is left alone");
}

/// The longest pause there is does not overflow.
#[tokio::test(start_paused = true)]
async fn a_loop_that_never_runs_again_does_not_panic() {
    let scene = Scene::new(Policy::default());
    let reaper = tokio::spawn(scene.engine.reaper().every(Duration::MAX).run());
    tokio::time::sleep(SECOND).await;
    assert!(!reaper.is_finished());
    reaper.abort();
}

/// A call that got no answer wants the key no more, so it takes it from nobody.
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_given_up_takes_nothing_over() {
    let (scene, store) = faulty(Policy::default());
    // An owner that is late, because its renewals fail, but alive.
    let silent = Arc::new(FaultyStore::new(Arc::clone(&scene.store)));
    silent.fail_all(Some(Fault::Refused(ErrorKind::Unavailable)));
    let late = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>).heartbeat_store(silent);
    let late = Scene { engine: late.build().unwrap(), ..scene.clone() };
    let owner = tokio::spawn(async move {
        let work = async |attempt: Attempt| {
            tokio::time::sleep(60 * SECOND).await;
            Finish::answered(saved(201), attempt.send().await)
        };
        late.engine.answer(late.call("k", 1), work).await
    });
    tokio::time::sleep(40 * SECOND).await;
    for _ in 0..4 {
        store.fail_next("claim", Fault::Refused(ErrorKind::Ambiguous));
    }
    let refused = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(refused, Reply::Refused(Refused::Unavailable { .. })), "{refused:?}");
    match owner.await.unwrap() {
        Reply::Ran(ran) => assert_eq!((ran.value, ran.recorded), (Some(Ok(())), Recorded::Kept)),
        reply => panic!("{reply:?}"),
    }
}

/// I16, L1: under `once` the mark that a lost claim left behind is its own, and says nothing.
#[tokio::test(start_paused = true)]
async fn a_mark_of_our_own_lost_claim_does_not_hold_the_key() {
    let policy = Policy { mark: Mark::WithClaim, ..Policy::default() };
    let (scene, store) = faulty(policy.clone());
    for _ in 0..4 {
        store.fail_next("claim", Fault::AnswerLost);
    }
    let refused = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(refused, Reply::Refused(Refused::Unavailable { .. })), "{refused:?}");
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Ran(_)), "it was given back");

    let (scene, store) = faulty(policy);
    store.fail_next("claim", Fault::AnswerLost);
    let unsent = scene.engine.answer(scene.call("k", 1), async |_| Finish::never_sent(())).await;
    assert!(matches!(unsent, Reply::Ran(Ran { recorded: Recorded::Released, .. })), "{unsent:?}");
}

/// F4: a store that refuses to work for a while, as after a failover, does not cost the end of
/// work that is done.
#[tokio::test(start_paused = true)]
async fn an_end_outlives_a_store_that_refuses_to_work() {
    let (scene, store) = faulty(Policy::default());
    let refusing = Arc::clone(&store);
    let work = async move |attempt: Attempt| {
        attempt.send().await.unwrap();
        refusing.fail_all(Some(Fault::Refused(ErrorKind::Unsuitable)));
        Finish::answered(saved(201), ())
    };
    let reply = scene.engine.answer(scene.call("k", 1), work).await;
    assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Unrecorded, .. })), "{reply:?}");
    store.fail_all(None);
    tokio::time::sleep(10 * SECOND).await;
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Replayed(_)));
}

/// A secret that a route does not keep is not kept when a person or a probe says what happened.
#[tokio::test(start_paused = true)]
async fn a_resolution_is_kept_as_the_policy_says() {
    #[derive(Debug)]
    struct Knows;
    #[async_trait::async_trait]
    impl Probe for Knows {
        async fn did_it_happen(&self, _: &Doubt<'_>) -> Happened {
            Happened::Yes(saved(201))
        }
    }
    for probed in [false, true] {
        let mut scene = Scene::new(Policy { retain: Retain::StatusOnly, ..Policy::default() });
        assert!(matches!(scene.ask("k", 1, 504, NONE).await, Reply::Ran(_)));
        let id = scene.engine.key_id(&scene.call("k", 1).scope, &scene.call("k", 1).key);
        if probed {
            let memory = Arc::clone(&scene.store) as Arc<dyn Store>;
            scene.engine = scene.node(memory).probe(Arc::new(Knows)).build().unwrap();
        } else {
            let resolution = Resolution::Succeeded(saved(201));
            scene.engine.resolve(&id, resolution, &scene.policy).await.unwrap();
        }
        let reply = scene.ask("k", 1, 201, NONE).await;
        let status_only =
            matches!(reply, Reply::Refused(Refused::NotRetained { status: Some(201), .. }));
        assert!(status_only, "{reply:?}");
        let record = scene.store.get(&id).await.unwrap().unwrap();
        assert!(matches!(record.state, State::Done { answer: Answer::Tombstone(_), .. }));
    }
}

/// L6: a claim that was under way when the node had to end is handed back too.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_won_after_the_last_moment_is_handed_back() {
    let (scene, store) = faulty(Policy::default());
    store.fail_next("claim", Fault::Hangs);
    let late = tokio::spawn({
        let scene = scene.clone();
        async move {
            let work = async |_: Attempt| -> Finish<()> { std::future::pending().await };
            scene.engine.answer(scene.call("k", 1), work).await
        }
    });
    tokio::time::sleep(SECOND).await;
    // The claim is answered between the last moment and the last words.
    let drained = scene.engine.shutdown(7 * SECOND).await;
    assert_eq!(drained.left, 0);
    let reply = late.await.unwrap();
    assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Released, .. })), "{reply:?}");
}

/// I13: nobody is promised a replay of what is not recorded.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_recorded_promises_no_replay() {
    let (scene, store) = faulty(Policy::default());
    let work = async move |attempt: Attempt| {
        attempt.send().await.unwrap();
        tokio::time::sleep(SECOND).await;
        store.fail_all(Some(Fault::Refused(ErrorKind::Unavailable)));
        Finish::answered(saved(201), 201)
    };
    let first = scene.engine.answer(scene.call("k", 1), work);
    let (first, second) = tokio::join!(first, scene.ask("k", 1, 201, NONE));
    assert!(matches!(first, Reply::Ran(Ran { recorded: Recorded::Unrecorded, .. })), "{first:?}");
    match second {
        Reply::Replayed(replayed) => assert_eq!(replayed.ttl, NONE),
        reply => panic!("{reply:?}"),
    }
}

/// A clock that can be set apart from the uptime of everybody else.
#[derive(Debug)]
struct StoreClock(Arc<SceneClock>, AtomicU64);

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.0.now().after(Duration::from_secs(self.1.load(Ordering::SeqCst)))
    }
}

/// I27: a node that has seen the store's clock step forward replays nothing from memory that has
/// expired by it.
#[tokio::test(start_paused = true)]
async fn what_expired_by_a_step_of_the_clock_is_not_replayed() {
    let mut scene = Scene::new(Policy::default());
    let clock = Arc::new(StoreClock(Arc::clone(&scene.clock), AtomicU64::new(0)));
    scene.store = Arc::new(MemoryStore::new(Arc::clone(&clock) as _));
    scene = another_node(&scene);
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Ran(_)));
    for _ in 0..2 {
        assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Replayed(_)));
    }
    clock.1.store(2 * scene.policy.retention.as_secs(), Ordering::SeqCst);
    // Whatever else the node asks shows it the time.
    assert!(matches!(scene.ask("another", 1, 201, NONE).await, Reply::Ran(_)));
    let again = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(again, Reply::Ran(_)), "{again:?}");
}

/// I27: what has expired is not shown as an answer, by a node that has just started either.
#[tokio::test(start_paused = true)]
async fn a_new_node_does_not_show_what_has_expired() {
    let scene = Scene::new(Policy { linger: 3_600 * SECOND, ..Policy::default() });
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Ran(_)));
    scene.clock.advance(scene.policy.retention + SECOND);
    let id = scene.engine.key_id(&scene.call("k", 1).scope, &scene.call("k", 1).key);
    let looked = another_node(&scene).engine.look(&id).await.unwrap();
    assert!(matches!(looked, Some(Looked::Without(Refused::Expired { .. }))), "{looked:?}");
}
