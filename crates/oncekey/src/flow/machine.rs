//! Flows as explicit state machines, for those that wait, loop or live for days.
//!
//! The recovery point is an enum with data: locals come back typed, the compiler checks that every
//! state is handled, and a state that the code of today does not know is drift instead of a wrong
//! jump. It is stored in the same rows as the recovery points of linear flows.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::Saved;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::checkpoint::{Checkpoint, encode, shape};
use super::claim::micros;
use super::effect::{Effect, Safety};
use super::halt::{Drift, Halt};
use super::point::{PhaseTx, Step};
use super::registry::Definition;
use super::reply::{Finished, Reply};
use super::run::{Flow, Run};
use super::store::{Open, TxStore, Value};

/// A flow as a state machine.
pub trait Machine<S: TxStore>: Send + Sync + 'static {
    /// What it begins with.
    type Input: DeserializeOwned + Send + 'static;
    /// Its recovery points, with what they need to know.
    type State: Checkpoint;

    /// The first state.
    fn begin(&self, input: Self::Input) -> Self::State;

    /// The name of a state, for people. It must not change with a deploy.
    fn point(state: &Self::State) -> &'static str;

    /// One turn: what is done in a state, and where it leads. Every turn ends in one commit.
    fn step(
        &self,
        at: Self::State,
        turn: Turn<S>,
    ) -> impl Future<Output = Result<Turned<Self::State>, Halt>> + Send;
}

/// Where a turn leads.
#[derive(Debug)]
pub enum Next<T> {
    /// To another state, at once.
    Goto(T),
    /// To another state, after a while.
    Sleep(Duration, T),
    /// To the end.
    Reply(Reply),
}

/// One turn of a machine. It is used up by its commit.
pub struct Turn<S: TxStore> {
    run: Arc<Run<S>>,
    number: i64,
    name: fn(&[u8]) -> Option<&'static str>,
}

/// A turn that was committed. There is no other way to make one.
#[derive(Debug)]
pub struct Turned<T>(To<T>);

#[derive(Debug)]
enum To<T> {
    State(T),
    Asleep(Duration),
    End(Saved),
}

/// A recovery point as it is stored. The number tells one visit of a state from another, so that a
/// call that is made in a loop is made each time.
#[derive(Serialize, Deserialize)]
struct Kept<T> {
    turn: i64,
    state: T,
}

impl<S: TxStore> Definition<S> {
    /// A flow that is a state machine.
    pub fn machine<M: Machine<S>>(name: impl Into<String>, machine: M) -> Self {
        let machine = Arc::new(machine);
        Self::new(name, move |flow: Flow<S>, input: M::Input| {
            let machine = Arc::clone(&machine);
            async move { turns(&*machine, flow.run, input).await }
        })
    }
}

async fn turns<S: TxStore, M: Machine<S>>(
    machine: &M,
    run: Arc<Run<S>>,
    input: M::Input,
) -> Result<Finished, Halt> {
    let wanted = || Drift::Shape {
        step: run.held.point.clone(),
        stored: "another state".to_owned(),
        wanted: shape::<M::State>(),
    };
    let Kept { mut turn, mut state } = match &run.held.data {
        Some(data) => serde_json::from_slice(data).map_err(|_| wanted())?,
        None => Kept { turn: 0, state: machine.begin(input) },
    };
    loop {
        turn += 1;
        let name = |state: &[u8]| serde_json::from_slice(state).ok().map(|state| M::point(&state));
        let one = Turn { run: Arc::clone(&run), number: turn, name };
        match machine.step(state, one).await?.0 {
            To::State(next) => state = next,
            To::Asleep(after) => return Err(Halt::Asleep { after }),
            To::End(saved) => return Ok(Finished(saved)),
        }
    }
}

impl<S: TxStore> Turn<S> {
    /// Which turn of the machine this is.
    #[must_use]
    pub const fn number(&self) -> i64 {
        self.number
    }

    /// A call to a foreign system in this turn.
    #[must_use = "nothing is called before `call`"]
    pub fn effect<T: Checkpoint>(&self, name: &str, safety: Safety) -> Effect<'_, S, T> {
        Effect::new(&self.run, Step::item(name, &self.number), safety)
    }

    /// Commits what `body` writes, and where it leads, in one transaction under the fence.
    ///
    /// # Errors
    /// As of [`Flow::phase`].
    pub async fn commit<T, F>(self, body: F) -> Result<Turned<T>, Halt>
    where
        T: Checkpoint,
        F: AsyncFnOnce(&mut PhaseTx<S>) -> Result<Next<T>, Halt>,
    {
        let run = &self.run;
        run.may_act()?;
        run.be_written().await?;
        run.catch_up().await?;
        let (store, flow) = (run.store.clone(), Some(run.held.id));
        let tx = store.begin().await?;
        let mut phase = PhaseTx::new(store, tx, flow);
        let next = match phase.run(body).await {
            Ok(next) => next,
            Err(halt) => {
                let _ = S::rollback(phase.tx).await;
                return Err(halt);
            }
        };
        match next {
            Next::Reply(reply) => {
                run.end(phase.tx, &reply, &[]).await?;
                Ok(Turned(To::End(reply.0)))
            }
            Next::Goto(state) => {
                let state = self.keep(phase.tx, state, None).await?;
                Ok(Turned(To::State(state)))
            }
            Next::Sleep(after, state) => {
                self.keep(phase.tx, state, Some(after)).await?;
                Ok(Turned(To::Asleep(after)))
            }
        }
    }

    /// Writes the state and commits. A failed commit is unknown: the next attempt reads what stands.
    async fn keep<T: Checkpoint>(
        &self,
        mut tx: S::Tx,
        state: T,
        asleep: Option<Duration>,
    ) -> Result<T, Halt> {
        let run = &self.run;
        let name = encode("state", &state).map(|bytes| (self.name)(&bytes).unwrap_or("turn"))?;
        let kept = Kept { turn: self.number, state };
        let data = encode(name, &kept)?;
        let sql = run.store.layout().sql();
        let open = S::still_open(S::conn(&mut tx)).await?;
        let mut values = vec![Value::Bytes(&data), Value::Text(name)];
        let statement = match asleep {
            None => &sql.keep_data,
            Some(after) => {
                values.extend([Value::Int(micros(after)), Value::Int(micros(after))]);
                &sql.keep_data_and_sleep
            }
        };
        values.extend([
            Value::Bytes(run.held.id.as_bytes()),
            Value::Int(run.held.fence),
            Value::Bytes(run.held.owner.as_bytes()),
        ]);
        let met = match open {
            Open::Ended => 0,
            Open::Yes | Open::AskedLater => {
                S::execute(S::conn(&mut tx), statement, &values).await?
            }
        };
        if met == 0 {
            let smuggled = open == Open::Ended || run.is_held().await?;
            let _ = S::rollback(tx).await;
            return Err(match smuggled {
                true => Halt::park("somebody ended the transaction inside a turn"),
                false => Halt::Fenced,
            });
        }
        S::commit(tx).await?;
        Ok(kept.state)
    }
}

impl<S: TxStore> fmt::Debug for Turn<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Turn({})", self.number)
    }
}
