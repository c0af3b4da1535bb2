//! Compensation: what was done is taken back, in reverse order.
//!
//! Compensation is data, stored with the intent and before the call: so an effect whose outcome is
//! unknown is taken back too, and another process can do it. The closures that do it are found by
//! name. Each has a derived key of its own, different from the effect's.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::claim::{Held, Way, micros, state};
use super::effect::{Failed, limited};
use super::halt::{Drift, Halt};
use super::intent::{Intent, intents, is_known_for, state as intent};
use super::point::{Step, steps};
use super::reply::Reply;
use super::run::Run;
use super::store::{TxError, TxStore, TxTrouble, Value};

/// What is known of an effect that is to be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Did<T> {
    /// It happened, and this came of it.
    Done(T),
    /// It may have happened. Taking back what is not there must succeed.
    Unknown,
}

type Undone = Pin<Box<dyn Future<Output = Result<(), Failed>> + Send>>;
type Undo = dyn Fn(&[u8], Option<&[u8]>, String) -> Result<Undone, Drift> + Send + Sync;

/// How an effect is taken back.
#[derive(Clone)]
pub struct Compensation {
    undo: Arc<Undo>,
    window: Option<Duration>,
}

/// All of them, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compensations(pub(crate) HashMap<String, Compensation>);

impl Compensation {
    /// From code that gets the stored data, what is known of the effect, and the key to send.
    pub fn new<D, T, F, R>(undo: F) -> Self
    where
        D: DeserializeOwned + Send + 'static,
        T: DeserializeOwned + Send + 'static,
        F: Fn(D, Did<T>, String) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        let undo = move |data: &[u8], did: Option<&[u8]>, key: String| {
            let wanted = || Drift::Input { wanted: super::checkpoint::shape::<D>() };
            let data: D = serde_json::from_slice(data).map_err(|_| wanted())?;
            let did = match did {
                Some(output) => {
                    Did::Done(serde_json::from_slice::<T>(output).map_err(|_| wanted())?)
                }
                None => Did::Unknown,
            };
            let undone: Undone = Box::pin(undo(data, did, key));
            Ok(undone)
        };
        Self { undo: Arc::new(undo), window: None }
    }

    /// The other side knows the key of this compensation again for so long after it first saw it. Past
    /// that a compensation whose outcome is unknown is not repeated but left to a person: a refund
    /// must not be made twice. Without it, repeating must be harmless at any time.
    #[must_use]
    pub const fn keyed(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }
}

impl fmt::Debug for Compensation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Compensation")
    }
}

/// Why something is not taken back yet.
enum Undecided {
    /// It is tried again later.
    Again(String),
    /// A person has to look.
    Person(String),
}

/// Whether the other side is about to hear of a compensation: from then on its time counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Calls {
    Now,
    Not,
}

/// What a stop comes to.
pub(crate) enum Stopped {
    /// The reply is stored, and nothing is to be taken back.
    Ended,
    /// The reply is stored, and the flow goes back.
    Back,
}

/// Writes the pivot, in the transaction of its step.
pub(crate) async fn mark_pivot<S: TxStore>(
    store: &S,
    tx: &mut S::Tx,
    held: &Held,
    step: &Step,
) -> Result<(), TxError> {
    let values = [
        Value::Text(&step.name),
        Value::Bytes(held.id.as_bytes()),
        Value::Int(held.fence),
        Value::Bytes(held.owner.as_bytes()),
    ];
    // A fenced owner is found out by the recovery point that follows.
    S::execute(S::conn(tx), &store.layout().sql().pivot, &values).await?;
    Ok(())
}

impl<S: TxStore> Run<S> {
    /// Stores the reply of a flow that stops early, and turns it back if there is something to undo.
    pub(crate) async fn stop(&self, reply: &Reply) -> Result<Stopped, Halt> {
        let pivot = match super::claim::look(&self.store, &self.held.id).await? {
            Some(stored) => stored.pivot,
            None => return Err(Halt::Fenced),
        };
        let intents = intents(&self.store, &self.held.id).await?;
        if !pivot.is_empty() || undoable(&intents).is_empty() {
            let tx = self.store.begin().await?;
            self.end(tx, reply, &[]).await?;
            return Ok(Stopped::Ended);
        }
        let headers = reply.0.headers.encode();
        let values = [
            Value::Int(i64::from(reply.status())),
            Value::Bytes(&headers),
            Value::Bytes(reply.body()),
            Value::Text("stopped: its effects are taken back"),
            Value::Bytes(self.held.id.as_bytes()),
            Value::Int(self.held.fence),
            Value::Bytes(self.held.owner.as_bytes()),
        ];
        let sql = self.store.layout().sql();
        let turned = match self.store.execute_once(&sql.turn_back, &values).await {
            Ok(rows) => rows > 0,
            Err(error) if error.kind() != TxTrouble::Unavailable => return Err(error.into()),
            // Its answer was lost: what stands tells.
            Err(_) => super::claim::look(&self.store, &self.held.id).await?.is_some_and(|stored| {
                stored.fence == self.held.fence && stored.state == state::UNDOING
            }),
        };
        match turned {
            false => Err(Halt::Fenced),
            true => {
                self.grip.turn();
                Ok(Stopped::Back)
            }
        }
    }

    /// Takes back what was registered, the last first. What fails is tried again later, and after
    /// enough tries left to a person; the others are taken back all the same.
    pub(crate) async fn go_back(
        &self,
        compensations: &Compensations,
        most: i64,
    ) -> Result<(), Halt> {
        let intents = intents(&self.store, &self.held.id).await?;
        let taken = steps(&self.store, &self.held.id).await?;
        let mut again = None;
        let mut dead = Vec::new();
        for (step, found) in undoable(&intents) {
            if found.state == intent::UNDO_FAILED {
                dead.push(step.label());
                continue;
            }
            self.may_act()?;
            let output = taken.get(step).map(|taken| taken.output.as_slice());
            let (end, why) = match self.undo(compensations, step, (found, output), most).await? {
                Ok(()) => (intent::UNDONE, String::new()),
                Err(Undecided::Again(why)) => (found.state, why),
                Err(Undecided::Person(why)) => (intent::UNDO_FAILED, why),
            };
            self.undo_ended(step, end, &why).await?;
            match end {
                intent::UNDONE => {}
                intent::UNDO_FAILED => dead.push(step.label()),
                _ => again = Some(why),
            }
        }
        match again {
            Some(why) => Err(Halt::retry(why)),
            None => self.undone(&dead).await,
        }
    }

    /// Calls one compensation. It is counted before, so that one that never returns counts too.
    async fn undo(
        &self,
        compensations: &Compensations,
        step: &Step,
        (found, output): (&Intent, Option<&[u8]>),
        most: i64,
    ) -> Result<Result<(), Undecided>, Halt> {
        let person = |why: String| Ok(Err(Undecided::Person(why)));
        if found.undo_calls >= most {
            return person(match found.reason.as_str() {
                "" => format!("it was called {} times and never ended", found.undo_calls),
                why => why.to_owned(),
            });
        }
        let failed = |why: String| match found.undo_calls + 1 >= most {
            true => Ok(Err(Undecided::Person(why))),
            false => Ok(Err(Undecided::Again(why))),
        };
        let Some(compensation) = compensations.0.get(&found.undo_name) else {
            self.undo_begins(step, Calls::Not).await?;
            return failed(format!("no compensation is called {}", found.undo_name));
        };
        let age = self.age(found) - (found.undo_first_at - found.first_at);
        if let Some(window) = compensation.window
            && found.undo_first_at > 0
            && !is_known_for(micros(window), age)
        {
            return person(
                "the other side may have forgotten the key that it is undone with".into(),
            );
        }
        let key = self.foreign_key(Way::Back, step);
        match (compensation.undo)(&found.undo_data, output, key) {
            Err(drift) => {
                self.undo_begins(step, Calls::Not).await?;
                failed(drift.to_string())
            }
            Ok(undone) => {
                self.undo_begins(step, Calls::Now).await?;
                // Writing that down may have taken its time.
                self.may_act()?;
                match limited(self.longest_call, undone).await {
                    Ok(()) => Ok(Ok(())),
                    Err(error) => failed(error.why()),
                }
            }
        }
    }

    async fn undo_begins(&self, step: &Step, calls: Calls) -> Result<(), Halt> {
        let id = Value::Bytes(self.held.id.as_bytes());
        let values = [
            Value::Int(i64::from(calls == Calls::Now)),
            id,
            Value::Text(&step.name),
            Value::Text(&step.item),
        ];
        self.write_back(&self.store.layout().sql().undo_begins, &values).await
    }

    async fn undo_ended(&self, step: &Step, end: i64, why: &str) -> Result<(), Halt> {
        let why = super::drive::short(why);
        let values = [
            Value::Int(end),
            Value::Text(&why),
            Value::Bytes(self.held.id.as_bytes()),
            Value::Text(&step.name),
            Value::Text(&step.item),
        ];
        self.write_back(&self.store.layout().sql().undo_ended, &values).await
    }

    /// Writes something about a flow on its way back, if it is still this attempt's.
    async fn write_back(&self, sql: &Arc<str>, values: &[Value<'_>]) -> Result<(), Halt> {
        let id = Value::Bytes(self.held.id.as_bytes());
        let mut tx = self.store.begin().await?;
        let conn = S::conn(&mut tx);
        // Holds the flow's row, and shows whether it is still ours.
        let rows = S::query(conn, &self.store.layout().sql().look_and_hold, &[id]).await?;
        let row = rows.first().ok_or(Halt::Fenced)?;
        if row.int(1)? != self.held.fence || row.int(2)? != state::UNDOING {
            let _ = S::rollback(tx).await;
            self.grip.lose();
            return Err(Halt::Fenced);
        }
        S::execute(conn, sql, values).await?;
        Ok(S::commit(tx).await?)
    }

    async fn undone(&self, dead: &[String]) -> Result<(), Halt> {
        let (state, point, why) = match dead.is_empty() {
            true => (state::UNDONE, "undone", String::new()),
            false => {
                (state::PARKED, "undoing", format!("could not be taken back: {}", dead.join(", ")))
            }
        };
        let why = super::drive::short(&why);
        let values = [
            Value::Int(state),
            Value::Text(point),
            Value::Text(&why),
            Value::Bytes(self.held.id.as_bytes()),
            Value::Int(self.held.fence),
            Value::Bytes(self.held.owner.as_bytes()),
        ];
        let sql = self.store.layout().sql();
        match self.store.execute_once(&sql.undone, &values).await? {
            0 => Err(Halt::Fenced),
            _ if dead.is_empty() => Ok(()),
            _ => Err(Halt::Park(why)),
        }
    }
}

/// What is to be taken back: what happened or may have happened, the last first.
fn undoable(intents: &HashMap<Step, Intent>) -> Vec<(&Step, &Intent)> {
    let mut found: Vec<_> = intents
        .iter()
        .filter(|(_, found)| !found.undo_name.is_empty())
        .filter(|(_, found)| !matches!(found.state, intent::UNDONE | intent::REFUSED))
        .collect();
    found.sort_by_key(|(_, found)| std::cmp::Reverse(found.seq));
    found
}

impl Failed {
    fn why(self) -> String {
        match self {
            Self::NotDone(why) | Self::Unknown(why) => why,
            Self::Final(reply) => format!("refused with status {}", reply.status()),
        }
    }
}
