//! How an engine is put together.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use metrics::SharedString;
use oncekey_core::{Clock, Pepper, Restore, Store, Wake};

use super::backlog::Backlog;
use super::cache::Finished;
use super::gate::Gate;
use super::heart::{Beat, Heart};
use super::journal::{Journal, JournalError};
use super::measured::MeasuredStore;
use super::resolve::Probe;
use super::ring::{Ring, RingError};
use super::sentry::Sentry;
use super::spawn::{Spawn, TokioSpawn};
use super::vault::{KeyRing, Vault};
use super::wait::Waits;
use super::{Engine, Shared};
use crate::clock::{SystemClock, SystemUptime, Uptime};
use crate::entropy::{Entropy, SystemEntropy};

/// Puts an engine together. Everything but the store has a default.
#[derive(Debug)]
#[must_use]
pub struct Builder {
    store: Arc<dyn Store>,
    heartbeat_store: Option<Arc<dyn Store>>,
    heartbeat: Heartbeat,
    wake: Option<Arc<dyn Wake>>,
    probe: Option<Arc<dyn Probe>>,
    namespace: Box<str>,
    pepper: Option<Pepper>,
    key_ring: Option<KeyRing>,
    journal: Option<PathBuf>,
    ring: Option<(PathBuf, Arc<dyn Restore>)>,
    cache: u64,
    claims: usize,
    attempts: usize,
    store_label: SharedString,
    patience: Duration,
    clock: Arc<dyn Clock>,
    uptime: Arc<dyn Uptime>,
    entropy: Arc<dyn Entropy>,
    spawner: Arc<dyn Spawn>,
}

/// Who renews the leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heartbeat {
    /// A thread of its own with a runtime of its own, so that handlers which block every worker
    /// thread cannot cost the leases.
    #[default]
    Thread,
    /// A task on the engine's runtime, for simulations.
    Task,
}

/// Why an engine could not be put together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The thread that renews leases could not be started.
    #[error("cannot start the thread that renews leases")]
    Heartbeat(#[source] std::io::Error),
    /// The journal could not be opened.
    #[error("cannot open the journal")]
    Journal(#[from] JournalError),
    /// The ring could not be opened.
    #[error("cannot open the ring")]
    Ring(#[from] RingError),
}

/// Room for some ten thousand answers of the usual size, and nothing that a server would miss.
const DEFAULT_CACHE: u64 = 32 * 1024 * 1024;
/// More claims than this wait in line at any store that we know, and each holds a request in
/// memory. Past it the client is better off with a quick answer.
const DEFAULT_CLAIMS: usize = 4_096;
/// More than a node does at once that is not in trouble. Each holds a request in memory and goes on when
/// its client has left, so no limit on connections bounds them (I43).
const DEFAULT_ATTEMPTS: usize = 32_768;
/// Long enough for a store to restart its connections or fail over quickly; short enough that the
/// client, who has an answer coming, does not give up.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(2);

impl Builder {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            heartbeat_store: None,
            heartbeat: Heartbeat::default(),
            wake: None,
            probe: None,
            namespace: "default".into(),
            pepper: None,
            key_ring: None,
            journal: None,
            ring: None,
            cache: DEFAULT_CACHE,
            claims: DEFAULT_CLAIMS,
            attempts: DEFAULT_ATTEMPTS,
            store_label: SharedString::const_str("store"),
            patience: DEFAULT_PATIENCE,
            clock: Arc::new(SystemClock),
            uptime: Arc::new(SystemUptime),
            entropy: Arc::new(SystemEntropy::default()),
            spawner: Arc::new(TokioSpawn),
        }
    }

    /// Keeps the keys of deployments that share a store apart.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Keys the digests of keys and scopes with a secret.
    pub fn pepper(mut self, pepper: Pepper) -> Self {
        self.pepper = Some(pepper);
        self
    }

    /// Learns from the store when a key is finished, instead of asking again and again.
    pub fn wake(mut self, wake: Arc<dyn Wake>) -> Self {
        self.wake = Some(wake);
        self
    }

    /// Who is asked whether work of which nobody knows has happened.
    pub fn probe(mut self, probe: Arc<dyn Probe>) -> Self {
        self.probe = Some(probe);
        self
    }

    /// Encrypts answers, keys and scopes before the store gets them.
    pub fn encryption(mut self, ring: KeyRing) -> Self {
        self.key_ring = Some(ring);
        self
    }

    /// Where ends are kept that could not be written to the store: a folder on a local disk.
    pub fn journal(mut self, folder: impl Into<PathBuf>) -> Self {
        self.journal = Some(folder.into());
        self
    }

    /// How many bytes of finished answers are kept in memory; zero for none.
    pub fn cache(mut self, bytes: u64) -> Self {
        self.cache = bytes;
        self
    }

    /// How many attempts may be under way at once, with those whose clients have left. Whoever comes
    /// when there are more is told to come back.
    pub fn attempts(mut self, attempts: usize) -> Self {
        self.attempts = attempts;
        self
    }

    /// How many claims may be under way at once.
    pub fn claims(mut self, claims: usize) -> Self {
        self.claims = claims;
        self
    }

    /// Notices a store that has come back older than it was, and puts back what this node knows.
    ///
    /// The recent grants and ends of this node are noted in a folder on a local disk, which is made
    /// if it is missing and belongs to this process alone. `store` is the engine's own. Nothing is
    /// granted before it was looked at; see `docs/explanation/store-regression.md`.
    pub fn ring(mut self, folder: impl Into<PathBuf>, store: Arc<dyn Restore>) -> Self {
        self.ring = Some((folder.into(), store));
        self
    }

    /// What the store is called in metrics, such as `sqlite`.
    pub fn store_label(mut self, label: impl Into<SharedString>) -> Self {
        self.store_label = label.into();
        self
    }

    /// A second handle to the same store for renewals, with a connection of its own, so that
    /// claims which have taken all others cannot cost the leases.
    pub fn heartbeat_store(mut self, store: Arc<dyn Store>) -> Self {
        self.heartbeat_store = Some(store);
        self
    }

    /// Who renews the leases.
    pub fn heartbeat(mut self, heartbeat: Heartbeat) -> Self {
        self.heartbeat = heartbeat;
        self
    }

    /// How long an owner waits for the store to take the end of its work, before it answers
    /// without.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The wall clock, for request ids.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The clock that judges whether an owner may still send.
    pub fn uptime(mut self, uptime: Arc<dyn Uptime>) -> Self {
        self.uptime = uptime;
        self
    }

    /// Where random bits come from.
    pub fn entropy(mut self, entropy: Arc<dyn Entropy>) -> Self {
        self.entropy = entropy;
        self
    }

    /// Where detached work runs.
    pub fn spawner(mut self, spawner: Arc<dyn Spawn>) -> Self {
        self.spawner = spawner;
        self
    }

    /// The engine.
    ///
    /// # Errors
    /// If the thread that renews leases cannot be started, or the journal or the ring not be opened.
    ///
    /// # Panics
    /// With a journal, a ring or [`Heartbeat::Task`], outside of a tokio runtime.
    pub fn build(self) -> Result<Engine, BuildError> {
        let backlog = match &self.journal {
            Some(folder) => {
                let (journal, left) = Journal::open(folder, Arc::clone(&self.entropy))?;
                Some(Arc::new(Backlog::new(journal, left)))
            }
            None => None,
        };
        let sentry = match self.ring {
            Some((folder, store)) => {
                let (ring, known) = Ring::open(&folder)?;
                Some(Arc::new(Sentry::new(ring, known, store)))
            }
            None => None,
        };
        let heart = Arc::new(Heart::new());
        let measured = |store| {
            let (uptime, label) = (Arc::clone(&self.uptime), self.store_label.clone());
            Arc::new(MeasuredStore::new(store, uptime, label))
        };
        let renewals = self.heartbeat_store.unwrap_or_else(|| Arc::clone(&self.store));
        let store = measured(self.store);
        let suspicion = Arc::default();
        let beat = Beat {
            heart: Arc::clone(&heart),
            store: measured(renewals),
            uptime: Arc::clone(&self.uptime),
            suspicion: Arc::clone(&suspicion),
            sentry: sentry.clone(),
        };
        match self.heartbeat {
            Heartbeat::Thread => beat.start_thread().map_err(BuildError::Heartbeat)?,
            Heartbeat::Task => self.spawner.spawn(Box::pin(beat.run())),
        }
        if let Some(backlog) = &backlog {
            self.spawner.spawn(Box::pin(Arc::clone(backlog).run(store.clone(), sentry.clone())));
        }
        let waits = Waits::new(store.clone(), self.wake, Arc::clone(&self.spawner));
        let spawner = Arc::clone(&self.spawner);
        let shared = Arc::new(Shared {
            store,
            namespace: self.namespace,
            pepper: self.pepper,
            clock: self.clock,
            uptime: self.uptime,
            vault: Vault::new(self.key_ring, Arc::clone(&self.entropy)),
            entropy: self.entropy,
            spawner: self.spawner,
            flights: Arc::default(),
            heart,
            suspicion,
            waits: Arc::new(waits),
            health: super::health::Health::default(),
            gate: Arc::new(Gate::new(self.claims, self.attempts)),
            finished: Finished::new(self.cache),
            backlog,
            unwritten: Arc::default(),
            sentry: sentry.clone(),
            probe: self.probe,
            patience: self.patience,
        });
        if let Some(sentry) = sentry {
            spawner.spawn(Box::pin(sentry.run(Arc::downgrade(&shared))));
        }
        Ok(Engine(shared))
    }
}
