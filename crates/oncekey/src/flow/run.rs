//! A flow as its body sees it: phases, pins, the end.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncekey_core::{KeyId, derived_key};

use super::checkpoint::{Checkpoint, decode, digest, encode, shape};
use super::claim::{Before, Held, look};
use super::effect::{Effect, Intent, Safety, intent, intents};
use super::halt::{Drift, Halt};
use super::point::{Advanced, Kind, PhaseTx, Point, Step, Taken, advance, finish, steps};
use super::reply::{Finished, Reply};
use super::store::{TxError, TxStore, Value};

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
    pub(crate) held: Held,
    pub(crate) name: Arc<str>,
    pub(crate) namespace: Arc<str>,
    pub(crate) taken: HashMap<Step, Taken>,
    pub(crate) intents: HashMap<Step, Intent>,
    pub(crate) aliases: Arc<[(String, String)]>,
    pub(crate) unvisited: Unvisited,
    pub(crate) largest_reply: usize,
    pub(crate) grip: Arc<Grip>,
    pub(crate) mode: Mode,
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

/// What is known locally about the lease.
#[derive(Debug)]
pub(crate) struct Grip {
    /// When the lease or its last renewal was asked for, in microseconds of uptime.
    since: AtomicU64,
    lost: AtomicBool,
    uptime: Arc<dyn crate::clock::Uptime>,
}

/// So much of the lease must be left to begin something foreign: the rest of it covers the time until
/// the request has left.
const START_BUDGET: Duration = Duration::from_secs(2);

impl Grip {
    pub(crate) fn new(uptime: Arc<dyn crate::clock::Uptime>) -> Self {
        let since = AtomicU64::new(micros(uptime.elapsed()));
        Self { since, lost: AtomicBool::new(false), uptime }
    }

    pub(crate) fn now(&self) -> Duration {
        self.uptime.elapsed()
    }

    /// When the lease was asked for: counting from then, the local deadline is never the later one.
    pub(crate) fn asked(&self, asked: Duration) {
        self.since.store(micros(asked), Ordering::Release);
    }

    pub(crate) fn renewed(&self, asked: Duration) {
        self.since.fetch_max(micros(asked), Ordering::AcqRel);
    }

    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether enough is left of a lease of this length, by a clock that counts sleep.
    fn has_time(&self, lease: Duration) -> bool {
        let since = Duration::from_micros(self.since.load(Ordering::Acquire));
        self.now() + START_BUDGET.min(lease / 4) <= since + lease
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl<S: TxStore> Run<S> {
    /// Loads what earlier attempts left, if there were any.
    pub(crate) async fn load(
        store: S,
        held: Held,
        (name, namespace): (Arc<str>, Arc<str>),
        rules: &super::registry::Rules,
        grip: Arc<Grip>,
    ) -> Result<Self, TxError> {
        let (taken, intents) = match held.before {
            Before::Nothing => (HashMap::new(), HashMap::new()),
            Before::Something => (steps(&store, &held.id).await?, intents(&store, &held.id).await?),
        };
        let (aliases, unvisited) = (Arc::clone(&rules.aliases), rules.unvisited);
        let largest_reply = rules.largest_reply;
        let visited = Mutex::default();
        let mode = Mode::Live;
        Ok(Self {
            store,
            held,
            name,
            namespace,
            taken,
            intents,
            aliases,
            unvisited,
            largest_reply,
            grip,
            mode,
            visited,
        })
    }

    /// A run that only goes through what is in a history.
    pub(crate) fn rehearsal(
        store: S,
        held: Held,
        (name, namespace): (Arc<str>, Arc<str>),
        rules: &super::registry::Rules,
        (taken, grip): (HashMap<Step, Taken>, Arc<Grip>),
    ) -> Self {
        Self {
            store,
            held,
            name,
            namespace,
            taken,
            intents: HashMap::new(),
            aliases: Arc::clone(&rules.aliases),
            unvisited: Unvisited::Park,
            largest_reply: rules.largest_reply,
            grip,
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
        if taken.kind != kind.code() {
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
        match self.grip.has_time(self.held.lease) {
            true => Ok(()),
            false => Err(Halt::retry("too little is left of the lease to begin")),
        }
    }

    /// Commits a transaction whose last statement wrote `step`, and finds out what became of it if the
    /// answer is lost: a failed COMMIT is unknown, not failed.
    pub(crate) async fn commit(&self, tx: S::Tx, step: &Step) -> Result<(), Halt> {
        let Err(error) = S::commit(tx).await else { return Ok(()) };
        let found = match self.quiet().await {
            Ok(()) => steps(&self.store, &self.held.id).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(found) if found.contains_key(step) => Ok(()),
            Ok(_) | Err(_) => Err(Halt::retry(format!("a commit failed: {error}"))),
        }
    }

    /// Waits until no transaction on the flow's row is under way: a commit whose answer was lost may
    /// still be going on.
    async fn quiet(&self) -> Result<(), TxError> {
        let mut tx = self.store.begin().await?;
        let id = Value::Bytes(self.held.id.as_bytes());
        S::query(S::conn(&mut tx), &self.store.layout().sql().look_and_hold, &[id]).await?;
        S::rollback(tx).await
    }

    /// Whether the flow is still this attempt's.
    pub(crate) async fn is_held(&self) -> Result<bool, TxError> {
        let values = [
            Value::Bytes(self.held.id.as_bytes()),
            Value::Int(self.held.fence),
            Value::Bytes(self.held.owner.as_bytes()),
        ];
        let rows = self.store.query_once(&self.store.layout().sql().held, &values).await?;
        Ok(rows.first().map_or(Ok(0), |row| row.int(0))? == 1)
    }

    /// The key for a foreign call of a step: the same for every attempt, different per step.
    pub(crate) fn foreign_key(&self, step: &str) -> String {
        let step = format!("{}:{}/{step}", self.name.len(), self.name);
        derived_key(&self.namespace, &self.held.id, &step)
    }

    /// Steps that were taken, or calls that may have been received, and that the code of today does
    /// not come to.
    fn left_out(&self) -> Vec<String> {
        let visited = self.visited.lock().unwrap_or_else(PoisonError::into_inner);
        let open = self.intents.iter().filter(|(_, found)| found.state == intent::INTENDED);
        let known = self.taken.keys().chain(open.map(|(step, _)| step));
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
        self.run.foreign_key(&step.into().label())
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
        let (store, flow) = (run.store.clone(), Some(run.held.id));
        let mut phase = PhaseTx { tx: store.begin().await?, store, flow, wake: None };
        let value = match body(&mut phase).await {
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
        let advanced = advance(&run.store, &mut phase.tx, &run.held, point).await?;
        run.settle(phase.tx, advanced, &step).await?;
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
        let mut tx = run.store.begin().await?;
        super::saga::mark_pivot(&run.store, &mut tx, &run.held, &step).await?;
        let shape = shape::<()>();
        let point =
            Point { step: &step, kind: Kind::Phase, shape: &shape, bound: &[], output: b"null" };
        let advanced = advance(&run.store, &mut tx, &run.held, point).await?;
        run.settle(tx, advanced, &step).await
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
        let (store, flow) = (run.store.clone(), Some(run.held.id));
        let mut phase = PhaseTx { tx: store.begin().await?, store, flow, wake: None };
        let reply = match body(&mut phase).await {
            Ok(reply) => reply,
            Err(halt) => {
                let _ = S::rollback(phase.tx).await;
                return Err(halt);
            }
        };
        run.end(phase.tx, &reply).await?;
        Ok(Finished(reply.0))
    }
}

impl<S: TxStore> Run<S> {
    /// Ends the flow with a reply, in this transaction.
    pub(crate) async fn end(&self, mut tx: S::Tx, reply: &Reply) -> Result<(), Halt> {
        let size = reply.0.body.len() + reply.0.headers.as_encoded().len();
        if size > self.largest_reply {
            let _ = S::rollback(tx).await;
            return Err(Halt::park(format!(
                "the reply has {size} bytes and may have {}",
                self.largest_reply
            )));
        }
        match finish(&self.store, &mut tx, &self.held, &reply.0).await? {
            Advanced::Yes => {}
            other @ (Advanced::Fenced | Advanced::Smuggled) => {
                return self.give_up(tx, other, "finish").await;
            }
        }
        let Err(error) = S::commit(tx).await else { return Ok(()) };
        let found = match self.quiet().await {
            Ok(()) => look(&self.store, &self.held.id).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(Some(found))
                if found.fence == self.held.fence && found.reply.as_ref() == Some(&reply.0) =>
            {
                Ok(())
            }
            Ok(_) | Err(_) => Err(Halt::retry(format!("a commit failed: {error}"))),
        }
    }

    /// Commits what could be advanced, and takes back what could not.
    pub(crate) async fn settle(
        &self,
        tx: S::Tx,
        advanced: Advanced,
        step: &Step,
    ) -> Result<(), Halt> {
        match advanced {
            Advanced::Yes => self.commit(tx, step).await,
            other @ (Advanced::Fenced | Advanced::Smuggled) => {
                self.give_up(tx, other, &step.name).await
            }
        }
    }

    async fn give_up(&self, tx: S::Tx, advanced: Advanced, step: &str) -> Result<(), Halt> {
        let _ = S::rollback(tx).await;
        match advanced {
            Advanced::Smuggled => Err(Halt::park(format!(
                "somebody ended the transaction inside step {step}: what it wrote is committed \
                 without its recovery point"
            ))),
            Advanced::Fenced | Advanced::Yes => {
                self.grip.lose();
                Err(Halt::Fenced)
            }
        }
    }

    /// Records the output of a step that wrote nothing else.
    pub(crate) async fn record<T: Checkpoint>(
        &self,
        step: &Step,
        kind: Kind,
        bound: &[u8],
        value: &T,
    ) -> Result<(), Halt> {
        let output = encode(&step.name, value)?;
        let shape = shape::<T>();
        let mut tx = self.store.begin().await?;
        let point = Point { step, kind, shape: &shape, bound, output: &output };
        let advanced = advance(&self.store, &mut tx, &self.held, point).await?;
        self.settle(tx, advanced, step).await
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
