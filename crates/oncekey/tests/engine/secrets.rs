//! What the store gets to see, and what a replay makes of it.

use std::sync::Arc;

use bytes::Bytes;
use oncekey::core::policy::Retain;
use oncekey::core::saved::NotKept;
use oncekey::core::{Answer, Headers, Policy, Saved, State, Store};
use oncekey::engine::{Attempt, Finish, KeyRing, Ran, Recorded, Refused, Reply};

use crate::scene::{Scene, key_bytes};

const CANARY: &str = "4242-4242-4242-4242";

fn ring() -> KeyRing {
    KeyRing::new("k1", &key_bytes(1)).unwrap()
}

fn encrypted(policy: Policy, ring: KeyRing) -> Scene {
    let mut scene = Scene::new(policy);
    let store = Arc::clone(&scene.store) as Arc<dyn Store>;
    scene.engine = scene.node(store).encryption(ring).cache(0).build().unwrap();
    scene
}

async fn ask(scene: &Scene, key: &str) -> Reply<()> {
    let work = async |attempt: Attempt| {
        attempt.send().await.unwrap();
        let mut headers = Headers::new();
        headers.push(b"content-type", b"application/json").unwrap();
        headers.push(b"x-card", CANARY.as_bytes()).unwrap();
        let body = format!(r#"{{"id": 1, "card": {{"number": "{CANARY}"}}}}"#);
        // So that another call can come meanwhile.
        tokio::task::yield_now().await;
        Finish::answered(Saved { status: 201, headers, body: Bytes::from(body) }, ())
    };
    scene.engine.answer(scene.call(key, 1), work).await
}

/// I52, T14: what is stored shows neither the key nor the answer; replays do.
#[tokio::test(start_paused = true)]
async fn a_store_sees_neither_keys_nor_answers() {
    let scene = encrypted(Policy::default(), ring());
    assert!(matches!(ask(&scene, CANARY).await, Reply::Ran(_)));
    let call = scene.call(CANARY, 1);
    let id = scene.engine.key_id(&call.scope, &call.key);
    let record = scene.store.get(&id).await.unwrap().unwrap();
    let State::Done { answer: Answer::Kept(saved), .. } = &record.state else { panic!() };
    let stored = [
        record.origin.key.as_bytes(),
        record.origin.scope.as_bytes(),
        &saved.body,
        &saved.headers.encode(),
    ]
    .concat();
    for secret in [CANARY, "tenant"] {
        assert!(!stored.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()));
    }
    match ask(&scene, CANARY).await {
        Reply::Replayed(replay) => {
            assert!(replay.saved.body.windows(CANARY.len()).any(|part| part == CANARY.as_bytes()));
            assert_eq!(replay.saved.headers.len(), 2);
        }
        reply => panic!("{reply:?}"),
    }
    let inspected = scene.engine.inspect(&id).await.unwrap().unwrap();
    assert_eq!(inspected.origin.key.as_bytes(), CANARY.as_bytes());
}

/// T16: after a rotation old records still answer; without their key they are neither run nor
/// replayed.
#[tokio::test(start_paused = true)]
async fn a_lost_key_means_no_replay_and_no_second_run() {
    let scene = encrypted(Policy::default(), ring());
    assert!(matches!(ask(&scene, "k").await, Reply::Ran(_)));
    let mut rotated = scene.clone();
    let store = Arc::clone(&scene.store) as Arc<dyn Store>;
    let new = KeyRing::new("k2", &key_bytes(2)).unwrap();
    let both = new.clone().with_old("k1", &key_bytes(1)).unwrap();
    rotated.engine = scene.node(Arc::clone(&store)).encryption(both).build().unwrap();
    assert!(matches!(ask(&rotated, "k").await, Reply::Replayed(_)));
    rotated.engine = scene.node(store).encryption(new).build().unwrap();
    let reply = ask(&rotated, "k").await;
    assert!(matches!(reply, Reply::Refused(Refused::Damaged)), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn status_only_keeps_no_answer_and_runs_nothing_twice() {
    let scene = Scene::new(Policy { retain: Retain::StatusOnly, ..Policy::default() });
    let first = ask(&scene, "k").await;
    let kept = Recorded::Tombstone(NotKept::StatusOnly);
    assert!(matches!(first, Reply::Ran(Ran { recorded, .. }) if recorded == kept), "{first:?}");
    match ask(&scene, "k").await {
        Reply::Refused(Refused::NotRetained { status: Some(201), .. }) => {}
        reply => panic!("{reply:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn redacted_members_are_not_kept_and_a_replay_says_so() {
    let paths = vec!["$.card.number".parse().unwrap()];
    let scene = Scene::new(Policy { retain: Retain::Redacted(paths), ..Policy::default() });
    // One leads, one waits for it, one comes later.
    let (first, waited) = tokio::join!(ask(&scene, "k"), ask(&scene, "k"));
    assert!(matches!(first, Reply::Ran(_)), "{first:?}");
    for reply in [waited, ask(&scene, "k").await] {
        let Reply::Replayed(replay) = reply else { panic!("{reply:?}") };
        assert_eq!(replay.saved.body, r#"{"id": 1, "card": {"number": null}}"#);
        let told = replay.saved.headers.iter().any(|(name, _)| name == b"idempotency-redacted");
        assert!(told);
    }
}
