//! Calls to foreign systems: intent first, then the call, then its outcome.

use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;

use super::checkpoint::{Checkpoint, encode};
use super::claim::{Way, micros};
use super::halt::{Drift, Halt};
use super::intent::{Doubt, Next, next};
use super::late::may_be_late;
use super::point::{Kind, Step};
use super::reply::Reply;
use super::run::{Run, bound_of};
use super::store::TxStore;

/// What may be done if nobody knows whether a call was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Safety {
    /// Repeating it is harmless.
    Natural,
    /// The other side knows our key again for so long after it first saw it. Within that time the call
    /// is repeated; past it, it is looked for or a person is asked.
    Keyed {
        /// What the other side promises.
        window: Duration,
    },
    /// The other side does not know a repetition, but can be asked.
    Probed,
    /// Neither: a call whose outcome is unknown is never made again.
    Once,
}

/// What the other side says about an earlier call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe<T> {
    /// It was received, and this came of it.
    Found(T),
    /// It was surely not received, and cannot be received any more.
    Absent,
    /// The other side cannot say.
    Unknown,
}

/// How a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Surely nothing happened: refused connection, 429, 503. It may be called again.
    NotDone(String),
    /// Something was sent and no answer came back.
    Unknown(String),
    /// The other side has decided: this is the flow's reply.
    Final(Reply),
}

/// A foreign call before it is made.
#[must_use = "nothing is called before `call`"]
pub struct Effect<'f, S: TxStore, T, P = NoProbe> {
    run: &'f Run<S>,
    step: Step,
    safety: Safety,
    bound: Vec<u8>,
    undo: (String, Vec<u8>),
    limit: Duration,
    /// What went wrong while it was put together.
    wrong: Option<Halt>,
    probe: P,
    output: PhantomData<fn() -> T>,
}

/// No way to ask.
#[derive(Clone, Copy, Debug)]
pub struct NoProbe;

/// A way to ask.
#[derive(Clone, Copy, Debug)]
pub struct Asked<P>(P);

/// How the other side is asked about an earlier call.
pub trait Ask<T>: Send {
    /// Whether it can be.
    const CAN: bool;

    /// Asks. Only called if it can be.
    fn ask(self, key: &str) -> impl Future<Output = Result<Probe<T>, Failed>>;
}

impl<T> Ask<T> for NoProbe {
    const CAN: bool = false;

    async fn ask(self, _key: &str) -> Result<Probe<T>, Failed> {
        Ok(Probe::Unknown)
    }
}

impl<T, P: AsyncFnOnce(&str) -> Result<Probe<T>, Failed> + Send> Ask<T> for Asked<P> {
    const CAN: bool = true;

    async fn ask(self, key: &str) -> Result<Probe<T>, Failed> {
        (self.0)(key).await
    }
}

impl Safety {
    pub(crate) const fn code(self) -> i64 {
        match self {
            Self::Natural => 1,
            Self::Keyed { .. } => 2,
            Self::Probed => 3,
            Self::Once => 4,
        }
    }

    pub(crate) fn span(self) -> i64 {
        match self {
            Self::Keyed { window } => micros(window),
            Self::Natural | Self::Probed | Self::Once => 0,
        }
    }
}

impl<'f, S: TxStore, T: Checkpoint> Effect<'f, S, T> {
    pub(crate) fn new(run: &'f Run<S>, step: Step, safety: Safety) -> Self {
        Self {
            run,
            step,
            safety,
            bound: Vec::new(),
            undo: (String::new(), Vec::new()),
            limit: run.longest_call,
            wrong: None,
            probe: NoProbe,
            output: PhantomData,
        }
    }

    /// How to ask the other side about an earlier call.
    pub fn probe<P>(self, probe: P) -> Effect<'f, S, T, Asked<P>>
    where
        P: AsyncFnOnce(&str) -> Result<Probe<T>, Failed> + Send,
    {
        let Self { run, step, safety, bound, undo, limit, wrong, output, .. } = self;
        Effect { run, step, safety, bound, undo, limit, wrong, probe: Asked(probe), output }
    }
}

impl<S: TxStore, T: Checkpoint, P: Ask<T>> Effect<'_, S, T, P> {
    /// Stores a digest of the arguments. Other arguments later are [`Drift::Arguments`].
    pub fn bind<A: Serialize + ?Sized>(mut self, arguments: &A) -> Self {
        match bound_of(arguments) {
            Ok(bound) => self.bound = bound,
            Err(halt) => self.wrong = Some(halt),
        }
        self
    }

    /// How long the call may take, if not [`Options::longest_call`](super::Options::longest_call).
    /// After that it is given up, and its outcome is unknown.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Registers how it is taken back: the name of a compensation and its data, stored with the intent,
    /// before the call.
    pub fn undo<D: Serialize>(mut self, name: &str, data: &D) -> Self {
        match encode(&self.step.name, data) {
            Ok(data) => self.undo = (name.to_owned(), data),
            Err(halt) => self.wrong = Some(halt),
        }
        self
    }

    /// Makes the call, or returns what came of it before.
    ///
    /// `body` gets the key to send: the same for every attempt, different per step. The intent is
    /// committed before, the outcome after, and no transaction is open in between. The outcome of a call
    /// that may be repeated is committed together with the next step; of one that may not, at once.
    ///
    /// # Errors
    /// [`Halt::Retry`] if the call may be made again later, [`Halt::Park`] if nobody knows what became
    /// of it and it may not, [`Halt::Stop`] if the other side has decided, [`Halt::Fenced`] after a
    /// takeover, [`Halt::Drift`] if the code has changed.
    ///
    /// # Cancellation
    /// As a crash at that moment: the intent says that the call may have been made.
    pub async fn call<F>(mut self, body: F) -> Result<T, Halt>
    where
        F: AsyncFnOnce(&str) -> Result<T, Failed>,
    {
        if let Some(halt) = self.wrong.take() {
            return Err(halt);
        }
        let run = self.run;
        let step = run.visit(self.step.clone())?;
        if let Some(value) = run.recorded(&step, Kind::Effect, &self.bound)? {
            return Ok(value);
        }
        let key = run.foreign_key(Way::Forward, &step);
        let intent = run.intents.get(&step);
        if intent.is_some_and(|intent| !intent.bound.is_empty() && intent.bound != self.bound) {
            return Err(Drift::Arguments { step: step.label() }.into());
        }
        run.may_act()?;
        run.be_written().await?;
        let mut doubt = Doubt::of(intent);
        let again = match next(intent.map(|found| (found, run.age(found))), P::CAN) {
            Next::First => false,
            Next::Again => true,
            Next::Park(why) => return Err(Halt::park(format!("effect {}: {why}", step.label()))),
            Next::Ask => match limited(self.limit, self.probe.ask(&key)).await {
                Ok(Probe::Found(value)) => {
                    run.outcome(&step, &self.bound, &value).await?;
                    return Ok(value);
                }
                Ok(Probe::Absent) => {
                    doubt = Doubt::None;
                    true
                }
                Ok(Probe::Unknown) => {
                    return Err(Halt::retry(format!(
                        "effect {}: cannot be told yet",
                        step.label()
                    )));
                }
                Err(failed) => return Err(failed.halt(&step)),
            },
        };
        match again {
            true => {
                let anew = (doubt == Doubt::None).then_some((self.safety, &self.undo));
                run.intend_again(&step, anew).await?;
            }
            // What is called next may rest on it.
            false if run.is_announced(&step, self.safety, &self.bound, &self.undo)? => {
                run.catch_up().await?;
            }
            false => run.intend(&step, self.safety, &self.bound, &key, &self.undo).await?,
        }
        // The intent may have taken its time.
        run.may_act()?;
        match limited(self.limit, body(&key)).await {
            // What was called before may have been called as another class.
            Ok(value) if !again && may_be_late(self.safety, run.until_the_next) => {
                run.outcome_with_the_next(&step, &self.bound, &value)?;
                Ok(value)
            }
            Ok(value) => {
                run.outcome(&step, &self.bound, &value).await?;
                Ok(value)
            }
            Err(failed) => Err(run.call_failed(&step, self.safety, doubt, failed).await),
        }
    }
}

/// What a call comes to within a time. Nobody knows what a call that was given up has done.
pub(super) async fn limited<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Failed>>,
) -> Result<T, Failed> {
    let ended = tokio::time::timeout(limit, call).await;
    ended.unwrap_or_else(|_| Err(Failed::Unknown(format!("no answer within {limit:?}"))))
}

impl Failed {
    pub(super) fn halt(self, step: &Step) -> Halt {
        match self {
            Self::NotDone(why) | Self::Unknown(why) => {
                Halt::retry(format!("effect {}: {why}", step.label()))
            }
            Self::Final(reply) => Halt::Stop(reply),
        }
    }
}

impl<S: TxStore, T, P> std::fmt::Debug for Effect<'_, S, T, P> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Effect({}, {:?})", self.step.label(), self.safety)
    }
}
