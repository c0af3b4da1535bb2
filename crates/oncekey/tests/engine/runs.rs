//! Work that has nothing to do with HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncekey::core::policy::Panicked;
use oncekey::core::{Class, Key, Policy};
use oncekey::engine::{Failure, Made, MadeBy, Recorded, Refused, RunError};

use crate::scene::Scene;

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

#[tokio::test]
async fn a_value_is_made_once_and_given_to_everybody() {
    let scene = Scene::new(Policy::default());
    let runner = scene.engine.runner("invoice");
    let fingerprint = runner.fingerprint(&("order", 42)).unwrap();
    let make = async |_| Ok::<_, Failure<String>>(vec![1, 2, 3]);
    let first = runner.run(&key("a"), fingerprint, make).await.unwrap();
    assert_eq!(first, Made { value: vec![1, 2, 3], now: MadeBy::ThisCall(Recorded::Kept) });
    let second = runner.run(&key("a"), fingerprint, async |_| Err(String::new().into())).await;
    assert_eq!(second.unwrap(), Made { value: vec![1, 2, 3], now: MadeBy::Another });
    let other = runner.fingerprint(&("order", 43)).unwrap();
    let mismatch = scene.engine.run(&key("b"), other, make).await;
    assert!(mismatch.is_ok(), "another key is another matter");
    match runner.run(&key("a"), other, make).await {
        Err(RunError::Refused(Refused::Mismatch { .. })) => {}
        reply => panic!("{reply:?}"),
    }
}

#[tokio::test]
async fn a_failure_decides_whether_a_retry_runs() {
    let scene = Scene::new(Policy::default());
    let runner = scene.engine.runner("invoice").policy(Policy::default());
    let fingerprint = runner.fingerprint(&1).unwrap();
    let nothing = async |_| Err::<u8, _>(Failure::NothingHappened("refused"));
    let failed = runner.run(&key("a"), fingerprint, nothing).await;
    assert!(matches!(failed, Err(RunError::Failed(Failure::NothingHappened("refused")))));
    let maybe = async |_| -> Result<u8, Failure<&str>> { Err("timed out")? };
    let failed = runner.run(&key("a"), fingerprint, maybe).await;
    assert!(matches!(failed, Err(RunError::Failed(Failure::MayHaveHappened("timed out")))));
    let again = runner.run(&key("a"), fingerprint, maybe).await;
    assert!(matches!(again, Err(RunError::Refused(Refused::Unknown { .. }))), "{again:?}");
}

/// A policy may count a panic as an answer. It is no value of any type.
#[tokio::test]
async fn a_panic_that_counts_as_an_answer_is_no_value_for_a_retry() {
    let scene = Scene::new(Policy::default());
    let policy = Policy { panic: Panicked::Answer500, ..Policy::default() };
    let runner = scene.engine.runner("invoice").policy(policy);
    let fingerprint = runner.fingerprint(&1).unwrap();
    for _ in 0..2 {
        let work = async |_| -> Result<u8, Failure<&str>> { panic!("on purpose") };
        let reply = runner.run(&key("a"), fingerprint, work).await;
        assert!(matches!(reply, Err(RunError::Panicked(Recorded::Kept))), "{reply:?}");
    }
}

#[tokio::test]
async fn a_wrapped_handler_is_safe_to_repeat() {
    let scene = Scene::new(Policy::default());
    let policy = Policy { class: Class::Retry, ..Policy::default() };
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = scene.engine.runner("greet").policy(policy).wrap(
        |name: &String| key(name),
        move |name: String, _| {
            let runs = Arc::clone(&counted);
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Failure<String>>(format!("hello {name}"))
            }
        },
    );
    for _ in 0..3 {
        assert_eq!(handler("world".to_owned()).await.unwrap().value, "hello world");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// A stranger who guesses the key of a job, or another job with the same order, does not use it up.
#[tokio::test]
async fn jobs_of_two_names_and_clients_do_not_meet_in_a_key() {
    let scene = Scene::new(Policy::default());
    let long = "n".repeat(300);
    for (number, name) in ["invoice", "receipt", "", &long].into_iter().enumerate() {
        let runner = scene.engine.runner(name);
        let fingerprint = runner.fingerprint(&1).unwrap();
        let work = async move |_| Ok::<_, Failure<String>>(number);
        let made = runner.run(&key("order-42"), fingerprint, work).await.unwrap();
        assert_eq!(made, Made { value: number, now: MadeBy::ThisCall(Recorded::Kept) });
    }
    let id = scene.engine.key_id(&oncekey::core::Scope::shared(), &key("order-42"));
    assert!(oncekey::core::Store::get(&*scene.store, &id).await.unwrap().is_none());
}
