//! One history from its seed: faults, then healing, then the proof that everything comes to an end.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::clock::{SystemUptime, Uptime as _};
use oncekey::core::conformance::Rig;
use oncekey::core::{Clock, ManualClock, MemoryStore, State};
use oncekey::engine::Refused;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::broken::BrokenRig;
use crate::bugs::Bug;
use crate::chaos::{ambush, chaos, reaper};
use crate::dice::{Dice, Part, SharedDice};
use crate::load::{Patience, call, client, plain_job};
use crate::log::{Event, Log, Note, What, Who};
use crate::operator::{Suspects, operator, resolve, sweeper};
use crate::options::{Journal, Options};
use crate::signal::Signal;
use crate::store::{Inner, Line, StoreSide, Weather};
use crate::time::{BASE, SimTime, StoreClock};
use crate::upstream::Upstream;
use crate::world::{Node, World, fingerprint_of, new_folder};

/// A history and how it was made.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) options: Arc<Options>,
    pub(crate) bug: Option<Bug>,
    pub(crate) events: Vec<Event>,
    /// Simulated time.
    pub(crate) length: Duration,
}

/// The longest time that faults go on: clients of a node that sleeps for a hundred leases wait.
const LONGEST: Duration = Duration::from_secs(1_500);

/// Real time that a few syncs may take beside tests that sync all the time. What is stuck stays
/// stuck for longer.
const SLOWEST_DISK: Duration = Duration::from_secs(20);

/// Runs the history of a seed.
pub(crate) fn history(seed: u64, bug: Option<Bug>) -> History {
    history_of(Options::of(seed), bug)
}

/// Runs the history of a seed with journals. It is not the same each time: a disk takes its time.
pub(crate) fn journalled_history(seed: u64, bug: Option<Bug>) -> History {
    history_of(Options::of(seed).with_journal(), bug)
}

fn history_of(options: Options, bug: Option<Bug>) -> History {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads needs nothing");
    let options = Arc::new(options);
    let world = runtime.block_on(async { Arc::new(World::new(Arc::clone(&options), bug)) });
    runtime.block_on(live(&world));
    let (length, events) = runtime.block_on(async { (world.time.now(), world.log.close()) });
    // Only now do destructors run, of the living and of the dead.
    drop(runtime);
    History { options, bug, events, length }
}

async fn live(world: &Arc<World>) {
    let seed = world.options.seed;
    (0..world.options.nodes).for_each(|node| world.start(node));
    let mut load = Dice::of(seed, Part::Load);
    let mut clients = JoinSet::new();
    for _ in 0..world.options.clients {
        clients.spawn(client(Arc::clone(world), load.fork()));
    }
    let mut others = JoinSet::new();
    let mut people = Dice::of(seed, Part::Operator);
    let mut mishaps = Dice::of(seed, Part::Chaos);
    others.spawn(chaos(Arc::clone(world), mishaps.fork()));
    others.spawn(ambush(Arc::clone(world), mishaps.fork()));
    others.spawn(operator(Arc::clone(world), people.fork()));
    others.spawn(reaper(Arc::clone(world), people.fork()));
    others.spawn(sweeper(Arc::clone(world), people.fork()));
    let everybody = async { while clients.join_next().await.is_some() {} };
    // Clients that are not through by then go on while things heal.
    let _ = timeout(LONGEST, everybody).await;
    heal(world);
    within(world, "others", async { while others.join_next().await.is_some() {} }).await;
    within(world, "a client", async { while clients.join_next().await.is_some() {} }).await;
    prove_ends(world).await;
    shut_down(world).await;
}

fn heal(world: &Arc<World>) {
    world.log.note(What::Healed);
    world.side.set_weather(Weather::Healed);
    world.upstream.heal();
    world.side.clock.put_right();
    world.healed.raise();
}

/// How long something may take once nothing goes wrong any more: the longest wait of a client, the
/// longest that the upstream keeps a request, and several leases.
fn bound(world: &World) -> Duration {
    let Options { lease, grace, patience, .. } = *world.options;
    Duration::from_secs(20) + lease * 14 + grace * 2 + patience * 2
}

async fn within(world: &World, what: &str, end: impl Future<Output = ()>) {
    let mut end = pin!(end);
    let began = SystemUptime.elapsed();
    while timeout(bound(world), &mut end).await.is_err() {
        // Whoever waits for a journal waits for a thread and a real disk, and an hour of simulated
        // time is over before one sync is.
        if world.options.journal == Journal::None
            || SystemUptime.elapsed().saturating_sub(began) > SLOWEST_DISK
        {
            world.log.note(What::Stuck(format!("{what} is still waiting")));
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// L1, L4: every key comes to an end, and the unknown ones as soon as somebody knows.
async fn prove_ends(world: &Arc<World>) {
    let mut seen = Suspects::default();
    for round in ["of its own", "after the operator was there"] {
        for key in 0..world.options.keys.len() {
            let found = world.side.look(&world.side.keys[key]).await;
            if found.is_some_and(|record| matches!(record.state, State::Done { .. })) {
                continue;
            }
            within(world, &format!("key {key}, {round},"), probe(world, key)).await;
        }
        // Twice, so that an owner that died is seen to be silent.
        for _ in 0..2 {
            sleep(bound(world)).await;
            within(world, "a sweep", sweep(world)).await;
            resolve(world, &mut seen).await;
        }
    }
    for key in 0..world.options.keys.len() {
        let found = world.side.look(&world.side.keys[key]).await;
        if let Some(record) = found.filter(|record| !matches!(record.state, State::Done { .. })) {
            world.log.note(What::Stuck(format!("key {key} never ends: {:?}", record.state)));
        }
    }
}

/// Frees what nobody holds any more, as the engine's own loop does.
async fn sweep(world: &Arc<World>) {
    let Some(running) = world.running(0) else { return };
    let store = world.side.connect(Who::Node(running.gate.life), Line::Good);
    let sweeper = running.engine.sweeper(Arc::new(store)).older_than(Duration::ZERO);
    if let Err(error) = sweeper.grace(world.options.grace).run_once().await {
        world.log.note(What::Stuck(format!("a sweep of a sound store fails: {error}")));
    }
}

/// Asks for a key until there is something to say about it.
async fn probe(world: &Arc<World>, key: usize) {
    let id = world.side.keys[key];
    for attempt in (0_u8..=1).cycle() {
        let found = world.side.look(&id).await;
        let as_found = |body: &u8| {
            let asked = fingerprint_of(key, *body, world.bug);
            found.as_ref().is_some_and(|record| record.fingerprint == asked)
        };
        // A record that is forgotten may still be remembered by a node for a while, with either.
        let body = (0..2).find(as_found).unwrap_or(attempt);
        let job = plain_job(world, key, body);
        match call(world, key % world.options.nodes, job, Patience::Endless).await {
            Some(Note::Ran { .. } | Note::Replayed { .. }) => return,
            Some(Note::Refused(refused)) => match refused {
                Refused::Unknown { .. } | Refused::NotRetained { .. } | Refused::Expired { .. } => {
                    return;
                }
                Refused::Mismatch { .. }
                | Refused::InProgress { .. }
                | Refused::Accepted { .. }
                | Refused::Parked { .. }
                | Refused::Unavailable { .. }
                | Refused::Damaged => {}
            },
            None => {}
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// L6: engines that are shut down leave nothing running.
async fn shut_down(world: &Arc<World>) {
    for node in 0..world.options.nodes {
        let Some(running) = world.retire(node) else {
            world.log.note(What::Stuck(format!("node {node} did not come back")));
            continue;
        };
        let gate = Arc::clone(&running.gate);
        // Thirty simulated seconds are over before one sync is, and what reaches the journal after
        // the end of its node is for the next start to write.
        wait_for_the_disk(world, || running.engine.load().tasks).await;
        let shutdown = async {
            // Whatever it leaves behind shows in the tasks that go on.
            let _ = running.engine.shutdown(Duration::from_secs(30)).await;
        };
        within(world, "shutdown", shutdown).await;
        drop(running);
        sleep(bound(world)).await;
        wait_for_the_disk(world, || gate.live()).await;
        if gate.live() > 0 {
            world.log.note(What::Stuck(format!("{} tasks of node {node} go on", gate.live())));
        }
    }
}

/// Simulated time does not wait for a thread that works on a real disk, so this does, until none
/// of the tasks that it counts is left.
async fn wait_for_the_disk(world: &World, tasks: impl Fn() -> usize) {
    let began = SystemUptime.elapsed();
    while world.options.journal == Journal::Folder
        && tasks() > 0
        && SystemUptime.elapsed().saturating_sub(began) < SLOWEST_DISK
    {
        std::thread::sleep(Duration::from_millis(1));
        sleep(Duration::from_millis(1)).await;
    }
}

/// The store of a history, and its clock.
fn store(bug: Option<Bug>, time: SimTime) -> (Arc<StoreClock>, Arc<dyn Inner>) {
    if let Some(Bug::Store(bug)) = bug {
        let rig = BrokenRig::new(Some(bug));
        return (Arc::new(StoreClock::new(time, Arc::clone(&rig.clock))), rig.store());
    }
    let clock = Arc::new(StoreClock::new(time, Arc::new(ManualClock::at(BASE))));
    let store = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>);
    (clock, Arc::new(store))
}

impl World {
    fn new(options: Arc<Options>, bug: Option<Bug>) -> Self {
        let time = SimTime::begin();
        let log = Log::new(time);
        let (clock, inner) = store(bug, time);
        let side = Arc::new(StoreSide {
            inner,
            clock,
            log: log.clone(),
            time,
            dice: SharedDice::new(Dice::of(options.seed, Part::Store)),
            options: Arc::clone(&options),
            bug,
            keys: options.keys.iter().map(|spec| spec.id(bug)).collect(),
            claimants: Mutex::default(),
            weather: Mutex::new(Weather::Faulty),
            ambushed: Mutex::default(),
            ambush: Notify::new(),
        });
        let mut upstream = Dice::of(options.seed, Part::Upstream);
        let work_dice = SharedDice::new(upstream.fork());
        let journals = match options.journal {
            Journal::None => Vec::new(),
            Journal::Folder => (0..options.nodes).map(|_| Mutex::new(new_folder())).collect(),
        };
        Self {
            upstream: Upstream::new(log.clone(), upstream, Arc::clone(&options), bug),
            entropy_dice: SharedDice::new(Dice::of(options.seed, Part::Entropy)),
            nodes: (0..options.nodes).map(|_| Mutex::new(Node::default())).collect(),
            graveyard: Mutex::default(),
            old_journals: Mutex::default(),
            healed: Signal::default(),
            options,
            bug,
            log,
            time,
            side,
            work_dice,
            journals,
        }
    }
}
