//! Those who wait for a key that another node holds: how long, how many, and for whom not.

use std::time::Duration;

use oncekey::core::Policy;
use oncekey::core::policy::InFlight;
use oncekey::engine::{Drained, Refused, Reply};

use crate::faults::Fault;
use crate::outages::faulty;
use crate::review::another_node;
use crate::scene::Scene;

const NONE: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);

/// L2: nobody waits longer than the policy says, whether it leads, follows, or both in turn.
#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_policy_says() {
    let wait = 10 * SECOND;
    let one = Scene::new(Policy { in_flight: InFlight::Wait(wait), ..Policy::default() });
    let two = another_node(&one);
    let running = tokio::spawn(async move { one.ask("k", 1, 201, 60 * SECOND).await });
    tokio::time::sleep(SECOND).await;
    let asking: Vec<_> = (0..5)
        .map(|number| {
            let two = two.clone();
            tokio::spawn(async move {
                tokio::time::sleep(number * SECOND / 100).await;
                let began = tokio::time::Instant::now();
                let reply = two.ask("k", 1, 201, NONE).await;
                let in_progress = matches!(reply, Reply::Refused(Refused::InProgress { .. }));
                assert!(in_progress, "{reply:?}");
                began.elapsed()
            })
        })
        .collect();
    for asked in asking {
        let waited = asked.await.unwrap();
        assert!(waited <= wait + SECOND / 10, "{waited:?}");
    }
    running.abort();
}

/// I13: nobody is told that finished work is under way because another call is just reading its
/// record. And whoever does not want to wait is told at once that work is under way.
#[tokio::test(start_paused = true)]
async fn whoever_does_not_wait_is_still_told_what_is_finished() {
    for in_flight in [InFlight::Conflict, InFlight::Accepted] {
        let (scene, store) = faulty(Policy { in_flight, ..Policy::default() });
        assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Ran(_)));
        store.fail_next("claim", Fault::Late);
        let (one, two) = tokio::join!(scene.ask("k", 1, 201, NONE), scene.ask("k", 1, 201, NONE));
        for reply in [one, two] {
            assert!(matches!(reply, Reply::Replayed(_)), "{in_flight:?}: {reply:?}");
        }
        assert_eq!(store.count("claim"), 2, "one claim for both");

        let running = tokio::spawn({
            let scene = scene.clone();
            async move { scene.ask("other", 1, 201, 60 * SECOND).await }
        });
        store.fail_next("claim", Fault::Late);
        tokio::time::sleep(SECOND / 10).await;
        let began = tokio::time::Instant::now();
        let reply = scene.ask("other", 1, 201, NONE).await;
        let refused =
            matches!(reply, Reply::Refused(Refused::InProgress { .. } | Refused::Accepted { .. }));
        assert!(refused, "{in_flight:?}: {reply:?}");
        assert!(began.elapsed() <= SECOND, "told as soon as it is known");
        running.abort();
    }
}

/// I16: whoever does not want to wait is told at once that another node is at it, also if a call
/// that does want to wait came first.
#[tokio::test(start_paused = true)]
async fn whoever_does_not_wait_is_told_at_once_that_another_node_is_at_it() {
    let one = Scene::new(Policy::default());
    let patient = another_node(&one);
    let mut hasty = patient.clone();
    hasty.policy.in_flight = InFlight::Conflict;
    let running = tokio::spawn(async move { one.ask("k", 1, 201, 60 * SECOND).await });
    tokio::time::sleep(SECOND).await;
    let waiting = tokio::spawn(async move { patient.ask("k", 1, 201, NONE).await });
    tokio::time::sleep(SECOND).await;
    let began = tokio::time::Instant::now();
    let reply = hasty.ask("k", 1, 201, NONE).await;
    assert!(matches!(reply, Reply::Refused(Refused::InProgress { .. })), "{reply:?}");
    assert!(began.elapsed() < SECOND / 10, "{:?}", began.elapsed());
    running.abort();
    waiting.abort();
}

/// I43: those who wait for keys of other nodes are counted and limited too.
#[tokio::test(start_paused = true)]
async fn waits_for_other_nodes_are_limited_in_total() {
    let one = Scene::new(Policy::default());
    let mut two = another_node(&one);
    two.policy.limits.waiters = 3;
    let keys = ["a", "b", "c", "d", "e"];
    let running = keys.map(|key| {
        let one = one.clone();
        tokio::spawn(async move { one.ask(key, 1, 201, 5 * SECOND).await })
    });
    tokio::time::sleep(SECOND).await;
    let asking = keys.map(|key| {
        let two = two.clone();
        tokio::spawn(async move { two.ask(key, 1, 201, NONE).await })
    });
    tokio::time::sleep(SECOND).await;
    assert_eq!(two.engine.load().waiters, 3);
    let (mut replayed, mut refused) = (0, 0);
    for asked in asking {
        match asked.await.unwrap() {
            Reply::Replayed(_) => replayed += 1,
            Reply::Refused(Refused::InProgress { .. }) => refused += 1,
            reply => panic!("{reply:?}"),
        }
    }
    assert_eq!((replayed, refused), (3, 2));
    assert_eq!(two.engine.load().waiters, 0);
    for ran in running {
        assert!(matches!(ran.await.unwrap(), Reply::Ran(_)));
    }
}

/// L6: a shutdown is not held up by calls that only wait for another node.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_those_who_wait() {
    let one = Scene::new(Policy::default());
    let mut two = another_node(&one);
    two.policy.in_flight = InFlight::Wait(Duration::MAX);
    let running = tokio::spawn({
        let one = one.clone();
        async move { one.ask("k", 1, 201, 3_600 * SECOND).await }
    });
    tokio::time::sleep(SECOND).await;
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.ask("k", 1, 201, NONE).await }
    });
    tokio::time::sleep(SECOND).await;
    let began = tokio::time::Instant::now();
    assert_eq!(two.engine.shutdown(600 * SECOND).await, Drained::default());
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    let told = waiting.await.unwrap();
    assert!(matches!(told, Reply::Refused(Refused::InProgress { .. })), "{told:?}");
    running.abort();
}
