//! Futures that are dropped at every poll: F43, I31, I41.
//!
//! A caller's future is polled N times and dropped, for every N until it would have ended. After
//! each, the work has run once at most, and a retry gets an end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use oncekey::core::{Class, Clock, Policy, Store};
use oncekey::engine::{Attempt, Call, Engine, Finish, Refused, Reply, Spawn};

use crate::scene::{Scene, saved};

/// Polls a future so many times and then drops it.
struct AbortAt<F> {
    inner: Option<Pin<Box<F>>>,
    polls: usize,
}

impl<F: Future> Future for AbortAt<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            self.inner = None;
        }
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        match inner.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                self.polls -= 1;
                if self.polls == 0 {
                    self.inner = None;
                    return Poll::Ready(None);
                }
                Poll::Pending
            }
        }
    }
}

fn abort_at<F: Future>(polls: usize, inner: F) -> AbortAt<F> {
    AbortAt { inner: Some(Box::pin(inner)), polls }
}

/// Work with several await points before, at and after its effect.
async fn charge(attempt: Attempt, effects: Arc<AtomicUsize>) -> Finish<u16> {
    tokio::task::yield_now().await;
    if attempt.send().await.is_err() {
        return Finish::never_sent(503);
    }
    tokio::task::yield_now().await;
    effects.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(5)).await;
    Finish::answered(saved(201), 201)
}

#[tokio::test(start_paused = true)]
async fn a_caller_dropped_at_any_poll_changes_nothing() {
    let scene = Scene::new(Policy::default());
    callers_dropped_at_every_poll(&scene.engine, |key| scene.call(key, 1)).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_caller_dropped_at_any_poll_changes_nothing_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = oncekey::store::sqlite::SqliteStore::open(folder.path().join("keys.db")).unwrap();
    let engine = Engine::new(Arc::new(store)).unwrap();
    let scene = Scene::new(Policy::default());
    callers_dropped_at_every_poll(&engine, |key| scene.call(key, 1)).await;
}

async fn callers_dropped_at_every_poll(engine: &Engine, call: impl Fn(&str) -> Call) {
    for polls in 0.. {
        assert!(polls < 1_000, "the call never ends");
        let effects = Arc::new(AtomicUsize::new(0));
        let key = format!("key-{polls}");
        let asked = engine.answer(call(&key), {
            let effects = Arc::clone(&effects);
            move |attempt| charge(attempt, effects)
        });
        let ended = abort_at(polls, asked).await.is_some();
        let again = engine.answer(call(&key), {
            let effects = Arc::clone(&effects);
            move |attempt| charge(attempt, effects)
        });
        match again.await {
            Reply::Ran(_) | Reply::Replayed(_) => {}
            Reply::Refused(refused) => panic!("after {polls} polls: {refused:?}"),
        }
        assert_eq!(effects.load(Ordering::SeqCst), 1, "after {polls} polls");
        if ended {
            assert!(polls > 0, "nothing was aborted");
            return;
        }
    }
}

/// Drops every task that it is given after so many polls, as the end of a runtime does.
#[derive(Debug)]
struct Dying(AtomicUsize);

impl Spawn for Dying {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let polls = self.0.load(Ordering::SeqCst);
        tokio::spawn(async move { abort_at(polls, task).await });
    }
}

/// The task itself dies at every poll, for every class. After its lease, a retry on another node
/// gets an end, and in class `once` the effect happened once at most.
#[tokio::test(start_paused = true)]
async fn a_task_dropped_at_any_poll_never_leads_to_a_second_effect_or_a_stuck_key() {
    for class in [Class::Once, Class::Keyed, Class::Retry, Class::Tx] {
        for polls in 1..50 {
            let scene = Scene::of_class(class);
            let dying = scene
                .node(Arc::clone(&scene.store) as Arc<dyn Store>)
                .spawner(Arc::new(Dying(AtomicUsize::new(polls))))
                .build()
                .unwrap();
            let effects = Arc::new(AtomicUsize::new(0));
            let charged = Arc::clone(&effects);
            let first = dying.answer(scene.call("k", 1), |attempt| charge(attempt, charged)).await;
            let ended = matches!(first, Reply::Ran(_));
            let before = effects.load(Ordering::SeqCst);
            scene.clock.advance(scene.policy.lease + scene.policy.grace);
            assert!(scene.clock.now().micros() > 0);

            let charged = Arc::clone(&effects);
            let again = scene.engine.answer(scene.call("k", 1), |attempt| charge(attempt, charged));
            let again = again.await;
            let total = effects.load(Ordering::SeqCst);
            match (&again, class) {
                (Reply::Refused(Refused::Unknown { .. }), Class::Once) => assert!(total <= 1),
                (Reply::Ran(_), Class::Once | Class::Tx) => {
                    assert!(before == 0 || class == Class::Tx, "{class:?} after {polls} polls");
                }
                (Reply::Ran(_) | Reply::Replayed(_), _) => {}
                (reply, _) => panic!("{class:?} after {polls} polls: {reply:?}"),
            }
            if class == Class::Once {
                assert!(total <= 1, "after {polls} polls");
            }
            if ended {
                assert!(polls > 2, "nothing was aborted");
                break;
            }
        }
    }
}
