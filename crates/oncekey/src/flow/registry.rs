//! The flows that a program knows, by name.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::checkpoint::shape;
use super::gather::Gather;
use super::halt::{Drift, Halt};
use super::reply::Finished;
use super::run::{Flow, Unvisited};
use super::saga::{Compensation, Compensations};
use super::store::TxStore;
use crate::clock::{SystemUptime, Uptime};
use crate::entropy::{Entropy, SystemEntropy};

/// The flows of a program: starts them, takes them over, resolves them. Cheap to clone.
pub struct Flows<S: TxStore>(pub(crate) Arc<Known<S>>);

/// Everything that the flows of a program share.
pub(crate) struct Known<S: TxStore> {
    pub(crate) store: S,
    pub(crate) gather: Arc<Gather<S>>,
    pub(crate) namespace: Arc<str>,
    pub(crate) definitions: HashMap<String, Arc<Definition<S>>>,
    pub(crate) compensations: Compensations,
    pub(crate) options: Options,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) uptime: Arc<dyn Uptime>,
}

/// How flows are driven.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a flow is owned before its owner must renew.
    pub lease: Duration,
    /// How much later than a client the completer takes over: clients come back first if they can.
    pub grace: Duration,
    /// After so many attempts a flow is parked instead of tried again.
    pub most_attempts: i64,
    /// After so many tries a compensation is left to a person, and the others go on.
    pub most_undo_attempts: i64,
    /// The first pause after a failed attempt. It doubles up to [`longest_pause`](Self::longest_pause).
    pub pause: Duration,
    /// The longest pause between attempts.
    pub longest_pause: Duration,
    /// How long a foreign call, a probe or a compensation may take. After that it is given up, and its
    /// outcome is unknown.
    pub longest_call: Duration,
    /// How long an attempt may take. After that it is stopped wherever it is, and tried again later.
    pub longest_attempt: Duration,
    /// How long a finished flow is kept. A request that repeats its key after that begins anew, so it
    /// must be longer than any client goes on asking. The completer removes what is older.
    pub retention: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // As for keys: long enough for a pause of a process, short enough for a client to wait.
            lease: Duration::from_secs(30),
            grace: Duration::from_secs(60),
            // Four hours with the pauses below. What has not worked by then needs a person.
            most_attempts: 12,
            most_undo_attempts: 12,
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30 * 60),
            // Longer than the time limits of HTTP clients, which know better what has happened: this
            // one is for calls that have none.
            longest_call: Duration::from_secs(90),
            // Ten such calls. Who needs longer sleeps in between, as a machine.
            longest_attempt: Duration::from_secs(15 * 60),
            retention: Duration::from_secs(30 * 86_400),
        }
    }
}

type Ended = Pin<Box<dyn Future<Output = Result<Finished, Halt>> + Send>>;
type Body<S> = dyn Fn(Flow<S>, &[u8]) -> Result<Ended, Drift> + Send + Sync;

/// A flow by name and version, and its code.
pub struct Definition<S: TxStore> {
    pub(crate) name: String,
    pub(crate) version: i64,
    pub(crate) accepts: (i64, i64),
    pub(crate) rules: Rules,
    pub(crate) body: Box<Body<S>>,
}

/// What one flow does differently.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) aliases: Arc<[(String, String)]>,
    pub(crate) unvisited: Unvisited,
    pub(crate) largest_reply: usize,
    pub(crate) starts: Starts,
}

/// When a flow that a client asks for is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Starts {
    AtOnce,
    WithFirstStep,
}

/// The largest reply, header lines included: as for answers of routes.
const LARGEST_REPLY: usize = 1 << 20;

impl<S: TxStore> Definition<S> {
    /// A flow with this name and this code, at version 1.
    ///
    /// `body` may run many times for one flow, and in another process than it began in: the input
    /// comes from the database then.
    pub fn new<I, F, R>(name: impl Into<String>, body: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        F: Fn(Flow<S>, I) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Finished, Halt>> + Send + 'static,
    {
        let body = move |flow: Flow<S>, input: &[u8]| {
            let input: I =
                serde_json::from_slice(input).map_err(|_| Drift::Input { wanted: shape::<I>() })?;
            let ended: Ended = Box::pin(body(flow, input));
            Ok(ended)
        };
        let rules = Rules {
            aliases: Arc::new([]),
            unvisited: Unvisited::Park,
            largest_reply: LARGEST_REPLY,
            starts: Starts::AtOnce,
        };
        Self { name: name.into(), version: 1, accepts: (1, 1), rules, body: Box::new(body) }
    }

    /// The version that new flows begin with. Only flows of this version are taken over, unless
    /// [`accepts`](Self::accepts) says more.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = i64::from(version);
        self.accepts = (self.version, self.version);
        self
    }

    /// The versions whose flows this code can go on with.
    #[must_use]
    pub fn accepts(mut self, versions: RangeInclusive<u32>) -> Self {
        self.accepts = (i64::from(*versions.start()), i64::from(*versions.end()));
        self
    }

    /// Outputs that were recorded as type `old` may be read as type `new`: a type was renamed.
    #[must_use]
    pub fn renamed(mut self, old: &str, new: &str) -> Self {
        let mut aliases = self.rules.aliases.to_vec();
        aliases.push((old.to_owned(), new.to_owned()));
        self.rules.aliases = aliases.into();
        self
    }

    /// What becomes of a flow whose code no longer takes a recorded step.
    #[must_use]
    pub fn unvisited(mut self, unvisited: Unvisited) -> Self {
        self.rules.unvisited = unvisited;
        self
    }

    /// Writes the flow down with its first step instead of before it: a commit less for a flow that begins
    /// with a [`phase`](Flow::phase) or a [`pin`](Flow::pin). Before anything else it is written by itself.
    ///
    /// Until its first step has committed nothing has happened, and nobody knows of the flow: if the process
    /// dies before that, the client asks again, and no completer does it in its place. Nor is that counted as
    /// an attempt: a request whose first step always kills its process is never parked. Of two requests with
    /// one key that come in the same moment both may begin the first step; one of them commits, the other
    /// is rolled back and told what came of the first.
    #[must_use]
    pub fn start_with_first_step(mut self) -> Self {
        self.rules.starts = Starts::WithFirstStep;
        self
    }

    /// The largest reply that is stored, in bytes.
    #[must_use]
    pub fn largest_reply(mut self, bytes: usize) -> Self {
        self.rules.largest_reply = bytes;
        self
    }
}

/// Puts [`Flows`] together.
pub struct Builder<S: TxStore> {
    known: Known<S>,
    twice: Option<String>,
}

/// Flows that cannot be told apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two flows, or two compensations, have one name.
    #[error("two flows or compensations are called {0}")]
    Twice(String),
    /// A name that is empty or longer than 255 bytes.
    #[error("the name of a flow or compensation is empty or longer than 255 bytes")]
    Name,
    /// A lease without length owns nothing.
    #[error("the lease of flows must be longer than nothing")]
    Lease,
}

impl<S: TxStore> Flows<S> {
    /// Begins with a store. The namespace keeps deployments that share a foreign system apart: it is
    /// part of every derived key, and must never change.
    pub fn builder(store: S, namespace: impl Into<Arc<str>>) -> Builder<S> {
        let known = Known {
            gather: Arc::new(Gather::new(store.clone())),
            store,
            namespace: namespace.into(),
            definitions: HashMap::new(),
            compensations: Compensations::default(),
            options: Options::default(),
            entropy: Arc::new(SystemEntropy::default()),
            uptime: Arc::new(SystemUptime),
        };
        Builder { known, twice: None }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.0.store
    }
}

impl<S: TxStore> Builder<S> {
    /// Adds a flow.
    #[must_use]
    pub fn flow(mut self, definition: Definition<S>) -> Self {
        let name = definition.name.clone();
        if self.known.definitions.insert(name.clone(), Arc::new(definition)).is_some() {
            self.twice = Some(name);
        }
        self
    }

    /// Adds a compensation: what is done to take back an effect that was registered under this name.
    ///
    /// It gets the data that was stored with the intent, what is known of the effect, and a key of its
    /// own for the foreign call. It may run many times, and must be harmless when it does.
    #[must_use]
    pub fn compensation(mut self, name: impl Into<String>, compensation: Compensation) -> Self {
        let name = name.into();
        if self.known.compensations.0.insert(name.clone(), compensation).is_some() {
            self.twice = Some(name);
        }
        self
    }

    /// How flows are driven.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.known.options = options;
        self
    }

    /// Where owner tokens come from, for simulations.
    #[must_use]
    pub fn entropy(mut self, entropy: Arc<dyn Entropy>) -> Self {
        self.known.entropy = entropy;
        self
    }

    /// The flows.
    ///
    /// # Errors
    /// If names are missing or used twice.
    pub fn build(self) -> Result<Flows<S>, BuildError> {
        if let Some(name) = self.twice {
            return Err(BuildError::Twice(name));
        }
        let names = self.known.definitions.keys().chain(self.known.compensations.0.keys());
        if names.into_iter().any(|name| name.is_empty() || name.len() > 255) {
            return Err(BuildError::Name);
        }
        if self.known.options.lease.is_zero() {
            return Err(BuildError::Lease);
        }
        Ok(Flows(Arc::new(self.known)))
    }
}

impl<S: TxStore> Clone for Flows<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: TxStore> fmt::Debug for Flows<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<_> = self.0.definitions.keys().collect();
        names.sort();
        out.debug_struct("Flows").field("names", &names).finish_non_exhaustive()
    }
}

impl<S: TxStore> fmt::Debug for Builder<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Builder").finish_non_exhaustive()
    }
}

impl<S: TxStore> fmt::Debug for Definition<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Definition({}, version {})", self.name, self.version)
    }
}
