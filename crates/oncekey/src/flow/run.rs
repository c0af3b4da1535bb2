//! A flow as its body sees it: phases, pins, the end.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncekey_core::{KeyId, derived_key};

use super::announce::Announced;
use super::checkpoint::{Checkpoint, decode, digest, encode, shape};
use super::claim::{Before, Held, Way, micros};
use super::effect::{Effect, Safety};
use super::gather::Gather;
use super::grip::Grip;
use super::halt::{Drift, Halt};
use super::intent::{Intent, intents, state};
use super::late::Waiting;
use super::point::{Kind, PhaseTx, Point, Step, Taken, steps};
use super::registry::{Options, Rules};
use super::reply::{Finished, Reply};
use super::store::{TxError, TxStore};
use super::unwritten::Unwritten;

/// A flow that somebody drives: what its body takes its steps with.
///
/// The body may run again from its start after a crash, a takeover or a [`Halt::Retry`]. Steps that
/// were taken return what they returned then and do nothing. So everything that has an effect, and
/// everything that may differ the next time (time, randomness, reads), belongs into a step.
pub struct Flow<S: TxStore> {
    pub(crate) run: Arc<Run<S>>,
}

/// What one attempt knows.
pub(crate) struct Run<S: TxStore> {
    pub(crate) store: S,
    pub(crate) gather: Arc<Gather<S>>,
    pub(crate) held: Held,
    pub(crate) name: Arc<str>,
    pub(crate) namespace: Arc<str>,
    pub(crate) taken: HashMap<Step, Taken>,
    pub(crate) intents: HashMap<Step, Intent>,
    pub(crate) aliases: Arc<[(String, String)]>,
    pub(crate) unvisited: Unvisited,
    pub(crate) largest_reply: usize,
    pub(crate) longest_call: Duration,
    /// How long it may be until the next attempt.
    pub(crate) until_the_next: Duration,
    /// Outcomes that the next commit carries.
    pub(crate) late: Waiting,
    /// Calls whose intents are there already.
    pub(crate) announced: Announced,
    pub(crate) grip: Arc<Grip>,
    /// The start, as long as it waits for the first step.
    pub(crate) unwritten: Arc<Unwritten>,
    pub(crate) mode: Mode,
    /// When what earlier attempts left was read.
    loaded: Duration,
    visited: Mutex<HashSet<Step>>,
}

/// Whether steps are taken or only gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Live,
    Rehearsal,
}

/// What becomes of a flow whose code no longer takes a step that was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unvisited {
    /// It is parked before its end: what that step did may be missing from the reply.
    #[default]
    Park,
    /// It ends, and a warning is logged.
    Warn,
}

impl<S: TxStore> Run<S> {
    /// Loads what earlier attempts left, if there were any.
    pub(crate) async fn load(
        gather: Arc<Gather<S>>,
        held: Held,
        (name, namespace): (Arc<str>, Arc<str>),
        (rules, options): (&Rules, &Options),
        (grip, unwritten): (Arc<Grip>, Arc<Unwritten>),
    ) -> Result<Self, TxError> {
        let (loaded, store) = (grip.now(), gather.store().clone());
        let (taken, intents) = match held.before {
            Before::NoRow | Before::Nothing => (HashMap::new(), HashMap::new()),
            Before::Something => (steps(&store, &held.id).await?, intents(&store, &held.id).await?),
        };
        let (aliases, unvisited) = (Arc::clone(&rules.aliases), rules.unvisited);
        let largest_reply = rules.largest_reply;
        let visited = Mutex::default();
        let mode = Mode::Live;
        let longest_call = options.longest_call;
        let until_the_next =
            options.longest_attempt.saturating_add(options.lease).saturating_add(options.grace);
        Ok(Self {
            store,
            gather,
            held,
            name,
            namespace,
            taken,
            intents,
            aliases,
            unvisited,
            largest_reply,
            longest_call,
            until_the_next,
            late: Waiting::default(),
            announced: Announced::default(),
            grip,
            unwritten,
            mode,
            loaded,
            visited,
        })
    }

    /// A run that only goes through what is in a history.
    pub(crate) fn rehearsal(
        store: S,
        held: Held,
        (name, namespace): (Arc<str>, Arc<str>),
        rules: &Rules,
        (taken, grip): (HashMap<Step, Taken>, Arc<Grip>),
    ) -> Self {
        Self {
            gather: Arc::new(Gather::new(store.clone())),
            store,
            held,
            name,
            namespace,
            taken,
            intents: HashMap::new(),
            aliases: Arc::clone(&rules.aliases),
            unvisited: Unvisited::Park,
            largest_reply: rules.largest_reply,
            longest_call: Duration::ZERO,
            until_the_next: Duration::ZERO,
            late: Waiting::default(),
            announced: Announced::default(),
            loaded: grip.now(),
            grip,
            unwritten: Arc::default(),
            mode: Mode::Rehearsal,
            visited: Mutex::default(),
        }
    }

    /// Notes that the body has come to a step. Two steps of one name would share an output.
    pub(crate) fn visit(&self, step: Step) -> Result<Step, Halt> {
        if !step.is_sound() {
            return Err(Drift::Name.into());
        }
        let mut visited = self.visited.lock().unwrap_or_else(PoisonError::into_inner);
        if !visited.insert(step.clone()) {
            return Err(Drift::Reused { step: step.label() }.into());
        }
        Ok(step)
    }

    /// What a step returned, if it was taken.
    pub(crate) fn recorded<T: Checkpoint>(
        &self,
        step: &Step,
        kind: Kind,
        bound: &[u8],
    ) -> Result<Option<T>, Halt> {
        let Some(taken) = self.taken.get(step) else {
            return match self.mode {
                Mode::Live => Ok(None),
                Mode::Rehearsal => Err(Drift::Ends { step: step.label() }.into()),
            };
        };
        if taken.kind != kind.code() && taken.kind != Kind::Given.code() {
            return Err(Drift::Kind { step: step.label() }.into());
        }
        if !bound.is_empty() && !taken.bound.is_empty() && taken.bound != bound {
            return Err(Drift::Arguments { step: step.label() }.into());
        }
        Ok(Some(decode(&step.label(), &taken.shape, &taken.output, &self.aliases)?))
    }

    /// Refuses to begin something that the lease may not cover.
    pub(crate) fn may_act(&self) -> Result<(), Halt> {
        if self.grip.is_lost() {
            return Err(Halt::Fenced);
        }
        match self.grip.has_time() {
            true => Ok(()),
            false => Err(Halt::retry("too little is left of the lease to begin")),
        }
    }

    /// Whether the flow is still this attempt's.
    pub(crate) async fn is_held(&self) -> Result<bool, TxError> {
        let held = &self.store.layout().sql().held;
        let rows = self.store.query_once(held, &self.held.proof()).await?;
        Ok(rows.first().map_or(Ok(0), |row| row.int(0))? == 1)
    }

    /// The key for a foreign call of a step: the same for every attempt, different per step, and
    /// another one on the way back.
    pub(crate) fn foreign_key(&self, way: Way, step: &Step) -> String {
        let sign = match way {
            Way::Forward => '/',
            Way::Back => '<',
        };
        let step = format!("{}:{}{sign}{}", self.name.len(), self.name, step.exact());
        derived_key(&self.namespace, &self.held.id, &step)
    }

    /// How old an intent is now: as old as it was when it was read, and what has passed since.
    pub(crate) fn age(&self, found: &Intent) -> i64 {
        let since = self.grip.now().saturating_sub(self.loaded);
        found.now - found.first_at + micros(since)
    }

    /// Steps that were taken, or calls that may have been received, and that the code of today does
    /// not come to.
    fn left_out(&self) -> Vec<String> {
        let visited = self.visited.lock().unwrap_or_else(PoisonError::into_inner);
        let open = self.intents.iter().filter(|(_, found)| found.state == state::INTENDED);
        let announced = self.announced_steps();
        let known = self.taken.keys().chain(open.map(|(step, _)| step)).chain(&announced);
        let mut steps: Vec<_> =
            known.filter(|step| !visited.contains(step)).map(Step::label).collect();
        steps.sort();
        steps.dedup();
        steps
    }
}

impl<S: TxStore> Flow<S> {
    /// The id of the flow.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.run.held.id
    }

    /// Which attempt this is, the first being 1.
    #[must_use]
    pub fn attempt(&self) -> i64 {
        self.run.held.attempts
    }

    /// The key that a foreign call of `step` would be made with.
    #[must_use]
    pub fn foreign_key(&self, step: impl Into<Step>) -> String {
        self.run.foreign_key(Way::Forward, &step.into())
    }

    /// Commits what `body` writes, what it returns, and the recovery point, in one transaction.
    ///
    /// After a crash all of it is there or none. If somebody else has taken the flow over meanwhile,
    /// none of it is.
    ///
    /// # Errors
    /// What `body` returns; [`Halt::Fenced`] after a takeover; [`Halt::Retry`] if the database was not
    /// there or another transaction was in the way; [`Halt::Drift`] if the step was recorded by other
    /// code.
    ///
    /// # Cancellation
    /// Dropping it rolls back, unless the commit was under way: then the next attempt finds out.
    pub async fn phase<T, F>(&self, step: impl Into<Step>, body: F) -> Result<T, Halt>
    where
        T: Checkpoint,
        F: AsyncFnOnce(&mut PhaseTx<S>) -> Result<T, Halt>,
    {
        let run = &self.run;
        let step = run.visit(step.into())?;
        if let Some(value) = run.recorded(&step, Kind::Phase, &[])? {
            return Ok(value);
        }
        run.may_act()?;
        let store = run.store.clone();
        let tx = store.begin().await?;
        let mut phase = PhaseTx::of_phase(store, tx, run.held.id);
        let value = match phase.run(body).await {
            Ok(value) => value,
            Err(halt) => {
                // Waited for, so that whoever comes next does not meet its locks.
                let _ = S::rollback(phase.tx).await;
                return Err(halt);
            }
        };
        let output = encode(&step.name, &value)?;
        let shape = shape::<T>();
        let point =
            Point { step: &step, kind: Kind::Phase, shape: &shape, bound: &[], output: &output };
        let calls = phase.calls();
        run.close_announcing(phase.tx, point, calls).await?;
        Ok(value)
    }

    /// Records what `make` returns the first time, and returns that every time: for the time, for
    /// random numbers, for what was read elsewhere.
    ///
    /// # Errors
    /// As of [`phase`](Self::phase).
    pub async fn pin<T: Checkpoint>(
        &self,
        step: impl Into<Step>,
        make: impl FnOnce() -> T,
    ) -> Result<T, Halt> {
        let run = &self.run;
        let step = run.visit(step.into())?;
        if let Some(value) = run.recorded(&step, Kind::Pin, &[])? {
            return Ok(value);
        }
        let value = make();
        run.record(&step, Kind::Pin, &[], &value).await?;
        Ok(value)
    }

    /// A call to a foreign system.
    #[must_use = "nothing is called before `call`"]
    pub fn effect<T: Checkpoint>(&self, step: impl Into<Step>, safety: Safety) -> Effect<'_, S, T> {
        Effect::new(&self.run, step.into(), safety)
    }

    /// Goes through `items`, each with a step of its own. The key of an item says which one it is: it
    /// must not be its position.
    ///
    /// # Errors
    /// Of the first item that has one. [`Drift::Reused`] if two items have the same key.
    pub async fn each<K, I, T, F, R>(
        &self,
        name: &str,
        items: Vec<(K, I)>,
        mut body: F,
    ) -> Result<Vec<T>, Halt>
    where
        K: ToString,
        F: FnMut(Step, I) -> R,
        R: Future<Output = Result<T, Halt>>,
    {
        let mut outputs = Vec::new();
        for (key, item) in items {
            outputs.push(body(Step::item(name, &key), item).await?);
        }
        Ok(outputs)
    }

    /// After this there is only forward: what was registered to be undone is not undone any more.
    ///
    /// # Errors
    /// As of [`phase`](Self::phase).
    pub async fn pivot(&self, step: impl Into<Step>) -> Result<(), Halt> {
        let run = &self.run;
        let step = run.visit(step.into())?;
        if run.recorded::<()>(&step, Kind::Phase, &[])?.is_some() {
            return Ok(());
        }
        run.be_written().await?;
        let mut tx = run.store.begin().await?;
        super::saga::mark_pivot(&run.store, &mut tx, &run.held, &step).await?;
        let shape = shape::<()>();
        let point =
            Point { step: &step, kind: Kind::Phase, shape: &shape, bound: &[], output: b"null" };
        run.close(tx, point).await
    }

    /// Commits what `body` writes, and the reply, and ends the flow: all in one transaction.
    ///
    /// # Errors
    /// As of [`phase`](Self::phase); [`Halt::Drift`] if recorded steps were not taken again;
    /// [`Halt::Park`] if the reply is larger than the flow may keep.
    pub async fn finish<F>(self, body: F) -> Result<Finished, Halt>
    where
        F: AsyncFnOnce(&mut PhaseTx<S>) -> Result<Reply, Halt>,
    {
        let run = &self.run;
        let left_out = run.left_out();
        match (left_out.is_empty(), run.unvisited) {
            (true, _) => {}
            (false, Unvisited::Park) => return Err(Drift::Unvisited { steps: left_out }.into()),
            (false, Unvisited::Warn) => {
                tracing::warn!(flow = &*run.name, steps = ?left_out, "recorded steps not taken again");
            }
        }
        if run.mode == Mode::Rehearsal {
            return Err(Drift::Ends { step: "finish".to_owned() }.into());
        }
        run.may_act()?;
        run.be_written().await?;
        let (store, flow) = (run.store.clone(), Some(run.held.id));
        let tx = store.begin().await?;
        let mut phase = PhaseTx::new(store, tx, flow);
        let reply = match body(&mut phase).await {
            Ok(reply) => reply,
            Err(halt) => {
                let _ = S::rollback(phase.tx).await;
                return Err(halt);
            }
        };
        run.end(phase.tx, &reply, &phase.at_end).await?;
        Ok(Finished(reply.0))
    }
}

/// The digest of arguments that a step is bound to.
pub(crate) fn bound_of<T: serde::Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Halt> {
    digest(value).map(|digest| digest.to_vec())
}

impl<S: TxStore> fmt::Debug for Flow<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = &self.run.held;
        write!(out, "Flow({}, {}, fence {})", self.run.name, held.id, held.fence)
    }
}
