//! Intents: what is written down before a foreign call, and what may be done with it afterwards.

use std::collections::HashMap;
use std::time::Duration;

use oncekey_core::KeyId;

use super::checkpoint::{Checkpoint, encode, shape};
use super::effect::{Failed, Safety};
use super::gather::What;
use super::halt::Halt;
use super::point::{Kind, Point, Step};
use super::run::Run;
use super::store::{TxError, TxStore, TxTrouble, Value};
use super::tables::Dialect;

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
    /// When its compensation was first called; zero if it was not.
    pub(crate) undo_first_at: i64,
    pub(crate) reason: String,
    /// The database's clock when it was read.
    pub(crate) now: i64,
}

/// What has become of an intent, as it is stored.
pub(crate) mod state {
    pub(crate) const INTENDED: i64 = 1;
    pub(crate) const DONE: i64 = 2;
    pub(crate) const UNDONE: i64 = 3;
    pub(crate) const UNDO_FAILED: i64 = 4;
    pub(crate) const REFUSED: i64 = 5;
}

/// What comes next for an effect that has no outcome yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    First,
    Again,
    Ask,
    Park(&'static str),
}

pub(super) const ONCE: &str =
    "nobody knows whether the call was received, and it must not be made twice";
const PAST: &str = "the other side may have forgotten our key, and cannot be asked";
const UNDONE: &str = "it was undone before";

/// Whether an earlier call may have been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    None,
    Some,
}

impl Doubt {
    pub(super) fn of(intent: Option<&Intent>) -> Self {
        match intent {
            Some(intent) if intent.state != state::REFUSED => Self::Some,
            Some(_) | None => Self::None,
        }
    }
}

/// The part of the window that is not used: the call takes time, and clocks differ.
fn margin(window: i64) -> i64 {
    const HOUR: i64 = 3_600_000_000;
    (window / 10).min(HOUR)
}

/// Whether a key that the other side first saw so long ago is surely known to it, `span` being what it
/// promises.
pub(super) fn is_known_for(span: i64, age: i64) -> bool {
    age < span - margin(span)
}

/// The decision table, for an intent and its age. What was sent under one class is judged by that
/// class, even if the code says another one today.
pub(super) fn next(intent: Option<(&Intent, i64)>, can_ask: bool) -> Next {
    let Some((intent, age)) = intent else { return Next::First };
    match (intent.state, intent.safety) {
        (state::UNDONE | state::UNDO_FAILED, _) => Next::Park(UNDONE),
        (state::REFUSED, _) | (_, 1) => Next::Again,
        (_, 2) if is_known_for(intent.span, age) => Next::Again,
        (_, 2 | 3) if can_ask => Next::Ask,
        (_, 2 | 3) => Next::Park(PAST),
        _ => Next::Park(ONCE),
    }
}

/// How often the outcome of a call is written before the attempt is given up, with a pause that
/// doubles from 20 ms: more than a second together. What is not written has to be found out again.
const OUTCOME_TRIES: u32 = 7;

impl<S: TxStore> Run<S> {
    pub(super) async fn intend(
        &self,
        step: &Step,
        safety: Safety,
        bound: &[u8],
        key: &str,
        (undo, data): &(String, Vec<u8>),
    ) -> Result<(), Halt> {
        // What is called next may rest on it.
        self.catch_up().await?;
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
        match self.gather.say(What::Intend, self.held.id, &values).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => {
                self.grip.lose();
                Err(Halt::Fenced)
            }
            // Whether it was written or not: nothing was called, and this attempt still may.
            Err(error) if error.kind() == TxTrouble::Unavailable => {
                let found = intents(&self.store, &self.held.id).await?;
                match found.contains_key(step) && self.is_held().await? {
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

    /// Writes down that a call is made again. If it is known that nothing came of the calls before it,
    /// `anew` has its class and its way back: then those count, and not what the code said at that time.
    pub(super) async fn intend_again(
        &self,
        step: &Step,
        anew: Option<(Safety, &(String, Vec<u8>))>,
    ) -> Result<(), Halt> {
        self.catch_up().await?;
        let sql = self.store.layout().sql();
        let id = Value::Bytes(self.held.id.as_bytes());
        let mut tx = self.store.begin().await?;
        let conn = S::conn(&mut tx);
        if S::execute(conn, &sql.hold, &self.held.proof()).await? == 0 {
            let _ = S::rollback(tx).await;
            self.grip.lose();
            return Err(Halt::Fenced);
        }
        let place = [id, Value::Text(&step.name), Value::Text(&step.item)];
        let (statement, values) = match anew {
            None => (&sql.intend_again, place.to_vec()),
            Some((safety, (undo, data))) => {
                let mut values = vec![
                    Value::Int(safety.code()),
                    Value::Int(safety.span()),
                    Value::Text(undo),
                    Value::Bytes(data),
                ];
                values.extend(place);
                (&sql.intend_anew, values)
            }
        };
        S::execute(conn, statement, &values).await?;
        Ok(S::commit(tx).await?)
    }

    /// Writes down what came of a call, and tries hard.
    pub(super) async fn outcome<T: Checkpoint>(
        &self,
        step: &Step,
        bound: &[u8],
        value: &T,
    ) -> Result<(), Halt> {
        let (output, shape) = (encode(&step.name, value)?, shape::<T>());
        self.write_outcome(Point {
            step,
            kind: Kind::Effect,
            shape: &shape,
            bound,
            output: &output,
        })
        .await
    }

    pub(super) async fn write_outcome(&self, point: Point<'_>) -> Result<(), Halt> {
        let mut pause = Duration::from_millis(20);
        for _ in 1..OUTCOME_TRIES {
            match self.outcome_once(point).await {
                Err(Halt::Retry { .. }) => {}
                done => return done,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            // What looked like a failure may have been written.
            if let Ok(true) = self.stands(point).await {
                return Ok(());
            }
        }
        self.outcome_once(point).await
    }

    async fn outcome_once(&self, point: Point<'_>) -> Result<(), Halt> {
        if self.store.layout().dialect() == Dialect::Postgres {
            return self.outcome_at_once(point).await;
        }
        let tx = self.store.begin().await?;
        self.close_with(tx, point, (&[], &[])).await
    }

    /// The same in one statement. If its answer is lost, whoever tries again looks first.
    async fn outcome_at_once(&self, point: Point<'_>) -> Result<(), Halt> {
        let values = point.held_row(&self.held);
        match self.gather.say(What::Outcome, self.held.id, &values).await? {
            Some(_) => Ok(()),
            None => {
                self.grip.lose();
                Err(Halt::Fenced)
            }
        }
    }

    /// What a failed call comes to.
    pub(super) async fn call_failed(
        &self,
        step: &Step,
        safety: Safety,
        doubt: Doubt,
        failed: Failed,
    ) -> Halt {
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
            Value::Int(state::REFUSED),
            Value::Bytes(self.held.id.as_bytes()),
            Value::Text(&step.name),
            Value::Text(&step.item),
        ];
        let mut tx = self.store.begin().await?;
        let conn = S::conn(&mut tx);
        if S::execute(conn, &sql.hold, &self.held.proof()).await? == 0 {
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
                undo_first_at: row.int(14)?,
                reason: row.text(15)?.to_owned(),
                now: row.int(16)?,
            };
            Ok((step, intent))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent_of(safety: Safety, state: i64) -> Intent {
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
            undo_first_at: 0,
            reason: String::new(),
            now: 1_000,
        }
    }

    /// Past the window of the other side nothing is called again.
    #[test]
    fn a_keyed_call_is_repeated_within_its_window_and_never_past_it() {
        let window = Duration::from_secs(86_400);
        let keyed = Safety::Keyed { window };
        let hour = 3_600_000_000;
        let found = intent_of(keyed, state::INTENDED);
        let at = |age| next(Some((&found, age)), false);
        assert_eq!(at(0), Next::Again);
        assert_eq!(at(22 * hour), Next::Again);
        assert_eq!(at(23 * hour), Next::Park(PAST));
        assert_eq!(at(72 * hour), Next::Park(PAST));
        let asked = next(Some((&found, 72 * hour)), true);
        assert_eq!(asked, Next::Ask);
    }

    #[test]
    fn an_unknown_outcome_is_treated_by_its_class() {
        let of = |safety, ask| next(Some((&intent_of(safety, state::INTENDED), 0)), ask);
        assert_eq!(of(Safety::Natural, false), Next::Again);
        assert_eq!(of(Safety::Probed, true), Next::Ask);
        assert_eq!(of(Safety::Probed, false), Next::Park(PAST));
        assert_eq!(of(Safety::Once, false), Next::Park(ONCE));
        assert_eq!(of(Safety::Once, true), Next::Park(ONCE));
        assert_eq!(next(None, false), Next::First);
        // What was surely refused may be called again, and what was undone may not.
        assert_eq!(next(Some((&intent_of(Safety::Once, state::REFUSED), 0)), false), Next::Again);
        let undone = intent_of(Safety::Keyed { window: Duration::MAX }, state::UNDONE);
        assert_eq!(next(Some((&undone, 0)), true), Next::Park(UNDONE));
    }
}
