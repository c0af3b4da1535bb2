//! Calls to foreign systems: intent first, then the call, then its outcome.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::time::Duration;

use oncekey_core::KeyId;
use serde::Serialize;

use super::checkpoint::{Checkpoint, encode};
use super::claim::{Kept, micros};
use super::halt::{Drift, Halt};
use super::point::{Kind, Step};
use super::reply::Reply;
use super::run::{Run, bound_of};
use super::store::{TxError, TxStore, TxTrouble, Value};

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

/// An intent as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    pub(crate) seq: i64,
    pub(crate) safety: i64,
    pub(crate) span: i64,
    pub(crate) state: i64,
    pub(crate) calls: i64,
    pub(crate) first_at: i64,
    pub(crate) bound: Vec<u8>,
    pub(crate) foreign_key: String,
    pub(crate) undo_name: String,
    pub(crate) undo_data: Vec<u8>,
    pub(crate) undo_calls: i64,
    pub(crate) reason: String,
    /// The database's clock when it was read.
    pub(crate) now: i64,
}

/// What has become of an intent.
pub(crate) mod intent {
    pub(crate) const INTENDED: i64 = 1;
    pub(crate) const DONE: i64 = 2;
    pub(crate) const UNDONE: i64 = 3;
    pub(crate) const UNDO_FAILED: i64 = 4;
    pub(crate) const REFUSED: i64 = 5;
}

/// What comes next for an effect that has no outcome yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    First,
    Again,
    Ask,
    Park(&'static str),
}

const ONCE: &str = "nobody knows whether the call was received, and it must not be made twice";
const PAST: &str = "the other side may have forgotten our key, and cannot be asked";
const UNDONE: &str = "it was undone before";

/// Whether an earlier call may have been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    Some,
}

impl Doubt {
    fn of(intent: Option<&Intent>) -> Self {
        match intent {
            Some(intent) if intent.state != intent::REFUSED => Self::Some,
            Some(_) | None => Self::None,
        }
    }
}

/// The part of the window that is not used: the call takes time, and clocks differ.
fn margin(window: i64) -> i64 {
    const HOUR: i64 = 3_600_000_000;
    (window / 10).min(HOUR)
}

/// The decision table. What was sent under one class is judged by that class, even if the code says
/// another one today.
fn next(intent: Option<&Intent>, can_ask: bool) -> Next {
    let Some(intent) = intent else { return Next::First };
    match (intent.state, intent.safety) {
        (intent::UNDONE | intent::UNDO_FAILED, _) => Next::Park(UNDONE),
        (intent::REFUSED, _) | (_, 1) => Next::Again,
        (_, 2) if intent.now - intent.first_at < intent.span - margin(intent.span) => Next::Again,
        (_, 2 | 3) if can_ask => Next::Ask,
        (_, 2 | 3) => Next::Park(PAST),
        _ => Next::Park(ONCE),
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

    fn span(self) -> i64 {
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
        let Self { run, step, safety, bound, undo, wrong, output, .. } = self;
        Effect { run, step, safety, bound, undo, wrong, probe: Asked(probe), output }
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
    /// committed before, the outcome after, and no transaction is open in between.
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
        let key = run.foreign_key(&step.label());
        let intent = run.intents.get(&step);
        if intent.is_some_and(|intent| !intent.bound.is_empty() && intent.bound != self.bound) {
            return Err(Drift::Arguments { step: step.label() }.into());
        }
        run.may_act()?;
        let mut doubt = Doubt::of(intent);
        let again = match next(intent, P::CAN) {
            Next::First => false,
            Next::Again => true,
            Next::Park(why) => return Err(Halt::park(format!("effect {}: {why}", step.label()))),
            Next::Ask => match self.probe.ask(&key).await {
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
            true => run.intend_again(&step).await?,
            false => run.intend(&step, self.safety, &self.bound, &key, &self.undo).await?,
        }
        // The intent may have taken its time.
        run.may_act()?;
        match body(&key).await {
            Ok(value) => {
                run.outcome(&step, &self.bound, &value).await?;
                Ok(value)
            }
            Err(failed) => Err(run.call_failed(&step, self.safety, doubt, failed).await),
        }
    }
}

impl Failed {
    fn halt(self, step: &Step) -> Halt {
        match self {
            Self::NotDone(why) | Self::Unknown(why) => {
                Halt::retry(format!("effect {}: {why}", step.label()))
            }
            Self::Final(reply) => Halt::Stop(reply),
        }
    }
}

/// How often the outcome of a call is written before the attempt is given up, with a pause that
/// doubles from 20 ms: more than a second together. What is not written has to be found out again.
const OUTCOME_TRIES: u32 = 7;

impl<S: TxStore> Run<S> {
    async fn intend(
        &self,
        step: &Step,
        safety: Safety,
        bound: &[u8],
        key: &str,
        (undo, data): &(String, Vec<u8>),
    ) -> Result<(), Halt> {
        let sql = self.store.layout().sql();
        let values = [
            Value::Text(&step.name),
            Value::Text(&step.item),
            Value::Int(safety.code()),
            Value::Int(safety.span()),
            Value::Bytes(bound),
            Value::Text(key),
            Value::Text(undo),
            Value::Bytes(data),
            Value::Bytes(self.held.id.as_bytes()),
            Value::Int(self.held.fence),
            Value::Bytes(self.held.owner.as_bytes()),
        ];
        match self.store.execute_once(&sql.intend, &values).await.map(Kept::of) {
            Ok(Kept::Yes) => Ok(()),
            Ok(Kept::Fenced) => {
                self.grip.lose();
                Err(Halt::Fenced)
            }
            // Whether it was written or not: nothing was called, and this attempt still may.
            Err(error) if error.kind() == TxTrouble::Unavailable => {
                let found = intents(&self.store, &self.held.id).await?;
                match found.contains_key(step) {
                    true => Ok(()),
                    false => Err(error.into()),
                }
            }
            // An owner that was replaced wrote it in the same moment: look again.
            Err(error) if error.kind() == TxTrouble::Duplicate => {
                Err(Halt::retry("another attempt meant to make the same call"))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn intend_again(&self, step: &Step) -> Result<(), Halt> {
        let sql = self.store.layout().sql();
        let id = Value::Bytes(self.held.id.as_bytes());
        let mut tx = self.store.begin().await?;
        let conn = S::conn(&mut tx);
        let proof = [
            Value::Text(&self.held.point),
            id,
            Value::Int(self.held.fence),
            Value::Bytes(self.held.owner.as_bytes()),
        ];
        if S::execute(conn, &sql.advance, &proof).await? == 0 {
            let _ = S::rollback(tx).await;
            self.grip.lose();
            return Err(Halt::Fenced);
        }
        let values = [id, Value::Text(&step.name), Value::Text(&step.item)];
        S::execute(conn, &sql.intend_again, &values).await?;
        Ok(S::commit(tx).await?)
    }

    /// Writes down what came of a call, and tries hard.
    async fn outcome<T: Checkpoint>(
        &self,
        step: &Step,
        bound: &[u8],
        value: &T,
    ) -> Result<(), Halt> {
        let mut pause = Duration::from_millis(20);
        for _ in 1..OUTCOME_TRIES {
            match self.outcome_once(step, bound, value).await {
                Err(Halt::Retry { .. }) => {}
                done => return done,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            // What looked like a failure may have been written.
            match super::point::steps(&self.store, &self.held.id).await {
                Ok(found) if found.contains_key(step) => return Ok(()),
                Ok(_) | Err(_) => {}
            }
        }
        self.outcome_once(step, bound, value).await
    }

    async fn outcome_once<T: Checkpoint>(
        &self,
        step: &Step,
        bound: &[u8],
        value: &T,
    ) -> Result<(), Halt> {
        let output = encode(&step.name, value)?;
        let shape = super::checkpoint::shape::<T>();
        let mut tx = self.store.begin().await?;
        let settled = [
            Value::Int(intent::DONE),
            Value::Bytes(self.held.id.as_bytes()),
            Value::Text(&step.name),
            Value::Text(&step.item),
        ];
        let sql = self.store.layout().sql();
        S::execute(S::conn(&mut tx), &sql.settle_effect, &settled).await?;
        let point =
            super::point::Point { step, kind: Kind::Effect, shape: &shape, bound, output: &output };
        let advanced = super::point::advance(&self.store, &mut tx, &self.held, point).await?;
        self.settle(tx, advanced, step).await
    }

    /// What a failed call comes to.
    async fn call_failed(&self, step: &Step, safety: Safety, doubt: Doubt, failed: Failed) -> Halt {
        match &failed {
            // This call did nothing, but an earlier one may have.
            Failed::NotDone(_) if doubt == Doubt::Some => failed.halt(step),
            // What a key is refused with is said about every call with that key.
            Failed::Final(_) if doubt == Doubt::Some && !matches!(safety, Safety::Keyed { .. }) => {
                failed.halt(step)
            }
            Failed::NotDone(_) | Failed::Final(_) => {
                // If this is not written, the intent stands, and what is unsure is treated as unsure.
                if let Err(halt) = self.refused(step).await {
                    tracing::warn!(%halt, "a refused call could not be written down");
                }
                failed.halt(step)
            }
            Failed::Unknown(why) if safety == Safety::Once => {
                Halt::park(format!("effect {}: {ONCE} ({why})", step.label()))
            }
            Failed::Unknown(_) => failed.halt(step),
        }
    }

    async fn refused(&self, step: &Step) -> Result<(), Halt> {
        let sql = self.store.layout().sql();
        let values = [
            Value::Int(intent::REFUSED),
            Value::Bytes(self.held.id.as_bytes()),
            Value::Text(&step.name),
            Value::Text(&step.item),
        ];
        let mut tx = self.store.begin().await?;
        let proof = [
            Value::Text(&self.held.point),
            Value::Bytes(self.held.id.as_bytes()),
            Value::Int(self.held.fence),
            Value::Bytes(self.held.owner.as_bytes()),
        ];
        let conn = S::conn(&mut tx);
        if S::execute(conn, &sql.advance, &proof).await? == 0 {
            return Err(Halt::Fenced);
        }
        S::execute(conn, &sql.settle_effect, &values).await?;
        Ok(S::commit(tx).await?)
    }
}

/// The intents of a flow.
pub(crate) async fn intents<S: TxStore>(
    store: &S,
    id: &KeyId,
) -> Result<HashMap<Step, Intent>, TxError> {
    let sql = store.layout().sql();
    let rows = store.query_once(&sql.effects, &[Value::Bytes(id.as_bytes())]).await?;
    rows.iter()
        .map(|row| {
            let step = Step { name: row.text(0)?.to_owned(), item: row.text(1)?.to_owned() };
            let intent = Intent {
                seq: row.int(2)?,
                safety: row.int(3)?,
                span: row.int(4)?,
                state: row.int(5)?,
                calls: row.int(6)?,
                first_at: row.int(7)?,
                bound: row.bytes(9)?.to_vec(),
                foreign_key: row.text(10)?.to_owned(),
                undo_name: row.text(11)?.to_owned(),
                undo_data: row.bytes(12)?.to_vec(),
                undo_calls: row.int(13)?,
                reason: row.text(14)?.to_owned(),
                now: row.int(15)?,
            };
            Ok((step, intent))
        })
        .collect()
}

impl<S: TxStore, T, P> std::fmt::Debug for Effect<'_, S, T, P> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Effect({}, {:?})", self.step.label(), self.safety)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent_of(safety: Safety, state: i64, age: i64) -> Intent {
        Intent {
            seq: 1,
            safety: safety.code(),
            span: safety.span(),
            state,
            calls: 1,
            first_at: 1_000,
            bound: Vec::new(),
            foreign_key: String::new(),
            undo_name: String::new(),
            undo_data: Vec::new(),
            undo_calls: 0,
            reason: String::new(),
            now: 1_000 + age,
        }
    }

    /// Past the window of the other side nothing is called again.
    #[test]
    fn a_keyed_call_is_repeated_within_its_window_and_never_past_it() {
        let window = Duration::from_secs(86_400);
        let keyed = Safety::Keyed { window };
        let hour = 3_600_000_000;
        let at = |age| next(Some(&intent_of(keyed, intent::INTENDED, age)), false);
        assert_eq!(at(0), Next::Again);
        assert_eq!(at(22 * hour), Next::Again);
        assert_eq!(at(23 * hour), Next::Park(PAST));
        assert_eq!(at(72 * hour), Next::Park(PAST));
        let asked = next(Some(&intent_of(keyed, intent::INTENDED, 72 * hour)), true);
        assert_eq!(asked, Next::Ask);
    }

    #[test]
    fn an_unknown_outcome_is_treated_by_its_class() {
        let of = |safety, ask| next(Some(&intent_of(safety, intent::INTENDED, 0)), ask);
        assert_eq!(of(Safety::Natural, false), Next::Again);
        assert_eq!(of(Safety::Probed, true), Next::Ask);
        assert_eq!(of(Safety::Probed, false), Next::Park(PAST));
        assert_eq!(of(Safety::Once, false), Next::Park(ONCE));
        assert_eq!(of(Safety::Once, true), Next::Park(ONCE));
        assert_eq!(next(None, false), Next::First);
        // What was surely refused may be called again, and what was undone may not.
        assert_eq!(next(Some(&intent_of(Safety::Once, intent::REFUSED, 0)), false), Next::Again);
        let undone = intent_of(Safety::Keyed { window: Duration::MAX }, intent::UNDONE, 0);
        assert_eq!(next(Some(&undone), true), Next::Park(UNDONE));
    }
}
