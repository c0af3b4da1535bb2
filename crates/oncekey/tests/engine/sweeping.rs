//! Loops that have much to do: more expired records than one run removes, probes that hang.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use oncekey::core::{ErrorKind, KeyId, Policy, Store};
use oncekey::engine::{Attempt, Doubt, Finish, Happened, Probe, Reply};
use tokio::time::Instant;

use crate::faults::{Fault, FaultyStore};
use crate::scene::Scene;

const NONE: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);

/// I55: what is over goes as fast as it comes, and not a bounded number of records each minute.
#[tokio::test(start_paused = true)]
async fn the_reaper_goes_on_while_something_is_left() {
    let scene = Scene::new(Policy::default());
    for key in 0..350 {
        assert!(matches!(scene.ask(&format!("k{key}"), 1, 201, NONE).await, Reply::Ran(_)));
    }
    scene.clock.advance(scene.policy.retention + scene.policy.linger + SECOND);
    // A run of it removes a hundred of them.
    let reaper = tokio::spawn(scene.engine.reaper().batch(1).run());
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(scene.store.purge(1_000).await.unwrap().total(), 0, "nothing is left");
    reaper.abort();
}

/// Remembers about whom it was asked, and hangs.
#[derive(Debug, Default)]
struct Hanging(Mutex<Vec<KeyId>>);

#[async_trait]
impl Probe for Hanging {
    async fn did_it_happen(&self, doubt: &Doubt<'_>) -> Happened {
        self.0.lock().unwrap().push(doubt.record.id);
        std::future::pending().await
    }
}

/// A scene with so many unknown outcomes, and a probe that hangs.
async fn in_doubt(keys: usize) -> (Scene, Arc<Hanging>) {
    let mut scene = Scene::new(Policy::default());
    for key in 0..keys {
        assert!(matches!(scene.ask(&format!("k{key}"), 1, 504, NONE).await, Reply::Ran(_)));
    }
    let probe = Arc::new(Hanging::default());
    let node = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>);
    scene.engine = node.probe(Arc::clone(&probe) as _).build().unwrap();
    (scene, probe)
}

/// L1: a probe that hangs costs a sweep its time, and never the keys whose owners are gone.
#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_does_not_keep_others_stuck() {
    let (scene, _) = in_doubt(200).await;
    let sweeper = tokio::spawn(scene.engine.sweeper(Arc::clone(&scene.store) as _).run());
    tokio::time::sleep(SECOND).await;
    // It is lost after the sweep has begun to ask.
    let silent = Arc::new(FaultyStore::new(Arc::clone(&scene.store)));
    silent.fail_all(Some(Fault::Refused(ErrorKind::Unavailable)));
    let dying = scene.node(Arc::clone(&scene.store) as Arc<dyn Store>).heartbeat_store(silent);
    let dying = dying.build().unwrap();
    let call = scene.call("lost", 1);
    let id = call.id;
    let running = tokio::spawn(async move {
        let work = async |_: Attempt| -> Finish<()> { std::future::pending().await };
        dying.answer(call, work).await
    });
    tokio::time::sleep(SECOND).await;
    running.abort();
    tokio::time::sleep(scene.policy.lease + scene.policy.grace + 60 * SECOND).await;
    assert_eq!(scene.store.get(&id).await.unwrap(), None, "it is free");
    sweeper.abort();
}

/// Nobody waits for an answer about one record until the probe has hung twice about another.
#[tokio::test(start_paused = true)]
async fn a_sweep_asks_the_probe_where_the_last_one_stopped() {
    let (scene, probe) = in_doubt(50).await;
    let sweeper = scene.engine.sweeper(Arc::clone(&scene.store) as _);
    let asked = || probe.0.lock().unwrap().clone();
    while asked().len() < 50 {
        let (began, before) = (Instant::now(), asked().len());
        let swept = sweeper.run_once().await.unwrap();
        assert!(began.elapsed() < 60 * SECOND, "{:?}", began.elapsed());
        assert_eq!((swept.resolved, swept.in_doubt), (0, 50), "also those that had no turn");
        assert!(asked().len() > before, "it goes on");
    }
    let mut ids = asked();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 50, "about each of them once");
    sweeper.run_once().await.unwrap();
    assert!(asked().len() > 50, "and then about all of them again");
}

/// Gauges by their names.
#[derive(Default)]
struct Gauges(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Gauges {
    fn value(&self, name: &str) -> Option<f64> {
        let gauges = self.0.lock().unwrap();
        gauges.get(name).map(|bits| f64::from_bits(bits.load(Ordering::SeqCst)))
    }
}

impl Recorder for Gauges {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut gauges = self.0.lock().unwrap();
        Gauge::from_arc(Arc::clone(gauges.entry(key.name().to_owned()).or_default()))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// An alert must not wait for whoever is asked.
#[test]
fn unknown_outcomes_are_counted_before_the_probe_is_asked() {
    let gauges = Gauges::default();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    with_local_recorder(&gauges, || {
        runtime.block_on(async {
            let (scene, _) = in_doubt(20).await;
            let sweeper = scene.engine.sweeper(Arc::clone(&scene.store) as _);
            let sweep = tokio::time::timeout(SECOND, sweeper.run_once()).await;
            assert!(sweep.is_err(), "the probe hangs");
        });
    });
    assert_eq!(gauges.value("oncekey_unknown_outcomes"), Some(20.0));
}
