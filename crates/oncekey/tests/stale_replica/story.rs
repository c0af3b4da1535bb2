//! What happens in every round, whatever the store is.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::core::policy::InFlight;
use oncekey::core::saved::NotKept;
use oncekey::core::{
    Fingerprint, Headers, Key, Places, Policy, Restore, Saved, Scope, State, Store,
};
use oncekey::engine::{
    Attempt, Call, Engine, Finish, Ran, Recorded, Refused, Reply, StoreHealth, Unavailable,
};
use tokio::time::Instant;

use crate::log;
use crate::process::until;

/// A primary, and a replica that takes its place.
pub(crate) trait Pair {
    /// Starts a replica and waits until it has everything.
    async fn add_replica(&mut self);
    /// Cuts the replica off: from here on it is stale.
    async fn cut_off(&mut self);
    /// Kills the primary, promotes the replica, and leads clients there.
    async fn fail_over(&mut self);
}

/// How often each key ran.
type Runs = Arc<Mutex<HashMap<String, usize>>>;

struct Node {
    engine: Engine,
    runs: Runs,
}

/// Keys per round: more than a batch, and quickly written.
const KEYS: usize = 100;
const LEASE: Duration = Duration::from_secs(2);

/// Tells the whole story so many times, and how long it took.
///
/// A second node, on a store of its own, loses nothing itself: it must not grant what the first lost.
pub(crate) async fn tell<S: Store + Restore>(
    name: &str,
    (store, second): (Arc<S>, Arc<S>),
    pair: &mut impl Pair,
) {
    log::listen();
    let (folder, another) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let node = Node::new(Arc::clone(&store), folder.path(), Runs::default());
    let other = Node::new(second, another.path(), Arc::clone(&node.runs));
    for round in 0..rounds() {
        let alarms = log::count("store regressed");
        pair.add_replica().await;
        // The replica knows these: no reason for anybody to be alarmed.
        node.finish(&keys("early", round)).await;
        other.finish(&[format!("other-{round}")]).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        pair.cut_off().await;
        let lost = keys("late", round);
        node.finish(&lost).await;
        let slow = node.begin_slow(&format!("slow-{round}")).await;
        pair.fail_over().await;

        let (noticed, healed) = node.press_until_healed(&other, round, &lost).await;
        let reply = slow.await.unwrap();
        assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Kept, .. })), "{reply:?}");
        for key in &lost {
            let call = node.call(key);
            let record = store.get(&call.id).await.unwrap();
            let state = record.map(|record| record.state);
            assert!(matches!(state, Some(State::Done { .. })), "{name} {round} {key}: {state:?}");
            let reply = node.ask(key).await;
            let is_kept = matches!(
                &reply,
                Reply::Refused(Refused::NotRetained {
                    status: Some(201),
                    reason: NotKept::Lost,
                    ..
                })
            );
            assert!(is_kept, "{name} {round} {key}: {reply:?}");
        }
        for key in keys("early", round) {
            assert!(matches!(node.ask(&key).await, Reply::Replayed(_)), "{name} {round} {key}");
        }
        assert!(matches!(node.ask(&format!("slow-{round}")).await, Reply::Replayed(_)));
        let runs = node.runs.lock().unwrap();
        assert!(runs.values().all(|runs| *runs == 1), "{name}: a key ran twice in round {round}");
        assert!(log::count("store regressed") > alarms, "{name}: round {round} raised no alarm");
        let health = node.engine.findings();
        assert!(health[0].text.contains("put back"), "{health:?}");
        eprintln!("{name} round {round}: noticed after {noticed:?}, healed after {healed:?}");
    }
    eprintln!("{name}: {} keys, none ran twice", node.runs.lock().unwrap().len());
}

impl Node {
    fn new<S: Store + Restore>(store: Arc<S>, folder: &Path, runs: Runs) -> Self {
        // Without a cache, so that it is the store that is asked.
        let builder = Engine::builder(Arc::clone(&store) as _).cache(0);
        // Its owner waits for as long as putting things back takes.
        let builder = builder.patience(Duration::from_secs(60));
        let engine = builder.ring(folder.join("ring"), store).build().unwrap();
        Self { engine, runs }
    }

    fn call(&self, key: &str) -> Call {
        let (key, scope) = (Key::new(key.as_bytes()).unwrap(), Scope::new("tenant").unwrap());
        let (lease, grace) = (LEASE, Duration::from_millis(200));
        let in_flight = InFlight::Conflict;
        Call {
            exact: None,
            id: self.engine.key_id(&scope, &key),
            key,
            scope,
            fingerprint: Fingerprint::from_parts(1, [1; 32]),
            places: Places::default(),
            route: "POST /payments".into(),
            request: self.engine.request_id(),
            policy: Arc::new(Policy { lease, grace, in_flight, ..Policy::default() }),
        }
    }

    async fn ask(&self, key: &str) -> Reply<()> {
        self.ask_slowly(key, Duration::ZERO).await
    }

    async fn ask_slowly(&self, key: &str, takes: Duration) -> Reply<()> {
        let (runs, name) = (Arc::clone(&self.runs), key.to_owned());
        let work = async move |attempt: Attempt| {
            if attempt.send().await.is_err() {
                return Finish::never_sent(());
            }
            *runs.lock().unwrap().entry(name).or_default() += 1;
            tokio::time::sleep(takes).await;
            let body = bytes::Bytes::from_static(b"answer");
            Finish::answered(Saved { status: 201, headers: Headers::new(), body }, ())
        };
        self.engine.answer(self.call(key), work).await
    }

    /// Finishes keys, acknowledged by the store.
    async fn finish(&self, keys: &[String]) {
        for key in keys {
            let mut reply = self.ask(key).await;
            for _ in 0..100 {
                if !matches!(reply, Reply::Refused(Refused::Unavailable { .. })) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                reply = self.ask(key).await;
            }
            let is_kept = matches!(reply, Reply::Ran(Ran { recorded: Recorded::Kept, .. }));
            assert!(is_kept, "{key}: {reply:?}");
        }
    }

    /// Begins work that is still under way when the store fails over.
    async fn begin_slow(&self, key: &str) -> tokio::task::JoinHandle<Reply<()>> {
        let node = Self { engine: self.engine.clone(), runs: Arc::clone(&self.runs) };
        let name = key.to_owned();
        let task =
            tokio::spawn(async move { node.ask_slowly(&name, Duration::from_secs(3)).await });
        until("the slow one runs", async || self.runs.lock().unwrap().contains_key(key)).await;
        task
    }

    /// Asks for lost keys and for new ones without a pause until the node is sure again. None may
    /// run before. Says how long it took to notice, and to heal.
    async fn press_until_healed(
        &self,
        other: &Self,
        round: usize,
        lost: &[String],
    ) -> (Duration, Duration) {
        let began = Instant::now();
        let mut noticed = None;
        let pressed = AtomicUsize::new(0);
        loop {
            let number = pressed.fetch_add(1, Ordering::Relaxed);
            other.ask(&lost[number % lost.len()]).await;
            for key in [&lost[number % lost.len()], &format!("new-{round}-{number}")] {
                let reply = self.ask(key).await;
                let is_over = noticed.is_some() && !self.is_stopped();
                if !is_over {
                    let is_refused = matches!(
                        &reply,
                        Reply::Refused(
                            Refused::Unavailable {
                                why: Unavailable::Store | Unavailable::Regressed,
                                ..
                            } | Refused::NotRetained { .. }
                        )
                    );
                    assert!(is_refused, "{key} was not refused: {reply:?}");
                }
            }
            if noticed.is_none() && self.is_stopped() {
                noticed = Some(began.elapsed());
            }
            if let Some(noticed) = noticed
                && !self.is_stopped()
            {
                assert!(pressed.load(Ordering::Relaxed) > 5, "nobody pressed");
                return (noticed, began.elapsed());
            }
            assert!(began.elapsed() < Duration::from_secs(60), "never noticed, or never healed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn is_stopped(&self) -> bool {
        self.engine.load().store == StoreHealth::Regressed
    }
}

fn keys(name: &str, round: usize) -> Vec<String> {
    (0..KEYS).map(|key| format!("{name}-{round}-{key}")).collect()
}

/// Few by default, because each takes some seconds.
fn rounds() -> usize {
    std::env::var("ONCEKEY_STALE_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap())
}
