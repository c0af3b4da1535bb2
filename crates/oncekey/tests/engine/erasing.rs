//! Erasing a scope: T19, I55.

use std::sync::Arc;
use std::time::Duration;

use oncekey::core::saved::NotKept;
use oncekey::core::{Policy, Store};
use oncekey::engine::{ErasedScope, KeyRing, Refused, Reply};

use crate::scene::{Scene, key_bytes};

const NONE: Duration = Duration::ZERO;

/// What is erased is neither replayed nor run again, whichever key of the ring it was under.
#[tokio::test(start_paused = true)]
async fn an_erased_scope_keeps_the_fact_and_nothing_else() {
    let mut scene = Scene::new(Policy::default());
    let node = |ring: KeyRing| {
        scene.node(Arc::clone(&scene.store) as Arc<dyn Store>).encryption(ring).build().unwrap()
    };
    let old = KeyRing::new("old", &key_bytes(1)).unwrap();
    let new = KeyRing::new("new", &key_bytes(2)).unwrap();
    let (old, new) = (node(old), node(new.with_old("old", &key_bytes(1)).unwrap()));
    scene.engine = old;
    assert!(matches!(scene.ask("first", 1, 201, NONE).await, Reply::Ran(_)));
    scene.engine = new;
    assert!(matches!(scene.ask("second", 1, 201, NONE).await, Reply::Ran(_)));
    assert!(matches!(scene.ask("doubtful", 1, 504, NONE).await, Reply::Ran(_)));
    // It is in memory now.
    assert!(matches!(scene.ask("second", 1, 201, NONE).await, Reply::Replayed(_)));

    let scope = scene.call("first", 1).scope;
    let erased = scene.engine.erase_scope(&*scene.store, &scope).await.unwrap();
    assert_eq!(erased, ErasedScope { blanked: 2, unfinished: 1 });
    for key in ["first", "second"] {
        match scene.ask(key, 1, 201, NONE).await {
            Reply::Refused(Refused::NotRetained { reason: NotKept::Erased, .. }) => {}
            reply => panic!("{reply:?}"),
        }
    }
    assert_eq!(scene.runs(), 3);
    let again = scene.engine.erase_scope(&*scene.store, &scope).await.unwrap();
    assert_eq!(again, ErasedScope { blanked: 0, unfinished: 1 });
}
