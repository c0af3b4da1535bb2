//! Two nodes on one store: waiting, renewing, losing, shutting down.

use std::sync::Arc;
use std::time::Duration;

use oncekey::core::policy::InFlight;
use oncekey::core::{Class, ErrorKind, Policy, Store};
use oncekey::engine::{
    Attempt, Engine, Finish, NoSend, Ran, Recorded, Refused, Replayed, Reply, Source, Unavailable,
};

use crate::faults::{Fault, FaultyStore};
use crate::outages::faulty;
use crate::scene::{Scene, saved};

const NONE: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);

/// A second node on the scene's store, without a way to be woken.
fn second_node(scene: &Scene) -> Scene {
    let mut other = scene.clone();
    other.engine = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>).build().unwrap();
    other
}

/// L2: whoever waits on another node gets the answer, woken or by looking.
#[tokio::test]
async fn a_duplicate_on_another_node_waits_and_replays() {
    let one = Scene::new(Policy::default());
    let two = second_node(&one);
    for (owner, waiter, key) in [(&one, &two, "looks"), (&two, &one, "is-woken")] {
        let running = tokio::spawn({
            let owner = owner.clone();
            async move { owner.ask(key, 1, 201, Duration::from_millis(200)).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        match waiter.ask(key, 1, 201, NONE).await {
            Reply::Replayed(Replayed { source: Source::Record, .. }) => {}
            reply => panic!("{reply:?}"),
        }
        assert!(matches!(running.await.unwrap(), Reply::Ran(_)));
    }
    assert_eq!(one.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_on_another_node_is_told_to_come_back_when_it_waited_long_enough() {
    let policy = Policy { in_flight: InFlight::Wait(SECOND), ..Policy::default() };
    let one = Scene::new(policy);
    let two = second_node(&one);
    let running = tokio::spawn({
        let one = one.clone();
        async move { one.ask("k", 1, 201, 60 * SECOND).await }
    });
    tokio::time::sleep(SECOND / 10).await;
    match two.ask("k", 1, 201, NONE).await {
        Reply::Refused(Refused::InProgress { original: Some(_), .. }) => {}
        reply => panic!("{reply:?}"),
    }
    running.abort();
}

/// I7: an attempt that slept through its lease sends nothing, unless it gets the lease anew.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_slept_through_its_lease_asks_before_it_sends() {
    for taken_over in [false, true] {
        let mut scene = Scene::new(Policy::default());
        let other = second_node(&scene);
        // Whoever sleeps does not renew.
        let asleep = Arc::new(FaultyStore::new(Arc::clone(&scene.store)));
        asleep.fail_all(Some(Fault::Refused(ErrorKind::Unavailable)));
        let builder = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>);
        scene.engine = builder.heartbeat_store(asleep).build().unwrap();
        let clock = Arc::clone(&scene.clock);
        let policy = scene.policy.clone();
        let work = async move |attempt: Attempt| {
            // Asleep, between the claim and the send.
            clock.advance(policy.lease * 2);
            if taken_over {
                assert!(matches!(other.ask("k", 1, 201, NONE).await, Reply::Ran(_)));
            }
            match attempt.send().await {
                Ok(()) => Finish::answered(saved(201), Ok(())),
                Err(why) => Finish::never_sent(Err(why)),
            }
        };
        match scene.engine.answer(scene.call("k", 1), work).await {
            Reply::Ran(Ran { value: Some(sent), .. }) => {
                assert_eq!(sent, if taken_over { Err(NoSend::Lost) } else { Ok(()) });
            }
            reply => panic!("{reply:?}"),
        }
    }
}

/// F8, L3: work that takes longer than its lease keeps it, although it blocks its runtime.
#[tokio::test]
async fn work_that_blocks_its_thread_keeps_its_lease() {
    let lease = Duration::from_millis(300);
    let policy = Policy { lease, grace: NONE, ..Policy::default() };
    let clock = Arc::new(oncekey::clock::SystemClock);
    let store: Arc<dyn Store> = Arc::new(oncekey::core::MemoryStore::new(clock));
    let mut scene = Scene::new(policy);
    scene.engine = Engine::builder(Arc::clone(&store)).build().unwrap();
    let work = async move |attempt: Attempt| {
        attempt.send().await.unwrap();
        std::thread::sleep(lease * 3);
        assert!(!attempt.is_lost());
        Finish::answered(saved(201), ())
    };
    let id = scene.engine.key_id(&scene.call("k", 1).scope, &scene.call("k", 1).key);
    let watching = std::thread::spawn(move || {
        std::thread::sleep(lease * 2);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(store.get(&id)).unwrap().unwrap()
    });
    let reply = scene.engine.answer(scene.call("k", 1), work).await;
    assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Kept, .. })), "{reply:?}");
    let seen = watching.join().unwrap();
    let left = seen.lease().until.since(seen.created);
    assert!(left > lease, "the lease was renewed: it lasts {left:?} from the claim");
}

/// L3: a store that panics once does not end the renewals of all leases.
#[tokio::test(start_paused = true)]
async fn a_store_that_panics_costs_no_lease() {
    let (scene, store) = faulty(Policy::default());
    store.fail_next("renew", Fault::Panics);
    let reply = scene.ask("k", 1, 201, scene.policy.lease * 3).await;
    assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Kept, .. })), "{reply:?}");
    assert!(store.count("renew") > 4, "renewed on and on");
}

/// L6: a shutdown finishes what runs, and refuses what is new.
#[tokio::test(start_paused = true)]
async fn a_shutdown_finishes_what_runs_and_refuses_what_is_new() {
    let scene = Scene::new(Policy::default());
    let running = tokio::spawn({
        let scene = scene.clone();
        async move { scene.ask("k", 1, 201, SECOND).await }
    });
    tokio::time::sleep(SECOND / 10).await;
    let ending = tokio::spawn({
        let engine = scene.engine.clone();
        async move { engine.shutdown(10 * SECOND).await }
    });
    tokio::time::sleep(SECOND / 10).await;
    match scene.ask("new", 1, 201, NONE).await {
        Reply::Refused(Refused::Unavailable { why: Unavailable::Draining, .. }) => {}
        reply => panic!("{reply:?}"),
    }
    assert_eq!(ending.await.unwrap(), oncekey::engine::Drained::default());
    assert!(matches!(running.await.unwrap(), Reply::Ran(Ran { recorded: Recorded::Kept, .. })));
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Replayed(_)), "replays go on");
}

/// L6: what takes too long is stopped. What had sent nothing is free, the rest is unknown.
#[tokio::test(start_paused = true)]
async fn a_shutdown_hands_back_what_was_never_sent() {
    for (class, sends, recorded) in [
        (Class::Once, false, Recorded::Released),
        (Class::Once, true, Recorded::Unknown),
        (Class::Keyed, true, Recorded::Unknown),
        (Class::Tx, true, Recorded::Released),
    ] {
        let scene = Scene::of_class(class);
        let work = async move |attempt: Attempt| {
            if sends {
                attempt.send().await.unwrap();
            }
            std::future::pending::<()>().await;
            Finish::answered(saved(201), ())
        };
        let running = tokio::spawn({
            let scene = scene.clone();
            async move { scene.engine.answer(scene.call("k", 1), work).await }
        });
        tokio::time::sleep(SECOND / 10).await;
        let drained = scene.engine.shutdown(SECOND).await;
        assert_eq!((drained.stopped, drained.left), (1, 0));
        match running.await.unwrap() {
            Reply::Ran(ran) => assert_eq!(ran.recorded, recorded, "{class:?}"),
            reply => panic!("{reply:?}"),
        }
    }
}
