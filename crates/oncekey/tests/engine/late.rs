//! Claims that take effect when nobody waits for them, and ends that the store does not have yet.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use oncekey::core::policy::{InFlight, Mark, Retain, StoreDown};
use oncekey::core::saved::NotKept;
use oncekey::core::{Class, ErrorKind, Policy, State, Store, Write};
use oncekey::engine::{
    Attempt, Doubt, Finish, Happened, Probe, Ran, Recorded, Refused, Reply, Unavailable,
};

use crate::faults::{Fault, FaultyStore};
use crate::outages::faulty;
use crate::scene::{Scene, saved};

const NONE: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);
const DOWN: Fault = Fault::Refused(ErrorKind::Unavailable);

/// What the layer and the gateway do: the mark is written with the claim.
fn marked() -> Policy {
    Policy { mark: Mark::WithClaim, ..Policy::default() }
}

/// Prefers to run without protection.
fn passing() -> Policy {
    Policy { store_down: StoreDown::PassUnprotected, ..Policy::default() }
}

/// Makes every try of the next claim fail like this, and sees that its caller is refused.
async fn lose_a_claim(scene: &Scene, store: &FaultyStore, fault: Fault) {
    for _ in 0..4 {
        store.fail_next("claim", fault);
    }
    let refused = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(refused, Reply::Refused(Refused::Unavailable { .. })), "{refused:?}");
}

/// I16, F19: a disk that stalls writes a claim when its caller has long been told that nothing was
/// executed. The key must not be unknown for ever because of it.
#[tokio::test(start_paused = true)]
async fn a_claim_that_lands_when_nobody_waits_for_it_is_given_back() {
    for after in [SECOND, 12 * SECOND, 50 * SECOND, 300 * SECOND] {
        let (scene, store) = faulty(marked());
        lose_a_claim(&scene, &store, Fault::Lands(after)).await;
        tokio::time::sleep(after + 60 * SECOND).await;
        let reply = scene.ask("k", 1, 201, NONE).await;
        assert!(matches!(reply, Reply::Ran(_)), "{after:?}: {reply:?}");
        assert_eq!(scene.runs(), 1);
    }
}

/// I16: the same if the store is away for longer than the lease lasts, whether or not somebody has
/// called the key unknown meanwhile.
#[tokio::test(start_paused = true)]
async fn a_lost_claim_is_given_back_after_a_long_outage() {
    for swept in [false, true] {
        let (scene, store) = faulty(marked());
        lose_a_claim(&scene, &store, Fault::AnswerLost).await;
        store.fail_all(Some(DOWN));
        tokio::time::sleep(120 * SECOND).await;
        let record_id = scene.call("k", 1).id;
        let record = scene.store.get(&record_id).await.unwrap().expect("it stands");
        assert!(matches!(record.state, State::Running { .. }));
        if swept {
            let swept = scene.store.unknown(&record.lease()).await.unwrap();
            assert_eq!(swept, Write::Applied);
        }
        store.fail_all(None);
        tokio::time::sleep(60 * SECOND).await;
        let reply = scene.ask("k", 1, 201, NONE).await;
        assert!(matches!(reply, Reply::Ran(_)), "{swept}: {reply:?}");
    }
}

/// I16: the same for a try that lands when a later one has won, and given the key back.
#[tokio::test(start_paused = true)]
async fn a_try_that_lands_when_its_claim_was_released_is_given_back() {
    for after in [5 * SECOND, 20 * SECOND, 300 * SECOND] {
        let (scene, store) = faulty(marked());
        store.fail_next("claim", Fault::Lands(after));
        let reply = scene.ask("k", 1, 429, SECOND).await;
        let released = matches!(reply, Reply::Ran(Ran { recorded: Recorded::Released, .. }));
        assert!(released, "{reply:?}");
        tokio::time::sleep(after + 60 * SECOND).await;
        let reply = scene.ask("k", 1, 201, NONE).await;
        assert!(matches!(reply, Reply::Ran(_)), "{after:?}: {reply:?}");
    }
}

/// Has another node hold the key for ten seconds, and then give it back.
async fn hold_elsewhere(scene: &Scene) -> tokio::task::JoinHandle<Reply<u16>> {
    let node = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>);
    let other = Scene { engine: node.build().unwrap(), ..scene.clone() };
    let holding = tokio::spawn(async move { other.ask("k", 1, 429, 10 * SECOND).await });
    tokio::time::sleep(SECOND).await;
    holding
}

/// I16: somebody else who has the key may give it back, and then a lost claim finds it free.
#[tokio::test(start_paused = true)]
async fn a_claim_that_lands_when_another_node_gave_the_key_back_is_given_back() {
    let (scene, store) = faulty(marked());
    let holding = hold_elsewhere(&scene).await;
    lose_a_claim(&scene, &store, Fault::Lands(20 * SECOND)).await;
    assert!(matches!(holding.await.unwrap(), Reply::Ran(_)));
    tokio::time::sleep(80 * SECOND).await;
    let reply = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(reply, Reply::Ran(_)), "{reply:?}");
}

/// I16: the same if another try of the same claim has heard meanwhile that somebody else has the key.
#[tokio::test(start_paused = true)]
async fn a_lost_try_is_looked_for_although_the_next_one_was_refused() {
    let (scene, store) = faulty(Policy { in_flight: InFlight::Conflict, ..marked() });
    let holding = hold_elsewhere(&scene).await;
    store.fail_next("claim", Fault::Lands(20 * SECOND));
    let refused = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(refused, Reply::Refused(Refused::InProgress { .. })), "{refused:?}");
    assert!(matches!(holding.await.unwrap(), Reply::Ran(_)));
    tokio::time::sleep(80 * SECOND).await;
    let reply = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(reply, Reply::Ran(_)), "{reply:?}");
}

/// I16: the same if the call has waited for the other one and then has run itself.
#[tokio::test(start_paused = true)]
async fn a_lost_try_is_looked_for_although_its_call_ran_after_a_wait() {
    let (scene, store) = faulty(Policy { in_flight: InFlight::Wait(60 * SECOND), ..marked() });
    let holding = hold_elsewhere(&scene).await;
    store.fail_next("claim", Fault::Lands(40 * SECOND));
    let reply = scene.ask("k", 1, 429, NONE).await;
    let released = matches!(reply, Reply::Ran(Ran { recorded: Recorded::Released, .. }));
    assert!(released, "{reply:?}");
    assert!(matches!(holding.await.unwrap(), Reply::Ran(_)));
    tokio::time::sleep(100 * SECOND).await;
    let reply = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(reply, Reply::Ran(_)), "{reply:?}");
}

/// Whoever looks for a lost try leaves alone what a later one holds, and what became of it.
#[tokio::test(start_paused = true)]
async fn looking_for_a_lost_try_takes_nothing_from_its_own_claim() {
    for status in [201, 504] {
        let (scene, store) = faulty(marked());
        store.fail_next("claim", Fault::Refused(ErrorKind::Ambiguous));
        let before = scene.runs();
        let reply = scene.ask("k", 1, status, 100 * SECOND).await;
        let recorded = match status {
            201 => Recorded::Kept,
            _ => Recorded::Unknown,
        };
        assert!(matches!(&reply, Reply::Ran(ran) if ran.recorded == recorded), "{reply:?}");
        tokio::time::sleep(1_200 * SECOND).await;
        match scene.ask("k", 1, 201, NONE).await {
            Reply::Replayed(_) => assert_eq!(status, 201),
            Reply::Refused(Refused::Unknown { .. }) => assert_eq!(status, 504),
            reply => panic!("{reply:?}"),
        }
        assert_eq!(scene.runs(), before + 1);
    }
}

/// What somebody else has claimed, done or resolved meanwhile is theirs.
#[tokio::test(start_paused = true)]
async fn a_lost_claim_takes_nothing_from_others() {
    let (scene, store) = faulty(Policy { class: Class::Keyed, ..marked() });
    lose_a_claim(&scene, &store, Fault::Lands(20 * SECOND)).await;
    tokio::time::sleep(5 * SECOND).await;
    assert!(matches!(scene.ask("k", 1, 201, 60 * SECOND).await, Reply::Ran(_)));
    tokio::time::sleep(1_200 * SECOND).await;
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Replayed(_)));
    assert_eq!(scene.runs(), 1);
}

/// L6: a shutdown waits for a lost claim until the store has said that it is not there, and not for as
/// long as it might still come.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_claims_that_may_still_land() {
    let (scene, store) = faulty(marked());
    lose_a_claim(&scene, &store, Fault::Refused(ErrorKind::Ambiguous)).await;
    let began = tokio::time::Instant::now();
    scene.engine.shutdown(3_600 * SECOND).await;
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
}

/// Work whose store goes away between its send and its end.
async fn end_without_a_store(scene: &Scene, store: &Arc<FaultyStore>, key: &str) -> Reply<u16> {
    let (down, runs) = (Arc::clone(store), Arc::clone(&scene.runs));
    let work = async move |attempt: Attempt| {
        attempt.send().await.unwrap();
        runs.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(SECOND).await;
        down.fail_all(Some(DOWN));
        Finish::answered(saved(201), 201)
    };
    scene.engine.answer(scene.call(key, 1), work).await
}

/// T32: a route that prefers to run without protection does not run what this node has just done.
#[tokio::test(start_paused = true)]
async fn nothing_runs_unprotected_whose_end_this_node_has() {
    let (scene, store) = faulty(passing());
    let reply = end_without_a_store(&scene, &store, "k").await;
    assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Unrecorded, .. })), "{reply:?}");
    let retry = scene.ask("k", 1, 201, NONE).await;
    let why = Unavailable::Store;
    assert!(matches!(retry, Reply::Refused(Refused::Unavailable { why: w, .. }) if w == why));
    assert_eq!(scene.ask("other", 1, 201, NONE).await.outcome(), "unprotected");
    assert_eq!(scene.runs(), 2);
    store.fail_all(None);
    tokio::time::sleep(60 * SECOND).await;
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Replayed(_)));
}

/// The same with an end that is in the journal.
#[tokio::test]
async fn nothing_runs_unprotected_whose_end_is_in_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let mut scene = Scene::new(passing());
    let store = Arc::new(FaultyStore::new(Arc::clone(&scene.store)));
    let builder = scene.node(Arc::clone(&store) as Arc<dyn Store>).journal(folder.path());
    scene.engine = builder.patience(Duration::from_millis(50)).cache(0).build().unwrap();
    let reply = end_without_a_store(&scene, &store, "k").await;
    assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Journalled, .. })), "{reply:?}");
    assert_eq!(scene.ask("k", 1, 201, NONE).await.outcome(), "store_unavailable");
    assert_eq!(scene.ask("other", 1, 201, NONE).await.outcome(), "unprotected");
    assert_eq!(scene.runs(), 2);
}

/// A secret of which only the status is kept is not given to those who waited because the store went
/// away before it could be told so.
#[tokio::test(start_paused = true)]
async fn nobody_who_waited_gets_what_is_not_kept() {
    let (scene, store) = faulty(Policy { retain: Retain::StatusOnly, ..Policy::default() });
    let (first, second) = tokio::join!(end_without_a_store(&scene, &store, "k"), async {
        tokio::time::sleep(SECOND / 2).await;
        scene.ask("k", 1, 201, NONE).await
    });
    assert!(matches!(first, Reply::Ran(_)), "{first:?}");
    assert!(matches!(second, Reply::Refused(Refused::Unavailable { .. })), "{second:?}");
    assert_eq!(scene.runs(), 1);
}

/// I13: an answer that says "not now" is no answer that will be replayed, also while its end waits.
#[tokio::test(start_paused = true)]
async fn nobody_who_waited_is_promised_what_is_not_kept() {
    let (scene, store) = faulty(Policy::default());
    let down = Arc::clone(&store);
    let work = async move |attempt: Attempt| {
        attempt.send().await.unwrap();
        tokio::time::sleep(SECOND).await;
        down.fail_all(Some(DOWN));
        Finish::answered(saved(504), 504)
    };
    let (first, second) = tokio::join!(scene.engine.answer(scene.call("k", 1), work), async {
        tokio::time::sleep(SECOND / 2).await;
        scene.ask("k", 1, 201, NONE).await
    });
    assert!(matches!(first, Reply::Ran(_)), "{first:?}");
    // Nobody knows whether it happened, so the gateway's 504 is nobody else's answer.
    assert!(matches!(second, Reply::Refused(Refused::Unavailable { .. })), "{second:?}");
}

/// Those who waited for a run without protection do not run it again because there is nothing to give
/// them.
#[tokio::test(start_paused = true)]
async fn who_waited_for_an_unprotected_run_does_not_run_it_again() {
    for (policy, status, expected) in [
        (passing(), 201, None),
        (
            Policy { retain: Retain::StatusOnly, ..passing() },
            201,
            Some((Some(201), NotKept::StatusOnly)),
        ),
    ] {
        let (scene, store) = faulty(policy);
        store.fail_all(Some(DOWN));
        let (first, second) = tokio::join!(scene.ask("k", 1, status, SECOND), async {
            tokio::time::sleep(SECOND / 2).await;
            scene.ask("k", 1, status, NONE).await
        });
        assert_eq!(first.outcome(), "unprotected");
        match (second, expected) {
            (Reply::Replayed(replayed), None) => assert_eq!(replayed.ttl, NONE),
            (Reply::Refused(Refused::NotRetained { status, reason, .. }), Some(told)) => {
                assert_eq!((status, reason), told);
            }
            (reply, _) => panic!("{reply:?}"),
        }
        assert_eq!(scene.runs(), 1);
    }
}

/// I16: whoever does not want to wait is told at once that a run without protection is under way.
#[tokio::test(start_paused = true)]
async fn an_unprotected_run_is_announced() {
    let (scene, store) = faulty(Policy { in_flight: InFlight::Conflict, ..passing() });
    store.fail_all(Some(DOWN));
    let running = tokio::spawn({
        let scene = scene.clone();
        async move { scene.ask("k", 1, 201, 60 * SECOND).await }
    });
    tokio::time::sleep(5 * SECOND).await;
    let began = tokio::time::Instant::now();
    let reply = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(reply, Reply::Refused(Refused::InProgress { .. })), "{reply:?}");
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    running.abort();
}

/// A probe is somebody else's code: one that hangs or panics could not tell.
#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_or_panics_holds_up_nobody() {
    #[derive(Debug)]
    struct Broken(bool);
    #[async_trait]
    impl Probe for Broken {
        async fn did_it_happen(&self, _: &Doubt<'_>) -> Happened {
            assert!(self.0, "on purpose");
            std::future::pending().await
        }
    }
    for hangs in [false, true] {
        let scene = Scene::new(Policy::default());
        assert!(matches!(scene.ask("k", 1, 504, NONE).await, Reply::Ran(_)));
        let node = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>);
        let engine = node.probe(Arc::new(Broken(hangs))).build().unwrap();
        let scene = Scene { engine, ..scene };
        let asking = tokio::time::timeout(60 * SECOND, scene.ask("k", 1, 201, NONE));
        let reply = asking.await.expect("an answer");
        assert!(matches!(reply, Reply::Refused(Refused::Unknown { .. })), "{reply:?}");
    }
}

/// I13: a story that ends without a word after it has sent something never says "not executed".
#[tokio::test(start_paused = true)]
async fn a_story_that_dies_after_its_send_is_unknown() {
    let (scene, store) = faulty(Policy::default());
    store.fail_next("complete", Fault::Panics);
    let reply = scene.ask("k", 1, 201, SECOND).await;
    assert!(matches!(reply, Reply::Refused(Refused::Unknown { .. })), "{reply:?}");
    assert_eq!(scene.runs(), 1);
}

/// I43: attempts whose clients have left are bounded too.
#[tokio::test(start_paused = true)]
async fn attempts_are_limited_whether_or_not_their_clients_are_there() {
    let mut scene = Scene::new(Policy::default());
    let node = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>);
    scene.engine = node.attempts(2).build().unwrap();
    for key in ["a", "b"] {
        let asking = scene.ask(key, 1, 201, 60 * SECOND);
        assert!(tokio::time::timeout(SECOND, asking).await.is_err(), "the client leaves");
    }
    match scene.ask("c", 1, 201, NONE).await {
        Reply::Refused(Refused::Unavailable { why, .. }) => assert_eq!(why, Unavailable::Busy),
        reply => panic!("{reply:?}"),
    }
    assert_eq!(scene.runs(), 2);
    tokio::time::sleep(60 * SECOND).await;
    assert!(matches!(scene.ask("c", 1, 201, NONE).await, Reply::Ran(_)));
}

/// I13: a node that takes no claims still says what became of a key, and not that nothing was executed.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_full_says_unknown_of_what_is_unknown() {
    let mut scene = Scene::new(Policy::default());
    let node = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>);
    scene.engine = node.attempts(1).build().unwrap();
    assert!(matches!(scene.ask("doubt", 1, 504, NONE).await, Reply::Ran(_)));
    let asking = scene.ask("a", 1, 201, 60 * SECOND);
    assert!(tokio::time::timeout(SECOND, asking).await.is_err(), "the client leaves");
    let reply = scene.ask("doubt", 1, 201, NONE).await;
    assert!(matches!(reply, Reply::Refused(Refused::Unknown { .. })), "{reply:?}");
}

/// I4: a node that takes no claims cannot know that a lease has lapsed: the end may be in its journal, the clock may
/// be off. So it neither asks a probe, whose word would free the key, nor says that nobody will ever know.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_full_decides_nothing_about_a_lapsed_lease() {
    #[derive(Debug)]
    struct Never;
    #[async_trait]
    impl Probe for Never {
        async fn did_it_happen(&self, _: &Doubt<'_>) -> Happened {
            panic!("nobody may ask");
        }
    }
    let (mut scene, store) = faulty(marked());
    let gone = scene.ask("k", 1, 201, 3_600 * SECOND);
    assert!(tokio::time::timeout(SECOND, gone).await.is_err(), "its client leaves");
    store.fail_all(Some(DOWN));
    tokio::time::sleep(120 * SECOND).await;
    let node = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>).probe(Arc::new(Never));
    scene.engine = node.attempts(1).build().unwrap();
    let asking = scene.ask("a", 1, 201, 60 * SECOND);
    assert!(tokio::time::timeout(SECOND, asking).await.is_err(), "the client leaves");
    let reply = scene.ask("k", 1, 201, NONE).await;
    assert!(matches!(reply, Reply::Refused(Refused::InProgress { .. })), "{reply:?}");
}

/// I35: a store that refuses to grant may have lost this very key, so it is no reason to run without it.
#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_to_grant_is_never_passed_by() {
    let (scene, store) = faulty(passing());
    assert!(matches!(scene.ask("k", 1, 201, NONE).await, Reply::Ran(_)));
    let node = scene.node(Arc::clone(&store) as Arc<dyn Store>).build().unwrap();
    let scene = Scene { engine: node, ..scene };
    store.fail_all(Some(Fault::Refused(ErrorKind::Unsuitable)));
    match scene.ask("k", 1, 201, NONE).await {
        Reply::Refused(Refused::Unavailable { why, .. }) => assert_eq!(why, Unavailable::Regressed),
        reply => panic!("{reply:?}"),
    }
    assert_eq!(scene.runs(), 1);
}
