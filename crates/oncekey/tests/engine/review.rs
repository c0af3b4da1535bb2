//! What a hostile reader of the engine tried.

use std::time::Duration;

use oncekey::core::{Class, Policy, Store};
use oncekey::engine::{Attempt, Finish, NoSend, Ran, Recorded, Reply};

use crate::scene::Scene;

const NONE: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);

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
