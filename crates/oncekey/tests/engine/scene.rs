//! An engine on a store in memory, with work that can be watched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use oncekey::clock::Uptime;
use oncekey::core::{
    Class, Clock, Fingerprint, Headers, Key, MemoryStore, Places, Policy, Saved, Scope, Timestamp,
};
use oncekey::engine::{Attempt, Builder, Call, Engine, Finish, Heartbeat, Reply};
use tokio::time::Instant;

/// The time of a scene, for its store and its nodes: it follows tokio's, and can be moved on.
#[derive(Debug)]
pub(crate) struct SceneClock {
    began: Instant,
    ahead: AtomicU64,
}

impl SceneClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.ahead.fetch_add(u64::try_from(by.as_micros()).unwrap(), Ordering::SeqCst);
    }
}

impl Uptime for SceneClock {
    fn elapsed(&self) -> Duration {
        self.began.elapsed() + Duration::from_micros(self.ahead.load(Ordering::SeqCst))
    }
}

impl Clock for SceneClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_763_000_000_000_000).after(self.elapsed())
    }
}

/// An engine, its store, and a count of how often work ran.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) engine: Engine,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) clock: Arc<SceneClock>,
    pub(crate) runs: Arc<AtomicUsize>,
    pub(crate) policy: Policy,
}

impl Scene {
    pub(crate) fn new(policy: Policy) -> Self {
        let clock = Arc::new(SceneClock { began: Instant::now(), ahead: AtomicU64::new(0) });
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let builder = Engine::builder(Arc::clone(&store) as _).wake(Arc::clone(&store) as _);
        let builder = builder.uptime(Arc::clone(&clock) as _).clock(Arc::clone(&clock) as _);
        let builder = builder.heartbeat(Heartbeat::Task);
        let engine = builder.build().unwrap();
        Self { engine, store, clock, runs: Arc::default(), policy }
    }

    /// A builder for another node on a store, with the scene's time.
    pub(crate) fn node(&self, store: Arc<dyn oncekey::core::Store>) -> Builder {
        let uptime = Arc::clone(&self.clock) as Arc<dyn Uptime>;
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        Engine::builder(store).uptime(uptime).clock(clock).heartbeat(Heartbeat::Task)
    }

    pub(crate) fn of_class(class: Class) -> Self {
        Self::new(Policy { class, ..Policy::default() })
    }

    pub(crate) fn call(&self, key: &str, body: u8) -> Call {
        let (key, scope) = (Key::new(key.as_bytes()).unwrap(), Scope::new("tenant").unwrap());
        Call {
            exact: None,
            id: self.engine.key_id(&scope, &key),
            key,
            scope,
            fingerprint: Fingerprint::from_parts(1, [body; 32]),
            places: Places::default(),
            route: "POST /payments".into(),
            request: self.engine.request_id(),
            policy: Arc::new(self.policy.clone()),
        }
    }

    /// Asks with work that answers `status` after `takes`.
    pub(crate) async fn ask(
        &self,
        key: &str,
        body: u8,
        status: u16,
        takes: Duration,
    ) -> Reply<u16> {
        let runs = Arc::clone(&self.runs);
        let work = async move |attempt: Attempt| {
            attempt.send().await.expect("may send");
            runs.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(takes).await;
            Finish::answered(saved(status), status)
        };
        self.engine.answer(self.call(key, body), work).await
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

pub(crate) fn saved(status: u16) -> Saved {
    Saved { status, headers: Headers::new(), body: Bytes::from_static(b"answer") }
}

/// Something that looks like a key, another one for each seed.
pub(crate) fn key_bytes(seed: u8) -> [u8; 32] {
    std::array::from_fn(|place| u8::try_from(place).unwrap().wrapping_mul(37) ^ seed)
}
