//! What becomes of calls while the store fails.

use std::sync::Arc;
use std::time::Duration;

use oncekey::core::policy::StoreDown;
use oncekey::core::{Class, ErrorKind, Policy, Store};
use oncekey::engine::{Ran, Recorded, Refused, Reply, Unavailable};

use crate::faults::{Fault, FaultyStore};
use crate::scene::Scene;

const NONE: Duration = Duration::ZERO;
const DOWN: Fault = Fault::Refused(ErrorKind::Unavailable);

pub(crate) fn faulty(policy: Policy) -> (Scene, Arc<FaultyStore>) {
    let mut scene = Scene::new(policy);
    let store = Arc::new(FaultyStore::new(Arc::clone(&scene.store)));
    scene.engine = scene.node(Arc::clone(&store) as Arc<dyn Store>).cache(0).build().unwrap();
    (scene, store)
}

fn is_down(reply: &Reply<u16>) -> bool {
    matches!(reply, Reply::Refused(Refused::Unavailable { why: Unavailable::Store, .. }))
}

/// I33, T32: a store that cannot be asked means that nothing runs, and when to come back.
#[tokio::test(start_paused = true)]
async fn nothing_runs_while_the_store_is_down() {
    let (scene, store) = faulty(Policy::default());
    store.fail_all(Some(DOWN));
    for _ in 0..10 {
        match scene.ask("k", 1, 201, NONE).await {
            Reply::Refused(Refused::Unavailable { retry_after, .. }) => {
                assert!(retry_after >= Duration::from_secs(1));
            }
            reply => panic!("{reply:?}"),
        }
    }
    assert_eq!(scene.runs(), 0);
    let asked = store.count("claim");
    assert!(asked < 20, "a store that is down is left alone: {asked}");
    store.fail_all(None);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Ran(_)));
}

#[tokio::test(start_paused = true)]
async fn a_route_may_prefer_to_run_without_protection() {
    let policy = Policy { store_down: StoreDown::PassUnprotected, ..Policy::default() };
    let (scene, store) = faulty(policy);
    store.fail_all(Some(DOWN));
    for run in 1..=2 {
        let reply = scene.ask("k", 1, 201, NONE).await;
        assert_eq!(reply.outcome(), "unprotected");
        assert_eq!(scene.runs(), run);
    }
}

/// I5: a claim whose answer is lost is recognised by its owner.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_is_lost_runs_once() {
    let (scene, store) = faulty(Policy::default());
    store.fail_next("claim", Fault::AnswerLost);
    let reply = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Kept, .. })), "{reply:?}");
    assert_eq!(scene.runs(), 1);
}

/// L1: a key that was claimed by a call that had to give up does not stay claimed.
#[tokio::test(start_paused = true)]
async fn a_key_that_an_unanswered_claim_took_is_given_back() {
    for class in [Class::Once, Class::Keyed] {
        let (scene, store) = faulty(Policy { class, ..Policy::default() });
        for _ in 0..4 {
            store.fail_next("claim", Fault::AnswerLost);
        }
        assert!(is_down(&scene.ask("k", 1, 201, NONE).await));
        let reply = scene.ask("k", 1, 201, NONE).await;
        assert!(matches!(reply, Reply::Ran(_)), "{class:?}: {reply:?}");
        assert_eq!(scene.runs(), 1);
    }
}

/// I5, I17: an end whose answer is lost is written once, and the owner learns that it is.
#[tokio::test(start_paused = true)]
async fn an_end_whose_answer_is_lost_is_recorded_once() {
    for (status, operation, recorded) in [
        (201, "complete", Recorded::Kept),
        (429, "release", Recorded::Released),
        (504, "unknown", Recorded::Unknown),
    ] {
        let (scene, store) = faulty(Policy::default());
        store.fail_next(operation, Fault::AnswerLost);
        match scene.ask("k", 1, status, NONE).await {
            Reply::Ran(ran) => assert_eq!(ran.recorded, recorded),
            reply => panic!("{reply:?}"),
        }
        assert_eq!(store.count(operation), 2);
    }
}

/// I13: an owner whose end reaches the store nowhere is told so; the end is tried on.
#[tokio::test(start_paused = true)]
async fn an_end_that_cannot_be_recorded_is_marked_and_tried_again() {
    let (scene, store) = faulty(Policy::default());
    let down = Arc::clone(&store);
    let work = async move |attempt: oncekey::engine::Attempt| {
        attempt.send().await.unwrap();
        down.fail_all(Some(DOWN));
        oncekey::engine::Finish::answered(crate::scene::saved(201), 201)
    };
    let asking = scene.engine.answer(scene.call("k", 1), work);
    let reply = asking.await;
    assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Unrecorded, .. })), "{reply:?}");
    store.fail_all(None);
    scene.engine.shutdown(Duration::from_secs(3_600)).await;
    let id = scene.engine.key_id(&scene.call("k", 1).scope, &scene.call("k", 1).key);
    let looked = scene.engine.look(&id).await.unwrap();
    assert!(matches!(looked, Some(oncekey::engine::Looked::Done(_))), "{looked:?}");
}

/// F19: a send that the store could not be told about does not happen.
#[tokio::test(start_paused = true)]
async fn a_send_that_could_not_be_announced_does_not_happen() {
    let (scene, store) = faulty(Policy::default());
    for _ in 0..6 {
        store.fail_next("send", DOWN);
    }
    let work = async |attempt: oncekey::engine::Attempt| match attempt.send().await {
        Ok(()) => panic!("must not send"),
        Err(_) => oncekey::engine::Finish::never_sent(503),
    };
    let reply = scene.engine.answer(scene.call("k", 1), work).await;
    assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Released, .. })), "{reply:?}");
}

/// L7: conflicts and mismatches are no failures of the store.
#[tokio::test(start_paused = true)]
async fn refusals_never_count_as_failures_of_the_store() {
    let (scene, store) = faulty(Policy::default());
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Ran(_)));
    for _ in 0..100 {
        let refused = scene.ask("k", 2, 201, NONE).await;
        assert!(matches!(refused, Reply::Refused(Refused::Mismatch { .. })));
    }
    assert!(matches!(scene.ask("other", 1, 201, NONE).await, Reply::Ran(_)));
    assert_eq!(store.count("claim"), 102);
}

/// F55: what cannot be trusted is neither run nor replayed.
#[tokio::test(start_paused = true)]
async fn a_damaged_record_is_neither_run_nor_replayed() {
    let (scene, store) = faulty(Policy::default());
    store.fail_next("claim", Fault::Refused(ErrorKind::Corrupt));
    let reply = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(reply, Reply::Refused(Refused::Damaged)), "{reply:?}");
    assert_eq!(scene.runs(), 0);
}
