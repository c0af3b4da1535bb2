//! The reaper, the sweeper, probes and resolutions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncekey::core::{Class, Policy, Store};
use oncekey::engine::{
    Attempt, Doubt, Finish, Happened, Probe, Refused, Reply, Resolution, Resolved, Swept,
};

use crate::scene::{Scene, saved};

const NONE: Duration = Duration::ZERO;

/// Leaves a record behind as a crash would: claimed, and marked as sent or not.
async fn crash(scene: &Scene, key: &str, sends: bool) {
    let dying = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>).build().unwrap();
    let call = scene.call(key, 1);
    let running = tokio::spawn(async move {
        let work = async move |attempt: Attempt| {
            if sends {
                attempt.send().await.unwrap();
            }
            std::future::pending::<()>().await;
            Finish::answered(saved(201), ())
        };
        dying.answer(call, work).await
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    running.abort();
    scene.clock.advance(scene.policy.lease + scene.policy.grace);
}

#[tokio::test(start_paused = true)]
async fn the_reaper_forgets_what_is_over_and_nothing_else() {
    let policy = Policy { linger: Duration::from_secs(60), ..Policy::default() };
    let scene = Scene::new(policy);
    assert!(matches!(scene.ask("done", 1, 201, NONE).await, Reply::Ran(_)));
    crash(&scene, "stuck", true).await;
    scene.clock.advance(scene.policy.retention);
    let reaper = scene.engine.reaper().batch(1);
    let purged = reaper.run_once().await.unwrap();
    assert_eq!((purged.forgotten, purged.stripped), (0, 1));
    let late = scene.ask("done", 1, 201, NONE).await;
    assert!(matches!(late, Reply::Refused(Refused::Expired { .. })), "told that it is too late");
    scene.clock.advance(scene.policy.linger);
    assert_eq!(reaper.run_once().await.unwrap().forgotten, 1);
    let stuck = scene.ask("stuck", 1, 201, NONE).await;
    assert!(matches!(stuck, Reply::Refused(Refused::Unknown { .. })), "{stuck:?}");
}

/// I6, I15, L1: what is stuck is freed if nothing was sent, and shown as unknown otherwise.
#[tokio::test(start_paused = true)]
async fn the_sweeper_frees_what_was_never_sent_and_shows_the_rest() {
    let scene = Scene::new(Policy::default());
    crash(&scene, "unsent", false).await;
    crash(&scene, "sent", true).await;
    let sweeper = scene.engine.sweeper(Arc::clone(&scene.store) as _);
    let swept = sweeper.run_once().await.unwrap();
    assert_eq!(swept, Swept { freed: 1, unknown: 1, resolved: 0, in_doubt: 1 });
    assert!(matches!(scene.ask("unsent", 1, 201, NONE).await, Reply::Ran(_)));
    let again = sweeper.run_once().await.unwrap();
    assert_eq!(again, Swept { in_doubt: 1, ..Swept::default() });
}

/// A live owner is not disturbed, however old its attempt is.
#[tokio::test(start_paused = true)]
async fn the_sweeper_leaves_living_owners_alone() {
    let scene = Scene::new(Policy::default());
    let running = tokio::spawn({
        let scene = scene.clone();
        async move { scene.ask("k", 1, 201, Duration::from_secs(5)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let sweeper = scene.engine.sweeper(Arc::clone(&scene.store) as _).older_than(NONE);
    assert_eq!(sweeper.run_once().await.unwrap(), Swept::default());
    assert!(matches!(running.await.unwrap(), Reply::Ran(_)));
}

/// Answers as it was told.
#[derive(Debug)]
struct Told(Happened);

#[async_trait]
impl Probe for Told {
    async fn did_it_happen(&self, doubt: &Doubt<'_>) -> Happened {
        assert!(doubt.derived_key("charge").starts_with("ok1_"));
        self.0.clone()
    }
}

/// A probe that knows is asked before anybody is told that nobody knows.
#[tokio::test(start_paused = true)]
async fn a_probe_is_asked_before_a_client_is_told_unknown() {
    for happened in [Happened::Yes(saved(202)), Happened::No, Happened::CannotTell] {
        let mut scene = Scene::of_class(Class::Once);
        crash(&scene, "k", true).await;
        scene.engine = scene
            .node(Arc::clone(&scene.store) as Arc<dyn Store>)
            .probe(Arc::new(Told(happened.clone())))
            .build()
            .unwrap();
        let reply = scene.ask("k", 1, 201, NONE).await;
        match (happened, reply) {
            (Happened::Yes(saved), Reply::Replayed(replayed)) => assert_eq!(replayed.saved, saved),
            (Happened::No, Reply::Ran(_)) => {}
            (Happened::CannotTell, Reply::Refused(Refused::Unknown { .. })) => {}
            (happened, reply) => panic!("{happened:?}: {reply:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_person_resolves_what_nobody_knows_once() {
    let release = Resolution::Release;
    for resolution in [Resolution::Succeeded(saved(201)), Resolution::Failed(saved(500)), release] {
        let scene = Scene::new(Policy::default());
        assert!(matches!(scene.ask("k", 1, 504, NONE).await, Reply::Ran(_)));
        let id = scene.engine.key_id(&scene.call("k", 1).scope, &scene.call("k", 1).key);
        let resolve =
            async |resolution| scene.engine.resolve(&id, resolution, &scene.policy).await.unwrap();
        assert_eq!(resolve(resolution.clone()).await, Resolved::Recorded);
        assert_eq!(resolve(resolution.clone()).await, Resolved::NotInDoubt);
        match (resolution, scene.ask("k", 1, 201, NONE).await) {
            (Resolution::Release, Reply::Ran(_)) => {}
            (Resolution::Succeeded(given) | Resolution::Failed(given), Reply::Replayed(replay)) => {
                assert_eq!(replay.saved, given);
            }
            (resolution, reply) => panic!("{resolution:?}: {reply:?}"),
        }
    }
}
