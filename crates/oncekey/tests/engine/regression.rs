//! A store that comes back older than it was: I35, F38, F54.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncekey::core::browse::{Browse, Filter, Page};
use oncekey::core::policy::StoreDown;
use oncekey::core::saved::NotKept;
use oncekey::core::store::Purged;
use oncekey::core::{
    Claim, Claimed, Class, Clock, Completion, ErrorKind, KeyId, Lease, Lineage, MemoryStore, Owner,
    Policy, Record, Renewal, Restore, Restored, Sent, State, Store, StoreError, Write,
};
use oncekey::engine::{
    Attempt, BuildError, Builder, Engine, Finish, Ran, Recorded, Refused, Reply, RingError,
    StoreHealth, Unavailable,
};

use crate::faults::{Fault, FaultyStore};
use crate::scene::{Scene, SceneClock, saved};

const NO_TIME: Duration = Duration::ZERO;

/// A store that can be replaced by an older copy of itself.
#[derive(Debug)]
struct Rewindable {
    clock: Arc<SceneClock>,
    now: Mutex<Arc<MemoryStore>>,
    life: AtomicUsize,
    adopted: AtomicUsize,
    /// How long it takes to put a record back.
    slow: Mutex<Duration>,
    /// How long it takes to say which life it is in.
    pensive: Mutex<Duration>,
}

/// The same store, but reads are answered from a copy that nobody has rewound: whoever looks for
/// canaries finds them. The planted bug of these tests.
#[derive(Debug)]
struct Blind(Arc<Rewindable>, Arc<MemoryStore>);

impl Rewindable {
    fn new(clock: &Arc<SceneClock>) -> Arc<Self> {
        let now = Mutex::new(Arc::new(MemoryStore::new(Arc::clone(clock) as Arc<dyn Clock>)));
        let (clock, life, adopted) = (Arc::clone(clock), 0.into(), 0.into());
        let (slow, pensive) = (Mutex::default(), Mutex::default());
        Arc::new(Self { clock, now, life, adopted, slow, pensive })
    }

    fn now(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.now.lock().unwrap())
    }

    /// A copy as it is now.
    async fn copy(&self) -> Arc<MemoryStore> {
        let (from, to) = (self.now(), MemoryStore::new(Arc::clone(&self.clock) as Arc<dyn Clock>));
        let listing = from.list(&Filter::default(), &Page::default()).await.unwrap();
        for summary in listing.summaries {
            to.restore(&from.get(&summary.id).await.unwrap().unwrap()).await.unwrap();
        }
        Arc::new(to)
    }

    /// Puts a copy in the place of the store. The lineage changes or does not, as it happens.
    fn become_copy(&self, copy: Arc<MemoryStore>, life: Life) {
        *self.now.lock().unwrap() = copy;
        if life == Life::Other {
            self.life.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn adopted(&self) -> usize {
        self.adopted.load(Ordering::SeqCst)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// As after a restored snapshot of the disk.
    Same,
    /// As after a promotion.
    Other,
}

macro_rules! delegate {
    ($store:ty) => {
        #[async_trait]
        impl Store for $store {
            async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
                self.write().claim(claim).await
            }
            async fn renew(
                &self,
                all: &[Lease],
                span: Duration,
            ) -> Result<Vec<Renewal>, StoreError> {
                self.write().renew(all, span).await
            }
            async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
                self.write().send(lease).await
            }
            async fn complete(&self, lease: &Lease, end: &Completion) -> Result<Write, StoreError> {
                self.write().complete(lease, end).await
            }
            async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
                self.write().release(lease).await
            }
            async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
                self.write().unknown(lease).await
            }
            async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
                self.read().get(id).await
            }
            async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
                self.write().purge(limit).await
            }
        }
    };
}

impl Rewindable {
    fn write(&self) -> Arc<MemoryStore> {
        self.now()
    }

    fn read(&self) -> Arc<MemoryStore> {
        self.now()
    }
}

impl Blind {
    fn write(&self) -> Arc<MemoryStore> {
        self.0.now()
    }

    fn read(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.1)
    }
}

delegate!(Rewindable);
delegate!(Blind);

#[async_trait]
impl Restore for Rewindable {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        let slow = *self.slow.lock().unwrap();
        tokio::time::sleep(slow).await;
        self.now().restore(record).await
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        let pensive = *self.pensive.lock().unwrap();
        tokio::time::sleep(pensive).await;
        Ok(Lineage::new(format!("life-{}", self.life.load(Ordering::SeqCst))))
    }

    async fn adopt(&self) -> Result<(), StoreError> {
        self.adopted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[async_trait]
impl Restore for Blind {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        self.0.restore(record).await
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        self.0.lineage().await
    }
}

/// Leases so short that a test can wait for one.
fn policy() -> Policy {
    Policy { lease: Duration::from_secs(2), grace: Duration::from_millis(100), ..Policy::default() }
}

fn node(scene: &Scene, store: &Arc<Rewindable>, folder: &Path) -> Builder {
    scene.node(Arc::clone(store) as _).ring(folder, Arc::clone(store) as _).cache(0)
}

/// An engine on a folder that the last one may still have.
async fn build(make: impl Fn() -> Builder) -> Engine {
    for _ in 0..500 {
        match make().build() {
            Err(BuildError::Ring(RingError::InUse { .. })) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            built => return built.unwrap(),
        }
    }
    panic!("the folder is never free")
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("in vain: {what}")
}

fn is_stopped(engine: &Engine) -> bool {
    engine.load().store == StoreHealth::Regressed
}

fn finding(engine: &Engine) -> String {
    engine.findings().iter().map(ToString::to_string).collect()
}

/// A scene with a node that has finished `keys`, of which the store then forgets all but the first.
async fn forgotten(folder: &Path, life: Life) -> (Scene, Arc<Rewindable>) {
    let mut scene = Scene::new(policy());
    let store = Rewindable::new(&scene.clock);
    scene.engine = node(&scene, &store, folder).build().unwrap();
    scene.ask("k0", 1, 201, NO_TIME).await;
    let copy = store.copy().await;
    for key in ["k1", "k2", "k3"] {
        let reply = scene.ask(key, 1, 201, NO_TIME).await;
        assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Kept, .. })), "{reply:?}");
    }
    store.become_copy(copy, life);
    (scene, store)
}

/// The whole story, after a promotion and after a restored snapshot: noticed, stopped, put back.
#[tokio::test]
async fn a_key_that_the_store_forgot_never_runs_twice() {
    for life in [Life::Same, Life::Other] {
        let folder = tempfile::tempdir().unwrap();
        let (scene, store) = forgotten(folder.path(), life).await;
        until("noticed", || is_stopped(&scene.engine)).await;
        assert!(
            finding(&scene.engine).contains("grants are stopped"),
            "{}",
            finding(&scene.engine)
        );
        // Nothing new is granted, and what is there is replayed.
        let reply = scene.ask("new", 1, 201, NO_TIME).await;
        let why = Unavailable::Regressed;
        let is_refused =
            matches!(&reply, Reply::Refused(Refused::Unavailable { why: w, .. }) if *w == why);
        assert!(is_refused, "{reply:?}");
        let reply = scene.ask("k0", 1, 201, NO_TIME).await;
        assert!(matches!(reply, Reply::Replayed(_)), "{reply:?}");
        until("healed", || !is_stopped(&scene.engine)).await;
        assert_eq!(store.adopted(), 1);
        for key in ["k1", "k2", "k3"] {
            let reply = scene.ask(key, 1, 201, NO_TIME).await;
            let lost = NotKept::Lost;
            let is_known = matches!(&reply, Reply::Refused(Refused::NotRetained { status: Some(201), reason, .. }) if *reason == lost);
            assert!(is_known, "{reply:?}");
        }
        assert_eq!(scene.runs(), 4, "every key ran once");
        let reply = scene.ask("new", 1, 201, NO_TIME).await;
        assert!(matches!(reply, Reply::Ran(_)), "{reply:?}");
        assert!(
            finding(&scene.engine).contains("3 finished without"),
            "{}",
            finding(&scene.engine)
        );
    }
}

/// The same story with a sentry that finds every canary: the test above can fail.
#[tokio::test]
async fn without_canaries_a_forgotten_key_runs_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut scene = Scene::new(policy());
    let store = Rewindable::new(&scene.clock);
    let first = store.copy().await;
    scene.engine = scene.node(Arc::clone(&store) as _).cache(0).build().unwrap();
    scene.ask("k1", 1, 201, NO_TIME).await;
    let blind = Arc::new(Blind(Arc::clone(&store), store.now()));
    let builder = scene.node(Arc::clone(&store) as _).cache(0);
    scene.engine = builder.ring(folder.path(), blind).build().unwrap();
    scene.ask("k2", 1, 201, NO_TIME).await;
    store.become_copy(first, Life::Other);
    // Longer than a node waits for others after a failover that it takes for clean.
    tokio::time::sleep(Duration::from_millis(7_500)).await;
    assert!(!is_stopped(&scene.engine), "it sees nothing");
    scene.ask("k2", 1, 201, NO_TIME).await;
    assert_eq!(scene.runs(), 3, "the planted bug: a finished key ran again");
}

/// F37: a failover that lost nothing is adopted after a few seconds, without an alarm.
#[tokio::test]
async fn a_clean_failover_is_adopted_without_an_alarm() {
    let folder = tempfile::tempdir().unwrap();
    let mut scene = Scene::new(policy());
    let store = Rewindable::new(&scene.clock);
    scene.engine = node(&scene, &store, folder.path()).build().unwrap();
    scene.ask("k1", 1, 201, NO_TIME).await;
    store.become_copy(store.copy().await, Life::Other);
    until("adopted", || store.adopted() == 1).await;
    // The engine hears of the adoption a moment after the store.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!is_stopped(&scene.engine));
    assert!(matches!(scene.ask("k1", 1, 201, NO_TIME).await, Reply::Replayed(_)));
    assert!(matches!(scene.ask("k2", 1, 201, NO_TIME).await, Reply::Ran(_)));
    assert!(finding(&scene.engine).contains("(good)"), "{}", finding(&scene.engine));
}

/// Work that runs while the store forgets it goes on, and its end is recorded with its answer.
#[tokio::test]
async fn work_under_way_keeps_its_key_and_records_its_answer() {
    for life in [Life::Same, Life::Other] {
        let folder = tempfile::tempdir().unwrap();
        let mut scene = Scene::new(policy());
        let store = Rewindable::new(&scene.clock);
        let patience = Duration::from_secs(30);
        scene.engine = node(&scene, &store, folder.path()).patience(patience).build().unwrap();
        let before = store.copy().await;
        scene.ask("done", 1, 201, NO_TIME).await;
        let running = {
            let scene = scene.clone();
            // Longer than it takes to notice, and than a lease.
            tokio::spawn(async move { scene.ask("slow", 1, 201, Duration::from_secs(4)).await })
        };
        until("it runs", || scene.runs() == 2).await;
        store.become_copy(before, life);
        let reply = running.await.unwrap();
        assert!(matches!(reply, Reply::Ran(Ran { recorded: Recorded::Kept, .. })), "{reply:?}");
        until("healed", || !is_stopped(&scene.engine)).await;
        assert!(matches!(scene.ask("slow", 1, 201, NO_TIME).await, Reply::Replayed(_)));
        assert_eq!(scene.runs(), 2);
    }
}

/// An answer that is still in memory is put back as a whole.
#[tokio::test]
async fn an_answer_in_memory_is_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut scene = Scene::new(policy());
    let store = Rewindable::new(&scene.clock);
    scene.engine = node(&scene, &store, folder.path()).cache(1 << 20).build().unwrap();
    let before = store.copy().await;
    let call = scene.call("k1", 1);
    scene.ask("k1", 1, 201, NO_TIME).await;
    store.become_copy(before, Life::Other);
    until("noticed", || is_stopped(&scene.engine)).await;
    until("healed", || !is_stopped(&scene.engine)).await;
    let id = scene.engine.key_id(&call.scope, &call.key);
    let record = store.get(&id).await.unwrap().unwrap();
    let State::Done { answer, .. } = record.state else { panic!("it was done") };
    assert_eq!(answer, oncekey::core::Answer::Kept(saved(201)));
}

/// The store is replaced while no process runs: the next one notices before it grants anything.
#[tokio::test]
async fn a_regression_between_two_processes_is_noticed_before_the_first_grant() {
    let folder = tempfile::tempdir().unwrap();
    for life in [Life::Same, Life::Other] {
        let mut scene = Scene::of_class(Class::Once);
        scene.policy = policy();
        let store = Rewindable::new(&scene.clock);
        let copy = store.copy().await;
        let folder = folder.path().join(format!("{life:?}"));
        scene.engine = node(&scene, &store, &folder).build().unwrap();
        scene.ask("done", 1, 201, NO_TIME).await;
        // It dies in the middle of this one.
        let abandoned = {
            let scene = scene.clone();
            tokio::spawn(async move {
                let work = async |attempt: Attempt| {
                    attempt.send().await.unwrap();
                    std::future::pending::<Finish<u16>>().await
                };
                scene.engine.answer(scene.call("cut", 1), work).await
            })
        };
        tokio::time::sleep(Duration::from_millis(300)).await;
        scene.engine.shutdown(NO_TIME).await;
        abandoned.abort();
        scene.engine = scene.node(Arc::clone(&store) as _).build().unwrap();
        store.become_copy(copy, life);
        scene.engine = build(|| node(&scene, &store, &folder)).await;
        for key in ["done", "cut"] {
            let reply = scene.ask(key, 1, 201, NO_TIME).await;
            assert!(matches!(reply, Reply::Refused(_)), "{key} after {life:?}: {reply:?}");
        }
        assert_eq!(scene.runs(), 1);
        assert!(is_stopped(&scene.engine));
    }
}

/// A node that has lost nothing waits until the others have put back what they lost.
#[tokio::test]
async fn a_key_that_another_node_lost_is_not_granted_either() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut scene = Scene::new(policy());
    let store = Rewindable::new(&scene.clock);
    scene.engine = node(&scene, &store, here.path()).build().unwrap();
    let mut other = scene.clone();
    other.engine = node(&scene, &store, there.path()).build().unwrap();
    other.ask("early", 1, 201, NO_TIME).await;
    let copy = store.copy().await;
    scene.ask("lost", 1, 201, NO_TIME).await;
    store.become_copy(copy, Life::Other);
    // This store does not notice by itself, so the first look of the other node is waited for.
    until("the other node looked", || finding(&other.engine).contains("in a few seconds")).await;
    let mut reply = other.ask("lost", 1, 201, NO_TIME).await;
    while let Reply::Refused(Refused::Unavailable { why, .. }) = &reply {
        assert_eq!(*why, Unavailable::Regressed);
        tokio::time::sleep(Duration::from_millis(20)).await;
        reply = other.ask("lost", 1, 201, NO_TIME).await;
    }
    assert!(matches!(reply, Reply::Refused(Refused::NotRetained { .. })), "{reply:?}");
    assert_eq!(scene.runs(), 2);
    assert!(!is_stopped(&other.engine), "it has lost nothing itself");
}

/// The other node takes longer to put back what it lost than this one would wait by itself.
#[tokio::test]
async fn nobody_grants_while_another_node_puts_back_what_it_lost() {
    const LOST: usize = 64;
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut scene = Scene::new(policy());
    let store = Rewindable::new(&scene.clock);
    scene.engine = node(&scene, &store, here.path()).build().unwrap();
    let mut other = scene.clone();
    other.engine = node(&scene, &store, there.path()).build().unwrap();
    other.ask("early", 1, 201, NO_TIME).await;
    let copy = store.copy().await;
    for number in 0..LOST {
        scene.ask(&format!("lost-{number}"), 1, 201, NO_TIME).await;
    }
    // Two rounds of writes, each after a sign: together longer than a node settles.
    *store.slow.lock().unwrap() = Duration::from_millis(2_200);
    store.become_copy(copy, Life::Other);
    until("the other node looked", || finding(&other.engine).contains("in a few seconds")).await;
    let mut reply = other.ask("lost-0", 1, 201, NO_TIME).await;
    while let Reply::Refused(Refused::Unavailable { .. }) = &reply {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if finding(&scene.engine).contains("put back") {
            *store.slow.lock().unwrap() = NO_TIME;
        }
        reply = other.ask("lost-0", 1, 201, NO_TIME).await;
    }
    assert!(matches!(reply, Reply::Refused(Refused::NotRetained { .. })), "{reply:?}");
    assert_eq!(scene.runs(), LOST + 1, "nothing ran twice");
}

/// A lost key was granted before anybody noticed, so that what is known of it is older than what stands in
/// the store. The grant is given back, and then the key must not be free.
#[tokio::test]
async fn a_void_grant_does_not_swallow_what_is_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut scene = Scene::new(policy());
    let store = Rewindable::new(&scene.clock);
    scene.engine = node(&scene, &store, folder.path()).build().unwrap();
    let copy = store.copy().await;
    scene.ask("k1", 1, 201, NO_TIME).await;
    let listing = store.now().list(&Filter::default(), &Page::default()).await.unwrap();
    let done = store.now().get(&listing.summaries[0].id).await.unwrap().unwrap();
    let claim = Claim {
        id: done.id,
        owner: Owner::from_bytes([9; 16]),
        fingerprint: done.fingerprint,
        class: done.class,
        lease: Duration::from_secs(30),
        grace: NO_TIME,
        sent: Sent::No,
        origin: done.origin.clone(),
        places: done.places.clone(),
    };
    let Claimed::Won { lease, .. } = copy.claim(&claim).await.unwrap() else {
        panic!("the copy knows nothing of the key")
    };
    store.become_copy(copy, Life::Other);
    until("noticed", || is_stopped(&scene.engine)).await;
    // It was tried by now, or is tried a moment later: the grant stands for the first time in any case.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(store.now().release(&lease).await.unwrap(), Write::Applied);
    until("healed", || !is_stopped(&scene.engine)).await;
    let mut reply = scene.ask("k1", 1, 201, NO_TIME).await;
    while let Reply::Refused(Refused::Unavailable { .. }) = &reply {
        tokio::time::sleep(Duration::from_millis(20)).await;
        reply = scene.ask("k1", 1, 201, NO_TIME).await;
    }
    assert!(matches!(reply, Reply::Refused(Refused::NotRetained { .. })), "{reply:?}");
    assert_eq!(scene.runs(), 1);
}

/// I33, I35: a store that answers is not down. A route that prefers to run without protection while the
/// store is down does not run because nobody has looked yet whether the store has forgotten something.
#[tokio::test]
async fn nothing_runs_unprotected_while_the_store_answers() {
    let folder = tempfile::tempdir().unwrap();
    let policy = Policy { store_down: StoreDown::PassUnprotected, ..policy() };
    let mut scene = Scene::new(policy);
    let store = Rewindable::new(&scene.clock);
    scene.engine = node(&scene, &store, folder.path()).build().unwrap();
    assert!(matches!(scene.ask("done", 1, 201, NO_TIME).await, Reply::Ran(_)));
    *store.pensive.lock().unwrap() = Duration::from_secs(60);
    let other = tempfile::tempdir().unwrap();
    scene.engine = node(&scene, &store, other.path()).build().unwrap();
    for key in ["done", "new"] {
        match scene.ask(key, 1, 201, NO_TIME).await {
            Reply::Refused(Refused::Unavailable { why, .. }) => {
                assert_eq!(why, Unavailable::Regressed, "{key}");
            }
            reply => panic!("{key}: {reply:?}"),
        }
    }
    assert_eq!(scene.runs(), 1);
}

/// I8: whoever looks for the lost try of a claim frees what its owner holds. So a call whose try was lost, and
/// which then may not ask, does not ask again under that owner when the key becomes free.
#[tokio::test]
async fn a_call_whose_lost_try_is_looked_for_never_runs_under_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let mut scene = Scene::new(policy());
    let store = Rewindable::new(&scene.clock);
    let faulty = Arc::new(FaultyStore::new(store.now()));
    let node = scene.node(Arc::clone(&faulty) as _).ring(folder.path(), Arc::clone(&store) as _);
    scene.engine = node.cache(0).build().unwrap();
    assert!(matches!(scene.ask("first", 1, 201, NO_TIME).await, Reply::Ran(_)));
    let other = scene.node(store.now() as _).build().unwrap();
    let other = Scene { engine: other, ..scene.clone() };
    let held = tokio::spawn(async move { other.ask("k", 1, 429, Duration::from_secs(4)).await });
    until("held", || scene.runs() == 2).await;
    faulty.fail_next("claim", Fault::Refused(ErrorKind::Ambiguous));
    *store.pensive.lock().unwrap() = Duration::from_secs(60);
    let reply = scene.ask("k", 1, 201, NO_TIME).await;
    assert!(matches!(reply, Reply::Refused(Refused::InProgress { .. })), "{reply:?}");
    assert!(matches!(held.await.unwrap(), Reply::Ran(_)));
    assert_eq!(scene.runs(), 2);
}
