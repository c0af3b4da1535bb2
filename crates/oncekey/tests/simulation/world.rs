//! The nodes of a history and what they share.
//!
//! A node is an engine behind a gate. When it crashes, the engine and everything that it was doing
//! is kept aside, never polled again and not dropped before the history has been judged; the node
//! comes back as a new engine that knows nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncekey::core::{Clock, Fingerprint, Key, KeyId, Scope, Store, Wake};
use oncekey::engine::{Engine, Heartbeat, Probe};
use oncekey::entropy::Entropy;
use tempfile::TempDir;

use crate::bugs::Bug;
use crate::dice::{SeededEntropy, SharedDice};
use crate::gate::{Detached, Gate, GateSpawner};
use crate::log::{Change, Life, Log, What, Who};
use crate::options::{KeySpec, Options, Probes, Wakes};
use crate::signal::Signal;
use crate::store::{Line, StoreSide};
use crate::time::{NodeUptime, SimTime, UptimeThatSleeps};
use crate::upstream::Upstream;

/// Everything in a history.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) options: Arc<Options>,
    pub(crate) bug: Option<Bug>,
    pub(crate) log: Log,
    pub(crate) time: SimTime,
    pub(crate) side: Arc<StoreSide>,
    pub(crate) upstream: Arc<Upstream>,
    /// What the work does by chance.
    pub(crate) work_dice: SharedDice,
    pub(crate) entropy_dice: SharedDice,
    pub(crate) nodes: Vec<Mutex<Node>>,
    /// The journals of the nodes, which outlive them.
    pub(crate) journals: Vec<Mutex<TempDir>>,
    pub(crate) old_journals: Mutex<Vec<TempDir>>,
    /// What became of dead nodes.
    pub(crate) graveyard: Mutex<Vec<Engine>>,
    /// From here on nothing goes wrong any more.
    pub(crate) healed: Signal,
}

/// A node: at most one life at a time.
#[derive(Debug, Default)]
pub(crate) struct Node {
    lives: u32,
    running: Option<Running>,
}

/// A life of a node.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) engine: Engine,
    pub(crate) gate: Arc<Gate>,
    died: Arc<Signal>,
}

/// A planted bug: no chance at all.
#[derive(Debug)]
struct NoEntropy;

impl World {
    /// Starts a node anew.
    pub(crate) fn start(&self, number: usize) {
        let mut node = self.node(number);
        node.lives += 1;
        let life = Life { node: number, life: node.lives };
        let gate = Gate::new(life, self.log.clone(), self.time);
        self.log.note(What::Node(life, Change::Started));
        let engine = self.engine(number, &gate);
        let died = Arc::default();
        node.running = Some(Running { engine, gate, died });
    }

    /// The life of a node, if it is alive.
    pub(crate) fn running(&self, number: usize) -> Option<Running> {
        self.node(number).running.clone()
    }

    /// Leaves the journal of a dead node as it was at its death. The dead node's own folder stays
    /// open and locked, because nothing of it is ever dropped; so its successor gets a copy.
    fn inherit_journal(&self, number: usize) {
        let Some(folder) = self.journals.get(number) else { return };
        let mut folder = folder.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = new_folder();
        for file in std::fs::read_dir(folder.path()).expect("our folder").flatten() {
            // A file that is being replaced just now may be gone.
            let _ = std::fs::copy(file.path(), copy.path().join(file.file_name()));
        }
        let old = std::mem::replace(&mut *folder, copy);
        self.old_journals.lock().unwrap_or_else(PoisonError::into_inner).push(old);
    }

    /// Kills a node: nothing of it runs any more, not even its destructors.
    pub(crate) fn crash(&self, number: usize) {
        let Some(running) = self.node(number).running.take() else { return };
        running.gate.kill();
        self.log.note(What::Node(running.gate.life, Change::Crashed));
        self.inherit_journal(number);
        let mut graveyard = self.graveyard.lock().unwrap_or_else(PoisonError::into_inner);
        graveyard.push(running.engine);
        running.died.raise();
    }

    /// Takes a node out of service without killing it.
    pub(crate) fn retire(&self, number: usize) -> Option<Running> {
        self.node(number).running.take()
    }

    /// Stops a node, and lets it go on after a while.
    pub(crate) async fn pause(&self, number: usize, span: Duration) {
        let Some(Running { gate, .. }) = self.running(number) else { return };
        if !gate.is_open() {
            return;
        }
        self.log.note(What::Node(gate.life, Change::Paused));
        gate.pause();
        tokio::select! {
            biased;
            () = self.healed.raised() => {}
            () = tokio::time::sleep(span) => {}
        }
        if !gate.is_dead() {
            self.log.note(What::Node(gate.life, Change::Resumed));
            gate.resume();
        }
    }

    fn engine(&self, number: usize, gate: &Arc<Gate>) -> Engine {
        let Self { options, bug, .. } = self;
        let who = Who::Node(gate.life);
        let store = Arc::new(self.side.connect(who, Line::Good));
        let detached = match bug {
            Some(Bug::WorkEndsWithTheRequest) => Detached::No,
            Some(_) | None => Detached::Yes,
        };
        let spawner = GateSpawner { gate: Arc::clone(gate), detached };
        let entropy: Arc<dyn Entropy> = match bug {
            Some(Bug::OwnersRepeat) => Arc::new(NoEntropy),
            Some(_) | None => {
                Arc::new(SeededEntropy::new(self.entropy_dice.throw(crate::dice::Dice::fork)))
            }
        };
        let mut builder = Engine::builder(Arc::clone(&store) as Arc<dyn Store>)
            .namespace("simulation")
            .patience(options.patience)
            .cache(options.cache)
            .claims(options.claims)
            .clock(Arc::clone(&self.side.clock) as Arc<dyn Clock>)
            .entropy(entropy)
            .heartbeat(Heartbeat::Task)
            .spawner(Arc::new(spawner));
        builder = match bug {
            Some(Bug::UptimeSleeps) => {
                let (time, gate) = (self.time, Arc::clone(gate));
                builder.uptime(Arc::new(UptimeThatSleeps { time, gate }))
            }
            Some(_) | None => builder.uptime(Arc::new(NodeUptime(self.time))),
        };
        if *bug == Some(Bug::NoHeartbeat) {
            builder = builder.heartbeat_store(Arc::new(self.side.connect(who, Line::Cut)));
        }
        if options.probes == Probes::Upstream {
            builder = builder.probe(Arc::clone(&self.upstream) as Arc<dyn Probe>);
        }
        if options.wake == Wakes::Feed {
            builder = builder.wake(store as Arc<dyn Wake>);
        }
        if let Some(folder) = self.journals.get(number) {
            let folder = folder.lock().unwrap_or_else(PoisonError::into_inner);
            builder = builder.journal(folder.path());
        }
        builder.build().expect("nothing of the operating system is needed")
    }

    fn node(&self, number: usize) -> MutexGuard<'_, Node> {
        self.nodes[number].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// Waits until this life is over.
    pub(crate) async fn died(&self) {
        self.died.raised().await;
    }
}

impl KeySpec {
    /// The key and scope that a call names, which a planted bug may mistake.
    pub(crate) fn named(&self, bug: Option<Bug>) -> (Scope, Key) {
        let key = match bug {
            Some(Bug::KeysFold) => self.key.to_lowercase(),
            Some(Bug::KeysAreTrimmed) => self.key.trim().to_owned(),
            Some(_) | None => self.key.clone(),
        };
        let scope = match bug {
            Some(Bug::ScopeWithoutPrincipal) => Scope::shared(),
            Some(_) | None => Scope::new(self.scope).expect("a short scope"),
        };
        (scope, Key::new(key.as_bytes()).expect("a plain key"))
    }

    /// The id under which the store keeps it.
    pub(crate) fn id(&self, bug: Option<Bug>) -> KeyId {
        let (scope, key) = self.named(bug);
        KeyId::derive("simulation", &scope, &key, None)
    }
}

/// A folder for a journal.
pub(crate) fn new_folder() -> TempDir {
    TempDir::new().expect("a temporary folder can be made")
}

/// The fingerprint of a request with this body.
pub(crate) fn fingerprint_of(key: usize, body: u8, bug: Option<Bug>) -> Fingerprint {
    let body = if bug == Some(Bug::FingerprintWithoutBody) { 0 } else { body };
    let key = u8::try_from(key).expect("few keys");
    // Keys that a planted bug mistakes for one another come with equal requests.
    let key = match bug {
        Some(Bug::KeysFold | Bug::KeysAreTrimmed | Bug::ScopeWithoutPrincipal) => 0,
        Some(_) | None => key,
    };
    Fingerprint::from_parts(1, [key.wrapping_mul(16).wrapping_add(body); 32])
}

impl Entropy for NoEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}
