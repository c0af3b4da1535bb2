//! Ends that wait in the journal for a store that is away: F4, I13, I34.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{Class, ErrorKind, Policy, Store};
use oncekey::engine::{
    Attempt, BuildError, Drained, Finish, JournalError, Looked, Ran, Recorded, Reply,
};

use crate::faults::{Fault, FaultyStore};
use crate::scene::{Scene, saved};

const DOWN: Fault = Fault::Refused(ErrorKind::Unavailable);

/// The scene with an engine that has a journal in this folder, and a store that can go away.
fn with_a_journal(mut scene: Scene, folder: &Path) -> (Scene, Arc<FaultyStore>) {
    let store = Arc::new(FaultyStore::new(Arc::clone(&scene.store)));
    let builder = scene.node(Arc::clone(&store) as Arc<dyn Store>).journal(folder);
    scene.engine = builder.patience(Duration::from_millis(50)).build().unwrap();
    (scene, store)
}

/// Runs work whose store goes away between send and end.
async fn end_without_a_store(scene: &Scene, store: &Arc<FaultyStore>, key: &str) -> Reply<u16> {
    let down = Arc::clone(store);
    let work = async move |attempt: Attempt| {
        attempt.send().await.unwrap();
        down.fail_all(Some(DOWN));
        Finish::answered(saved(201), 201)
    };
    scene.engine.answer(scene.call(key, 1), work).await
}

async fn is_done(scene: &Scene, key: &str) -> bool {
    let call = scene.call(key, 1);
    let id = scene.engine.key_id(&call.scope, &call.key);
    matches!(scene.engine.look(&id).await, Ok(Some(Looked::Done(_))))
}

#[tokio::test]
async fn an_end_in_the_journal_reaches_the_store_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (scene, store) = with_a_journal(Scene::new(Policy::default()), folder.path());
    let reply = end_without_a_store(&scene, &store, "k").await;
    assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Journalled, .. })), "{reply:?}");
    assert_eq!(scene.engine.load().journalled, 1);
    store.fail_all(None);
    while scene.engine.load().journalled > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(is_done(&scene, "k").await);
}

/// F4: an end that the store never takes in time holds up no other one, however many there are of its kind.
#[tokio::test]
async fn an_end_that_cannot_be_written_holds_up_no_other_key() {
    let folder = tempfile::tempdir().unwrap();
    let (scene, store) = with_a_journal(Scene::new(Policy::default()), folder.path());
    let large = ["a", "b", "c", "d", "e"];
    let mut ids: Vec<_> = large.iter().chain(&["small"]).map(|key| scene.call(key, 1).id).collect();
    store.never_complete(&ids);
    for key in large.into_iter().chain(["small"]) {
        let reply = scene.ask(key, 1, 201, Duration::ZERO).await;
        assert!(matches!(&reply, Reply::Ran(ran) if ran.recorded == Recorded::Journalled));
    }
    ids.truncate(large.len());
    store.never_complete(&ids);
    let written = async |left| {
        while scene.engine.load().journalled > left {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let longest = Duration::from_secs(30);
    tokio::time::timeout(longest, written(large.len())).await.expect("the others are written");
    assert!(is_done(&scene, "small").await);
    store.never_complete(&[]);
    tokio::time::timeout(longest, written(0)).await.expect("and these are when they can be");
    assert!(is_done(&scene, "a").await);
}

/// F4, I13: a node that has the answer in its journal says neither "unknown" nor does it the work again,
/// though the lease has lapsed and the end was not yet its turn.
#[tokio::test]
async fn a_retry_gets_the_answer_that_is_still_in_the_journal() {
    /// Of the owner, four in fifty milliseconds; then of the journal, after pauses that double from a
    /// fifth of a second.
    const TRIES: usize = 4 + 4;
    for class in [Class::Once, Class::Keyed, Class::Retry] {
        let folder = tempfile::tempdir().unwrap();
        let (scene, store) = with_a_journal(Scene::of_class(class), folder.path());
        let reply = end_without_a_store(&scene, &store, "k").await;
        let journalled = matches!(&reply, Reply::Ran(ran) if ran.recorded == Recorded::Journalled);
        assert!(journalled, "{reply:?}");
        // Until its next turn is more than a second away.
        while store.count("complete") < TRIES {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let turns = store.count("complete");
        scene.clock.advance(scene.policy.lease + scene.policy.grace);
        store.fail_all(None);
        match scene.ask("k", 1, 500, Duration::ZERO).await {
            Reply::Replayed(replay) => assert_eq!(replay.saved.status, 201, "{class:?}"),
            reply => panic!("{class:?}: {reply:?}"),
        }
        assert_eq!((scene.runs(), store.count("complete")), (0, turns + 1), "{class:?}");
        assert_eq!(scene.engine.load().journalled, 0);
    }
}

/// F4: a node that ends for good leaves nothing in its journal that the store would take.
#[tokio::test]
async fn a_shutdown_writes_what_is_in_the_journal() {
    for back in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (scene, store) = with_a_journal(Scene::new(Policy::default()), folder.path());
        let reply = end_without_a_store(&scene, &store, "k").await;
        let recorded = matches!(&reply, Reply::Ran(ran) if ran.recorded == Recorded::Journalled);
        assert!(recorded, "{reply:?}");
        if back {
            store.fail_all(None);
        }
        let drained = scene.engine.shutdown(Duration::from_secs(30)).await;
        assert_eq!(drained, Drained { journalled: usize::from(!back), ..Drained::default() });
        store.fail_all(None);
        assert_eq!(is_done(&scene, "k").await, back);
    }
}

/// What one process could not write, the next one does, once; and never over a newer attempt.
#[tokio::test]
async fn what_a_process_leaves_in_its_journal_the_next_one_writes() {
    for taken_over in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let class = oncekey::core::Class::Keyed;
        let (mut scene, store) = with_a_journal(Scene::of_class(class), folder.path());
        let reply = end_without_a_store(&scene, &store, "k").await;
        let journalled = matches!(reply, Reply::Ran(Ran { recorded: Recorded::Journalled, .. }));
        assert!(journalled, "{reply:?}");

        let memory = Arc::clone(&scene.store) as Arc<dyn Store>;
        let other = Scene { engine: scene.node(memory).build().unwrap(), ..scene.clone() };
        if taken_over {
            scene.clock.advance(scene.policy.lease + scene.policy.grace);
            assert!(matches!(other.ask("k", 1, 202, Duration::ZERO).await, Reply::Ran(_)));
        }
        scene.engine = other.engine;
        store.fail_all(None);
        let memory = Arc::clone(&scene.store) as Arc<dyn Store>;
        // The folder is free as soon as the engine before is gone with its tasks.
        let next = loop {
            match scene.node(Arc::clone(&memory)).journal(folder.path()).build() {
                Ok(engine) => break engine,
                Err(BuildError::Journal(JournalError::InUse { .. })) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        while next.load().journalled > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        scene.engine = next;
        match scene.ask("k", 1, 500, Duration::ZERO).await {
            Reply::Replayed(replay) => {
                assert_eq!(replay.saved.status, if taken_over { 202 } else { 201 });
            }
            reply => panic!("{reply:?}"),
        }
    }
}
