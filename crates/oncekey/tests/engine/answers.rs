//! Who runs, who replays, who is refused.

use std::time::Duration;

use oncekey::core::policy::{InFlight, Panicked};
use oncekey::core::{Class, Policy};
use oncekey::engine::{Attempt, Finish, Ran, Recorded, Refused, Replayed, Reply, Source};

use crate::scene::Scene;

const NONE: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_millis(300);

/// I1, F24: twenty duplicates at once run the work once and all get its answer.
#[tokio::test(start_paused = true)]
async fn parallel_duplicates_run_once_and_get_one_answer() {
    let scene = Scene::new(Policy::default());
    let asking: Vec<_> = (0..20)
        .map(|_| {
            let scene = scene.clone();
            tokio::spawn(async move { scene.ask("k", 1, 201, LONG).await })
        })
        .collect();
    let (mut ran, mut coalesced) = (0, 0);
    for reply in asking {
        match reply.await.unwrap() {
            Reply::Ran(Ran { value: Some(201), recorded: Recorded::Kept, .. }) => ran += 1,
            Reply::Replayed(Replayed { saved, source: Source::Coalesced, .. }) => {
                assert_eq!(saved.status, 201);
                coalesced += 1;
            }
            reply => panic!("{reply:?}"),
        }
    }
    assert_eq!((ran, coalesced, scene.runs()), (1, 19, 1));
}

#[tokio::test(start_paused = true)]
async fn a_retry_replays_and_another_request_is_a_mismatch() {
    let scene = Scene::new(Policy::default());
    assert!(matches!(scene.ask("k", 1, 402, NONE).await, Reply::Ran(_)));
    for _ in 0..3 {
        match scene.ask("k", 1, 200, NONE).await {
            Reply::Replayed(replay) => assert_eq!(replay.saved.status, 402),
            reply => panic!("{reply:?}"),
        }
        let mismatch = scene.ask("k", 2, 200, NONE).await;
        assert!(matches!(mismatch, Reply::Refused(Refused::Mismatch { .. })), "{mismatch:?}");
    }
    assert_eq!(scene.runs(), 1);
}

/// I41: a caller that goes away changes nothing.
#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_stops_only_its_own_waiting() {
    let scene = Scene::new(Policy::default());
    let given_up = tokio::time::timeout(LONG / 4, scene.ask("k", 1, 201, LONG)).await;
    assert!(given_up.is_err());
    assert!(matches!(scene.ask("k", 1, 201, LONG).await, Reply::Replayed(_)));
    assert_eq!(scene.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_told_at_once_when_the_policy_says_so() {
    let scene = Scene::new(Policy { in_flight: InFlight::Conflict, ..Policy::default() });
    let first = tokio::spawn({
        let scene = scene.clone();
        async move { scene.ask("k", 1, 201, LONG).await }
    });
    tokio::time::sleep(LONG / 4).await;
    match scene.ask("k", 1, 201, LONG).await {
        Reply::Refused(Refused::InProgress { retry_after, .. }) => {
            assert!(retry_after >= Duration::from_secs(1));
        }
        reply => panic!("{reply:?}"),
    }
    assert!(matches!(first.await.unwrap(), Reply::Ran(_)));
}

/// A released answer goes to everybody who asked at the same time, and the next retry runs.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_kept_runs_again_later() {
    let scene = Scene::new(Policy::default());
    let (one, two) = tokio::join!(scene.ask("k", 1, 429, LONG), scene.ask("k", 1, 429, LONG));
    assert!(matches!(one, Reply::Ran(Ran { recorded: Recorded::Released, .. })), "{one:?}");
    assert!(matches!(two, Reply::Replayed(Replayed { source: Source::Coalesced, .. })), "{two:?}");
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Ran(_)));
    assert_eq!(scene.runs(), 2);
}

/// A panic is an outcome by class, and never a stuck key.
#[tokio::test(start_paused = true)]
async fn a_panic_is_recorded_by_class() {
    for (class, recorded) in [
        (Class::Once, Recorded::Unknown),
        (Class::Keyed, Recorded::Unknown),
        (Class::Tx, Recorded::Released),
    ] {
        let scene = Scene::of_class(class);
        let work = async |attempt: Attempt| -> Finish<u16> {
            attempt.send().await.unwrap();
            panic!("on purpose")
        };
        match scene.engine.answer(scene.call("k", 1), work).await {
            Reply::Ran(ran) => assert_eq!((ran.value, ran.recorded), (None, recorded)),
            reply => panic!("{reply:?}"),
        }
        let again = scene.ask("k", 1, 201, NONE).await;
        match class {
            Class::Once => assert!(matches!(again, Reply::Refused(Refused::Unknown { .. }))),
            _ => assert!(matches!(again, Reply::Ran(Ran { recorded: Recorded::Kept, .. }))),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_kept_as_a_500_when_the_policy_says_so() {
    let scene = Scene::new(Policy { panic: Panicked::Answer500, ..Policy::default() });
    let work = async |attempt: Attempt| -> Finish<u16> {
        attempt.send().await.unwrap();
        panic!("on purpose")
    };
    let first = scene.engine.answer(scene.call("k", 1), work).await;
    assert!(matches!(first, Reply::Ran(Ran { recorded: Recorded::Kept, .. })), "{first:?}");
    match scene.ask("k", 1, 201, NONE).await {
        Reply::Replayed(replay) => assert_eq!(replay.saved.status, 500),
        reply => panic!("{reply:?}"),
    }
}

/// I16: work that never began leaves the key free, even if it panicked.
#[tokio::test(start_paused = true)]
async fn work_that_sent_nothing_runs_again() {
    let scene = Scene::new(Policy::default());
    let refused = scene.engine.answer(scene.call("k", 1), async |_| Finish::never_sent(0)).await;
    assert!(matches!(refused, Reply::Ran(Ran { recorded: Recorded::Released, .. })));
    let broke = async |_: Attempt| -> Finish<u16> { panic!("on purpose") };
    let broke = scene.engine.answer(scene.call("k", 1), broke).await;
    assert!(matches!(broke, Reply::Ran(Ran { recorded: Recorded::Released, .. })), "{broke:?}");
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Ran(_)));
}
